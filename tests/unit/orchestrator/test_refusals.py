"""A launch that is refused, or not answered, concerns its job alone: the session goes on, and the job says why."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from adlro.errors import (
    AdlroError,
    Conflict,
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Unavailable,
    Unsupported,
)
from adlro.placement import Placement
from adlro.records.events import AttemptState, Clock, ClockMode, EventKind
from adlro.records.jobs import JobState, PendingReason
from adlro.services.orchestrator.ports import Launched
from adlro.services.orchestrator.session.core import launches
from adlro.services.orchestrator.session.core.launches import AGAIN_S, END_PATIENCE_S, LAUNCH_TRIES
from tests.unit.orchestrator.core_house import CoreHouse
from tests.unit.orchestrator.house import House


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "AGAIN_S", 0.01)
    monkeypatch.setattr(launches, "END_PATIENCE_S", 0.5)


def until_refused(house: CoreHouse, job_id: str) -> None:
    """It waits for its next launch."""
    house.until_reason(job_id, PendingReason.LAUNCH_REFUSED)


@pytest.mark.parametrize(
    "error", [InvalidInput("payload.image: there is no image 'x'"), Unsupported("it runs no containers")]
)
def test_a_refusal_that_names_the_job_fails_it_at_once_and_no_other(core_house: CoreHouse, error: AdlroError) -> None:
    core_house.cluster.refused["job-2"] = [error]
    core_house.start("fcfs")
    for _ in range(5):
        core_house.submit(2.0)
    done = core_house.until_final(5)
    assert [job.state for job in done] == [JobState.SUCCEEDED, JobState.FAILED] + 3 * [JobState.SUCCEEDED]
    assert done[1].message == f"attempt 1 was refused by the cluster: {error.message}"
    assert done[1].attempt_count == 1
    assert core_house.token == 1


@pytest.mark.parametrize("error", [Conflict("the GPU is busy", reason="GPU_BUSY"), NotFound("no such GPU")])
def test_any_other_refusal_is_tried_again_after_growing_pauses(core_house: CoreHouse, error: AdlroError) -> None:
    core_house.cluster.refused["job-1"] = [error] * 4
    core_house.start("fcfs", max_attempts=5)
    core_house.submit(2.0)
    core_house.submit(2.0)
    done = core_house.until_final(2)
    assert [job.state for job in done] == [JobState.SUCCEEDED] * 2
    ends_s = [each.end_s for each in done[0].attempts[:-1]]
    assert ends_s == [0.0, 0.0, 5.0, 20.0]
    assert done[0].start_s == 65.0
    assert done[1].jct_s == 2.0
    assert core_house.token == 1
    records = core_house.store.history["job-1"]
    told = [job for job in records if job.pending_reason is PendingReason.LAUNCH_REFUSED]
    assert told[-1].message == (
        f"attempt 4 was refused by the cluster: {error.message}; the next one is at 65 s of cluster time"
    )


def test_a_cluster_that_says_when_is_asked_then(core_house: CoreHouse) -> None:
    core_house.cluster.refused["job-1"] = [LimitExceeded("too many launches", retry_after_s=7.0)]
    core_house.start("fcfs")
    core_house.submit(2.0)
    (done,) = core_house.until_final(1)
    assert done.start_s == 7.0


def test_who_was_refused_often_enough_has_failed(core_house: CoreHouse) -> None:
    core_house.cluster.refused["job-1"] = [Conflict("no room on its disk")] * 9
    core_house.start("fcfs", max_attempts=3)
    core_house.submit(2.0)
    (done,) = core_house.until_final(1)
    assert done.state is JobState.FAILED
    assert done.message == "attempt 3 of at most 3 was lost: refused by the cluster: no room on its disk"


def test_its_gpu_is_for_others_while_it_waits(core_house: CoreHouse) -> None:
    """All GPUs but one are taken for long; the one whose launch is refused stands first in the queue."""
    core_house.cluster.refused["job-6"] = [Conflict("not now")] * 3
    core_house.start("fcfs")
    for _ in range(5):
        core_house.submit(1000.0)
    core_house.submit(1.0)
    core_house.submit(1.0)
    core_house.until(lambda: all(core_house.store.get(job_id).state.final for job_id in ("job-6", "job-7")))
    refused, other = core_house.store.get("job-6"), core_house.store.get("job-7")
    assert other.start_s is not None
    assert refused.start_s is not None
    assert other.start_s < refused.start_s


def test_one_that_waits_for_its_next_launch_can_be_cancelled(core_house: CoreHouse) -> None:
    core_house.cluster.refused["job-1"] = [Conflict("not now")] * 9
    core_house.start("fcfs", max_attempts=9)
    core_house.pause()
    core_house.submit(2.0)
    until_refused(core_house, "job-1")
    core_house.cancel("job-1")
    (done,) = core_house.until_final(1)
    assert done.state is JobState.CANCELLED
    assert not core_house.cluster.running


def test_a_launch_without_an_answer_holds_up_nobody_and_is_asked_for_again(core_house: CoreHouse) -> None:
    core_house.cluster.refused["job-1"] = [DeadlineExceeded("no answer in 10 s")] * 2
    core_house.start("fcfs")
    for _ in range(4):
        core_house.submit(2.0)
    done = core_house.until_final(4)
    assert [job.state for job in done] == [JobState.SUCCEEDED] * 4
    assert [job.attempt_count for job in done] == [1] * 4
    assert core_house.token == 1
    assert any("no answer to 2 of 3 launches" in job.message for job in core_house.store.history["job-1"])


def test_one_that_is_never_answered_is_stopped_before_it_is_launched_again(core_house: CoreHouse) -> None:
    core_house.cluster.refused["job-1"] = [DeadlineExceeded("no answer in 10 s")] * 3
    core_house.start("fcfs")
    core_house.submit(2.0)
    (done,) = core_house.until_final(1)
    assert done.state is JobState.SUCCEEDED
    assert done.attempt_count == 2
    assert "no answer to 3 of 3 launches (no answer in 10 s)" in done.attempts[0].outcome
    assert core_house.cluster.stops == [("job-1", 1)]
    assert core_house.token == 1


@pytest.mark.parametrize(
    "error", [DeadlineExceeded("no answer in 10 s"), InternalError("a bug there"), Unavailable("its node is away")]
)
def test_one_that_runs_without_an_answer_is_told_by_its_events(core_house: CoreHouse, error: AdlroError) -> None:
    """Whatever it is that the cluster answers after it has started the job."""
    core_house.cluster.unanswered["job-1"] = 1
    core_house.cluster.error = error
    core_house.start("fcfs")
    core_house.submit(2.0)
    (done,) = core_house.until_final(1)
    assert done.state is JobState.SUCCEEDED
    assert done.attempt_count == 1
    assert not core_house.cluster.stops
    assert core_house.token == 1


def test_a_refused_repetition_says_nothing_of_the_first_try(core_house: CoreHouse) -> None:
    """The first one is carried out untold; then the cluster has too many calls to look at."""
    cluster, launch = core_house.cluster, core_house.cluster.on_launch
    core_house.start("fcfs")
    core_house.pause()
    answers: list[AdlroError] = [DeadlineExceeded("no answer in 10 s"), LimitExceeded("too many calls at once")]

    def meets_trouble(job_id: str, *rest: Any, **more: Any) -> Launched:
        if len(answers) == 2:
            cluster.start_later = True
            launch(job_id, *rest, **more)
            cluster.start_later = False
        if answers:
            raise answers.pop(0)
        return launch(job_id, *rest, **more)

    cluster.on_launch = meets_trouble  # type: ignore[method-assign]
    core_house.submit(2.0)
    core_house.settle()
    assert "2 of 3 launches (the last was refused: too many calls at once)" in core_house.store.get("job-1").message
    cluster.start_accepted()
    core_house.resume()
    (done,) = core_house.until_final(1)
    assert (done.state, done.attempt_count) == (JobState.SUCCEEDED, 1)
    assert cluster.stops == []


def test_what_starts_after_it_was_given_up_is_stopped(core_house: CoreHouse) -> None:
    cluster = core_house.cluster
    core_house.start("fcfs")
    core_house.pause()
    spec = core_house.submit(5.0).spec
    core_house.until(lambda: "job-1" in cluster.running)
    cluster.on_launch("job-9", 1, spec, Placement.on("volta-0/1"), cluster.token, cluster.incarnation)
    core_house.until(lambda: "job-9" not in cluster.running)
    assert cluster.stops == [("job-9", 1)]
    assert core_house.token == 1


@pytest.mark.parametrize("deaf", [0, 2])
@pytest.mark.parametrize("heard", [True, False], ids=["its start is heard of", "its start comes late"])
def test_one_that_runs_just_as_it_is_given_up_is_not_cancelled_but_runs_again(
    core_house: CoreHouse, deaf: int, heard: bool
) -> None:
    """Two launches of the job are lost; the third is carried out, but by then nobody waits for its answer."""
    cluster = core_house.cluster
    cluster.refused["job-1"] = [DeadlineExceeded("no answer in 10 s")] * 3
    cluster.deaf = deaf
    core_house.start("fcfs")
    core_house.pause()
    stop = cluster.on_stop

    def starts_first(job_id: str, attempt: int, token: int, incarnation: str) -> bool:
        job = core_house.store.get(job_id)
        if attempt == 1 and not cluster.known:
            assert job.attempts[0].outcome.startswith("given up: no answer to 3 of 3 launches")
            cluster.on_launch(job_id, attempt, job.spec, job.placement, token, incarnation)
            if heard:
                raise Unavailable("the session hears of the start first")
        return stop(job_id, attempt, token, incarnation)

    cluster.on_stop = starts_first  # type: ignore[method-assign]
    core_house.submit(2.0)
    core_house.until(lambda: ("job-1", 1) in cluster.stops)
    core_house.resume()
    (done,) = core_house.until_final(1)
    assert done.state is JobState.SUCCEEDED
    assert done.attempt_count == 2
    assert "no answer to 3 of 3 launches" in done.attempts[0].outcome
    assert core_house.token == 1


def untold(core_house: CoreHouse) -> None:
    """A job's launch is carried out, but neither its answer nor its start is told before it is given up."""
    cluster, launch = core_house.cluster, core_house.cluster.on_launch
    core_house.start("fcfs")
    core_house.pause()
    cluster.linger = True
    tries = 0

    def carried_out_at_last(job_id: str, *rest: Any, **more: Any) -> Launched:
        nonlocal tries
        tries += 1
        if tries == LAUNCH_TRIES:
            cluster.start_later = True  # so that no event tells of it
            launch(job_id, *rest, **more)
            cluster.start_later = False
        if tries <= LAUNCH_TRIES:
            raise DeadlineExceeded("no answer in 10 s")
        return launch(job_id, *rest, **more)

    cluster.on_launch = carried_out_at_last  # type: ignore[method-assign]
    core_house.submit(2.0)


