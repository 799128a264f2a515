"""Four hostile clients at once, and what another user notices of them: his latency, and ingest's memory.

    python -m benchmarks.hostile_clients [--seconds 20] [--rounds 1] [--jobs 5000] [--seed 1] [--json]

Starts Valkey and ingest with tokens on free ports of this machine, records `jobs` jobs, and lets one user submit a job
and list jobs again and again, first alone, then beside four others, each a process of its own, for `seconds`:

    values    ListJobs with 16,000,000 states, then as many as fit into a message; a job with 700,000 labels, likewise
    bodies    100 submissions of 15 MiB at once, 100 of 4 MiB, and 100 calls whose message never comes
    watchers  200 watches from the beginning that are never read, in two users' names
    streams   SubmitJobs with 60,000 jobs that break a rule, and with 350,000 that don't

The goal: ingest's peak resident memory below 400 MiB, the user's p99 below 1 s, and none of his calls refused.
Linux only, for the memory. Each round begins with an ingest and a Valkey of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc

from adlro.kit.channel import open_channel
from adlro.kit.credentials import Credentials
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.identity import Role, new_token, users_line
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import SpawnedService, spawn_service
from adlro.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from benchmarks.measuring import ClientProcess, command, obey, percentile, spread, tell

GOAL_PEAK_MIB, GOAL_P99_MS = 400.0, 1000.0
USER = "user"
HOSTILE = ("values", "bodies", "watchers", "streams")
MIB = 1 << 20
# What a hostile client sends goes out whole, whatever the server takes.
SENT_BYTES = 64 * MIB
CALL_TIMEOUT_S = 30.0
# What the service takes at most, and a little less.
FITTING_BYTES = 4 * MIB - 1024
SUBMIT_CHUNK = 500


def job(user: str, draw: random.Random) -> job_pb2.JobSpec:
    """A job with some kilobytes of labels."""
    return job_pb2.JobSpec(
        name=f"job {draw.randrange(10**9)}",
        user=user,
        job_type=job_pb2.JOB_TYPE_SIMULATION,
        labels={f"key-{index}": "v" * draw.randrange(1, 255) for index in range(draw.randrange(16))},
    )


def caller(arguments: dict[str, Any], user: str) -> Any:
    """A channel that shows the token of a user."""
    return open_channel(arguments["address"], Credentials(token=arguments["tokens"][user]), SENT_BYTES)


class Answers:
    """Counts what calls ended with."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    async def of(self, call: Awaitable[Any]) -> None:
        """Waits for a call."""
        try:
            await call
            self.counts["OK"] += 1
        except grpc.aio.AioRpcError as error:
            told = from_rpc_error(error)
            self.counts[f"{error.code().name} {told.reason}".strip()] += 1


async def use(arguments: dict[str, Any]) -> dict[str, Any]:
    """The user: a job after the other is submitted and read."""
    draw = random.Random(arguments["seed"])
    latencies_ms: list[float] = []
    answers = Answers()
    async with caller(arguments, USER) as channel:
        stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
        end = time.monotonic() + arguments["seconds"]
        while time.monotonic() < end:
            for method, request in (
                (stub.SubmitJob, job_service_pb2.SubmitJobRequest(job=job(USER, draw))),
                (stub.ListJobs, job_service_pb2.ListJobsRequest(page_size=10)),
            ):
                began = time.perf_counter()
                await answers.of(method(request, timeout=CALL_TIMEOUT_S))
                latencies_ms.append(1e3 * (time.perf_counter() - began))
            await asyncio.sleep(0.02)
    return {"latencies_ms": latencies_ms, "answers": answers.counts}


def raw(channel: Any, method: str) -> Any:
    """A unary method to which bytes are sent."""
    return channel.unary_unary(f"/adlro.v1.JobService/{method}", None, None)


async def values(arguments: dict[str, Any], answers: Answers) -> None:
    """Messages of a great many values, four at a time."""

    def states(count: int) -> bytes:
        # Of the request field 1, the filter; of that field 1, the states; each is PENDING.
        packed = b"\x0a" + _varint(count) + b"\x01" * count
        return b"\x0a" + _varint(len(packed)) + packed

    def labels(count: int) -> bytes:
        made = job_pb2.JobSpec(name="n", user="values", job_type=1, labels={f"{index:x}": "" for index in range(count)})  # type: ignore[arg-type]
        return job_service_pb2.SubmitJobRequest(job=made).SerializeToString()

    messages = [
        ("ListJobs", states(16_000_000)),
        ("ListJobs", states(FITTING_BYTES)),
        ("ListJobs", states(500_000)),
        ("SubmitJob", labels(700_000)),
        ("SubmitJob", labels(300_000)),
        ("SubmitJob", labels(6_000)),
    ]
    async with caller(arguments, "values") as channel:

        async def send() -> None:
            for method, message in messages:
                await answers.of(raw(channel, method)(message, timeout=CALL_TIMEOUT_S))

        await again(arguments["seconds"], lambda: asyncio.gather(*(send() for _ in range(4))))


