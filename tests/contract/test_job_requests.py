"""Requests about several jobs, arrays and dependencies, on ingest with a users' file: who may ask for what."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from adlro.client import (
    ArrayTask,
    DependencyCondition,
    JobDependency,
    JobFilter,
    JobHold,
    JobRequestKind,
    JobSpec,
    JobState,
    JobUpdate,
    JobView,
)
from adlro.errors import InvalidInput, PermissionDenied
from adlro.kit.redis import connect
from adlro.store import JobStore, Move
from tests.contract.test_job_ownership import ANN, BOB, Clients, clients_of


@pytest.fixture
async def clients(redis_url: str, tmp_path: Path) -> AsyncIterator[Clients]:
    async with clients_of(redis_url, tmp_path) as made:
        yield made


# --- requests -------------------------------------------------------------------------------------------------------


async def test_each_job_gets_its_own_answer(clients: Clients) -> None:
    mine, other = await clients("ann").submit(ANN), await clients("bob").submit(BOB)
    results = await clients("ann").hold([mine.job_id, other.job_id, "job-999", "no job"])
    assert [each.accepted for each in results] == [True, False, False, False]
    assert [each.reason for each in results] == ["", "JOB_NOT_FOUND", "JOB_NOT_FOUND", "JOB_NOT_FOUND"]
    assert results[1].message.replace(other.job_id, "job-999") == results[2].message
    assert {each.code for each in results[1:]} == {"NOT_FOUND"}
    assert results[0].job is not None
    (request,) = results[0].job.requests
    assert (request.kind, request.number, request.user, request.by_operator) == (JobRequestKind.HOLD, 1, "ann", False)
    with pytest.raises(PermissionDenied):
        await clients("rea").hold([mine.job_id])
    (refused,) = await clients("both").hold([mine.job_id])
    assert (refused.code, refused.reason) == ("PERMISSION_DENIED", "NOT_YOUR_JOB")


async def test_what_an_operator_asks_for_anothers_job_is_marked(clients: Clients) -> None:
    mine, own = await clients("ann").submit(ANN), await clients("ops").submit(replace(ANN, user="ops"))
    results = await clients("ops").hold([mine.job_id, own.job_id])
    asked = [each.job.requests[0] for each in results if each.job is not None]
    assert [(each.user, each.by_operator) for each in asked] == [("ops", True), ("ops", False)]
    (refused,) = await clients("ann").release([mine.job_id])
    assert (refused.code, refused.reason) == ("PERMISSION_DENIED", "HELD_BY_OPERATOR")
    assert (await clients("ops").release([mine.job_id]))[0].accepted


async def test_a_call_whose_answer_was_lost_is_repeated_and_asks_once(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other = await clients("ann").submit(ANN), await clients("ann").submit(ANN)
    monkeypatch.setattr(uuid, "uuid4", lambda: "one-call")
    for each in ([job.job_id], [job.job_id, other.job_id]):
        results = await clients("ann").hold(each)
        assert all(result.accepted for result in results)
    monkeypatch.undo()
    await clients("ann").update([job.job_id], JobUpdate(priority=0.25))
    monkeypatch.setattr(uuid, "uuid4", lambda: "one-call")
    (again,) = await clients("ann").hold([job.job_id])
    assert again.job is not None
    assert [each.kind for each in again.job.requests] == [JobRequestKind.HOLD, JobRequestKind.UPDATE]
    (released,) = await clients("ann").release([job.job_id])  # with the same id, another request
    assert released.job is not None
    assert [each.number for each in released.job.requests] == [1, 2, 3]


async def test_an_update_names_what_it_changes(clients: Clients) -> None:
    ann = clients("ann")
    job = await ann.submit(replace(ANN, labels={f"label-{number}": "" for number in range(63)}))
    update = JobUpdate(priority=0.9, time_limit_s=60.0, set_labels={"team": "b"}, remove_labels=("label-1",))
    (result,) = await ann.update([job.job_id], update)
    assert result.job is not None
    assert (await ann.get(job.job_id)).requests[0].update == update
    with pytest.raises(InvalidInput, match="changes nothing"):
        await ann.update([job.job_id], JobUpdate())
    with pytest.raises(InvalidInput, match="priority"):
        await ann.update([job.job_id], JobUpdate(priority=2.0))
    (refused,) = await ann.update([job.job_id], JobUpdate(set_labels={"one": "1", "two": "2"}))
    assert refused.code == "INVALID_ARGUMENT"
    assert "65 labels, of at most 64" in refused.message


async def test_hundreds_are_cancelled_by_one_call_of_the_client(clients: Clients) -> None:
    submitted = await clients("ann").submit_many([ANN] * 450)
    results = await clients("ann").cancel_many(submitted.accepted_ids)
    assert [each.job_id for each in results] == list(submitted.accepted_ids)
    assert all(each.job is not None and each.job.cancel_requested for each in results)


async def test_jobs_that_run_or_have_ended_are_named(clients: Clients, redis_url: str) -> None:
    runs, ended = await clients("ann").submit(ANN), await clients("ann").submit(ANN)
    redis = connect(redis_url)
    store = JobStore(redis)
    await store.move(0, [Move(replace(runs, state=JobState.RUNNING, submit_s=0.0, start_s=0.0), 0)])
    await store.move(0, [Move(replace(ended, state=JobState.CANCELLED, submit_s=0.0, end_s=0.0), 0)])
    await redis.aclose()
    results = await clients("ann").hold([runs.job_id, ended.job_id])
    assert [each.reason for each in results] == ["JOB_RUNS", "JOB_FINAL"]
    assert {each.code for each in results} == {"FAILED_PRECONDITION"}


# --- arrays ---------------------------------------------------------------------------------------------------------


async def test_an_array_is_listed_by_its_id(clients: Clients) -> None:
    ann = clients("ann")
    await ann.submit(ANN)
    made = await ann.submit_array(ANN, [1, 4, 9], max_running=2, request_id="sweep")
    again = await ann.submit_array(ANN, [1, 4, 9], max_running=2, request_id="sweep")
    assert (again.job_ids, again.existing, made.existing) == (made.job_ids, True, False)
    found = [job async for job in ann.list(JobFilter(array_id=made.array_id), view=JobView.BASIC)]
    assert tuple(job.job_id for job in found) == made.job_ids
    assert [job.spec.array for job in found] == [ArrayTask(made.array_id, index, 3, 2) for index in (1, 4, 9)]
    assert [job.spec.name for job in found] == ["train[1]", "train[4]", "train[9]"]
    assert not [job async for job in clients("bob").list(JobFilter(array_id=made.array_id))]
    assert not [job async for job in ann.list(JobFilter(array_id="array-77"))]


async def test_an_array_that_can_not_be_is_refused_whole(clients: Clients) -> None:
    ann = clients("ann")
    with pytest.raises(InvalidInput) as caught:
        await ann.submit_array(ANN, [3, 1])
    assert caught.value.field == "indexes[1]"
    with pytest.raises(InvalidInput, match="indexes"):
        await ann.submit_array(ANN, [])
    with pytest.raises(InvalidInput, match=r"job\.array"):
        await ann.submit(replace(ANN, array=ArrayTask("array-1", 0, 1)))
    with pytest.raises(PermissionDenied):
        await ann.submit_array(BOB, [1])
    assert not [job async for job in ann.list()]


# --- dependencies, and jobs that are submitted held -------------------------------------------------------------------


async def test_a_job_waits_only_for_what_its_user_may_see(clients: Clients) -> None:
    mine, other = await clients("ann").submit(ANN), await clients("bob").submit(BOB)
    array = await clients("ann").submit_array(ANN, range(2))
    others = await clients("bob").submit_array(BOB, range(2))

    def spec(*ids: str) -> JobSpec:
        return replace(ANN, after=tuple(JobDependency(each, DependencyCondition.ENDED) for each in ids))

    job = await clients("ann").submit(spec(mine.job_id, array.array_id))
    assert [each.job_id for each in job.spec.after] == [mine.job_id, array.array_id]
    with pytest.raises(InvalidInput) as hidden:
        await clients("ann").submit(spec(mine.job_id, other.job_id, others.array_id))
    assert [each.field for each in hidden.value.violations] == ["job.after[1].job_id", "job.after[2].job_id"]
    with pytest.raises(InvalidInput) as absent:
        await clients("ann").submit(spec(mine.job_id, "job-999"))
    assert hidden.value.violations[0].description.replace(other.job_id, "job-999") == (
        absent.value.violations[0].description
    )
    assert (await clients("ops").submit(spec(other.job_id))).spec.user == "ann"


async def test_a_job_that_is_submitted_held_says_so(clients: Clients) -> None:
    job = await clients("ann").submit(replace(ANN, held=True))
    assert job.hold == JobHold()
    assert (await clients("ann").get(job.job_id)).hold == JobHold()
