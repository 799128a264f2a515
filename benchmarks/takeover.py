"""How soon an orchestrator acts again after `kill -9` while many jobs wait, and how it does meanwhile.

    python -m benchmarks.takeover --jobs 100000 --rounds 3

Real processes: Valkey, simcluster with its clock scaled, decompose, ingest, orchestrator. When all jobs are taken up,
it looks for some seconds at decisions a second, and at how long `GetStatus` and `ListJobs` (a page of 1,000) take
meanwhile. Then, in each round, it kills the orchestrator, starts another one at once (which has to wait until the dead
one's lease has run out), and measures from that start to the first answer that it acts, and to its first placement.
`lost` counts leases that it took in vain. Python keeps byte code for the processes, as where ADLRO is installed, in
images and by `make`: without it a start takes one to two seconds longer. Times depend on the machine and on who else
uses it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from adlro.client import AsyncClient, Endpoints, OrchestratorStatus
from adlro.errors import AdlroError
from adlro.hardware.speeds import REFERENCE_GPU_MODEL
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.redis import connect
from adlro.kit.testing import SpawnedService, spawn_service
from adlro.records.jobs import KINDS_OF_WORK, ExpectedRuntime, JobSpec, NormalizedJob, SimulatedWork
from adlro.store import JobStore, NewJob
from benchmarks.measuring import machine, percentile, spread

SCALE = 20.0
AT_ONCE = 1000
LOOK_S = 0.05
PATIENCE_S = 300.0


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="dqn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = {"machine": machine(), **vars(options), **asyncio.run(measured(options))}
    if options.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        report(result)


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    with contextlib.ExitStack() as stack:
        redis = EmbeddedRedis(stack.enter_context(tempfile.TemporaryDirectory()))
        await asyncio.to_thread(redis.start)
        stack.callback(redis.stop)
        byte_code = stack.enter_context(tempfile.TemporaryDirectory())
        env = {"ADLRO_REDIS_URL": redis.url, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": byte_code}
        clock = {"ADLRO_SIMCLUSTER_CLOCK_MODE": "scaled", "ADLRO_SIMCLUSTER_CLOCK_SCALE": str(SCALE)}

        def start(name: str, more: dict[str, str] | None = None) -> SpawnedService:
            return stack.enter_context(spawn_service(name, env | (more or {})))

        cluster, decompose, ingest = start("simcluster", clock), start("decompose"), start("ingest")
        addresses = {
            "ADLRO_ORCHESTRATOR_CLUSTER_ADDRESS": cluster.address,
            "ADLRO_ORCHESTRATOR_DECOMPOSE_ADDRESS": decompose.address,
            "ADLRO_ORCHESTRATOR_POLICY": options.policy,
        }
        orchestrator = start("orchestrator", addresses)
        began = time.monotonic()
        await submit(redis.url, options.jobs, options.seed)
        async with connected(ingest, decompose, orchestrator, cluster) as client:
            await until(client, lambda status: status.acting and taken_up(status) >= 0.99 * options.jobs)
            taken_up_s = time.monotonic() - began
            steady = await look(client, options.seconds)
        rounds = []
        for _ in range(options.rounds):
            await asyncio.to_thread(orchestrator.kill)
            began = time.monotonic()
            orchestrator = await asyncio.to_thread(start, "orchestrator", addresses)
            found = {"listening_s": time.monotonic() - began}
            async with connected(ingest, decompose, orchestrator, cluster) as client:
                status = await until(client, lambda status: status.acting)
                found["acting_s"] = time.monotonic() - began
                await until(client, lambda status: status.decision_count > 0)
                found["placing_s"] = time.monotonic() - began
                found["waiting_jobs"] = status.queue_length
                found["leases_lost"] = sum(
                    line["event"].startswith("session ended") for line in orchestrator.log_lines()
                )
            rounds.append(found)
    return {
        "taken_up_s": taken_up_s,
        "steady": steady,
        "takeover": {key: spread([each[key] for each in rounds]) for key in rounds[0]},
    }


def connected(*services: SpawnedService) -> AsyncClient:
    """A client of ingest, decompose, orchestrator and cluster that tries each call once."""
    return AsyncClient(endpoints=Endpoints(*(service.address for service in services)), patience_s=0.0)


async def submit(url: str, jobs: int, seed: int) -> None:
    """Records jobs as ingest does."""
    draw = random.Random(seed)
    redis = connect(url)
    try:
        store = JobStore(redis)
        for start in range(0, jobs, AT_ONCE):
            new = []
            for number in range(start, min(start + AT_ONCE, jobs)):
                work_s = draw.uniform(2.0, 20.0)
                spec = JobSpec(
                    f"job {number}",
                    f"user-{number % 20}",
                    draw.choice(KINDS_OF_WORK),
                    cpu_cores=draw.randint(1, 4),
                    gpu_memory_mib=draw.choice((0, 4000, 8000)),
                    expected_runtime=ExpectedRuntime(REFERENCE_GPU_MODEL, work_s),
                    simulated_work=SimulatedWork(work_s),
                )
                new.append(NewJob(spec, NormalizedJob(), "", time.time()))
            await store.create_many(new)
    finally:
        await redis.aclose()


def taken_up(status: OrchestratorStatus) -> int:
    """Jobs that the orchestrator has in its queue or has placed."""
    return status.queue_length + status.decision_count


async def until(client: AsyncClient, condition: Callable[[OrchestratorStatus], bool]) -> OrchestratorStatus:
    """Asks until the answer is as wished."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(AdlroError):
                status = await client.status()
                if condition(status):
                    return status
            await asyncio.sleep(LOOK_S)


