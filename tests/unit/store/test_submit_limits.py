"""What one user may submit: jobs that have not ended, and jobs a second; counted where jobs are recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
import redis.asyncio as aioredis

from adlro.errors import LimitExceeded
from adlro.kit.redis import connect
from adlro.records.jobs import Job, JobSpec, JobState, JobType, NormalizedJob
from adlro.store import Created, JobStore, Move, NewJob, SubmitLimits

ANN = JobSpec("train", "ann", JobType.MACHINE_LEARNING)
BOB = replace(ANN, user="bob")
COUNTS = "adlro:jobs:active:users"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[aioredis.Redis]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(connect(redis_url))


@pytest.fixture
def limited(redis: aioredis.Redis) -> Callable[..., JobStore]:
    return lambda **limits: JobStore(redis, limits=SubmitLimits(**limits))


async def create(store: JobStore, spec: JobSpec = ANN, request_id: str = "") -> Job:
    return (await store.create(spec, NormalizedJob(0.5), request_id, 1.5)).job


async def test_a_user_has_so_many_jobs_and_then_none_until_one_ends(limited: Callable[..., JobStore]) -> None:
    store = limited(max_jobs=2)
    first, _ = await create(store), await create(store)
    with pytest.raises(LimitExceeded, match="ann has 2 unfinished jobs, of at most 2") as refused:
        await create(store)
    assert (refused.value.field, refused.value.reason) == ("job.user", "TOO_MANY_JOBS")
    assert (refused.value.retry_after_s or 0) > 0
    await create(store, BOB)  # others are not concerned
    await store.move(1, [Move(replace(first, state=JobState.RUNNING), 0)])
    with pytest.raises(LimitExceeded):
        await create(store)
    await store.move(1, [Move(replace(first, state=JobState.SUCCEEDED), 1)])
    await create(store)
    with pytest.raises(LimitExceeded):
        await create(store)


async def test_a_refused_job_leaves_nothing_and_its_request_id_is_free(
    limited: Callable[..., JobStore], redis: aioredis.Redis
) -> None:
    store = limited(max_jobs=1)
    job = await create(store, request_id="a")
    for _ in range(3):
        with pytest.raises(LimitExceeded):
            await create(store, request_id="b")
    assert (await store.revision(), await store.last_sequence()) == (1, 1)
    assert await redis.hget(COUNTS, "ann") == b"1"
    # What is recorded already is found, whatever the limits say.
    assert (await create(store, request_id="a")).job_id == job.job_id
    await store.move(1, [Move(replace(job, state=JobState.FAILED), 0)])
    assert (await create(store, request_id="b")).job_id == "job-2"


async def test_a_job_that_ends_is_counted_once(limited: Callable[..., JobStore], redis: aioredis.Redis) -> None:
    store = limited()  # counted without limits too, so that one can be set later
    jobs = [await create(store) for _ in range(3)]
    for version in range(3):
        await store.move(1, [Move(replace(jobs[0], state=JobState.FAILED, message=f"{version}"), version)])
    assert await redis.hget(COUNTS, "ann") == b"2"
    await store.move(1, [Move(replace(job, state=JobState.CANCELLED), 0) for job in jobs[1:]])
    assert await redis.hgetall(COUNTS) == {}


async def test_of_many_at_once_those_that_fit_are_taken(limited: Callable[..., JobStore]) -> None:
    store = limited(max_jobs=3)
    jobs = [NewJob(spec, NormalizedJob(0.5), "", 1.5) for spec in (ANN, ANN, BOB, ANN, ANN, BOB)]
    answers = await store.create_many(jobs)
    assert [isinstance(each, Created) for each in answers] == [True, True, True, True, False, True]


async def test_racing_replicas_share_the_limit(limited: Callable[..., JobStore]) -> None:
    stores = [limited(max_jobs=5), limited(max_jobs=5)]
    answers = await asyncio.gather(*(create(stores[i % 2]) for i in range(20)), return_exceptions=True)
    assert sum(isinstance(each, Job) for each in answers) == 5
    assert sum(isinstance(each, LimitExceeded) for each in answers) == 15


async def test_a_flood_is_held_to_its_rate_and_told_when_to_come_back(limited: Callable[..., JobStore]) -> None:
    store = limited(rate_per_s=1.0, burst=3)
    began_s, count = time.monotonic(), 0

    async def flood() -> None:
        nonlocal count
        while True:
            await create(store)
            count += 1
            assert count <= 3 + (time.monotonic() - began_s)  # the burst, and one for each second since

    with pytest.raises(LimitExceeded, match="ann submits more than 1 jobs a second; try again after") as refused:
        await flood()
    assert count >= 3
    assert (refused.value.field, refused.value.reason) == ("job.user", "TOO_FAST")
    wait_s = refused.value.retry_after_s
    assert wait_s is not None
    assert 0 < wait_s <= 1.001
    await create(store, BOB)
    await asyncio.sleep(wait_s)
    await create(store)


async def test_a_pause_gives_no_more_than_the_burst(limited: Callable[..., JobStore]) -> None:
    store = limited(rate_per_s=1000.0, burst=2)
    await create(store)
    await asyncio.sleep(0.1)  # a hundred jobs' worth
    answers = await store.create_many([NewJob(ANN, NormalizedJob(0.5), "", 1.5)] * 5)
    assert sum(isinstance(each, Created) for each in answers) == 2


async def test_a_user_at_his_limit_of_jobs_loses_nothing_of_his_rate(limited: Callable[..., JobStore]) -> None:
    store = limited(max_jobs=1, rate_per_s=0.001, burst=2)
    job = await create(store)
    for _ in range(5):
        with pytest.raises(LimitExceeded, match="unfinished jobs"):
            await create(store)
    await store.move(1, [Move(replace(job, state=JobState.SUCCEEDED), 0)])
    await create(store)
