"""Arrays of jobs in a real Redis: recorded whole or not at all, and counted as their jobs end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from adlro.errors import AlreadyExists, InvalidInput, LimitExceeded
from adlro.kit.redis import connect, connect_blocking
from adlro.records.jobs import ArrayTask, Job, JobSpec, JobState, JobType, NormalizedJob
from adlro.records.payloads import Payload, Process
from adlro.store import JobEnd, JobStore, Move, NewArray, SubmitLimits, not_found

SPEC = JobSpec("train", "ann", JobType.MACHINE_LEARNING, labels={"team": "vision"})


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[JobStore]:
    redis, blocking = connect(redis_url), connect_blocking(redis_url)
    yield JobStore(redis, blocking)
    await redis.aclose()
    await blocking.aclose()


def new(*indexes: int, request_id: str = "", spec: JobSpec = SPEC, most: int = 0) -> NewArray:
    return NewArray(spec, NormalizedJob(0.5), indexes, most, request_id, 1.5)


async def test_its_jobs_follow_one_another_and_know_their_places(store: JobStore) -> None:
    await store.create(SPEC, NormalizedJob(), "", 1.0)
    created = await store.create_array(new(3, 5, 8, most=2))
    first = int(created.first_job_id.removeprefix("job-"))
    assert (created.array_id, created.count, created.existing) == (f"array-{first}", 3, False)
    jobs = [await store.get(f"job-{first + place}") for place in range(3)]
    assert [job.spec.array for job in jobs] == [ArrayTask(created.array_id, index, 3, 2) for index in (3, 5, 8)]
    assert [job.spec.name for job in jobs] == ["train[3]", "train[5]", "train[8]"]
    assert all(replace(job.spec, name="train", array=None) == SPEC for job in jobs)
    assert list(await store.array_numbers(created.array_id)) == [first, first + 1, first + 2]
    events = await store.read_events(jobs[0].revision - 1)
    assert [event.job for event in events] == jobs, "each is announced"


async def test_a_repeated_request_gives_the_same_array(store: JobStore) -> None:
    first = await store.create_array(new(0, 1, request_id="r"))
    again = await store.create_array(new(0, 1, request_id="r"))
    assert (again.array_id, again.existing) == (first.array_id, True)
    for other in (new(0, 2, request_id="r"), new(0, 1, request_id="r", most=1)):
        with pytest.raises(AlreadyExists, match=first.array_id):
            await store.create_array(other)
    with pytest.raises(AlreadyExists):
        await store.create(SPEC, NormalizedJob(), "r", 1.0)


async def test_a_user_at_the_limit_gets_no_part_of_an_array(redis_url: str) -> None:
    redis = connect(redis_url)
    store = JobStore(redis, limits=SubmitLimits(max_jobs=5))
    spec = replace(SPEC, user="limited")
    await store.create_array(new(0, 1, 2, spec=spec))
    before = await store.last_sequence()
    with pytest.raises(LimitExceeded, match="limited has 3 unfinished jobs"):
        await store.create_array(new(0, 1, 2, spec=spec))
    assert await store.last_sequence() == before
    assert (await store.create_array(new(0, 1, spec=spec))).count == 2
    await redis.aclose()


async def test_an_array_counts_against_the_rate_as_so_many_jobs(redis_url: str) -> None:
    redis = connect(redis_url)
    store = JobStore(redis, limits=SubmitLimits(rate_per_s=0.001, burst=2))
    spec = replace(SPEC, user="fast")
    await store.create_array(new(0, 1, 2, 3, spec=spec))  # the bucket was full
    with pytest.raises(LimitExceeded) as caught:
        await store.create(spec, NormalizedJob(), "", 1.0)
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s > 2500, "3 jobs over the burst, and one more"
    await redis.aclose()


async def test_how_many_have_ended_and_how_is_counted_with_each_end(store: JobStore) -> None:
    created = await store.create_array(new(0, 1, 2))
    first = int(created.first_job_id.removeprefix("job-"))

    async def end(place: int, state: JobState) -> Job:
        job = await store.get(f"job-{first + place}")
        last = replace(job, state=state, submit_s=0.0, end_s=1.0)
        await store.move(0, [Move(last, 0)])
        return last

    ids = [created.array_id, created.first_job_id, "array-999999", "job-999999", "nothing"]
    assert await store.ends(ids) == {created.array_id: JobEnd(3, 0, 0), created.first_job_id: JobEnd(1, 0, 0)}
    last = await end(0, JobState.SUCCEEDED)
    await end(1, JobState.CANCELLED)
    assert await store.ends(ids) == {created.array_id: JobEnd(3, 2, 1), created.first_job_id: JobEnd(1, 1, 0)}
    await store.move(0, [Move(last, 1)])
    assert (await store.ends(ids))[created.array_id] == JobEnd(3, 2, 1), "an end that is written again counts once"
    await end(2, JobState.FAILED)
    assert (await store.ends([created.array_id]))[created.array_id] == JobEnd(3, 3, 2)


async def test_one_that_is_too_large_for_one_step_is_refused(store: JobStore) -> None:
    spec = replace(SPEC, payload=Payload(process=Process(("true", "x" * 100_000))))
    with pytest.raises(InvalidInput, match="of at most 64"):
        await store.create_array(new(*range(1000), spec=spec))


def test_an_array_asked_for_as_a_job_names_its_first_job() -> None:
    assert "its first one is job-25" in not_found("array-25").message
    for other in ("job-25", "25", "array-", "array-x"):
        assert "ListJobs lists the existing jobs" in not_found(other).message