def test_one_that_is_given_up_is_taken_back_when_it_is_over_and_not_before(core_house: CoreHouse) -> None:
    """The cluster has taken the stop; what runs takes its time to end, and nobody has heard of its start."""
    cluster = core_house.cluster
    untold(core_house)
    core_house.until(lambda: cluster.stops == [("job-1", 1)])
    core_house.settle_until(END_PATIENCE_S - 1.0)
    assert core_house.store.get("job-1").attempt_count == 1
    cluster.end_stopped()
    core_house.until_state("job-1", JobState.RUNNING, attempt=2)
    assert core_house.now < END_PATIENCE_S, "the event of its end takes it back"
    core_house.resume()
    (done,) = core_house.until_final(1)
    assert (done.state, done.attempt_count) == (JobState.SUCCEEDED, 2)
    assert "no answer to 3 of 3 launches" in done.attempts[0].outcome


def test_one_that_is_given_up_and_never_ends_is_taken_back_in_the_end(core_house: CoreHouse) -> None:
    untold(core_house)
    core_house.until(lambda: core_house.store.get("job-1").attempt_count == 2)
    assert core_house.now >= END_PATIENCE_S
    assert core_house.token == 1


def test_one_whose_end_an_earlier_session_asked_for_is_not_taken_back_while_it_ends(core_house: CoreHouse) -> None:
    """The cluster answers the second stop: there is nothing to end, for that is done already."""
    cluster = core_house.cluster
    untold(core_house)
    core_house.until(lambda: cluster.stops == [("job-1", 1)])
    core_house.kill()
    launch = cluster.on_launch

    def no_answer(job_id: str, attempt: int, *rest: Any, **more: Any) -> Launched:
        if attempt == 1:
            raise DeadlineExceeded("no answer in 10 s")
        assert not cluster.accepted, "its first attempt has not ended yet"
        return launch(job_id, attempt, *rest, **more)

    cluster.on_launch = no_answer  # type: ignore[method-assign]
    core_house.start()
    core_house.until(lambda: len(cluster.stops) == 2)
    core_house.settle_until(END_PATIENCE_S - 1.0)
    assert core_house.store.get("job-1").attempt_count == 1
    cluster.end_stopped()
    core_house.until_state("job-1", JobState.RUNNING, attempt=2)


