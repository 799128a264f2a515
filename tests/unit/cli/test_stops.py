"""What commands show of jobs that are stopped for others, and of those that they make room for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from adlro.cli.jobs import _event_line
from adlro.cli.report import placements
from adlro.cli.stops import attempts_text, being_stopped, costs_text, short_stops_text, stops_text
from adlro.placement import Placement
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import AttemptRef, Job, JobAttempt, JobSpec, JobState, JobType, PendingReason, Preemptible
from tests.unit.client import fake_suite
from tests.unit.client.fake_suite import FakeSuite

Run = Callable[..., Any]

SPEC = JobSpec("train", "ada", JobType.MACHINE_LEARNING, preemptible=Preemptible(60.0, 600.0, 120.0))
ON = Placement.on("volta-0/0")
FIRST = JobAttempt(1, ON, "v100_sxm2", 1.0, 9.0, "preempted: for job-7", preempted=True)
SECOND = replace(FIRST, attempt=2, start_s=20.0, end_s=30.0, outcome="preempted: for job-9")
THIRD = JobAttempt(3, ON, "v100_sxm2", 40.0)
WAITS = {"state": JobState.PENDING, "pending_reason": PendingReason.RESOURCES, "message": "no GPU is free"}
RUNS = {"state": JobState.RUNNING, "pending_reason": PendingReason.NONE, "message": ""}


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (Preemptible(), "at no cost"),
        (Preemptible(60.0, 600.0), "each new start takes 60.0 s, 10m 0s of work are lost"),
        (Preemptible(grace_s=0.0), "0.0 s from SIGTERM to SIGKILL"),
    ],
)
def test_what_a_stop_costs(stops: Preemptible, text: str) -> None:
    assert costs_text(stops) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.0, "100%"), (0.9999, "100.0%"), (0.996, "99.6%"), (0.4, "40%"), (0.001, "less than 1%"), (0.0, "0%")],
)
def test_a_share_that_is_left(ratio: float, text: str) -> None:
    job = Job("job-1", SPEC, attempts=(FIRST,), remaining_ratio=ratio)
    assert short_stops_text(job) == f"stopped once, {text} left"


def test_stops_are_told_with_those_that_they_made_room_for() -> None:
    job = Job("job-1", SPEC, attempts=(FIRST, SECOND), remaining_ratio=0.4)
    assert stops_text(job) == "2 times, for job-7, for job-9; 40% of its work is left"
    again = replace(job, state=JobState.RUNNING, attempts=(FIRST, SECOND, THIRD))
    assert stops_text(again) == ("2 times, for job-7, for job-9; 40% of its work was left at the last start")
    assert short_stops_text(again) == ""
    assert stops_text(replace(job, attempts=())) == short_stops_text(replace(job, attempts=())) == ""
    lost = replace(FIRST, preempted=False, outcome="lost: the GPU failed")
    assert stops_text(replace(job, attempts=(lost,))) == ""
    asked = replace(FIRST, outcome="preempted: on request")
    assert stops_text(replace(job, attempts=(asked,))) == "once, on request; 40% of its work is left"
    unnamed = replace(FIRST, outcome="preempted")
    assert stops_text(replace(job, attempts=(unnamed,))) == "once; 40% of its work is left"


def test_attempts_are_named_and_many_are_counted() -> None:
    refs = [AttemptRef(f"job-{number}", number) for number in range(1, 7)]
    assert attempts_text(refs[:2]) == "job-1 (attempt 1), job-2 (attempt 2)"
    assert attempts_text(refs).endswith("job-4 (attempt 4) and 2 more")
    assert attempts_text(()) == ""


def test_who_is_being_stopped_is_known_until_the_other_starts() -> None:
    victim = Job("job-1", SPEC, JobState.RUNNING, attempts=(JobAttempt(1, ON, "v100_sxm2", 1.0),))
    waits = JobAttempt(1, ON, "v100_sxm2", preempts=(AttemptRef("job-1", 1),))
    other = Job("job-2", SPEC, pending_reason=PendingReason.LAUNCHING, attempts=(waits,))
    assert being_stopped([victim, other]) == {"job-1": "job-2"}
    started = replace(other, state=JobState.RUNNING, attempts=(replace(waits, start_s=9.0),))
    assert being_stopped([victim, started]) == {}
    later = replace(victim, attempts=(FIRST, replace(SECOND, outcome="", end_s=None)))
    assert being_stopped([later, other]) == {}, "a later attempt of it is not stopped"


def test_queue_and_watch_say_that_a_job_was_stopped_or_is_being_stopped(suite: FakeSuite, adlro: Run) -> None:
    for _ in range(3):
        suite.add(SPEC)
    suite.change("job-1", attempts=(FIRST, SECOND), remaining_ratio=0.4, submit_s=0.0, **WAITS)
    running = JobAttempt(1, ON, "v100_sxm2", 1.0)
    suite.change("job-2", placement=ON, submit_s=0.0, start_s=1.0, attempts=(running,), **RUNS)
    waits = JobAttempt(1, ON, "v100_sxm2", preempts=(AttemptRef("job-2", 1),))
    launching = {"pending_reason": PendingReason.LAUNCHING, "message": "waits for the end of job-2"}
    suite.change("job-3", attempts=(waits,), **launching)
    suite.clock = Clock(ClockMode.VIRTUAL, 0.0, False, 100.0)
    lines = {line.split()[0]: line for line in adlro("queue").stdout.splitlines()}
    assert "resources: no GPU is free; stopped 2 times, 40% left" in lines["job-1"]
    assert lines["job-2"].rstrip().endswith("being stopped for job-3")
    assert "waits for the end of job-2" in lines["job-3"]
    rows = json.loads(adlro("queue", "-o", "json").stdout)["jobs"]
    assert (rows[0]["remaining_ratio"], rows[0]["attempts"][0]["preempted"]) == (0.4, True)
    assert rows[2]["attempts"][0]["preempts"] == [{"job_id": "job-2", "attempt": 1}]
    assert "attempt 2  stopped 2 times, 40% left" in _event_line(suite.jobs["job-1"])
    suite.change("job-1", message="no GPU is free (attempt 2 preempted: for job-9; 40 % of its work left)")
    assert "stopped 2 times" not in adlro("queue").stdout + _event_line(suite.jobs["job-1"]), "told once"


def test_describe_tells_what_stops_cost_and_of_those_there_were(suite: FakeSuite, adlro: Run) -> None:
    suite.add(replace(SPEC, shareable=True))
    suite.change("job-1", attempts=(FIRST, SECOND), remaining_ratio=0.4, **WAITS)
    text = " ".join(adlro("describe", "job", "job-1").stdout.split())
    for part in (
        "preemptible each new start takes 60.0 s, 10m 0s of work are lost, 2m 0s from SIGTERM to SIGKILL",
        "shareable one other job that is shareable too may run on its GPU",
        "stopped 2 times, for job-7, for job-9; 40% of its work is left",
        "9.0 s preempted: for job-7",
    ):
        assert part in text, part
    suite.add(replace(SPEC, preemptible=None))
    on = JobAttempt(1, ON, "v100_sxm2", 9.0, preempts=(AttemptRef("job-1", 2), AttemptRef("job-4", 1)))
    suite.change("job-2", attempts=(on,), placement=ON, **RUNS)
    text = " ".join(adlro("describe", "job", "job-2").stdout.split())
    assert "in place of job-1 (attempt 2), job-4 (attempt 1)" in text
    for word in ("preemptible", "shareable", "stopped"):
        assert word not in text


def test_a_decision_names_the_attempts_that_it_stops(
    suite: FakeSuite, adlro: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fake_suite._Services._decision

    def stopping(self: Any, job_id: str) -> Any:
        decision = made(self, job_id)
        decision.preempts.add(job_id="job-3", attempt=1)
        decision.preempts.add(job_id="job-5", attempt=2)
        return decision

    monkeypatch.setattr(fake_suite._Services, "_decision", stopping)
    text = " ".join(adlro("describe", "decision", "d-1").stdout.split())
    assert "stops job-3 (attempt 1), job-5 (attempt 2)" in text
    document = json.loads(adlro("describe", "decision", "d-1", "-o", "json").stdout)["decision"]
    assert document["preempts"] == [{"job_id": "job-3", "attempt": 1}, {"job_id": "job-5", "attempt": 2}]


def test_a_replays_placements_count_stops() -> None:
    (row,) = placements([Job("job-1", SPEC, JobState.SUCCEEDED, attempts=(FIRST, SECOND, THIRD))])
    assert (row["attempts"], row["stops"]) == (3, 2)
