"""Valkey comes back without its last changes, as after a power cut of its machine alone: the cluster knows more."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.client import ClockMode
from adlro.records.jobs import JobSpec, JobType, SimulatedWork
from tests.fault import verdict
from tests.fault.followers import ClusterFollower, JobFollower
from tests.fault.stack import ORDER, Stack

pytestmark = pytest.mark.slow

JOBS = 120
ENDED_BEFORE = 40
CHANGES_LOST = 25


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path / "data", ADLRO_SIMCLUSTER_CLOCK_MODE="virtual", ADLRO_ORCHESTRATOR_POLICY="fcfs")
    try:
        made.redis.start()
        made.start(*ORDER)
        yield made
    finally:
        made.stop()


async def test_jobs_whose_last_changes_are_lost_end_all_the_same(stack: Stack, tmp_path: Path) -> None:
    kept, file = tmp_path / "kept", tmp_path / "data" / "appendonlydir"
    async with (
        stack.client() as client,
        ClusterFollower(stack.addresses["simcluster"]) as cluster_log,
        JobFollower(stack.addresses["ingest"]) as watched,
    ):
        await client.set_clock(ClockMode.VIRTUAL, scale=60.0)
        works = [SimulatedWork(2.0 + n % 30) for n in range(JOBS)]
        specs = [JobSpec(f"job {n}", "ada", JobType.SIMULATION, simulated_work=work) for n, work in enumerate(works)]
        submitted = await client.submit_many(specs, "rolled-back")
        await watched.until(lambda: len(watched.final) >= ENDED_BEFORE, f"{ENDED_BEFORE} jobs to end")
        shutil.copytree(file, kept)
        enough = len(watched.changes) + CHANGES_LOST
        await watched.until(lambda: len(watched.changes) >= enough, f"{CHANGES_LOST} changes that will be lost")
        stack.redis.kill()
        shutil.rmtree(file)
        shutil.copytree(kept, file)
        await asyncio.to_thread(stack.redis.start)
        jobs = await client.wait(submitted.job_ids, timeout_s=120.0)
        verdict.check_attempts(jobs)
        await cluster_log.catch_up()
        verdict.check_no_two_at_once(cluster_log)
        # Whoever watched was told that what it had heard is no longer so, by another snapshot.
        await watched.until(lambda: watched.snapshots == 2, "another snapshot")
