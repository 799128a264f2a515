"""From the submission of a job to the event at the client, with many watchers, beside one watcher, in the same run.

    python -m benchmarks.watch [--watchers 100] [--processes 2] [--rate 10] [--seconds 5] [--rounds 3] [--seed 1]
                               [--json]

Jobs are submitted at a steady rate by one client process; the watchers (WatchJobs, no filter) sit in `processes`
others. The time of a submission is taken before the call and travels in a label; each watcher subtracts it from the
time at which it has the decoded message (one clock for all processes of the machine). The goal: p99 under 50 ms with
100 watchers.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from typing import Any

from adlro.kit.channel import open_channel
from adlro.kit.testing import SpawnedService
from adlro.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from benchmarks.measuring import (
    ClientProcess,
    command,
    cpu_s,
    cpu_since,
    figures,
    obey,
    percentile,
    servers,
    shown,
    tell,
)

GOAL_P99_MS = 50.0
SENT = "sent_s"
CHANGE = job_service_pb2.WatchJobsResponse.KIND_CHANGE
SNAPSHOT_END = job_service_pb2.WatchJobsResponse.KIND_SNAPSHOT_END


def _now_s() -> float:
    # CLOCK_MONOTONIC: one clock for all processes of the machine.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


async def watch(arguments: dict[str, Any]) -> dict[str, Any]:
    """Watchers of one process: each takes `events` changes."""
    latencies_ms: list[float] = []

    async def one(stub: Any, ready: asyncio.Semaphore, revision: int) -> None:
        messages = stub.WatchJobs(job_service_pb2.WatchJobsRequest(after_revision=revision), timeout=120)
        ready.release()
        taken = 0
        async for message in messages:
            latencies_ms.append(1e3 * (_now_s() - float(message.job.spec.labels[SENT])))
            taken += 1
            if taken == arguments["events"]:
                messages.cancel()
                return

    async with open_channel(arguments["address"]) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        revision = 0
        async for message in stub.WatchJobs(job_service_pb2.WatchJobsRequest(), timeout=60):
            if message.kind == SNAPSHOT_END:
                revision = message.revision
                break
        ready = asyncio.Semaphore(0)
        tasks = [asyncio.ensure_future(one(stub, ready, revision)) for _ in range(arguments["watchers"])]
        for _ in tasks:
            await ready.acquire()
        await asyncio.sleep(0.5)  # the streams are open on the server
        tell({"ready": True})
        await asyncio.gather(*tasks)
    return {"latencies_ms": latencies_ms}


async def submit(arguments: dict[str, Any]) -> dict[str, Any]:
    """Submits jobs at a steady rate."""
    draw = random.Random(arguments["seed"])
    calls_ms = []
    async with open_channel(arguments["address"]) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        begin = time.perf_counter()
        for index in range(arguments["events"]):
            # Not in step with the timers of others.
            due = begin + (index + draw.random()) / arguments["rate"]
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent_s = _now_s()
            job = job_pb2.JobSpec(
                name=f"job {index}",
                user="u",
                job_type=job_pb2.JOB_TYPE_SIMULATION,
                labels={SENT: repr(sent_s)},
            )
            await stub.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=10)
            calls_ms.append(1e3 * (_now_s() - sent_s))
    return {"submit_p50_ms": percentile(calls_ms, 0.5), "submit_p99_ms": percentile(calls_ms, 0.99)}


def measure(
    ingest: SpawnedService, watchers: int, processes: int, events: int, rate: float, seed: int
) -> dict[str, Any]:
    """One round with so many watchers."""
    shares = [watchers // processes + (index < watchers % processes) for index in range(processes)]
    clients: list[ClientProcess] = []
    try:
        for share in shares:
            if share:
                arguments = {"role": "watch", "address": ingest.address, "watchers": share, "events": events}
                clients.append(ClientProcess("benchmarks.watch", arguments))
        for each in clients:
            each.wait_ready()
        cpu_before = cpu_s(ingest.pid)
        arguments = {"role": "submit", "address": ingest.address, "events": events, "rate": rate, "seed": seed}
        submitter = ClientProcess("benchmarks.watch", arguments)
        clients.append(submitter)
        result = submitter.result()
        latencies_ms = [ms for each in clients[:-1] for ms in each.result()["latencies_ms"]]
        cpu = cpu_since(ingest.pid, cpu_before)
    finally:
        for each in clients:
            each.stop()
    if len(latencies_ms) != watchers * events:
        raise SystemExit(f"{len(latencies_ms)} events came, {watchers * events} were expected")
    if cpu is not None:
        result["server_cpu_us_per_event"] = 1e6 * cpu / len(latencies_ms)
    return result | {
        "p50_ms": percentile(latencies_ms, 0.5),
        "p99_ms": percentile(latencies_ms, 0.99),
        "max_ms": max(latencies_ms),
    }


async def client(arguments: dict[str, Any]) -> dict[str, Any]:
    """What a client process does."""
    return await (watch(arguments) if arguments["role"] == "watch" else submit(arguments))


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds, one watcher and many in turn."""
    events = max(1, round(arguments.rate * arguments.seconds))
    rounds: dict[str, list[dict[str, Any]]] = {"one": [], "many": []}
    with servers() as (_, targets):
        for number in range(arguments.rounds):
            for name, watchers in (("one", 1), ("many", arguments.watchers)):
                seed = arguments.seed + number
                found = measure(targets["ingest"], watchers, arguments.processes, events, arguments.rate, seed)
                rounds[name].append(found)
    spreads = figures(rounds)
    return {
        "watchers": arguments.watchers,
        "processes": arguments.processes,
        "rate": arguments.rate,
        "events": events,
        "figures": spreads,
        "met": spreads["many"]["p99_ms"]["median"] < GOAL_P99_MS,
    }


def report(result: dict[str, Any]) -> None:
    """The figures for people."""
    print(f"machine: {result['machine']}")
    print(
        f"submission to event, {result['events']} jobs at {result['rate']:g}/s, {result['rounds']} rounds in turn, "
        f"watchers in {result['processes']} processes, seed {result['seed']}; median (least..greatest)"
    )
    for name, count in (("one", 1), ("many", result["watchers"])):
        each = result["figures"][name]
        print(
            f"  {count:4d} watcher(s)  p50 {shown(each['p50_ms'], 'ms', 2):24s} "
            f"p99 {shown(each['p99_ms'], 'ms', 2):26s} max {shown(each['max_ms'], 'ms', 1)}; "
            f"the call itself p50 {shown(each['submit_p50_ms'], 'ms', 2)}"
        )
    print(f"  p99 < {GOAL_P99_MS:g} ms with {result['watchers']} watchers: {'yes' if result['met'] else 'NO'}")


def main() -> None:
    """Parses arguments; runs a client where this process is one."""
    parser = command(__doc__, rounds=3, seconds=5.0)
    parser.add_argument("--watchers", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rate", type=float, default=10.0)
    obey(parser, run, report, client)


if __name__ == "__main__":
    main()
