"""Requests about jobs in a real Redis: recorded in order, applied with the orchestrator's move, and never lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from adlro.errors import Conflict, LimitExceeded, NotFound
from adlro.kit.redis import connect, connect_blocking
from adlro.placement import Placement
from adlro.records.job_requests import JobHold, JobRequest, JobRequestKind, JobUpdate
from adlro.records.jobs import Job, JobSpec, JobState, JobType, NormalizedJob
from adlro.store import JobChange, JobStore, Move

SPEC = JobSpec("train", "ann", JobType.MACHINE_LEARNING)
HOLD = JobRequest(JobRequestKind.HOLD, user="ann")
UPDATE = JobRequest(JobRequestKind.UPDATE, JobUpdate(priority=0.75, set_labels={"a": "b"}), by_operator=True)
ON_A: Any = {"placement": Placement.on("a/0"), "gpu_model": "v100_sxm2"}


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[JobStore]:
    redis, blocking = connect(redis_url), connect_blocking(redis_url)
    yield JobStore(redis, blocking)
    await redis.aclose()
    await blocking.aclose()


async def create(store: JobStore, spec: JobSpec = SPEC) -> Job:
    return (await store.create(spec, NormalizedJob(), "", 1.0)).job


async def test_they_are_announced_with_their_job_in_order(store: JobStore) -> None:
    job = await create(store)
    (first,) = await store.request(HOLD, [job.job_id])
    (second,) = await store.request(UPDATE, [job.job_id])
    asked = (replace(HOLD, number=1), replace(UPDATE, number=2))
    assert isinstance(first, Job)
    assert isinstance(second, Job)
    assert (first.requests, second.requests) == (asked[:1], asked)
    assert await store.get(job.job_id) == second
    assert [(job.job_id, job.requests) for _, job in await store.active() if job.requests] == [(job.job_id, asked)]
    _, events = await store.read_requests(job.revision)
    assert [(event.change, event.job) for event in events] == [
        (JobChange.REQUESTED, first),
        (JobChange.REQUESTED, second),
    ]


async def test_what_a_move_has_applied_goes_with_it_and_the_rest_stays(store: JobStore) -> None:
    job = await create(store)
    await store.request(HOLD, [job.job_id])
    await store.request(UPDATE, [job.job_id])
    held = replace(job, applied_request=1, hold=JobHold("ann"))
    await store.move(0, [Move(held, 0)])
    now = await store.get(job.job_id)
    assert (now.requests, now.applied_request, now.hold) == ((replace(UPDATE, number=2),), 1, JobHold("ann"))
    await store.move(0, [Move(replace(now, message="still"), 1)])
    now = await store.get(job.job_id)
    assert now.requests == (replace(UPDATE, number=2),), "a move that applies none keeps it, once"
    await store.move(0, [Move(replace(now, applied_request=2), 2)])
    (again,) = await store.request(HOLD, [job.job_id])
    assert isinstance(again, Job)
    assert again.requests == (replace(HOLD, number=3),)


async def test_only_jobs_that_wait_take_them(store: JobStore) -> None:
    runs, ended, waits = await create(store), await create(store), await create(store)
    await store.move(0, [Move(replace(runs, state=JobState.RUNNING, submit_s=0.0, start_s=0.0, **ON_A), 0)])
    await store.move(0, [Move(replace(ended, state=JobState.CANCELLED, submit_s=0.0, end_s=1.0), 0)])
    ids = [runs.job_id, ended.job_id, waits.job_id, "job-999999"]
    of_runs, of_ended, of_waits, of_none = await store.request(HOLD, ids)
    assert isinstance(of_runs, Conflict)
    assert (of_runs.reason, str(of_runs)) == (
        "JOB_RUNS",
        f"{runs.job_id} is RUNNING already; only a job that waits can be held",
    )
    assert isinstance(of_ended, Conflict)
    assert of_ended.reason == "JOB_FINAL"
    assert isinstance(of_none, NotFound)
    assert isinstance(of_waits, Job)
    results = await store.request_cancels(ids)
    assert [type(each) for each in results] == [Job, Conflict, Job, NotFound]


async def test_a_job_keeps_a_bounded_number_of_them(store: JobStore) -> None:
    job = await create(store)
    results = [(await store.request(HOLD, [job.job_id]))[0] for _ in range(17)]
    assert all(isinstance(each, Job) for each in results[:16])
    assert isinstance(results[16], LimitExceeded)
    assert results[16].reason == "TOO_MANY_REQUESTS"


async def test_those_of_a_job_that_ends_go_with_it(store: JobStore) -> None:
    job = await create(store)
    await store.request(HOLD, [job.job_id])
    await store.move(0, [Move(replace(job, state=JobState.CANCELLED, submit_s=0.0, end_s=1.0), 0)])
    assert (await store.get(job.job_id)).requests == ()


async def test_a_job_that_is_submitted_held_is_held_from_its_first_record(store: JobStore) -> None:
    assert (await create(store, replace(SPEC, held=True))).hold == JobHold()
    assert (await create(store)).hold is None


RELEASE = JobRequest(JobRequestKind.RELEASE, user="bob")


async def test_a_repeated_request_does_nothing_more_whatever_others_have_asked_for_since(store: JobStore) -> None:
    job = await create(store)
    (first,) = await store.request(HOLD, [job.job_id], "id-1")
    (again,) = await store.request(HOLD, [job.job_id], "id-1")
    assert again == first, "before it is applied"
    await store.move(0, [Move(replace(job, applied_request=1, hold=JobHold("ann")), 0)])
    await store.request(RELEASE, [job.job_id], "id-2")
    await store.move(0, [Move(replace(job, applied_request=2), 1)])
    (again,) = await store.request(HOLD, [job.job_id], "id-1")
    assert isinstance(again, Job)
    assert (again.hold, again.requests, again.applied_request) == (None, (), 2), "bob's release stays"
    # Another id, another user and another request are new.
    for number, (request, request_id) in enumerate([(HOLD, "id-3"), (RELEASE, "id-3"), (RELEASE, "id-1"), (HOLD, "")]):
        (asked,) = await store.request(request, [job.job_id], request_id)
        assert isinstance(asked, Job)
        assert asked.requests[-1] == replace(request, number=3 + number)


async def test_a_repetition_is_told_of_the_job_as_it_is_now(store: JobStore) -> None:
    job, other = await create(store), await create(store)
    await store.request(RELEASE, [job.job_id], "id-1")
    runs = replace(job, state=JobState.RUNNING, applied_request=1, submit_s=0.0, start_s=0.0, **ON_A)
    await store.move(0, [Move(runs, 0)])
    again, new = await store.request(RELEASE, [job.job_id, other.job_id], "id-1")
    assert isinstance(again, Job)
    assert again.state is JobState.RUNNING
    assert isinstance(new, Job)
    assert new.requests == (replace(RELEASE, number=1),), "each job has its own"


async def test_the_ids_of_a_jobs_last_requests_are_known(store: JobStore) -> None:
    job = await create(store)
    for number in range(40):
        await store.request(HOLD, [job.job_id], f"id-{number}")
        now = await store.get(job.job_id)
        await store.move(0, [Move(replace(now, applied_request=number + 1), number)])
    for number in (8, 39):
        (again,) = await store.request(HOLD, [job.job_id], f"id-{number}")
        assert isinstance(again, Job)
        assert again.requests == ()
    (forgotten,) = await store.request(HOLD, [job.job_id], "id-7")
    assert isinstance(forgotten, Job)
    assert forgotten.requests == (replace(HOLD, number=41),)
