"""Two orchestrators: the one that acts is killed, or stops longer than its lease lasts and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from adlro.client import AsyncClient, ClockMode, OrchestratorStatus
from adlro.errors import Conflict, Stale
from adlro.kit.redis import connect
from adlro.kit.testing import SpawnedService
from adlro.placement import Placement
from adlro.records.jobs import JobSpec, JobState, JobType, SimulatedWork
from adlro.services.orchestrator.clients import ClusterClient
from adlro.store import JobStore, Move
from adlro.store.keys import LEASE
from tests.fault import verdict
from tests.fault.followers import ClusterFollower, JobFollower
from tests.fault.stack import PATIENCE_S, Stack, eventually, pause, resume
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.slow

JOBS = 300
ENDED_BEFORE = 60
TAKEN_OVER_WITHIN_S = 10.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Everything but the orchestrators."""
    made = Stack(tmp_path_factory.mktemp("pair"), ADLRO_SIMCLUSTER_CLOCK_MODE="virtual")
    try:
        made.redis.start()
        made.start("ingest", "decompose", "simcluster")
        yield made
    finally:
        made.stop()


@pytest.fixture
async def pair(stack: Stack) -> AsyncIterator[tuple[SpawnedService, SpawnedService]]:
    """The orchestrator that acts, and the one that stands by."""
    first = await asyncio.to_thread(stack.start_another, "orchestrator")
    with first:
        await until_acting(stack, first)
        second = await asyncio.to_thread(stack.start_another, "orchestrator")
        with second:
            await until_standing_by(stack, second, (await status(stack, first)).instance_id)
            yield first, second


async def status(stack: Stack, orchestrator: SpawnedService) -> OrchestratorStatus:
    async with stack.client(orchestrator=orchestrator.address) as client:
        return await client.status()


async def until_acting(stack: Stack, orchestrator: SpawnedService) -> None:
    """Returns when it acts."""

    async def acts() -> bool:
        return (await status(stack, orchestrator)).acting

    await eventually(acts, "the orchestrator to act")


async def lease_holder(stack: Stack) -> str:
    redis = connect(stack.redis.url)
    try:
        found: Any = await redis.get(LEASE)
        return str((found or b"").decode())
    finally:
        await redis.aclose()


async def until_standing_by(stack: Stack, orchestrator: SpawnedService, holder: str) -> None:
    """Returns when it says that it leaves the acting to `holder`."""

    async def stands_by() -> bool:
        found = await status(stack, orchestrator)
        return not found.acting and found.lease_holder == holder and found.problem.startswith("standing by")

    await eventually(stands_by, "the orchestrator to stand by")


@asynccontextmanager
async def load(stack: Stack) -> AsyncIterator[tuple[AsyncClient, JobFollower, ClusterFollower]]:
    """Jobs for some seconds; at the end all must have ended well by their first attempt, and nothing run twice."""
    async with (
        JobFollower(stack.addresses["ingest"]) as watched,
        ClusterFollower(stack.addresses["simcluster"]) as cluster_log,
        stack.client() as client,
    ):
        # At most so fast, so that all this lasts some seconds.
        await client.set_clock(ClockMode.VIRTUAL, scale=60.0)
        specs = [
            JobSpec(f"job {n}", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(5.0 + n % 30))
            for n in range(JOBS)
        ]
        submitted = await client.submit_many(specs, f"pair-{watched.first_revision}")
        yield client, watched, cluster_log
        await watched.until(lambda: len(watched.final) == JOBS, "all jobs to end")
        await cluster_log.catch_up()
        jobs = watched.latest
        assert list(jobs) == list(submitted.job_ids)
        verdict.check_changes(watched)
        verdict.check_attempts(jobs.values())
        # The cluster was there all the time, so whatever ran was adopted.
        assert {job.attempt_count for job in jobs.values()} == {1}
        verdict.check_cluster_log(cluster_log, jobs)


