"""How long a decision takes, and how long it takes from a job's end in the cluster to the next job's launch.

    python -m benchmarks.dispatch_latency --json dispatch.json

Decisions: `Policy.judge` of one observation, in this process, at 16 and at 1,024 GPUs with 32 waiting jobs; beside the
learned policy `fcfs` and `hold_greedy_fixed`, in turns, so that all meet the same neighbours. From end to launch: real
processes (Valkey, simcluster in virtual time, orchestrator), and between the two a proxy that notes when a batch with
an end passes, and when the first launch before the next batch does; a list of the scenario `paper` at load 1.1, once
under each policy. That includes gRPC, the proxy and the write of the intent. Times depend on the machine and on who
else uses it: look at the ratios. `--checkpoint` takes another file than the shipped one.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.dqn import SHIPPED, Dqn
from adlro.hardware.speeds import REFERENCE_GPU_MODEL
from adlro.kit.channel import open_channel
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.redis import connect
from adlro.kit.testing import spawn_service
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec, JobType, NormalizedJob
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.state.candidate_table import gpus_of_job
from adlro.state.observation import Observation
from adlro.store import JobStore
from adlro.v1 import cluster_service_pb2 as cluster_pb
from adlro.v1 import cluster_service_pb2_grpc as cluster_grpc
from adlro.v1 import orchestrator_service_pb2 as pb
from adlro.v1 import orchestrator_service_pb2_grpc as pb_grpc
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.cluster_proxy import TIMEOUT_S, ClusterProxy

POLICY_NAMES = ("fcfs", "hold_greedy_fixed", "dqn")
WINDOW = 32
PERCENTILES = (50, 90, 99)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=SHIPPED)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--decisions", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    document = {
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "seed": options.seed,
        "checkpoint": Dqn(options.checkpoint).load().version,
        "decision_us": {
            f"{gpus} GPUs, {WINDOW} jobs": decisions(gpus, options.checkpoint, options.decisions, options.seed)
            for gpus in (16, 1024)
        },
        "end_to_launch_ms": asyncio.run(end_to_launch(options.checkpoint, options.jobs, options.seed)),
    }
    print(json.dumps(document, indent=2))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


# ---- decisions


def decisions(gpus: int, checkpoint: Path, count: int, seed: int) -> dict[str, Any]:
    """Microseconds of one decision by policy, with their ratios to fcfs."""
    seen = [busy_cluster(gpus, np.random.default_rng((seed, number))) for number in range(20)]
    made: dict[str, Policy] = {name: Dqn(checkpoint) if name == "dqn" else POLICIES[name]() for name in POLICY_NAMES}
    took: dict[str, list[float]] = {name: [] for name in made}
    for policy in made.values():
        policy.judge(seen[0])
    for number in range(count):
        for name, policy in made.items():
            began = time.perf_counter()
            policy.judge(seen[number % len(seen)])
            took[name].append(1e6 * (time.perf_counter() - began))
    return with_ratios(took)


def busy_cluster(gpus: int, rng: np.random.Generator) -> Observation:
    """A decision as the orchestrator sees one: four GPUs a node, three quarters busy, a full window of jobs waiting."""
    models = ("v100_sxm2", "rtx_2080_ti", "radeon_vii")
    nodes = tuple(
        Node(f"n{n}", 20, 262_144, tuple(Gpu(f"n{n}/{i}", models[n % 3], 16_000) for i in range(4)))
        for n in range(gpus // 4)
    )
    ledger = Ledger(Cluster("busy", nodes))
    for number in range(gpus * 3 // 4 + WINDOW):
        spec = JobSpec(
            "j", f"u{number % 7}", JobType(1 + number % 3), cpu_cores=int(rng.integers(1, 5)), memory_mib=2048
        )
        expected_s = np.exp(rng.normal(2.5, 0.7)) * rng.uniform(1.0, 3.0, len(models))
        entry = ledger.enter(_job(number, spec, -float(rng.uniform(0, 60))), 0, expected_s)
        ledger.enqueue(entry)
        if number < gpus * 3 // 4:
            _place_anywhere(ledger, entry, rng)
    return ledger.observe(1.0)


def _job(number: int, spec: JobSpec, submit_s: float) -> Job:
    return Job(f"job-{number}", spec, submit_s=submit_s)


def _place_anywhere(ledger: Ledger, entry: Entry, rng: np.random.Generator) -> None:
    row = ledger.queued().index(entry)
    fits = gpus_of_job(ledger.observe(0.0), 0, row)
    ledger.place(entry, [int(rng.choice(fits))], -float(rng.uniform(0, 20)))


# ---- from end to launch


class Stopwatch(ClusterProxy):
    """Notes when an end and a launch pass."""

    def __init__(self, upstream: grpc.aio.Channel) -> None:
        super().__init__(upstream)
        self._ended_at: float | None = None
        self.took_ms: list[float] = []

    async def on_launch(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """The first one after an end."""
        if self._ended_at is not None:
            self.took_ms.append(1000 * (time.perf_counter() - self._ended_at))
            self._ended_at = None

    def on_events(self, answer: bytes) -> None:
        """What is launched after the next batch was not launched for this one: the policy held."""
        events = cluster_pb.WatchEventsResponse.FromString(answer).events
        ended = any(event.kind == cluster_pb.EVENT_KIND_FINISHED for event in events)
        self._ended_at = time.perf_counter() if ended else None


async def end_to_launch(checkpoint: Path, jobs: int, seed: int) -> dict[str, Any]:
    """Milliseconds by policy, with their ratios to fcfs; each policy has the suite's processes anew."""
    return with_ratios({name: await _one_run(name, checkpoint, jobs, seed) for name in POLICY_NAMES})


