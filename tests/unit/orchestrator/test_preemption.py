"""Jobs that are stopped for others: one launch, which happens wholly or not at all, whatever fails meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from adlro.errors import Conflict, DeadlineExceeded, Unsupported
from adlro.records.cluster import Cluster
from adlro.records.events import ClockMode
from adlro.records.jobs import AttemptRef, Job, JobState, PendingReason, Preemptible
from adlro.services.orchestrator.ledger.preempting import LEAST_SHARE
from adlro.services.orchestrator.session.core.launches import LAUNCH_TRIES
from adlro.services.orchestrator.session.core.recording import differences
from tests.unit.orchestrator.core_house import CoreHouse
from tests.unit.orchestrator.test_gangs import V100, nodes
from tests.volume import cases

COSTS = Preemptible(restart_s=2.0, lost_s=3.0)
SHARE = (80.0 + 3.0) / 100.0
"""What is left of 100 s of work that a stop after 20 s breaks off."""


def preempting(
    grace_s: float = 0.0, cluster: Cluster | None = None, min_run_s: float | None = 0.0, policy: str = "stops"
) -> CoreHouse:
    house = CoreHouse(cluster or nodes((V100, 1)))
    house.cluster.grace_s, house.min_run_s = grace_s, min_run_s
    if grace_s:  # its clock does not wait for anybody
        house.cluster.clock = replace(house.cluster.clock, mode=ClockMode.REAL)
    house.start(policy)
    return house


def long_and_short(house: CoreHouse, **spec: object) -> None:
    """job-1 has the GPU for 100 s; job-2, of 10 s, comes at 20 s."""
    house.submit(100.0, preemptible=COSTS)
    house.submit(10.0, begin_time_s=20.0, **spec)


def waiting_for_stops(grace_s: float = 5.0, **spec: object) -> CoreHouse:
    """job-2 waits until job-1 has stopped."""
    house = preempting(grace_s)
    long_and_short(house, **spec)
    house.until(lambda: bool(house.cluster.waiting))
    house.pause()
    house.settle_until(house.now + 0.1)
    return house


def times(house: CoreHouse) -> list[tuple[float | None, float | None]]:
    return [(job.start_s, job.end_s) for _, job in house.store.records.values()]


def entry_gpus(house: CoreHouse, job_id: str) -> tuple[int, ...]:
    return house.core.ledger.entries[job_id].held


def test_a_job_is_stopped_for_a_shorter_one_and_goes_on_with_what_is_left() -> None:
    house = preempting()
    long_and_short(house)
    first, second = house.until_final(2)
    assert times(house) == [(30.0, 30.0 + 2.0 + SHARE * 100.0), (20.0, 30.0)]
    assert [(each.outcome, each.preempted, each.end_s) for each in first.attempts] == [
        ("preempted: for job-2", True, 20.0),
        ("succeeded", False, first.end_s),
    ]
    assert second.attempts[0].preempts == (AttemptRef("job-1", 1),)
    assert house.cluster.launches == [("job-1", 1, "n0/0"), ("job-2", 1, "n0/0"), ("job-1", 2, "n0/0")]
    assert first.remaining_ratio == SHARE
    # What it had in all attempts counts for its user.
    assert house.store.user_service["ann"].gpu_s == pytest.approx(20.0 + 10.0 + 2.0 + SHARE * 100.0)
    stopped = next(job for job in house.store.history["job-1"] if job.attempts and job.attempts[-1].preempted)
    assert stopped.state is JobState.PENDING
    assert stopped.message == "stopped for job-2; goes on later with 83 % of its work left"
    waits = next(job for job in house.store.history["job-2"] if job.pending_reason is PendingReason.LAUNCHING)
    assert waits.message == "waits until job-1 has stopped, then starts on n0/0"


def test_the_decision_says_who_is_stopped() -> None:
    house = preempting()
    long_and_short(house)
    house.until_final(2)
    made = [each.made.explained() for each in house.decided if each.made is not None]
    stops = next(each for each in made if each.job_id == "job-2")
    assert stops.preempts == (AttemptRef("job-1", 1),)
    assert stops.summary.endswith("starts job-2 on n0/0 (v100_sxm2), where 10 s are expected, once job-1 has stopped")
    assert [each.placement.gpu_ids for each in stops.candidates] == [("n0/0",)]
    assert [each.preempts for each in made if each.job_id == "job-1"] == [(), ()]


def test_a_job_that_waits_again_is_told_what_is_left_of_it() -> None:
    house = preempting()
    long_and_short(house)
    house.until_state("job-2", JobState.RUNNING)
    house.pause()
    house.settle_until(house.now + 3.0)
    job = house.store.get("job-1")
    assert job.message.endswith("(attempt 1 preempted: for job-2; 83 % of its work left)")
    assert (job.placement.gpu_ids, job.start_s) == ((), None)


def test_while_others_end_the_job_has_their_gpus_and_everybody_is_told() -> None:
    house = waiting_for_stops()
    assert entry_gpus(house, "job-2") == (0,)
    assert entry_gpus(house, "job-1") == ()
    assert house.store.get("job-1").message == "being stopped for job-2"
    assert house.store.get("job-1").state is JobState.RUNNING
    assert house.store.get("job-2").message == "waits until job-1 has stopped, then starts on n0/0"
    house.resume()
    first, second = house.until_final(2)
    assert second.start_s == 25.0
    assert first.remaining_ratio == (75.0 + 3.0) / 100.0
    assert first.end_s == pytest.approx(35.0 + 2.0 + 78.0)


def test_a_victim_keeps_the_gpus_that_are_not_needed_and_its_cores_until_it_ends() -> None:
    house = preempting(5.0, nodes((V100, 4), cores=16))
    house.submit(100.0, gpu_count=3, cpu_cores=4, preemptible=COSTS)
    house.submit(10.0, begin_time_s=20.0, gpu_count=2, cpu_cores=7)
    house.until(lambda: bool(house.cluster.waiting))
    house.pause()
    house.settle_until(house.now + 0.1)
    ledger = house.core.ledger
    assert [entry_gpus(house, job_id) for job_id in ("job-2", "job-1")] == [(0, 3), (1, 2)]
    # It has 4 cores at each of its three GPUs; the other one needs 7 at GPU 3 besides, and 3 more at GPU 0.
    assert ledger.occupancy.cores_free.tolist() == [16 - 12 - 7 - 3]
    assert ledger.occupancy.holder.tolist() == ["job-2", "job-1", "job-1", "job-2"]
    house.submit(1.0)  # nobody else fits where less than nothing is free
    house.settle_until(house.now + 0.1)
    assert house.store.get("job-3").attempt_count == 0
    house.resume()
    house.until_final(3)


def test_a_short_run_is_not_stopped_and_without_the_owner_none_is() -> None:
    house = preempting(min_run_s=60.0)
    long_and_short(house)
    house.submit(5.0, begin_time_s=70.0)
    # At 80 s job-1 goes on, being first in the queue, and is not stopped again before its end.
    assert [job.start_s for job in house.until_final(3)] == [80.0, 70.0, 80.0 + 2.0 + 33.0]
    off = preempting(min_run_s=None)
    long_and_short(off)
    assert [job.start_s for job in off.until_final(2)] == [0.0, 100.0]


def test_a_job_whose_user_does_not_allow_it_is_not_stopped() -> None:
    house = preempting()
    house.submit(100.0)
    house.submit(10.0, begin_time_s=20.0)
    assert [job.start_s for job in house.until_final(2)] == [0.0, 100.0]


def test_nobody_is_stopped_while_he_restores() -> None:
    house = preempting()
    house.submit(1000.0, preemptible=Preemptible(restart_s=50.0))
    house.submit(10.0, begin_time_s=20.0)
    house.submit(10.0, begin_time_s=40.0)  # job-1 restores from 30 to 80
    house.submit(10.0, begin_time_s=90.0)  # and again from 100 to 150
    jobs = house.until_final(4)
    assert [job.start_s for job in jobs[1:]] == [20.0, 90.0, 160.0]


def test_what_is_stopped_at_the_moment_of_its_start_is_launched_before() -> None:
    house = preempting()
    house.pause()
    house.submit(100.0, preemptible=Preemptible())
    house.submit(10.0)
    house.settle_until(house.now + 0.1)
    house.resume()
    jobs = house.until_final(2)
    assert house.cluster.launches[:2] == [("job-1", 1, "n0/0"), ("job-2", 1, "n0/0")]
    assert [job.start_s for job in jobs] == [10.0, 0.0]


def test_two_preemptions_at_once_do_not_touch_each_other() -> None:
    house = preempting(5.0, nodes((V100, 1), (V100, 1)))
    for _ in range(2):
        house.submit(100.0, preemptible=COSTS)
    for _ in range(2):
        house.submit(10.0, begin_time_s=20.0)
    house.until(lambda: len(house.cluster.waiting) == 2)
    jobs = house.until_final(4)
    assert [job.start_s for job in jobs[2:]] == [25.0, 25.0]
    assert [job.attempts[0].preempts for job in jobs[2:]] == [(AttemptRef("job-1", 1),), (AttemptRef("job-2", 1),)]


# ---- refused, not answered, given up


@pytest.mark.parametrize(
    "why",
    [
        Conflict("attempt 1 of job-1 does not run", reason="NOT_RUNNING"),
        Conflict("attempt 1 of job-1 restores", reason="NOT_PREEMPTIBLE"),
        Unsupported("it stops nobody", reason="NO_PREEMPTION"),
    ],
)
def test_a_refused_launch_gives_everything_back_and_does_not_count(why: Conflict | Unsupported) -> None:
    house = preempting()
    house._max_attempts = 1
    house.cluster.refused["job-2"] = [why]
    long_and_short(house)
    first, second = house.until_final(2)
    assert (second.state, second.start_s) == (JobState.SUCCEEDED, 20.0)
    assert [each.excused for each in second.attempts] == [True, False]
    assert house.cluster.preempted == [("job-1", 1)]
    assert first.attempt_count == 2


def test_after_a_refusal_the_job_that_was_to_be_stopped_has_its_gpus_as_before() -> None:
    house = preempting()
    house.cluster.refused["job-2"] = [Conflict("no", reason="NOT_PREEMPTIBLE")] * 2
    long_and_short(house)
    house.until_reason("job-2", PendingReason.LAUNCH_REFUSED)
    entry = house.core.ledger.entries["job-1"]
    assert (entry.held, entry.stopped_for, entry.expected_end_s, entry.since_s) == ((0,), "", 100.0, 0.0)
    assert house.core.ledger.occupancy.expected_end_s[0] == 100.0
    assert house.core.ledger.stop_rules.may_stop(entry, 25.0)
    assert house.until_final(2)[1].start_s == 25.0


def test_a_launch_that_never_arrives_is_given_up_and_nobody_is_stopped_for_it() -> None:
    house = preempting()
    house.cluster.refused["job-2"] = [DeadlineExceeded("no answer in 10 s")] * LAUNCH_TRIES
    long_and_short(house)
    first, second = house.until_final(2)
    assert (first.attempt_count, second.attempt_count) == (1, 2)
    assert house.cluster.preempted == []


def test_a_launch_without_an_answer_that_was_carried_out_ends_well() -> None:
    house = preempting(5.0)
    house.cluster.unanswered["job-2"] = 1
    long_and_short(house)
    first, second = house.until_final(2)
    assert (second.attempt_count, second.start_s, first.attempt_count) == (1, 25.0, 2)


# ---- cancelled


def test_a_cancelled_job_leaves_those_that_end_for_it_their_gpus_until_they_have_ended() -> None:
    house = waiting_for_stops()
    house.cancel("job-2")
    second = house.until_state("job-2", JobState.CANCELLED)
    assert second.start_s is None
    assert entry_gpus(house, "job-1") == (0,)
    entry = house.core.ledger.entries["job-1"]
    assert (entry.stopped_for, house.core.ledger.stop_rules.may_stop(entry, 50.0)) == ("job-2", False)
    house.resume()
    house.until(lambda: house.store.final_count == 2)
    assert house.store.get("job-1").attempts[0].outcome == "preempted: for job-2"


def test_a_victim_that_its_user_cancels_does_not_go_on() -> None:
    house = waiting_for_stops()
    house.cancel("job-1")
    assert house.until_state("job-1", JobState.CANCELLED).attempt_count == 1
    house.resume()
    assert house.until_state("job-2", JobState.SUCCEEDED).start_s == 20.0


def test_a_victim_that_was_cancelled_and_preempted_at_once_is_cancelled() -> None:
    house = waiting_for_stops()
    house.late_news = True
    house.cluster.end_preempted()
    house.cancel("job-1")
    house.settle_until(house.now + 0.1)
    house.late_news = False
    assert house.until_state("job-1", JobState.CANCELLED).attempts[0].preempted


def test_a_session_that_finds_a_cancelled_job_does_not_stop_others_for_it() -> None:
    house = preempting()
    long_and_short(house)
    house.until(lambda: house.store.get("job-2").attempt_count == 1)
    assert house.cluster.launches == [("job-1", 1, "n0/0")]  # written down, and not launched
    house.kill()
    house.store.request_cancel("job-2")
    house.until_final(2)
    assert house.store.get("job-2").state is JobState.CANCELLED
    assert house.cluster.preempted == []


# ---- what happens while others end


def test_a_victim_that_ends_by_itself_makes_room_too() -> None:
    house = preempting(30.0)
    house.submit(40.0, preemptible=COSTS)
    house.submit(10.0, begin_time_s=20.0)
    first, second = house.until_final(2)
    assert [job.start_s for job in (first, second)] == [0.0, 40.0]
    assert (first.state, first.attempts[0].preempted) == (JobState.SUCCEEDED, False)


def test_the_loss_of_a_gpu_ends_both_and_gives_others_theirs_back() -> None:
    house = preempting(50.0, nodes((V100, 3)))
    house.submit(200.0, preemptible=COSTS)
    house.submit(200.0, gpu_count=2, preemptible=COSTS)
    house.submit(10.0, begin_time_s=20.0, gpu_count=3)
    house.until(lambda: bool(house.cluster.waiting))
    house.pause()
    house.settle_until(house.now + 0.1)
    assert entry_gpus(house, "job-3") == (0, 1, 2)
    house.cluster.lose("n0/0")
    house.until(lambda: not house.core.ledger.entries["job-3"].gpus)
    assert entry_gpus(house, "job-2") == (1, 2)
    assert house.store.get("job-1").attempts[0].outcome.startswith("lost: ")
    assert house.store.get("job-1").remaining_ratio == 1.0
    house.cluster.give_gpu_back("n0/0")
    house.resume()
    house.until_final(3)
    assert house.store.get("job-2").attempts[0].preempted


def test_another_policy_and_a_drain_change_nothing_of_what_is_decided() -> None:
    house = waiting_for_stops()
    house.set_policy("fcfs")
    house.drain({"n0": "to be repaired"})
    house.resume()
    assert house.until_state("job-2", JobState.SUCCEEDED).start_s == 25.0
    assert house.until_reason("job-1", PendingReason.NODES_DRAINED).remaining_ratio == (75.0 + 3.0) / 100.0
    house.drain({})
    house.until_final(2)


def test_where_stops_take_time_others_start_meanwhile() -> None:
    house = preempting(5.0, nodes((V100, 1), ("rtx_2080_ti", 1)))
    house.submit(100.0, gpu_models=(V100,), preemptible=COSTS)
    house.submit(10.0, begin_time_s=20.0, gpu_models=(V100,))
    house.submit(10.0, begin_time_s=20.0, gpu_models=("rtx_2080_ti",))
    assert [job.start_s for job in house.until_final(3)] == [35.0, 25.0, 20.0]


def test_a_gpu_of_what_is_being_stopped_is_free_for_nobody_before_its_end() -> None:
    house = preempting(5.0, nodes((V100, 2)))
    house.submit(100.0, gpu_count=2, preemptible=COSTS)
    house.submit(10.0, begin_time_s=20.0)
    house.submit(11.0, begin_time_s=20.0)
    house.until(lambda: bool(house.cluster.waiting))
    house.pause()
    house.settle_until(house.now + 0.1)
    assert entry_gpus(house, "job-1") == (1,)
    assert house.store.get("job-3").attempt_count == 0
    house.resume()
    assert [job.start_s for job in house.until_final(3)[1:]] == [25.0, 25.0]


# ---- what is left, where the cluster does not say


def test_what_is_left_is_estimated_where_the_cluster_does_not_say() -> None:
    house = preempting()
    house.cluster.tells_share = False
    long_and_short(house)
    house.submit(5.0, begin_time_s=50.0)  # 18 s after job-1 went on
    first, *_ = house.until_final(3)
    after_first = (80.0 + 3.0) / 100.0
    assert first.remaining_ratio == pytest.approx(after_first - (18.0 - 3.0) / 100.0)
    assert [each.preempted for each in first.attempts] == [True, True, False]


def test_a_stop_never_counts_more_than_the_attempt_has_done_and_leaves_something() -> None:
    house = preempting()
    house.cluster.tells_share = False
    house.submit(100.0, preemptible=Preemptible(lost_s=50.0))
    house.submit(10.0, begin_time_s=20.0)
    assert house.until_final(2)[0].remaining_ratio == 1.0
    ends = preempting(0.0)
    ends.cluster.tells_share = False
    ends.submit(100.0, preemptible=Preemptible())
    ends.until_state("job-1", JobState.RUNNING)
    entry = ends.core.ledger.entries["job-1"]
    assert ends.core.ledger.share_left(entry, 100.0) == LEAST_SHARE
    assert ends.core.ledger.share_left(entry, 140.0) == pytest.approx(
        0.5 * 140.0 / 100.0
    )  # it outlasts what is expected


def test_preempted_attempts_do_not_count_against_the_maximum() -> None:
    house = preempting()
    house._max_attempts = 1
    house.kill()
    house.start("stops", max_attempts=1)
    house.submit(1000.0, preemptible=COSTS)
    for number in range(4):
        house.submit(10.0, begin_time_s=20.0 + 100.0 * number)
    first = house.until_final(5)[0]
    assert (first.state, first.attempt_count) == (JobState.SUCCEEDED, 5)


# ---- killed


def one_gang(grace_s: float) -> CoreHouse:
    house = preempting(grace_s, nodes((V100, 2)))
    house.submit(100.0, gpu_count=2, preemptible=COSTS)
    house.submit(10.0, begin_time_s=20.0)
    return house


def one_that_could_start_elsewhere(grace_s: float) -> CoreHouse:
    """On a virtual clock job-1 goes on at once where job-3 could start, which comes after it."""
    house = preempting(grace_s, nodes((V100, 1), ("rtx_2080_ti", 1)), policy="stops_first")
    house.submit(100.0, preemptible=COSTS)
    house.submit(10.0, begin_time_s=20.0, gpu_models=(V100,))
    house.submit(50.0, begin_time_s=20.0)
    return house


@pytest.mark.parametrize(
    ("begin", "grace_s"), [(one_gang, 0.0), (one_gang, 5.0), (one_that_could_start_elsewhere, 0.0)]
)
def test_killed_at_any_point_it_ends_as_without_a_kill(begin: Callable[[float], CoreHouse], grace_s: float) -> None:
    def run(kill_at: int) -> tuple[CoreHouse, bool]:
        house = begin(grace_s)
        for step in range(10_000):
            if step == kill_at:
                house.kill()
            if house.store.final_count == len(house.store.records):
                return house, step > kill_at
            assert house.advance(), f"nothing more happens, killed at {kill_at}"
        raise AssertionError("it takes for ever")

    undisturbed, _ = run(-1)
    wanted = _what_became_of(undisturbed)
    kill_at, killed = 0, True
    while killed:
        house, killed = run(kill_at)
        assert _what_became_of(house) == wanted, f"killed at {kill_at}"
        kill_at += 1
    assert kill_at > 20


def _what_became_of(house: CoreHouse) -> list[tuple[Job, ...] | object]:
    jobs = [job for _, job in house.store.records.values()]
    return [(job.state, job.attempts, job.remaining_ratio) for job in jobs]


@pytest.mark.parametrize("when", ["written", "waiting", "started"])
def test_a_cluster_that_forgets_everything_runs_all_again(when: str) -> None:
    house = preempting(5.0)
    long_and_short(house)
    points: dict[str, Callable[[], bool]] = {
        "written": lambda: house.store.get("job-2").attempt_count == 1,
        "waiting": lambda: bool(house.cluster.waiting),
        "started": lambda: "job-2" in house.cluster.running,
    }
    house.until(points[when])
    house.cluster.restart()
    jobs = house.until_final(2)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert all(each.excused or each.preempted for job in jobs for each in job.attempts[:-1])


def test_a_cluster_that_still_runs_the_victim_and_lost_the_other_lets_it_run_on() -> None:
    """Another incarnation, as of an adapter that keeps its programs and not its record."""
    house = waiting_for_stops()
    running, left = dict(house.cluster.running), dict(house.cluster.courses)
    house.cluster.restart()
    house.cluster.running, house.cluster.courses = running, left
    house.cluster.on_set_clock(house.cluster.clock)
    house.until(lambda: len(house.lives) == 2 and house.recorded is not None)
    house.settle_until(house.now + 0.1)
    second = house.store.get("job-2")
    assert (second.attempts[0].excused, house.store.get("job-1").attempt_count) == (True, 1)
    assert second.attempts[1].preempts == (AttemptRef("job-1", 1),)  # decided anew
    house.resume()
    house.until_final(2)


# ---- in any order


def random_stops(seed: int, jobs: int = 25) -> CoreHouse:
    """Sessions that stop jobs for others, whose GPUs, launches and orchestrators die at any point."""
    draw = random.Random(seed)
    house = CoreHouse(nodes((V100, 4), (V100, 2), ("rtx_2080_ti", 2)), draw)
    house.min_run_s = draw.choice([0.0, 0.0, 3.0])
    house.cluster.grace_s = draw.choice([0.0, 0.0, 0.5, 4.0])
    house.cluster.tells_share = draw.random() < 0.7
    if house.cluster.grace_s:
        house.cluster.clock = replace(house.cluster.clock, mode=ClockMode.REAL)
    for number in draw.sample(range(1, jobs + 1), jobs // 4):
        troubles = [
            Conflict("not now", reason="NOT_PREEMPTIBLE"),
            Conflict("a member is busy", reason="GPU_BUSY"),
            DeadlineExceeded("no answer in 10 s"),
        ]
        house.cluster.refused[f"job-{number}"] = [draw.choice(troubles)] * draw.randint(1, 3)
    for number in draw.sample(range(1, jobs + 1), jobs // 8):
        house.cluster.unanswered[f"job-{number}"] = draw.randint(1, 3)
    house.kill_odds, house.meddle_odds = draw.choice([0.0, 0.01, 0.04]), draw.choice([0.0, 0.02])
    house.start("stops")
    for _ in range(jobs):
        stoppable = Preemptible(draw.choice([0.0, 1.0]), draw.choice([0.0, 0.5, 20.0]))
        house.submit(
            draw.choice((draw.uniform(0.5, 4.0), draw.uniform(10.0, 60.0))),
            begin_time_s=draw.choice((None, draw.uniform(0.0, 2.0 * jobs))),
            gpu_count=draw.choice((1, 1, 2, 3, 4)),
            cpu_cores=draw.choice((1, 8, 16)),
            preemptible=stoppable if draw.random() < 0.8 else None,
        )
    for number in draw.sample(range(1, jobs + 1), jobs // 8):
        house.cancel(f"job-{number}")
    lost = ""
    for step in range(60_000):
        if house.store.final_count == jobs:
            return house
        if step == 4000:
            house.kill_odds = house.meddle_odds = 0.0  # it is to come to an end
        if step < 4000 and step % 500 == 100 and not house.meddle_odds and house.recorded is not None:
            house.set_policy("stops" if house.policy.name != "stops" else draw.choice(["stops", "fcfs"]))
        if step % 400 == 200 and house.recorded is not None and step < 4000:
            lost = draw.choice([gpu.gpu_id for _, gpu in house.cluster.cluster.gpus()])
            house.cluster.lose(lost)
        if step % 400 == 300 and lost:
            house.cluster.give_gpu_back(lost)
            lost = ""
        if step % 1500 == 1499 and step < 4000 and draw.random() < 0.3:
            house.cluster.restart()
        if not house.advance():
            revision = house.cluster.revision
            house.cluster.go_on()  # a launch may have come after the moment that it belonged to
            if house.cluster.revision > revision:
                continue
            assert house.drained or lost, "nothing more happens"
            if lost:
                house.cluster.give_gpu_back(lost)
                lost = ""
            house.drain({})
    raise AssertionError("it takes for ever")


@pytest.mark.parametrize(
    "seeds", [range(10), pytest.param(range(10, 10 + cases(190)), marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_random_sessions_that_stop_jobs_lose_nothing_and_replay(seeds: range) -> None:
    """Each step is checked: the ledger agrees with the records.

    The cluster refuses to hold a GPU twice, and to count twice, or never, what was done.
    """
    stops = 0
    for seed in seeds:
        house = random_stops(seed)
        for life in house.lives:
            assert differences(life.begin(), life.steps) == [], f"seed {seed}"
        for _, job in house.store.records.values():
            assert job.state in (JobState.SUCCEEDED, JobState.CANCELLED), f"seed {seed}: {job.message}"
            for attempt in job.attempts:
                assert len(attempt.placement.gpus) == job.spec.gpu_count
        stops += len(house.cluster.preempted)
        assert house.recorded is None or house.core.ledger.occupancy.idle.all(), f"seed {seed}"
    assert stops > 2 * len(seeds)