def test_one_whose_end_the_user_asked_for_holds_its_gpu_while_it_ends(core_house: CoreHouse) -> None:
    """The cancel's stop came first; then nobody answers the launch."""
    cluster, launch = core_house.cluster, core_house.cluster.on_launch
    core_house.start("fcfs")
    core_house.pause()
    cluster.linger = True

    def carried_out_untold(job_id: str, *rest: Any, **more: Any) -> Launched:
        if not cluster.accepted:
            cluster.start_later = True
            launch(job_id, *rest, **more)
            core_house.cancel(job_id)
        raise DeadlineExceeded("no answer in 10 s")

    cluster.on_launch = carried_out_untold  # type: ignore[method-assign]
    core_house.submit(2.0)
    core_house.settle_until(END_PATIENCE_S - 1.0)
    assert cluster.stops == [("job-1", 1)] * 2
    assert not core_house.store.get("job-1").state.final
    cluster.end_stopped()
    (done,) = core_house.until_final(1)
    assert done.state is JobState.CANCELLED
    assert core_house.now < END_PATIENCE_S, "the event of its end is what ends it"


def test_one_that_ended_without_a_start_and_was_forgotten_runs_as_another_attempt(core_house: CoreHouse) -> None:
    """The store came back without its last changes; no event will ever tell of that attempt again."""
    cluster = core_house.cluster
    core_house.start("fcfs")
    spec = core_house.submit(5.0).spec
    cluster.start_later = True
    cluster.on_launch("job-2", 1, spec, Placement.on("volta-0/0"), cluster.token, cluster.incarnation)
    cluster.start_later = False
    cluster.lose_accepted()
    core_house.until_final(1)
    core_house.submit(5.0)
    _, done = core_house.until_final(2)
    assert (done.state, done.attempt_count) == (JobState.SUCCEEDED, 2)
    assert "it ended before, without a start, and was forgotten since" in done.attempts[0].outcome


