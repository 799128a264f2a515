"""How far the orchestrator's view is behind a cluster of 1,024 GPUs when many jobs come at once.

    python -m benchmarks.event_lag [--jobs 2000] [--rate 12] [--seconds 90] [--scale 5] [--busy 4]
                                   [--policy hold_greedy_fixed]

Real processes: Valkey, simcluster with 1,024 GPUs and its clock scaled, decompose, ingest, orchestrator. It records
`--jobs` jobs at once, then `--rate` a second, and twice a second asks the cluster what it runs and how far its log
goes, and the orchestrator what it says: `said` is `running_count` of GetStatus, `ran` what the cluster ran at the same
moment, `behind` the events that the orchestrator had not applied. Jobs take 10 to 70 seconds of cluster time. Seeded;
times depend on the machine and on who else uses it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlro.client import AsyncClient, Endpoints
from adlro.errors import AdlroError
from adlro.hardware.speeds import REFERENCE_GPU_MODEL
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.redis import connect
from adlro.kit.testing import SpawnedService, spawn_service
from adlro.records.jobs import KINDS_OF_WORK, ExpectedRuntime, JobSpec, NormalizedJob, SimulatedWork
from adlro.store import JobStore, NewJob
from benchmarks.measuring import cpu_s, machine, percentile
from benchmarks.takeover import until

LOOK_S = 0.5
# Nodes, GPUs on each, model, memory of a GPU in MiB.
NODES = ((128, 4, "v100_sxm2", 16384), (64, 4, "rtx_2080_ti", 11264), (64, 4, "radeon_vii", 16384))


def cluster_file(folder: str) -> Path:
    """A cluster of 1,024 GPUs on 256 nodes of three models."""
    lines = ['name = "default"']
    for count, gpus, model, memory_mib in NODES:
        for number in range(count):
            lines += [
                "[[nodes]]",
                f'name = "{model.replace("_", "-")}-{number}"',
                f'gpu_model = "{model}"',
                f"gpus = {gpus}",
                f"gpu_memory_mib = {memory_mib}",
                "cpu_cores = 32",
                "memory_mib = 262144",
            ]
    path = Path(folder) / "cluster.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def drawn(draw: random.Random, number: int) -> NewJob:
    """A job of 10 to 70 seconds on the reference GPU."""
    work_s = draw.uniform(10.0, 70.0)
    spec = JobSpec(
        f"job {number}",
        f"user-{number % 20}",
        draw.choice(KINDS_OF_WORK),
        cpu_cores=draw.randint(1, 4),
        gpu_memory_mib=draw.choice((0, 4000, 8000)),
        expected_runtime=ExpectedRuntime(REFERENCE_GPU_MODEL, work_s),
        simulated_work=SimulatedWork(work_s),
    )
    return NewJob(spec, NormalizedJob(), "", time.time())


async def submit(store: JobStore, draw: random.Random, options: argparse.Namespace) -> None:
    """All jobs at once, then so many a second."""
    await store.create_many([drawn(draw, number) for number in range(options.jobs)])
    began, number = time.monotonic(), options.jobs
    while True:
        await asyncio.sleep(0.25)
        due = options.jobs + int(options.rate * (time.monotonic() - began))
        if due > number:
            await store.create_many([drawn(draw, each) for each in range(number, due)])
            number = due


async def look(client: AsyncClient, pid: int, seconds: float) -> dict[str, Any]:
    """Compares both twice a second."""
    rows: list[dict[str, float]] = []
    began, first = time.monotonic(), await client.status()
    cpu_before_s = cpu_s(pid)
    while (passed_s := time.monotonic() - began) < seconds:
        with contextlib.suppress(AdlroError):
            asked = time.monotonic()
            status, described = await asyncio.gather(client.status(), client.describe_cluster())
            rows.append(
                {
                    "at_s": round(passed_s, 1),
                    "said": status.running_count,
                    "ran": len(described.running),
                    "waiting": status.queue_length,
                    "behind": max(described.revision - status.cluster_revision, 0),
                    "answer_ms": 1000 * (time.monotonic() - asked),
                }
            )
        await asyncio.sleep(LOOK_S)
    last, passed_s = await client.status(), time.monotonic() - began
    behind, wrong = [row["behind"] for row in rows], [abs(row["said"] - row["ran"]) for row in rows]
    half = len(rows) // 2
    return {
        "decisions_per_s": (last.decision_count - first.decision_count) / passed_s,
        "behind": {"p50": percentile(behind, 0.5), "p95": percentile(behind, 0.95), "max": max(behind)},
        "behind_in_second_half": {"p50": percentile(behind[half:], 0.5), "max": max(behind[half:])},
        "said_minus_ran": {"p50": percentile(wrong, 0.5), "p95": percentile(wrong, 0.95), "max": max(wrong)},
        "ran_mean": sum(row["ran"] for row in rows) / len(rows),
        "status_ms_p95": percentile([row["answer_ms"] for row in rows], 0.95),
        "orchestrator_cpu_share": None if cpu_before_s is None else ((cpu_s(pid) or 0.0) - cpu_before_s) / passed_s,
        "rows": rows,
    }


@contextlib.contextmanager
def scarce(pid: int, count: int) -> Iterator[None]:
    """Lets a process, with all its threads, share a core with so many that spin."""
    if not count:
        yield
        return
    core = max(os.sched_getaffinity(0))
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})
    command = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"]
    spinning = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class RunningSuite:
    """Valkey's URL, and the services' processes."""

    redis_url: str
    ingest: SpawnedService
    decompose: SpawnedService
    orchestrator: SpawnedService
    cluster: SpawnedService

    @property
    def endpoints(self) -> Endpoints:
        """The services' addresses."""
        return Endpoints(*(each.address for each in (self.ingest, self.decompose, self.orchestrator, self.cluster)))


