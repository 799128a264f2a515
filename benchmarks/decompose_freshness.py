"""How fresh GetClusterState is, with telemetry on its whole way: pushed to ingest, through Redis, folded by decompose.

    python -m benchmarks.decompose_freshness [--rounds 3] [--seconds 10] [--gpus 1000] [--sources 10] [--hz 1]
                                             [--reads 10] [--seed 1] [--json]

Each source pushes one sample of its GPUs `hz` times a second, sources at random phases; five metrics. A reader calls
GetClusterState `reads` times a second, as a scheduler would. An answer's age is that of the oldest sample that had been
taken before the answer came and that the answer lacks: 0 where it lacks none. The goal: at most 250 ms for 99 % of
answers, with 1,000 GPUs at 1 Hz. Valkey, ingest, decompose and the client (sources and reader) are a process each.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from adlro.kit.channel import open_channel
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.testing import spawn_service
from adlro.v1 import (
    decompose_service_pb2,
    decompose_service_pb2_grpc,
    telemetry_pb2,
    telemetry_service_pb2,
    telemetry_service_pb2_grpc,
)
from benchmarks.measuring import client_result, command, figures, obey, percentile, shown
from benchmarks.telemetry import COLUMNS, record_cluster

GOAL_MS = 250.0


class Sources:
    """What was sampled, and when: by GPU the times of all its samples, oldest first."""

    def __init__(self, gpus: int, sources: int) -> None:
        self.gpu_ids = [[f"gpu-{number}" for number in part] for part in np.array_split(np.arange(gpus), sources)]
        self.source_of = {gpu_id: number for number, part in enumerate(self.gpu_ids) for gpu_id in part}
        self.times_s: list[list[float]] = [[] for _ in range(sources)]

    async def push(self, stub: Any, number: int, hz: float, rng: np.random.Generator, until_s: float) -> int:
        """Pushes one source's samples. Returns how many blocks ingest has acknowledged."""
        count = len(self.gpu_ids[number])

        async def blocks() -> AsyncIterator[telemetry_service_pb2.PushTelemetryRequest]:
            at_s = time.time() + rng.random() / hz
            first = True
            while at_s < until_s:
                await asyncio.sleep(max(0.0, at_s - time.time()))
                now_s = time.time()
                self.times_s[number].append(now_s)
                yield telemetry_service_pb2.PushTelemetryRequest(
                    block=telemetry_pb2.TelemetryBlock(
                        cluster="default",
                        gpu_ids=self.gpu_ids[number] if first else (),
                        sample_times_unix_s=[now_s],
                        columns=[
                            telemetry_pb2.MetricColumn(
                                metric=metric, unit=unit, values_f32=(rng.random(count) * full).astype("<f4").tobytes()
                            )
                            for metric, unit, full in COLUMNS
                        ],
                    )
                )
                first = False
                at_s += 1 / hz

        answer = await stub.PushTelemetry(blocks(), timeout=until_s - time.time() + 30)
        return int(answer.block_count)

    def age_s(self, state: decompose_service_pb2.ClusterState, now_s: float) -> float:
        """Of the oldest sample that a state that came just now lacks."""
        shown_s = np.full(len(self.times_s), np.inf)
        for gpu in state.gpus:
            newest = gpu.sample_time_unix_s if gpu.HasField("sample_time_unix_s") else 0.0
            source = self.source_of[gpu.gpu_id]
            shown_s[source] = min(shown_s[source], newest)
        lacking = [
            next((at for at in times if at > seen + 1e-6), now_s)
            for times, seen in zip(self.times_s, shown_s, strict=True)
        ]
        return now_s - min(lacking)


