"""What `adlro top` makes of records, in whatever order they come."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.cli.top.feed_states import Feed, FeedState
from adlro.cli.top.gpu_cells import GpuMode
from adlro.cli.top.job_rows import Expected, JobSearch, RowOrder, StartForecast, ordered
from adlro.cli.top.model import TopModel
from adlro.errors import Unavailable
from adlro.placement import Placement
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.records.status import EventLag
from tests.unit.cli.top.records import (
    CLUSTER,
    change,
    description,
    ended,
    gpu_state,
    running,
    snapshot,
    status,
    waiting,
)


def taken(*events: object) -> TopModel:
    model = TopModel()
    for event in events:
        model.take_job(event)  # type: ignore[arg-type]
    return model


def table(model: TopModel) -> list[tuple[str, int]]:
    rows = ordered(model.entries.values(), JobSearch(), RowOrder.STATE)
    return [(each.job.job_id, each.job.revision) for each in rows]


@st.composite
def histories(draw: st.DrawFn) -> list[Job]:
    """The states of some jobs, each with its own revisions: waits, perhaps starts, perhaps ends."""
    jobs: list[Job] = []
    revision = 0
    for number in range(1, draw(st.integers(1, 6)) + 1):
        steps = draw(st.integers(1, 5))
        for step in range(steps):
            revision += 1
            made = waiting if step < 2 else running if step < 4 else ended
            jobs.append(made(number, revision))
    return jobs


@given(histories(), st.randoms(use_true_random=False))
def test_any_order_of_events_gives_the_same_table(jobs: list[Job], chance: random.Random) -> None:
    in_order = taken(*map(change, jobs))
    shuffled = [*jobs, *chance.choices(jobs, k=len(jobs))]  # some come twice
    chance.shuffle(shuffled)
    model = taken(*map(change, shuffled))
    assert table(model) == table(in_order)
    assert model.ended == in_order.ended
    newest = {job.job_id: job for job in sorted(jobs, key=lambda each: each.revision)}
    open_ids = {job_id for job_id, job in newest.items() if not job.state.final}
    assert set(model.entries) == open_ids


@given(histories(), st.integers(0, 40))
def test_a_snapshot_in_the_middle_changes_nothing_that_is_true(jobs: list[Job], cut: int) -> None:
    """What the stream brought before, a snapshot brings again; jobs that ended unseen are gone after it."""
    newest = {job.job_id: job for job in sorted(jobs, key=lambda each: each.revision)}
    open_now = [job for job in newest.values() if not job.state.final]
    model = taken(*map(change, jobs[:cut]))
    model.begin_jobs()
    for event in snapshot(*open_now, revision=max(each.revision for each in jobs)):
        model.take_job(event)
    assert set(model.entries) == {job.job_id for job in open_now}
    assert model.jobs_complete


def test_a_job_of_the_snapshot_may_be_newer_than_it_and_its_change_comes_again() -> None:
    model = TopModel()
    model.begin_jobs()
    for event in [
        *snapshot(waiting(1, 3), running(9, 12), revision=10),
        change(waiting(9, 11)),
        change(running(9, 12)),
    ]:
        model.take_job(event)
    assert table(model) == [("job-1", 3), ("job-9", 12)]


def test_after_a_store_that_lost_its_last_changes_its_snapshot_counts() -> None:
    model = taken(*snapshot(waiting(1, 3), revision=3), change(waiting(2, 7)), change(ended(1, 8)))
    model.begin_jobs()
    for event in snapshot(waiting(1, 3), revision=5):
        model.take_job(event)
    assert table(model) == [("job-1", 3)]
    model.take_job(change(running(1, 6)))
    assert model.entries["job-1"].job.state is JobState.RUNNING


def test_nothing_is_told_before_the_first_snapshot_is_complete() -> None:
    model = TopModel()
    assert not model.jobs_complete
    assert model.cells() == []
    assert {each.state for each in model.feeds.values()} == {FeedState.CONNECTING}


def test_gpus_are_allocated_to_jobs_that_run_or_are_being_launched() -> None:
    launching = waiting(2, 5, pending_reason=PendingReason.LAUNCHING)
    launching = replace(launching, placement=Placement.on("volta-0/1"))
    stopped = replace(waiting(3, 6), placement=Placement.on("volta-0/2"))  # ran there before
    model = taken(*snapshot(running(1, 2, "volta-0/0"), launching, stopped, revision=6))
    model.take_description(description(lost_gpu_ids=("turing-0/1",)), 0.0)
    model.take_status(status(drained_node_ids=("turing-0",), drain_reasons={"turing-0": "fan"}), 0.0)
    model.take_gpus(gpu_state([0.9, 0.1, 0.0, 0.0, 0.0, 0.0]))
    modes = {each.gpu_id: each.mode for each in model.cells()}
    assert modes == {
        "volta-0/0": GpuMode.BUSY,
        "volta-0/1": GpuMode.ALLOCATED,
        "volta-0/2": GpuMode.IDLE,
        "volta-0/3": GpuMode.IDLE,
        "turing-0/0": GpuMode.DRAINED,
        "turing-0/1": GpuMode.LOST,
    }
    assert next(each.why for each in model.cells() if each.mode is GpuMode.DRAINED) == "fan"


def test_gpus_without_reports_are_known_by_their_jobs_alone() -> None:
    model = taken(*snapshot(running(1), revision=2))
    model.take_description(description(), 0.0)
    assert [each.mode for each in model.cells()][:2] == [GpuMode.ALLOCATED, GpuMode.IDLE]
    assert len(model.cells()) == len(list(CLUSTER.gpus()))


def test_who_sees_only_his_own_jobs_is_told_nothing_of_the_gpus() -> None:
    """The GPUs of others would look idle."""
    model = taken(*snapshot(running(1), revision=2))
    model.cluster = CLUSTER
    model.failed(Feed.DECIDER, "ada is submitter", 1.0, refused=True)
    assert model.own_jobs_only
    assert model.cells() == []


@pytest.mark.parametrize(
    ("clock", "after_2_s"),
    [
        (Clock(ClockMode.REAL, 1.0, False, 60.0), 62.0),
        (Clock(ClockMode.SCALED, 30.0, False, 60.0), 120.0),
        (Clock(ClockMode.SCALED, 30.0, True, 60.0), 60.0),
        (Clock(ClockMode.VIRTUAL, 0.0, False, 60.0), 60.0),
    ],
)
def test_cluster_time_goes_on_between_two_answers(clock: Clock, after_2_s: float) -> None:
    model = TopModel()
    model.take_description(description(clock=clock), 100.0)
    assert model.moment(102.0, 0.0).cluster_s == after_2_s


def test_the_orchestrators_time_of_its_last_event_does_not_turn_the_clock_back() -> None:
    model = TopModel()
    model.take_description(description(), 100.0)
    model.take_status(status(cluster_time_s=5.0), 101.0)
    assert model.moment(101.0, 0.0).cluster_s == 61.0
    model.take_status(status(cluster_time_s=90.0), 101.0)
    assert model.moment(101.0, 0.0).cluster_s == 90.0


def test_the_time_of_a_cluster_that_is_silent_stands_still() -> None:
    model = TopModel()
    model.take_description(description(), 100.0)
    assert model.moment(10_000.0, 0.0).cluster_s == 70.0


def test_event_lag_is_what_the_orchestrator_says() -> None:
    model = TopModel()
    seen = [model.event_lag]
    for told in (status(), status(event_lag=EventLag(12, 3.5, 7691))):
        model.take_status(told, 0.0)
        seen.append(model.event_lag)
    assert seen == [None, None, EventLag(12, 3.5, 7691)]


def test_a_forecast_goes_with_its_jobs_wait() -> None:
    model = taken(*snapshot(waiting(1), waiting(2, 2), waiting(3, 3), revision=3))
    forecast = StartForecast(100.0, 200.0, 400.0, 60.0)
    model.take_starts(dict.fromkeys(("job-1", "job-2", "job-3", "job-9"), forecast))
    assert set(model.starts) == {"job-1", "job-2", "job-3"}
    model.take_job(change(running(1, 4)))
    model.take_job(change(ended(2, 5)))
    assert set(model.starts) == {"job-3"}
    assert model.waiting_of(["job-1", "job-3", "job-9"]) == ["job-3"]


def test_a_source_without_a_word_grows_stale_and_an_error_keeps_the_age_of_the_data() -> None:
    model = TopModel()
    model.heard(Feed.JOBS, 10.0)
    assert model.feeds[Feed.JOBS].seen(14.0, 5.0) is FeedState.LIVE
    assert model.feeds[Feed.JOBS].seen(16.0, 5.0) is FeedState.STALE
    model.failed(Feed.JOBS, Unavailable("gone").message, 17.0)
    assert model.feeds[Feed.JOBS].seen(18.0, 5.0) is FeedState.AWAY
    assert model.feeds[Feed.JOBS].age_s(20.0) == 10.0


def test_runtimes_are_asked_for_once_and_forgotten_with_the_attempt() -> None:
    model = taken(*snapshot(running(1), waiting(2), revision=2))
    assert [each.job_id for each in model.unasked(["job-1", "job-2", "job-3"])] == ["job-1"]
    model.take_expected({"job-1": Expected(10.0, 5.0, 20.0), "job-3": Expected(1.0, 1.0, 1.0)})
    assert model.unasked(["job-1"]) == []
    assert set(model.expected) == {"job-1"}
    model.take_job(change(ended(1)))
    assert model.expected == {}
