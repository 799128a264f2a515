"""What bad jobs cost the others: from a job's submission to its launch, with and without launches that fail.

    python -m benchmarks.refused_launches [--jobs 60] [--gap-s 0.25] [--rounds 3] [--json OUT.json]

Real processes (Valkey, simcluster in real time, orchestrator under fcfs), and between the two a proxy that notes when a
job's first launch passes. Jobs of 0.2 s come one by one, so that GPUs are always idle: what is measured is the way from
the record to the launch. By turns undisturbed; with three jobs whose launches are refused; with one whose launches
never get an answer; with both. Milliseconds of the good jobs, and their ratios to the undisturbed run of the same
round; and what the bad jobs' records say. Times depend on the machine and on who else uses it: look at the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from adlro.hardware.speeds import REFERENCE_GPU_MODEL
from adlro.kit.channel import open_channel
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.redis import connect
from adlro.kit.testing import spawn_service
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType, NormalizedJob, SimulatedWork
from adlro.store import JobStore
from adlro.v1 import cluster_service_pb2 as cluster_pb
from adlro.v1 import orchestrator_service_pb2 as pb
from adlro.v1 import orchestrator_service_pb2_grpc as pb_grpc
from benchmarks.cluster_proxy import TIMEOUT_S, ClusterProxy

WORK_S = 0.2
WARM_UP = 5
"""Jobs before those that are measured: the first decision of a process takes longer."""
SETTINGS = {"undisturbed": (0, 0), "3 refused": (3, 0), "1 unanswered": (0, 1), "3 refused, 1 unanswered": (3, 1)}
"""How many jobs are refused, and how many get no answer."""
PERCENTILES = (50, 99)


class Saboteur(ClusterProxy):
    """Refuses the launches of some jobs, does not answer those of others, and notes when the first of each comes."""

    def __init__(self, upstream: grpc.aio.Channel) -> None:
        super().__init__(upstream)
        self.refused: set[str] = set()
        self.unanswered: set[str] = set()
        self.launched_at: dict[str, float] = {}

    async def on_launch(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """As the job is."""
        job_id = cluster_pb.LaunchJobRequest.FromString(request).job_id
        self.launched_at.setdefault(job_id, time.perf_counter())
        if job_id in self.refused:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the node has no room on its disk")
        if job_id in self.unanswered:
            await asyncio.Event().wait()


async def play(jobs: int, gap_s: float, refused: int, unanswered: int) -> tuple[list[float], list[str]]:
    """Milliseconds from submission to launch of each good job, and what the records of the bad ones say at the end."""
    with contextlib.ExitStack() as stack:
        redis_server = EmbeddedRedis(stack.enter_context(tempfile.TemporaryDirectory()))
        await asyncio.to_thread(redis_server.start)
        stack.callback(redis_server.stop)
        cluster = stack.enter_context(spawn_service("simcluster", {"ADLRO_REDIS_URL": redis_server.url}))
        upstream = open_channel(cluster.address)
        proxy = Saboteur(upstream)
        server, port = await proxy.serve()
        env = {
            "ADLRO_REDIS_URL": redis_server.url,
            "ADLRO_ORCHESTRATOR_CLUSTER_ADDRESS": f"127.0.0.1:{port}",
            "ADLRO_ORCHESTRATOR_DECOMPOSE_ADDRESS": "127.0.0.1:1",
            "ADLRO_ORCHESTRATOR_PREDICTION_TIMEOUT_S": "0.2",
            "ADLRO_ORCHESTRATOR_POLICY": "fcfs",
        }
        orchestrator = await asyncio.to_thread(lambda: stack.enter_context(spawn_service("orchestrator", env)))
        channel, redis = open_channel(orchestrator.address), connect(redis_server.url)
        stub: Any = pb_grpc.OrchestratorServiceStub(channel)
        store = JobStore(redis)
        submitted_at: dict[str, float] = {}
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not (await stub.GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT_S)).acting:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            # Spread over the run, none among the first.
            bad = np.linspace(WARM_UP + 2, WARM_UP + jobs // 2, refused + unanswered, dtype=int)
            for number in range(WARM_UP + jobs):
                name = f"job-{number + 1}"
                if number in bad:
                    (proxy.unanswered if number in bad[refused:] else proxy.refused).add(name)
                spec = JobSpec(
                    name,
                    "ann",
                    JobType.SIMULATION,
                    simulated_work=SimulatedWork(WORK_S),
                    expected_runtime=ExpectedRuntime(REFERENCE_GPU_MODEL, WORK_S),
                )
                job = (await store.create(spec, NormalizedJob(), "", 0.0)).job
                assert job.job_id == name
                submitted_at[name] = time.perf_counter()
                await asyncio.sleep(gap_s)
            async with asyncio.timeout(TIMEOUT_S):
                bad_ids = proxy.refused | proxy.unanswered
                while {job.job_id for _, job in await store.active()} - bad_ids:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            said = [f"{job_id}: {(await store.get(job_id)).message}" for job_id in sorted(bad_ids)]
        finally:
            await channel.close(None)
            await redis.aclose()
            await upstream.close(None)
            await server.stop(0)
    measured = sorted(submitted_at, key=lambda name: submitted_at[name])[WARM_UP:]
    good = [name for name in measured if name not in bad_ids]
    return [1000.0 * (proxy.launched_at[name] - submitted_at[name]) for name in good], said


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--gap-s", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    rounds: list[dict[str, Any]] = []
    for _ in range(asked.rounds):
        figures: dict[str, Any] = {}
        for name, (refused, unanswered) in SETTINGS.items():
            took_ms, said = asyncio.run(play(asked.jobs, asked.gap_s, refused, unanswered))
            row = {f"p{p}_ms": round(float(np.percentile(took_ms, p)), 2) for p in PERCENTILES}
            base = figures.get("undisturbed", row)
            row |= {f"p{p}_ratio": round(row[f"p{p}_ms"] / base[f"p{p}_ms"], 2) for p in PERCENTILES}
            figures[name] = {**row, "jobs": len(took_ms), "said": said}
            print(name, json.dumps(figures[name]), flush=True)
        rounds.append(figures)
    document = {
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "rounds": rounds,
    }
    if asked.json:
        asked.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