async def client(arguments: dict[str, Any]) -> dict[str, Any]:
    """Pushes and reads for a while."""
    rng = np.random.default_rng(arguments["seed"])
    sources = Sources(arguments["gpus"], arguments["sources"])
    ages_ms: list[float] = []
    took_ms: list[float] = []
    until_s = time.time() + 2.0 + arguments["seconds"]
    begin_s = until_s - arguments["seconds"]  # by then all sources have reported, and connections stand

    async def read(stub: Any) -> None:
        while time.time() < until_s:
            await asyncio.sleep(rng.random() * 2 / arguments["reads"])
            began = time.perf_counter()
            answer = await stub.GetClusterState(decompose_service_pb2.GetClusterStateRequest(), timeout=10)
            now_s = time.time()
            if now_s > begin_s:
                took_ms.append(1000 * (time.perf_counter() - began))
                ages_ms.append(1000 * sources.age_s(answer.state, now_s))

    async with open_channel(arguments["ingest"]) as ingest, open_channel(arguments["address"]) as decompose:
        pushing = telemetry_service_pb2_grpc.TelemetryServiceStub(ingest)
        reading = decompose_service_pb2_grpc.DecomposeServiceStub(decompose)
        rngs = rng.spawn(arguments["sources"])
        reader = asyncio.create_task(read(reading))
        acknowledged = await asyncio.gather(
            *(sources.push(pushing, number, arguments["hz"], each, until_s) for number, each in enumerate(rngs))
        )
        await reader
    sent = sum(map(len, sources.times_s))
    if sent != sum(acknowledged):
        raise SystemExit(f"{sent} blocks were sent and {sum(acknowledged)} acknowledged")
    return {
        "answers": len(ages_ms),
        "age_p50_ms": percentile(ages_ms, 0.5),
        "age_p99_ms": percentile(ages_ms, 0.99),
        "age_max_ms": max(ages_ms),
        "call_p50_ms": percentile(took_ms, 0.5),
        "call_p99_ms": percentile(took_ms, 0.99),
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds, one after the other."""
    asked = {name: getattr(arguments, name) for name in ("seconds", "gpus", "sources", "hz", "reads")}
    rounds: list[dict[str, Any]] = []
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis(stack.enter_context(tempfile.TemporaryDirectory())))
        environment = {"ADLRO_REDIS_URL": redis.url}
        ingest = stack.enter_context(spawn_service("ingest", environment))
        decompose = stack.enter_context(spawn_service("decompose", environment))
        asyncio.run(record_cluster(ingest.address, arguments.gpus))
        for number in range(arguments.rounds):
            told = {**asked, "ingest": ingest.address, "seed": arguments.seed + number}
            result, cpu = client_result("benchmarks.decompose_freshness", decompose, told)
            if cpu is not None:
                result["decompose_cpu_share"] = cpu / (arguments.seconds + 2.0)
            rounds.append(result)
    found = figures({"decompose": rounds})
    return {**asked, "figures": found, "met": found["decompose"]["age_p99_ms"]["median"] <= GOAL_MS}


def report(result: dict[str, Any]) -> None:
    """The figures for people."""
    print(f"machine: {result['machine']}")
    print(
        f"GetClusterState of {result['gpus']} GPUs at {result['hz']:g} Hz from {result['sources']} sources through "
        f"ingest, {result['reads']:g} reads/s, {result['rounds']} rounds of {result['seconds']:g} s, seed "
        f"{result['seed']}; median (least..greatest) of the rounds"
    )
    each = result["figures"]["decompose"]
    for name in ("age", "call"):
        for share in ("p50", "p99", "max"):
            if (key := f"{name}_{share}_ms") in each:
                print(f"  {name} {share:4s} {shown(each[key], 'ms', 1)}")
    if "decompose_cpu_share" in each:
        print(f"  decompose's share of a core {shown(each['decompose_cpu_share'], '', 2)}")
    print(f"  age p99 <= {GOAL_MS:g} ms: {'yes' if result['met'] else 'NO'}")


def main() -> None:
    """Parses arguments; runs the client where this process is one."""
    parser = command(__doc__, rounds=3, seconds=10.0)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--sources", type=int, default=10)
    parser.add_argument("--hz", type=float, default=1.0)
    parser.add_argument("--reads", type=float, default=10.0)
    obey(parser, run, report, client)


if __name__ == "__main__":
    main()
