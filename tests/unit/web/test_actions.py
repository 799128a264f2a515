"""What a user changes from the page: values that are no text and no number are refused by their name."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from adlro.client import Clock, ClockMode, Job, JobFilter, JobSpec, JobType, JobView, RequestResult, SubmittedArray
from adlro.errors import InvalidInput, NotFound, PermissionDenied
from adlro.records.dependencies import DependencyCondition, JobDependency
from adlro.services.web.actions import action
from tests.unit.web.world import ANN, OPS

HALF = "\ud800"
HUGE = 10**400


@pytest.mark.parametrize(
    ("name", "given", "field"),
    [
        ("cancel", {"job_id": HALF}, "job_id"),
        ("drain", {"node_id": "a", "reason": HALF}, "reason"),
        ("policy", {"policy": HALF}, "policy"),
        ("clock", {"scale": HUGE}, "scale"),
        ("clock", {"mode": HALF}, "mode"),
        ("submit", {"job": {"job_type": "simulation"}, "request_id": HALF}, "request_id"),
        ("submit", {"job": {"job_type": "simulation", "name": HALF}}, "name"),
        ("submit", {"job": {"job_type": "simulation", "priority": HUGE}}, "priority"),
        ("submit", {"job": {"job_type": "simulation", "gpu_models": ["a", HALF]}}, "gpu_models"),
        ("submit", {"job": {"job_type": "simulation", "labels": {"a": HALF}}}, "labels"),
        ("submit", {"job": {"job_type": "simulation", "labels": {HALF: "a"}}}, "labels"),
        ("submit", {"job": {"argv": ["x"], "environment": {"A": HALF}}}, "environment"),
    ],
)
async def test_half_a_character_and_a_number_without_end_are_refused(name: str, given: dict[str, Any], field: str):
    client = AsyncMock()
    with pytest.raises(InvalidInput) as refused:
        await action(name)(client, OPS, given)
    assert refused.value.field == field
    assert client.mock_calls == []


def clock_of(mode: ClockMode, *, paused: bool = False) -> Clock:
    return Clock(mode, 1.0, paused=paused, time_s=500.0)


PLAIN = {"job_type": "simulation"}


async def test_a_job_of_the_form_waits_for_what_the_command_can_make_it_wait_for():
    client = AsyncMock()
    client.submit.return_value = Job("job-7", JobSpec("train", "ann", JobType.SIMULATION))
    client.clock.return_value = clock_of(ClockMode.VIRTUAL)
    wanted = PLAIN | {"held": True, "after": ["job-17", "array-20:any"], "begin": {"from_now_s": 3600}}
    assert await action("submit")(client, OPS, {"job": wanted}) == {"job_id": "job-7"}
    spec = client.submit.call_args.args[0]
    assert (spec.held, spec.begin_time_s) == (True, 4100.0)
    assert spec.after == (
        JobDependency("job-17"),
        JobDependency("array-20", DependencyCondition.ENDED),
    )


async def test_a_wall_time_is_for_a_clock_that_runs_with_the_walls():
    client = AsyncMock()
    client.clock.return_value = clock_of(ClockMode.REAL)
    wanted = {"job": PLAIN | {"begin": {"unix_s": time.time() + 100.0}}}
    await action("submit")(client, OPS, wanted)
    assert client.submit.call_args.args[0].begin_time_s == pytest.approx(600.0, abs=5.0)
    for clock in (clock_of(ClockMode.VIRTUAL), clock_of(ClockMode.REAL, paused=True)):
        client.clock.return_value = clock
        with pytest.raises(InvalidInput, match=r"wall clock.* write now\+1h") as refused:
            await action("submit")(client, OPS, wanted)
        assert refused.value.field == "begin"
    assert client.submit.call_count == 1


async def test_an_array_of_the_form_is_submitted_as_one():
    client = AsyncMock()
    client.submit_array.return_value = SubmittedArray("array-5", "job-5", 4)
    told = await action("submit")(client, OPS, {"job": PLAIN, "array": "0-9:3%2", "request_id": "r"})
    assert told == {"job_id": "job-5", "array_id": "array-5", "job_count": 4}
    assert client.submit_array.call_args.args[1:] == ((0, 3, 6, 9),)
    assert client.submit_array.call_args.kwargs == {"max_running": 2, "request_id": "r"}
    assert client.submit.call_count == 0


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"job": PLAIN | {"after": ["17:never"]}}, "after"),
        ({"job": PLAIN | {"after": "job-17"}}, "after"),
        ({"job": PLAIN | {"held": "yes"}}, "held"),
        ({"job": PLAIN | {"begin": {}}}, "begin"),
        ({"job": PLAIN | {"begin": {"from_now_s": 1, "unix_s": 1}}}, "begin"),
        ({"job": PLAIN, "array": "9-0"}, "array"),
        ({"job": PLAIN | {"stop_grace_s": 5}}, "argv"),
        ({"job": {"argv": ["x"], "log_limit_mib": 1 << 30}}, "payload.log_limit_mib"),
    ],
)
async def test_what_can_not_be_waited_for_is_named(given: dict[str, Any], field: str):
    client = AsyncMock()
    with pytest.raises(InvalidInput) as refused:
        await action("submit")(client, OPS, given)
    assert refused.value.field == field
    assert client.mock_calls == []


def listing(*job_ids: str) -> Any:
    async def listed(chosen: JobFilter, *, view: JobView) -> AsyncIterator[Job]:
        assert view is JobView.BASIC
        for job_id in job_ids if chosen.array_id == "array-3" else ():
            yield Job(job_id, JobSpec("train", "ann", JobType.SIMULATION))

    return listed


@pytest.mark.parametrize("name", ["hold", "release"])
async def test_hold_and_release_take_a_job_or_an_array_and_tell_a_refusal(name: str):
    client = AsyncMock()
    client.list = listing("job-3", "job-4")
    one = Job("job-3", JobSpec("train", "ann", JobType.SIMULATION))
    ask = getattr(client, name)
    ask.return_value = (RequestResult("job-3", one),)
    assert await action(name)(client, ANN, {"job_id": "job-3"}) == {"job_count": 1}
    ask.assert_awaited_with(["job-3"])
    ask.return_value = (RequestResult("job-3", one), RequestResult("job-4", one))
    assert await action(name)(client, ANN, {"job_id": "array-3"}) == {"job_count": 2}
    ask.assert_awaited_with(["job-3", "job-4"])
    with pytest.raises(NotFound):
        await action(name)(client, ANN, {"job_id": "array-9"})
    ask.return_value = (
        RequestResult("job-3", None, "PERMISSION_DENIED", "an operator holds job-3", "HELD_BY_OPERATOR"),
    )
    with pytest.raises(PermissionDenied, match="an operator holds job-3"):
        await action(name)(client, ANN, {"job_id": "job-3"})


async def test_of_a_cancelled_array_what_has_ended_meanwhile_is_no_refusal():
    client = AsyncMock()
    client.list = listing("job-3", "job-4")
    one = Job("job-3", JobSpec("train", "ann", JobType.SIMULATION))
    ended = RequestResult("job-4", None, "FAILED_PRECONDITION", "job-4 has ended", "JOB_FINAL")
    client.cancel_many.return_value = (RequestResult("job-3", one), ended)
    assert await action("cancel")(client, ANN, {"job_id": "array-3"}) == {"job_count": 1}