async def _one_run(policy: str, checkpoint: Path, jobs: int, seed: int) -> list[float]:
    clock = {"ADLRO_SIMCLUSTER_CLOCK_MODE": "virtual", "ADLRO_SIMCLUSTER_CLOCK_PAUSED": "true"}
    with contextlib.ExitStack() as stack:
        redis_server = EmbeddedRedis(stack.enter_context(tempfile.TemporaryDirectory()))
        await asyncio.to_thread(redis_server.start)
        stack.callback(redis_server.stop)
        cluster = stack.enter_context(spawn_service("simcluster", clock | {"ADLRO_REDIS_URL": redis_server.url}))
        upstream = open_channel(cluster.address)
        proxy = Stopwatch(upstream)
        server, port = await proxy.serve()
        env = {
            "ADLRO_REDIS_URL": redis_server.url,
            "ADLRO_ORCHESTRATOR_CLUSTER_ADDRESS": f"127.0.0.1:{port}",
            "ADLRO_ORCHESTRATOR_DECOMPOSE_ADDRESS": "127.0.0.1:1",
            "ADLRO_ORCHESTRATOR_PREDICTION_TIMEOUT_S": "0.2",
            "ADLRO_ORCHESTRATOR_POLICY": policy,
            "ADLRO_ORCHESTRATOR_CHECKPOINT": str(checkpoint),
        }
        orchestrator = await asyncio.to_thread(lambda: stack.enter_context(spawn_service("orchestrator", env)))
        await _replay(orchestrator.address, upstream, redis_server.url, jobs, seed)
        await upstream.close(None)
        await server.stop(0)
    return proxy.took_ms


async def _replay(address: str, upstream: grpc.aio.Channel, redis_url: str, jobs: int, seed: int) -> None:
    scenario = load_scenario("paper")
    redis = connect(redis_url)
    store = JobStore(redis)
    channel = open_channel(address)
    stub: Any = pb_grpc.OrchestratorServiceStub(channel)
    cluster: Any = cluster_grpc.ClusterServiceStub(upstream)
    try:
        for job in draw_jobs(scenario, load=1.1, count=jobs, rng=np.random.default_rng(seed)):
            spec = replace(job.spec("j"), begin_time_s=job.submit_s + 1.0)
            if spec.expected_runtime is None:
                spec = replace(spec, expected_runtime=ExpectedRuntime(REFERENCE_GPU_MODEL, job.work_s))
            await store.create(spec, NormalizedJob(), "", 0.0)
        waiting = pb.GetStatusRequest()
        async with asyncio.timeout(TIMEOUT_S):
            while (await stub.GetStatus(waiting, timeout=TIMEOUT_S)).waiting_for_begin_time_count < jobs:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await cluster.SetClock(cluster_pb.SetClockRequest(paused=False), timeout=TIMEOUT_S)
        async with asyncio.timeout(10 * TIMEOUT_S):
            while await store.active():  # noqa: ASYNC110
                await asyncio.sleep(0.5)
    finally:
        await channel.close(None)
        await redis.aclose()


# ---- figures


def with_ratios(took: dict[str, list[float]]) -> dict[str, Any]:
    """Percentiles by policy, and those of all but fcfs divided by its own."""
    found: dict[str, Any] = {}
    reference = np.percentile(took["fcfs"], PERCENTILES)
    for name, values in took.items():
        percentiles = np.percentile(values, PERCENTILES)
        found[name] = {f"p{p}": round(float(value), 3) for p, value in zip(PERCENTILES, percentiles, strict=True)}
        found[name]["measured"] = len(values)
        if name != "fcfs":
            ratios = percentiles / reference
            found[name]["against_fcfs"] = {
                f"p{p}": round(float(ratio), 3) for p, ratio in zip(PERCENTILES, ratios, strict=True)
            }
    return found


if __name__ == "__main__":
    main()