def test_one_that_ended_without_a_start_is_what_its_event_says_if_that_comes(core_house: CoreHouse) -> None:
    """The repeated launch is answered before the event of its end is told."""
    cluster, launch = core_house.cluster, core_house.cluster.on_launch
    core_house.start("fcfs", max_attempts=1)
    core_house.settle()
    news: list[int] = []

    def fails_at_once(job_id: str, attempt: int, *rest: Any, **more: Any) -> Launched:
        if news:
            return Launched(0, AttemptState.ENDED)
        news.append(attempt)
        raise DeadlineExceeded("no answer in 10 s")

    cluster.on_launch = fails_at_once  # type: ignore[method-assign]
    core_house.submit(5.0)
    core_house.until(lambda: bool(core_house.core._launches.flights) and core_house.now >= AGAIN_S)
    cluster.on_launch = launch  # type: ignore[method-assign]
    cluster.emit((EventKind.LOST, "job-1", 1, Placement.on("volta-0/0")))
    (done,) = core_house.until_final(1)
    assert done.message == "attempt 1 of at most 1 was lost: its GPU was lost"


def test_one_that_ended_without_a_start_waits_for_its_event_behind_others(core_house: CoreHouse) -> None:
    """A session was killed as it launched; the next one hears of the cluster's events late."""
    cluster = core_house.cluster
    core_house.start("fcfs")
    core_house.pause()
    core_house.submit(2.0)
    core_house.until(lambda: core_house.store.get("job-1").attempt_count == 1)
    core_house.kill()
    cluster.known["job-1", 1] = 0
    cluster.emit((EventKind.FAILED, "job-1", 1, Placement.on("volta-0/0")))
    core_house.late_news = True
    core_house.start()
    core_house.settle_until(10 * AGAIN_S)
    core_house.late_news = False
    (done,) = core_house.until_final(1)
    assert (done.state, done.attempt_count) == (JobState.FAILED, 1)
    core_house.settle()
    assert not core_house.core._launches.flights


