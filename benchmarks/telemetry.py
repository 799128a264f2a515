"""Telemetry stored through ingest, beside what the same stream costs without the work, in the same run.

    python -m benchmarks.telemetry [--rounds 3] [--seconds 3] [--gpus 16] [--samples 32] [--streams 1] [--seed 1]
                                   [--json]

A sample is one GPU at one time, with five metrics. One client process pushes blocks of `samples` times x `gpus` GPUs
over loopback; counted is what the answer says is stored, and it is compared with what the Redis stream has taken.
References: `bare` (grpc.aio and uvloop, a handler that only takes the messages) and `decode` (which makes arrays of the
columns as well). The goal: at least 300 k samples/s.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import redis

from adlro.kit.channel import open_channel
from adlro.v1 import cluster_pb2, telemetry_pb2, telemetry_service_pb2, telemetry_service_pb2_grpc
from benchmarks.measuring import client_result, command, figures, obey, ratios, servers, shown

WARM_UP_BLOCKS = 50
GOAL_SAMPLES_PER_S = 300_000
GPUS_A_NODE = 8
STREAM = "adlro:telemetry:default"
COLUMNS = (
    (telemetry_pb2.METRIC_UTILIZATION, telemetry_pb2.UNIT_PERCENT, 100.0),
    (telemetry_pb2.METRIC_MEMORY_USED, telemetry_pb2.UNIT_MIB, 16_160.0),
    (telemetry_pb2.METRIC_MEMORY_BANDWIDTH, telemetry_pb2.UNIT_GB_PER_S, 897.0),
    (telemetry_pb2.METRIC_TEMPERATURE, telemetry_pb2.UNIT_CELSIUS, 90.0),
    (telemetry_pb2.METRIC_POWER, telemetry_pb2.UNIT_W, 300.0),
)


def cluster(gpus: int) -> cluster_pb2.Cluster:
    """So many V100, eight a node."""
    return cluster_pb2.Cluster(
        name="default",
        nodes=[
            cluster_pb2.Node(
                node_id=f"node-{first // GPUS_A_NODE}",
                cpu_cores=40,
                memory_mib=524_288,
                gpus=[
                    cluster_pb2.Gpu(gpu_id=f"gpu-{number}", gpu_model="v100_sxm2", memory_mib=16_160)
                    for number in range(first, min(first + GPUS_A_NODE, gpus))
                ],
            )
            for first in range(0, gpus, GPUS_A_NODE)
        ],
    )


async def record_cluster(address: str, gpus: int) -> None:
    """Tells ingest what the cluster is."""
    async with open_channel(address) as channel:
        stub = telemetry_service_pb2_grpc.TelemetryServiceStub(channel)
        await stub.UpsertCluster(telemetry_service_pb2.UpsertClusterRequest(cluster=cluster(gpus)), timeout=10)


async def client(arguments: dict[str, Any]) -> dict[str, Any]:
    """Pushes blocks for a while."""
    times, gpus = arguments["samples"], arguments["gpus"]
    draw = np.random.default_rng(arguments["seed"])
    columns = [
        telemetry_pb2.MetricColumn(
            metric=metric, unit=unit, values_f32=(draw.random((times, gpus)) * full).astype("<f4").tobytes()
        )
        for metric, unit, full in COLUMNS
    ]
    gpu_ids = [f"gpu-{number}" for number in range(gpus)]

    def request(with_ids: bool) -> telemetry_service_pb2.PushTelemetryRequest:
        now = time.time()
        return telemetry_service_pb2.PushTelemetryRequest(
            block=telemetry_pb2.TelemetryBlock(
                cluster="default",
                gpu_ids=gpu_ids if with_ids else (),
                sample_times_unix_s=[now + index * 1e-3 for index in range(times)],
                columns=columns,
            )
        )

    async def push(stub: Any, seconds: float, at_most: int | None) -> tuple[int, Any]:
        sent = 0
        end = time.perf_counter() + seconds

        async def blocks() -> AsyncIterator[telemetry_service_pb2.PushTelemetryRequest]:
            nonlocal sent
            while time.perf_counter() < end and sent != at_most:
                sent += 1
                yield request(with_ids=sent == 1)

        answer = await stub.PushTelemetry(blocks(), timeout=60)
        return sent, answer

    async with open_channel(arguments["address"]) as channel:
        stub = telemetry_service_pb2_grpc.TelemetryServiceStub(channel)
        await push(stub, 10.0, WARM_UP_BLOCKS)
        begin = time.perf_counter()
        answers = await asyncio.gather(*(push(stub, arguments["seconds"], None) for _ in range(arguments["streams"])))
        elapsed_s = time.perf_counter() - begin
    sent = sum(each for each, _ in answers)
    acknowledged = sum(answer.block_count for _, answer in answers)
    if sent != acknowledged:
        raise SystemExit(f"{sent} blocks were sent and {acknowledged} acknowledged")
    return {"blocks": acknowledged, "samples_per_s": acknowledged * times * gpus / elapsed_s}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds, the targets in turn."""
    with servers("bare", "decode") as (redis_url, targets), redis.Redis.from_url(redis_url) as store:
        asyncio.run(record_cluster(targets["ingest"].address, arguments.gpus))
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in targets}
        asked = {name: getattr(arguments, name) for name in ("seconds", "samples", "gpus", "streams")}
        for number in range(arguments.rounds):
            for name, target in targets.items():
                taken_before = _taken(store)
                result, cpu = client_result("benchmarks.telemetry", target, {**asked, "seed": arguments.seed + number})
                blocks = result["blocks"] + WARM_UP_BLOCKS
                if cpu is not None:
                    result["server_cpu_us_per_block"] = 1e6 * cpu / blocks
                if name == "ingest" and _taken(store) - taken_before != blocks:
                    raise SystemExit("the stream has not taken what was acknowledged")
                rounds[name].append(result)
    found = figures(rounds)
    return {
        **asked,
        "figures": found,
        "ratios": {
            f"samples_over_{name}": ratios(rounds, "samples_per_s", "ingest", name) for name in ("bare", "decode")
        },
        "met": found["ingest"]["samples_per_s"]["median"] >= GOAL_SAMPLES_PER_S,
    }


def report(result: dict[str, Any]) -> None:
    """The figures for people."""
    print(f"machine: {result['machine']}")
    print(
        f"PushTelemetry, {result['streams']} stream(s), blocks of {result['samples']} times x {result['gpus']} GPUs x "
        f"{len(COLUMNS)} metrics, {result['rounds']} rounds of {result['seconds']:g} s in turn, seed {result['seed']}; "
        "median (least..greatest)"
    )
    for name, each in result["figures"].items():
        cpu = each.get("server_cpu_us_per_block")
        print(
            f"  {name:7s} {shown(each['samples_per_s'], 'samples/s'):46s}"
            + (f" server CPU {shown(cpu, 'us/block')}" if cpu else "")
        )
    for key, each in result["ratios"].items():
        print(f"  ingest {key:20s} {shown(each, '', 2)}")
    print(f"  >= {GOAL_SAMPLES_PER_S:,} samples/s: {'yes' if result['met'] else 'NO'}")


def _taken(store: redis.Redis) -> int:
    """Entries that the stream has taken since it began, trimmed ones too."""
    if not store.exists(STREAM):
        return 0
    info: Any = store.xinfo_stream(STREAM)
    return int(info["entries-added"])


def main() -> None:
    """Parses arguments; runs the client where this process is one."""
    parser = command(__doc__, rounds=3, seconds=3.0)
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--streams", type=int, default=1)
    obey(parser, run, report, client)


if __name__ == "__main__":
    main()