async def bodies(arguments: dict[str, Any], answers: Answers) -> None:
    """Large messages, and none at all, a hundred at once."""

    def submission(size: int) -> bytes:
        made = job_pb2.JobSpec(name="n" * size, user="bodies", job_type=job_pb2.JOB_TYPE_SIMULATION)
        return job_service_pb2.SubmitJobRequest(job=made).SerializeToString()

    async with caller(arguments, "bodies") as channel:

        async def round_of_calls() -> None:
            silent = channel.stream_unary("/adlro.v1.JobService/GetJob", None, None)
            waiting = [silent(timeout=CALL_TIMEOUT_S) for _ in range(100)]
            for message in (submission(15 * MIB), submission(FITTING_BYTES)):
                calls = [raw(channel, "SubmitJob")(message, timeout=CALL_TIMEOUT_S) for _ in range(100)]
                await asyncio.gather(*(answers.of(call) for call in calls))
            for call in waiting:
                call.cancel()

        await again(arguments["seconds"], round_of_calls)


async def watchers(arguments: dict[str, Any], answers: Answers) -> None:
    """Watches that are opened and never read."""
    async with caller(arguments, "watcher-a") as first, caller(arguments, "watcher-b") as second:
        stubs = [job_service_pb2_grpc.JobServiceStub(channel) for channel in (first, second)]
        calls = [stub.WatchJobs(job_service_pb2.WatchJobsRequest()) for stub in stubs for _ in range(100)]
        await asyncio.sleep(arguments["seconds"])
        answers.counts["open at the end"] += sum(not call.done() for call in calls)
        for call in calls:
            call.cancel()


async def streams(arguments: dict[str, Any], answers: Answers) -> None:
    """Streams of more jobs than one takes."""
    bad = job_service_pb2.SubmitJobsRequest(job=job_pb2.JobSpec(name="n", user="streams", job_type=1, priority=2.0))  # type: ignore[arg-type]
    good = job_service_pb2.SubmitJobsRequest(job=job_pb2.JobSpec(name="n", user="streams", job_type=1))  # type: ignore[arg-type]

    def many(message: job_service_pb2.SubmitJobsRequest, count: int) -> Iterator[job_service_pb2.SubmitJobsRequest]:
        for _ in range(count):
            yield message

    async with caller(arguments, "streams") as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)

        async def both() -> None:
            for message, count in ((bad, 60_000), (good, 350_000)):
                await answers.of(stub.SubmitJobs(many(message, count), timeout=CALL_TIMEOUT_S))

        await again(arguments["seconds"], both)


async def again(seconds: float, act: Callable[[], Awaitable[Any]]) -> None:
    """Does it again and again, and once at least."""
    end = time.monotonic() + seconds
    while True:
        await act()
        if time.monotonic() > end:
            return


async def client(arguments: dict[str, Any]) -> dict[str, Any]:
    """One of the processes; `role` says which."""
    if arguments["role"] == USER:
        return await use(arguments)
    act = {"values": values, "bodies": bodies, "watchers": watchers, "streams": streams}[arguments["role"]]
    answers = Answers()
    tell({"ready": True})
    await act(arguments, answers)
    return {"answers": answers.counts}


async def record_jobs(arguments: dict[str, Any], count: int) -> None:
    """What there is before anybody comes."""
    draw = random.Random(arguments["seed"])
    async with caller(arguments, "ops") as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        for start in range(0, count, SUBMIT_CHUNK):
            requests = [
                job_service_pb2.SubmitJobsRequest(job=job("someone", draw))
                for _ in range(min(SUBMIT_CHUNK, count - start))
            ]
            await stub.SubmitJobs(iter(requests), timeout=CALL_TIMEOUT_S)