def test_a_cancel_that_comes_before_a_late_answer_is_not_lost(core_house: CoreHouse) -> None:
    cluster = core_house.cluster
    cluster.unanswered["job-1"] = 1
    core_house.slow = True
    core_house.start("fcfs")
    core_house.pause()
    core_house.submit(50.0)
    core_house.until_state("job-1", JobState.RUNNING)
    stop, asked = cluster.on_stop, []

    def finds_nothing(job_id: str, *_: object) -> bool:
        cluster.on_stop = stop  # type: ignore[method-assign]
        asked.append(job_id)
        return False

    cluster.on_stop = finds_nothing  # type: ignore[method-assign,assignment]
    core_house.cancel("job-1")
    core_house.until(lambda: bool(asked))
    core_house.answer_late()
    (done,) = core_house.until_final(1)
    assert done.state is JobState.CANCELLED


def test_a_stop_that_meets_a_fault_of_the_cluster_is_asked_for_again(core_house: CoreHouse) -> None:
    core_house.cluster.refused["job-1"] = [InternalError("a bug there")] * 3
    core_house.cluster.error = InternalError("a bug there")
    core_house.cluster.deaf = 3
    core_house.start("fcfs")
    core_house.submit(2.0)
    (done,) = core_house.until_final(1)
    assert (done.state, done.attempt_count) == (JobState.SUCCEEDED, 2)
    assert core_house.cluster.stops == [("job-1", 1)] * 4
    assert core_house.token == 1


def can_end_nothing(*_: object) -> bool:
    raise Unsupported("what runs here ends by itself")


def test_on_a_cluster_that_can_end_nothing_one_that_it_has_is_not_taken_back(core_house: CoreHouse) -> None:
    """Nobody has heard of its start when the cluster is asked once more whether it has it."""
    cluster = core_house.cluster
    untold(core_house)
    cluster.on_stop = can_end_nothing  # type: ignore[method-assign,assignment]
    core_house.settle()
    assert core_house.now >= END_PATIENCE_S
    assert not core_house.core._launches.flights
    cluster.start_accepted()
    core_house.resume()
    (done,) = core_house.until_final(1)
    assert (done.state, done.attempt_count) == (JobState.SUCCEEDED, 1)
    assert core_house.token == 1


def test_on_a_cluster_that_can_end_nothing_one_that_it_never_had_runs_in_the_end(core_house: CoreHouse) -> None:
    core_house.cluster.refused["job-1"] = [DeadlineExceeded("no answer in 10 s")] * 3 + [Conflict("not now")]
    core_house.cluster.on_stop = can_end_nothing  # type: ignore[method-assign,assignment]
    core_house.start("fcfs")
    core_house.submit(2.0)
    (done,) = core_house.until_final(1)
    assert (done.state, done.attempt_count) == (JobState.SUCCEEDED, 2)
    assert core_house.now >= END_PATIENCE_S


