"""Valkey away at the start, and in the middle: services say so, refuse clearly, wait, and go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from adlro.client import AsyncClient, ClockMode
from adlro.errors import Unavailable
from adlro.records.jobs import JobSpec, JobState, JobType, SimulatedWork
from tests.fault.stack import ORDER, Stack, eventually, is_serving, wait_until_serving
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.slow

OUTAGE_S = 4.0
ANSWERED_WITHIN_S = 3.0


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """All services, and Valkey's place, where nobody answers."""
    made = Stack(tmp_path, ADLRO_SIMCLUSTER_CLOCK_MODE="virtual")
    try:
        made.redis.start()
        made.redis.kill()
        made.start(*ORDER)
        yield made
    finally:
        made.stop()


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    """A client that tries once."""
    async with stack.client(patience_s=0.0) as made:
        yield made


def spec(name: str, work_s: float = 1.0) -> JobSpec:
    return JobSpec(name, "ada", JobType.SIMULATION, simulated_work=SimulatedWork(work_s))


async def check_away(stack: Stack, client: AsyncClient) -> None:
    """Nobody is serving; each call is refused soon, with the time after which to try again."""
    for name in ORDER:
        assert await is_serving(stack.addresses[name]) is False, name
    async with Stopwatch() as watch:
        for call in (
            lambda: client.submit(spec("early"), "request"),
            lambda: client.submit_many([spec("early")], "request"),
            lambda: client.get("job-1"),
            lambda: client.cancel("job-1"),
            lambda: anext(client.watch()),
        ):
            began_s = watch.read()
            with pytest.raises(Unavailable) as refused:
                await call()
            assert watch.read() - began_s < ANSWERED_WITHIN_S
            assert refused.value.retry_after_s is not None
            assert refused.value.retry_after_s > 0
            assert "Redis" in refused.value.message
    status = await client.status()
    assert not status.acting
    assert status.problem


async def stands_still(client: AsyncClient) -> bool:
    return not (await client.status()).acting


def addresses(stack: Stack) -> list[str]:
    return [stack.addresses[name] for name in ORDER]


async def test_services_wait_for_the_store_at_their_start_and_in_the_middle(stack: Stack, client: AsyncClient) -> None:
    await check_away(stack, client)
    async with stack.client() as patient:
        # Who has patience is served when the store is there.
        early = asyncio.create_task(patient.submit(spec("early"), "request"))
        await asyncio.to_thread(stack.redis.start)
        await wait_until_serving(addresses(stack))
        (done,) = await patient.wait([(await early).job_id], timeout_s=60.0)
        assert (done.job_id, done.state) == ("job-1", JobState.SUCCEEDED)

        await patient.set_clock(ClockMode.REAL)
        running = await patient.submit(spec("runs meanwhile", work_s=OUTAGE_S / 2))
        async for event in patient.watch():
            if event.job is not None and event.job.state is JobState.RUNNING:
                break
        await asyncio.to_thread(stack.redis.kill)
        await wait_until_serving(addresses(stack), serving=False)
        await eventually(partial(stands_still, client), "the orchestrator to notice")
        away_since_s = time.monotonic()
        waiting = asyncio.create_task(patient.submit(spec("sent meanwhile"), "request-2"))
        while time.monotonic() - away_since_s < OUTAGE_S:
            await check_away(stack, client)
            await asyncio.sleep(0.2)  # calls as they come
        assert not waiting.done()
        await asyncio.to_thread(stack.redis.start)
        await wait_until_serving(addresses(stack))
        jobs = await patient.wait([running.job_id, (await waiting).job_id], timeout_s=60.0)
        assert [(job.job_id, job.state, job.attempt_count) for job in jobs] == [
            ("job-2", JobState.SUCCEEDED, 1),
            ("job-3", JobState.SUCCEEDED, 1),
        ]
        # Its end, which came while nobody could write it down, is that of the cluster.
        assert jobs[0].start_s is not None
        assert jobs[0].end_s == pytest.approx(jobs[0].start_s + OUTAGE_S / 2, abs=0.5)
    assert all(service.process.poll() is None for service in stack.services.values())