@contextlib.contextmanager
def large_suite(scale: float, policy: str) -> Iterator[RunningSuite]:
    """All services of a cluster of 1,024 GPUs on a scaled clock, each a process of its own."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        redis = stack.enter_context(EmbeddedRedis(stack.enter_context(tempfile.TemporaryDirectory())))
        env = {"ADLRO_REDIS_URL": redis.url}
        clock = {
            "ADLRO_SIMCLUSTER_CLUSTER": str(cluster_file(folder)),
            "ADLRO_SIMCLUSTER_CLOCK_MODE": "scaled",
            "ADLRO_SIMCLUSTER_CLOCK_SCALE": str(scale),
        }
        cluster = stack.enter_context(spawn_service("simcluster", env | clock))
        decompose = stack.enter_context(spawn_service("decompose", env))
        # Ingest's answers about the output of jobs are the cluster's; nobody asks for them here.
        ingest = stack.enter_context(spawn_service("ingest", env))
        known = {
            "ADLRO_ORCHESTRATOR_CLUSTER_ADDRESS": cluster.address,
            "ADLRO_ORCHESTRATOR_DECOMPOSE_ADDRESS": decompose.address,
            "ADLRO_ORCHESTRATOR_POLICY": policy,
        }
        orchestrator = stack.enter_context(spawn_service("orchestrator", env | known))
        yield RunningSuite(redis.url, ingest, decompose, orchestrator, cluster)


@contextlib.asynccontextmanager
async def jobs_coming(suite: RunningSuite, options: argparse.Namespace) -> AsyncIterator[AsyncClient]:
    """A client of the suite, once somebody decides; jobs come meanwhile.

    Args:
        suite: the services.
        options: `jobs` at once, then `rate` a second; `seed`.
    """
    records = connect(suite.redis_url)
    async with AsyncClient(endpoints=suite.endpoints, patience_s=0.0) as client:
        await until(client, lambda status: status.acting)
        submitting = asyncio.create_task(submit(JobStore(records), random.Random(options.seed), options))
        try:
            yield client
        finally:
            submitting.cancel()
            await asyncio.wait([submitting])
            await records.aclose()


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    with large_suite(options.scale, options.policy) as suite, scarce(suite.orchestrator.pid, options.busy):
        async with jobs_coming(suite, options) as client:
            return await look(client, suite.orchestrator.pid, options.seconds)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=12.0, help="jobs a second of wall time, after the first ones")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--scale", type=float, default=5.0)
    parser.add_argument("--busy", type=int, default=0, help="processes that spin on the orchestrator's core")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="hold_greedy_fixed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = {"machine": machine(), **vars(options), **asyncio.run(measured(options))}
    if options.json:
        json.dump(result, sys.stdout, indent=2)
        print()
        return
    facts = result["machine"]
    print(f"{facts['cores']} cores, load {facts['load_before']}, Python {facts['python']}, seed {options.seed}")
    load = f"{options.jobs} jobs at once, then {options.rate:g}/s, scale {options.scale:g}"
    print(f"{load}, {options.policy}, {options.busy} processes spin on the orchestrator's core")
    print("at s: said running / ran, waiting, behind")
    for row in result["rows"][:: max(1, len(result["rows"]) // 12)]:
        print(f"  {row['at_s']:5.1f}: {row['said']:4} / {row['ran']:4}, {row['waiting']:5}, {row['behind']:5}")
    for key, value in result.items():
        if key not in ("machine", "rows", *vars(options)):
            print(f"{key}: {value}")


if __name__ == "__main__":
    main()