@pytest.mark.parametrize("started", [True, False])
def test_on_a_cluster_that_can_end_nothing_a_cancelled_job_says_so_once(core_house: CoreHouse, started: bool) -> None:
    cluster = core_house.cluster
    cluster.on_stop = can_end_nothing  # type: ignore[method-assign,assignment]
    cluster.start_later = not started
    core_house.start("fcfs")
    core_house.pause()
    core_house.submit(50.0)
    core_house.until(lambda: bool(cluster.launches))
    core_house.settle()
    core_house.cancel("job-1")
    core_house.cancel("job-1")
    core_house.settle()
    cluster.start_accepted()
    core_house.kill()
    core_house.start()
    core_house.settle()
    told = "its end was asked for, but this cluster can't end what runs: it ends by itself"
    assert core_house.store.get("job-1").message == told
    assert core_house.store.get("job-1").state is JobState.RUNNING
    states = (job.state for job in core_house.store.history["job-1"] if job.message == told)
    assert [state for state, _ in itertools.groupby(states)] == (
        [JobState.RUNNING] if started else [JobState.PENDING, JobState.RUNNING]
    )
    core_house.resume()
    (done,) = core_house.until_final(1)
    assert done.state is JobState.SUCCEEDED


def test_the_clock_does_not_wait_for_a_stop_without_an_answer(core_house: CoreHouse) -> None:
    """A cancelled job's stop is never answered: what else there is goes on."""
    cluster = core_house.cluster
    core_house.start("fcfs")

    def no_answer(*_: object) -> bool:
        raise DeadlineExceeded("no answer in 10 s")

    cluster.on_stop = no_answer  # type: ignore[method-assign,assignment]
    launch = cluster.on_launch

    def cancelled_meanwhile(job_id: str, *rest: Any, **more: Any) -> Launched:
        if job_id == "job-1":
            core_house.cancel("job-1")
        return launch(job_id, *rest, **more)

    cluster.on_launch = cancelled_meanwhile  # type: ignore[method-assign]
    core_house.submit(1000.0)
    core_house.submit(2.0)
    core_house.until_state("job-2", JobState.SUCCEEDED)
    assert core_house.token == 1


def test_a_node_that_is_away_uses_up_attempts_and_ends_no_session(core_house: CoreHouse) -> None:
    """The cluster answers UNAVAILABLE for what concerns the node: launches and stops."""
    core_house.cluster.refused["job-1"] = [Unavailable("its node is away")] * 6
    core_house.cluster.error = Unavailable("its node is away")
    core_house.cluster.deaf = 2
    core_house.start("fcfs", max_attempts=2)
    core_house.submit(2.0)
    core_house.submit(2.0)
    done = core_house.until_final(2)
    assert [job.state for job in done] == [JobState.FAILED, JobState.SUCCEEDED]
    assert "its node is away" in done[0].message
    assert core_house.token == 1


@pytest.mark.usefixtures("soon_again")
async def test_telling_of_no_answer_counts_no_placement(house: House) -> None:
    house.cluster.refused["job-1"] = [DeadlineExceeded("no answer in 10 s")] * 3
    house.start("fcfs")
    await house.submit(2.0)
    await house.until_final(1)
    placed = house.registry.get_sample_value("adlro_orchestrator_placements_total", {"gpu_model": "v100_sxm2"})
    again = house.registry.get_sample_value("adlro_orchestrator_repeated_placements_total")
    assert (placed, again) == (2.0, 1.0)


async def test_after_a_restart_a_refused_job_is_launched_again(house: House) -> None:
    house.cluster.refused["job-1"] = [Conflict("not now")] * 2
    house.start("fcfs", max_attempts=9)
    await house.until_acting()
    await house.pause()
    await house.submit(2.0)

    async def refused() -> bool:
        return (await house.store.get("job-1")).pending_reason is PendingReason.LAUNCH_REFUSED

    await house.until(refused)
    status = await house.orchestrator.status()
    assert (status.queue_length, status.waiting_for_begin_time_count) == (1, 0)
    assert "not now" in (await house.orchestrator.answers.job("job-1")).summary
    await house.kill()
    house.start("fcfs", max_attempts=9)
    await house.until_acting()
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    (done,) = await house.until_final(1)
    assert done.state is JobState.SUCCEEDED
    assert done.attempt_count == 3