async def look(client: AsyncClient, seconds: float) -> dict[str, Any]:
    """Decisions a second, and what callers wait for, while the queue is long."""
    first = await client.status()
    began = time.monotonic()
    took_ms: dict[str, list[float]] = {"status": [], "list": []}
    acting = []
    while time.monotonic() - began < seconds:
        asked = time.monotonic()
        with contextlib.suppress(AdlroError):
            acting.append((await client.status()).acting)
            took_ms["status"].append(1000 * (time.monotonic() - asked))
        asked = time.monotonic()
        async for _ in client.list(page_size=1000):
            break
        took_ms["list"].append(1000 * (time.monotonic() - asked))
        await asyncio.sleep(LOOK_S)
    last = await client.status()
    passed_s = time.monotonic() - began
    return {
        "decisions_per_s": (last.decision_count - first.decision_count) / passed_s,
        "acting_share": sum(acting) / len(acting),
        "leases_lost": last.fencing_token - first.fencing_token,
        "queue_length": last.queue_length,
        **{
            f"{name}_ms": {f"p{p}": percentile(values, p / 100) for p in (50, 99)} | {"max": max(values)}
            for name, values in took_ms.items()
        },
    }


def report(result: dict[str, Any]) -> None:
    """For people."""
    facts = result["machine"]
    print(f"{facts['cores']} cores, load {facts['load_before']}, Python {facts['python']}, {result['jobs']:,} jobs")
    print(f"taken up within {result['taken_up_s']:.1f} s of the first submission")
    steady = result["steady"]
    print(
        f"meanwhile, with {steady['queue_length']:,} waiting: {steady['decisions_per_s']:.1f} decisions/s, "
        f"acting at {steady['acting_share']:.0%} of the looks, {steady['leases_lost']} leases lost"
    )
    for name in ("status", "list"):
        times = steady[f"{name}_ms"]
        print(f"  {name}: " + ", ".join(f"{key} {value:.1f} ms" for key, value in times.items()))
    print("after kill -9, from the start of another process (median, least..greatest of the rounds):")
    for key, values in result["takeover"].items():
        print(f"  {key}: {values['median']:,.2f} ({values['min']:,.2f}..{values['max']:,.2f})")


if __name__ == "__main__":
    main()