def memory_mib(service: SpawnedService, key: str) -> float:
    """`VmRSS`, what a process holds now; `VmHWM`, the most that it ever held."""
    lines = Path(f"/proc/{service.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def one_round(arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """An ingest of its own: the user alone, then beside the four."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        roles = dict.fromkeys((USER, *HOSTILE, "watcher-a", "watcher-b"), Role.SUBMITTER)
        # Who sees all jobs holds the most of them.
        roles |= {"ops": Role.OPERATOR, "watcher-a": Role.READER, "watcher-b": Role.READER}
        tokens = {user: new_token(user) for user in roles}
        users = directory / "users"
        users.write_text("\n".join(users_line(tokens[user], [role]) for user, role in roles.items()) + "\n")
        redis = stack.enter_context(EmbeddedRedis(directory / "redis"))
        settings = {"ADLRO_REDIS_URL": redis.url, "ADLRO_USERS_FILE": str(users)}
        ingest = stack.enter_context(spawn_service("ingest", settings))
        sent = {"address": ingest.address, "tokens": tokens, "seed": seed, "seconds": arguments.seconds}
        asyncio.run(record_jobs(sent, arguments.jobs))
        before_mib = memory_mib(ingest, "VmRSS")

        def start(role: str, seconds: float = arguments.seconds) -> ClientProcess:
            process = ClientProcess("benchmarks.hostile_clients", {**sent, "role": role, "seconds": seconds})
            stack.callback(process.stop)
            return process

        alone = start(USER, min(arguments.seconds, 5.0)).result()
        hostile = {role: start(role) for role in HOSTILE}
        for process in hostile.values():
            process.wait_ready()
        beside = start(USER).result()
        answers = {role: process.result()["answers"] for role, process in hostile.items()}
        return {
            "before_mib": before_mib,
            "peak_mib": memory_mib(ingest, "VmHWM"),
            "calls": len(beside["latencies_ms"]),
            "alone_p99_ms": percentile(alone["latencies_ms"], 0.99),
            "p50_ms": statistics.median(beside["latencies_ms"]),
            "p99_ms": percentile(beside["latencies_ms"], 0.99),
            "longest_ms": max(beside["latencies_ms"]),
            "user": beside["answers"],
            "hostile": answers,
        }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds."""
    rounds = [one_round(arguments, arguments.seed + number) for number in range(arguments.rounds)]
    names = ("before_mib", "peak_mib", "alone_p99_ms", "p50_ms", "p99_ms", "longest_ms", "calls")
    return {
        "seconds": arguments.seconds,
        "jobs": arguments.jobs,
        "figures": {name: spread([each[name] for each in rounds]) for name in names},
        "user": [each["user"] for each in rounds],
        "hostile": [each["hostile"] for each in rounds],
        "met": {
            "peak": all(each["peak_mib"] < GOAL_PEAK_MIB for each in rounds),
            "p99": all(each["p99_ms"] < GOAL_P99_MS for each in rounds),
            "served": all(set(each["user"]) == {"OK"} for each in rounds),
        },
    }


def report(result: dict[str, Any]) -> None:
    """The figures for people."""
    found = {name: f"{each['median']:,.1f}" for name, each in result["figures"].items()}
    worst = {name: f"{each['max']:,.1f}" for name, each in result["figures"].items()}
    print(f"machine: {result['machine']}")
    print(f"{result['rounds']} round(s) of {result['seconds']:g} s, {result['jobs']} jobs, seed {result['seed']}")
    print(f"  ingest: {found['before_mib']} MiB before, peak {worst['peak_mib']} MiB")
    print(f"  the user alone: p99 {found['alone_p99_ms']} ms")
    print(
        f"  the user beside the four: {found['calls']} calls, p50 {found['p50_ms']} ms, p99 {worst['p99_ms']} ms, "
        f"longest {worst['longest_ms']} ms; {result['user'][0]}"
    )
    for role, answers in result["hostile"][0].items():
        print(f"  {role:9s} {answers}")
    met = {name: "yes" if each else "NO" for name, each in result["met"].items()}
    print(
        f"  peak < {GOAL_PEAK_MIB:g} MiB: {met['peak']}; p99 < {GOAL_P99_MS:g} ms: {met['p99']}; "
        f"every call of the user served: {met['served']}"
    )


def _varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def main() -> None:
    """Parses arguments; runs the client where this process is one."""
    parser = command(__doc__, rounds=1, seconds=20.0)
    parser.add_argument("--jobs", type=int, default=5000)
    obey(parser, run, report, client)


if __name__ == "__main__":
    main()
