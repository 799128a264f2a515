"""SubmitJob through validation and the durable write, beside an empty handler on the same stack, in the same run.

    python -m benchmarks.submit [--rounds 5] [--seconds 3] [--concurrency 16] [--seed 1] [--json]

Starts ingest and Valkey on free ports, and two references: `bare` (grpc.aio and uvloop, a handler that answers at once,
no interceptor) and `kit` (the same handler behind the kit's interceptor). One client process sends the same messages to
each in turn. The goal: at least half of bare's rate, and a p99 of at most three times bare's.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
import uuid
from typing import Any

from adlro.kit.channel import open_channel
from adlro.kit.credentials import Credentials
from adlro.v1 import (
    cluster_pb2,
    job_pb2,
    job_service_pb2,
    job_service_pb2_grpc,
    telemetry_service_pb2,
    telemetry_service_pb2_grpc,
)
from benchmarks.measuring import client_result, command, figures, obey, percentile, ratios, servers, shown

WARM_UP_S = 0.5
CALL_TIMEOUT_S = 10.0
GOAL_RATE_RATIO, GOAL_P99_RATIO = 0.5, 3.0


def requests(count: int, seed: int) -> list[job_service_pb2.SubmitJobRequest]:
    """Jobs like those of the paper's scenario, each with a request id of its own."""
    draw = random.Random(seed)
    return [
        job_service_pb2.SubmitJobRequest(
            job=job_pb2.JobSpec(
                name=f"job {index}",
                user=f"user{draw.randrange(24)}",
                job_type=draw.choice([1, 2, 3]),  # type: ignore[arg-type]  # the numbers of JobType
                application=draw.choice(["resnet50_fp16", "cloverleaf_fp64", "recommender", "tealeaf"]),
                priority=draw.choice([0.25, 0.5, 1.0]),
                cpu_cores=draw.choice([1, 2, 4, 8]),
                gpu_memory_mib=draw.choice([1000, 4000, 8000]),
                expected_runtime=job_pb2.ExpectedRuntime(gpu_model="v100_sxm2", runtime_s=draw.uniform(1, 600)),
                labels={"project": "p"},
            ),
            request_id=str(uuid.uuid4()),
        )
        for index in range(count)
    ]


def paper_cluster() -> cluster_pb2.Cluster:
    """Sixteen GPUs of three kinds on four nodes."""
    models = [("v100_sxm2", 16_160), ("v100_sxm2", 16_160), ("rtx_2080_ti", 11_264), ("radeon_vii", 16_368)]
    return cluster_pb2.Cluster(
        name="default",
        nodes=[
            cluster_pb2.Node(
                node_id=f"node-{i}",
                cpu_cores=20,
                memory_mib=262_144,
                gpus=[cluster_pb2.Gpu(gpu_id=f"node-{i}/{j}", gpu_model=model, memory_mib=memory) for j in range(4)],
            )
            for i, (model, memory) in enumerate(models)
        ],
    )


async def record_cluster(address: str) -> None:
    """Tells ingest what the cluster is."""
    async with open_channel(address) as channel:
        stub = telemetry_service_pb2_grpc.TelemetryServiceStub(channel)
        request = telemetry_service_pb2.UpsertClusterRequest(cluster=paper_cluster())
        await stub.UpsertCluster(request, timeout=CALL_TIMEOUT_S)


async def client(arguments: dict[str, Any]) -> dict[str, Any]:
    """Sends jobs for a while, `concurrency` at a time; `environment` names what the client shows, if anything."""
    credentials = Credentials.from_environment(arguments.get("environment", {}))
    async with open_channel(arguments["address"], credentials) as channel:
        submit = job_service_pb2_grpc.JobServiceStub(channel).SubmitJob
        waiting = requests(int((arguments["seconds"] + WARM_UP_S) * 8000), arguments["seed"])
        latencies_s: list[float] = []
        begin = time.perf_counter() + WARM_UP_S
        end = begin + arguments["seconds"]

        async def send() -> None:
            while (now := time.perf_counter()) < end and waiting:
                await submit(waiting.pop(), timeout=CALL_TIMEOUT_S)
                if now >= begin:
                    latencies_s.append(time.perf_counter() - now)

        await asyncio.gather(*(send() for _ in range(arguments["concurrency"])))
        elapsed_s = time.perf_counter() - begin
    return {
        "calls": len(latencies_s),
        "rate": len(latencies_s) / elapsed_s,
        "p50_ms": 1e3 * percentile(latencies_s, 0.5),
        "p99_ms": 1e3 * percentile(latencies_s, 0.99),
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds, the targets in turn."""
    with servers("bare", "kit") as (_, targets):
        asyncio.run(record_cluster(targets["ingest"].address))
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in targets}
        asked = {"seconds": arguments.seconds, "concurrency": arguments.concurrency}
        for number in range(arguments.rounds):
            for name, target in targets.items():
                result, cpu = client_result("benchmarks.submit", target, {**asked, "seed": arguments.seed + number})
                if cpu is not None:
                    # The warm-up is in the CPU time, so its calls are counted in.
                    calls = result["calls"] * (1 + WARM_UP_S / arguments.seconds)
                    result["server_cpu_us_per_call"] = 1e6 * cpu / calls
                rounds[name].append(result)
    over = {
        f"{key}_over_{name}": ratios(rounds, key, "ingest", name)
        for key in ("rate", "p50_ms", "p99_ms")
        for name in ("bare", "kit")
    }
    return {
        **asked,
        "figures": figures(rounds),
        "ratios": over,
        "met": {
            "rate": over["rate_over_bare"]["median"] >= GOAL_RATE_RATIO,
            "p99": over["p99_ms_over_bare"]["median"] <= GOAL_P99_RATIO,
        },
    }


def report(result: dict[str, Any]) -> None:
    """The figures for people."""
    print(f"machine: {result['machine']}")
    print(
        f"SubmitJob, {result['concurrency']} at a time, {result['rounds']} rounds of {result['seconds']:g} s in turn, "
        f"seed {result['seed']}; median (least..greatest)"
    )
    for name, each in result["figures"].items():
        print(
            f"  {name:7s} {shown(each['rate'], 'calls/s'):32s} p50 {shown(each['p50_ms'], 'ms', 2):24s} "
            f"p99 {shown(each['p99_ms'], 'ms', 2):26s}"
            + (
                f" server CPU {shown(each['server_cpu_us_per_call'], 'us/call')}"
                if "server_cpu_us_per_call" in each
                else ""
            )
        )
    for key, each in result["ratios"].items():
        print(f"  ingest {key:20s} {shown(each, '', 2)}")
    print(
        f"  rate >= {GOAL_RATE_RATIO} of bare: {'yes' if result['met']['rate'] else 'NO'}; "
        f"p99 <= {GOAL_P99_RATIO} x bare: {'yes' if result['met']['p99'] else 'NO'}"
    )


def main() -> None:
    """Parses arguments; runs the client where this process is one."""
    parser = command(__doc__, rounds=5, seconds=3.0)
    parser.add_argument("--concurrency", type=int, default=16)
    obey(parser, run, report, client)


if __name__ == "__main__":
    main()