async def the_old_token_is_refused(stack: Stack, watched: JobFollower, old_token: int) -> None:
    """By the cluster and by the store, and nothing is changed by the try."""
    async with stack.client() as client:
        await client.set_clock(paused=True)  # what runs and what waits does so until it has been tried
        try:
            await _is_refused(stack, watched, old_token)
        finally:
            await client.set_clock(paused=False)


async def _is_refused(stack: Stack, watched: JobFollower, old_token: int) -> None:
    waiting = next(job for job in watched.latest.values() if job.state is JobState.PENDING)
    cluster = ClusterClient(stack.addresses["simcluster"])
    try:
        described = await cluster.describe()
        for attempt in (1, 2):
            with pytest.raises(Conflict) as refused:
                await cluster.launch(
                    waiting.job_id, attempt, waiting.spec, Placement.on("volta-0/0"), old_token, described.incarnation
                )
            assert refused.value.reason == "STALE_FENCING_TOKEN"
        running = described.running
        with pytest.raises(Conflict) as refused:
            await cluster.stop(running[0].job_id, running[0].attempt, old_token, described.incarnation)
        assert refused.value.reason == "STALE_FENCING_TOKEN"
    finally:
        await cluster.close()
    redis = connect(stack.redis.url)
    try:
        store = JobStore(redis)
        version, job = (await store.active())[-1]
        with pytest.raises(Stale, match="FENCED"):
            await store.move(old_token, [Move(job, version)])
    finally:
        await redis.aclose()


async def test_a_killed_orchestrator_is_replaced(stack: Stack, pair: tuple[SpawnedService, SpawnedService]) -> None:
    first, second = pair
    async with load(stack) as (_, watched, cluster_log):
        await watched.until(lambda: len(watched.final) >= ENDED_BEFORE, f"{ENDED_BEFORE} jobs to end")
        old_token = (await status(stack, first)).fencing_token
        async with Stopwatch() as watch:
            first.kill()
            await cluster_log.catch_up()  # with what the killed one had sent
            starts = cluster_log.started_count
            await cluster_log.until(lambda: cluster_log.started_count > starts, "a job to be placed")
            assert watch.read() < TAKEN_OVER_WITHIN_S
        before = len(watched.final)
        await until_acting(stack, second)
        await watched.until(lambda: len(watched.final) > before + 16, "the second one to place jobs")
        assert (await status(stack, second)).fencing_token > old_token
        await the_old_token_is_refused(stack, watched, old_token)


async def test_an_orchestrator_that_slept_through_its_lease_stands_by(
    stack: Stack, pair: tuple[SpawnedService, SpawnedService]
) -> None:
    first, second = pair
    async with load(stack) as (_, watched, _log):
        await watched.until(lambda: len(watched.final) >= ENDED_BEFORE, f"{ENDED_BEFORE} jobs to end")
        old_token = (await status(stack, first)).fencing_token
        pause(first)
        try:
            before = len(watched.final)
            async with Stopwatch() as watch:
                await until_acting(stack, second)
                assert watch.read() < TAKEN_OVER_WITHIN_S
            await watched.until(lambda: len(watched.final) > before + 16, "the second one to place jobs")
        finally:
            resume(first)
        # It wakes in the middle of what it was about, with events that it has not seen and launches to make.
        await the_old_token_is_refused(stack, watched, old_token)
        holder = (await status(stack, second)).instance_id
        await until_standing_by(stack, first, holder)
        # By the lease, the store or the cluster, whichever told it first.
        assert any(line["event"].startswith("session ended") for line in first.log_lines())
        assert first.process.poll() is None
        assert (await status(stack, second)).acting
        # It is of use: where the other one drains, it acts at once, without waiting for the lease to run out.
        assert await asyncio.to_thread(second.stop, PATIENCE_S) == 0
        assert await lease_holder(stack) != holder
        async with Stopwatch() as watch:
            await until_acting(stack, first)
            assert watch.read() < 2.0
        assert (await status(stack, first)).fencing_token > old_token + 1
