"""Two jobs that share a GPU, in sessions: what each is expected to take, what their records say, and what may fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adlro.errors import Conflict, DeadlineExceeded, Unsupported
from adlro.placement import GpuShare, Placement
from adlro.records.cluster import Cluster
from adlro.records.events import ClockMode, EventKind
from adlro.records.jobs import AttemptRef, Job, JobState, PendingReason, Preemptible
from adlro.records.outcomes import ApplicationSize, NeighbourTime
from adlro.services.orchestrator.ledger.sharing import PairTable
from adlro.services.orchestrator.session.core.launches import LAUNCH_TRIES
from tests.unit.orchestrator.core_house import CoreHouse
from tests.unit.orchestrator.test_gangs import TURING, V100, nodes
from tests.unit.orchestrator.test_sharing_random import check

A, B = ApplicationSize("a"), ApplicationSize("b")
KEPT = 0.6
"""What each keeps beside the other, as is expected."""


def expected(kept: float = KEPT, models: int = 1) -> PairTable:
    return PairTable.of([A, B], np.full((2, 2, models), kept))


def sharing(cluster: Cluster | None = None, policy: str = "shares", grace_s: float = 0.0) -> CoreHouse:
    cluster = cluster or nodes((V100, 1))
    house = CoreHouse(cluster)
    house.cluster.shares, house.cluster.kept, house.cluster.grace_s = True, KEPT, grace_s
    if grace_s:  # its clock does not wait for anybody
        house.cluster.clock = replace(house.cluster.clock, mode=ClockMode.REAL)
    house.pairs, house.min_run_s = expected(models=len(cluster.gpu_models)), 0.0
    house.start(policy)
    return house


def submit(house: CoreHouse, work_s: float, application: str = "a", **spec: Any) -> Job:
    return house.submit(work_s, **{"shareable": True, "application": application, **spec})


def two(house: CoreHouse, **spec: Any) -> None:
    """job-1 has 100 s of work; job-2, with 30 s, comes at 20 s."""
    submit(house, 100.0)
    submit(house, 30.0, "b", begin_time_s=20.0, **spec)


def together(grace_s: float = 0.0, policy: str = "shares", **spec: Any) -> CoreHouse:
    """Both run, and no time passes."""
    house = sharing(policy=policy, grace_s=grace_s)
    two(house, **spec)
    until_it_runs(house, "job-2")
    return house


def until_it_runs(house: CoreHouse, job_id: str) -> None:
    """No time passes after that."""
    house.until(lambda: job_id in house.cluster.running)
    house.pause()
    quiet(house)


def quiet(house: CoreHouse) -> None:
    house.settle_until(house.now + 0.1)


def times(house: CoreHouse) -> list[tuple[float | None, float | None]]:
    return [(job.start_s, job.end_s) for _, job in house.store.records.values()]


def neighbours(house: CoreHouse, job_id: str, attempt: int = 1) -> list[tuple[str, float]]:
    beside = house.store.get(job_id).attempts[attempt - 1].neighbours
    return [(each.neighbour.application, each.time_s) for each in beside]


def expected_ends_s(house: CoreHouse) -> dict[str, float]:
    return {job_id: entry.expected_end_s for job_id, entry in house.core.ledger.entries.items() if entry.gpus}


# ---- as it should be


def test_two_jobs_run_beside_each_other_and_their_records_say_so() -> None:
    house = sharing()
    two(house)
    first, second = house.until_final(2)
    # From 20 s on both are slower; the second takes 50 s, in which the first does 30 of its 80 s.
    assert times(house) == [(0.0, 20.0 + 50.0 + 50.0), (20.0, 20.0 + 50.0)]
    assert neighbours(house, "job-1") == [("b", 50.0)]
    assert neighbours(house, "job-2") == [("a", 50.0)]
    assert [house.store.outcomes[job.job_id].neighbours for job in (first, second)] == [
        (NeighbourTime(B, 50.0),),
        (NeighbourTime(A, 50.0),),
    ]
    assert house.cluster.launches == [("job-1", 1, "0.5 of n0/0"), ("job-2", 1, "0.5 of n0/0")]
    assert house.store.user_service["ann"].gpu_s == pytest.approx(120.0 + 50.0)
    check(house, 0, exactly=True)


def test_a_job_that_may_share_has_a_part_from_its_start_and_others_the_whole() -> None:
    house = sharing(nodes((V100, 4)))
    house.pause()
    submit(house, 10.0, gpu_count=2)
    submit(house, 10.0, shareable=False)
    submit(house, 10.0)
    quiet(house)
    assert [placement for _, _, placement in house.cluster.launches] == ["n0/0, n0/1", "n0/2", "0.5 of n0/3"]
    submit(house, 10.0, shareable=False)
    quiet(house)
    assert house.store.get("job-4").attempt_count == 0, "it does not share"
    house.resume()
    house.until_final(4)


def test_what_is_expected_of_both_is_what_happens() -> None:
    house = sharing()
    two(house)
    submit(house, 30.0, "b", begin_time_s=90.0)
    house.until_state("job-1", JobState.RUNNING)
    assert expected_ends_s(house) == {"job-1": 100.0}
    house.until_state("job-2", JobState.RUNNING)
    assert expected_ends_s(house) == pytest.approx({"job-1": 20.0 + 80.0 / KEPT, "job-2": 70.0})
    house.until_state("job-2", JobState.SUCCEEDED)
    assert expected_ends_s(house) == pytest.approx({"job-1": 120.0})
    house.until_state("job-3", JobState.RUNNING)
    assert expected_ends_s(house) == pytest.approx({"job-1": 90.0 + 30.0 / KEPT, "job-3": 90.0 + 30.0 / KEPT})
    house.until_final(3)
    assert [job.end_s for _, job in house.store.records.values()] == pytest.approx([140.0, 70.0, 140.0])
    assert dict(neighbours(house, "job-1")) == pytest.approx({"b": 100.0})


def test_the_decision_says_who_shares_and_how_long_it_takes() -> None:
    house = sharing()
    two(house)
    house.until_final(2)
    alone, beside = [each.made.explained() for each in house.decided if each.made is not None]
    assert alone.summary.endswith("starts job-1 on n0/0 (v100_sxm2), where 100 s are expected")
    assert beside.summary.endswith(
        "starts job-2 on n0/0 (v100_sxm2), which it shares with job-1, where 50 s are expected"
    )
    assert [each.placement for each in (alone, beside)] == [Placement((GpuShare("n0/0", 0.5),))] * 2
    (candidate,) = beside.candidates
    assert (candidate.placement.gpu_ids, candidate.expected_runtime_s) == (("n0/0",), 50.0)
    assert not beside.masked
    assert beside.preempts == ()


def test_three_do_not_share_and_the_next_one_comes_when_there_is_room() -> None:
    house = sharing()
    for work_s in (10.0, 20.0, 30.0):
        submit(house, work_s)
    jobs = house.until_final(3)
    assert [job.start_s for job in jobs] == [0.0, 0.0, pytest.approx(10.0 / KEPT)]


def test_what_has_no_room_besides_does_not_share() -> None:
    house = sharing(nodes((V100, 1), cores=8))
    submit(house, 10.0, gpu_memory_mib=8192, cpu_cores=4, memory_mib=1 << 17)
    submit(house, 10.0, gpu_memory_mib=8193, cpu_cores=4)
    submit(house, 10.0, gpu_memory_mib=8192, cpu_cores=5)
    submit(house, 10.0, gpu_memory_mib=8192, cpu_cores=4, memory_mib=(1 << 17) + 1)
    submit(house, 10.0, "c", gpu_memory_mib=8192, cpu_cores=4)
    submit(house, 10.0, gpu_memory_mib=8192, cpu_cores=4, memory_mib=1 << 17)
    jobs = house.until_final(6)
    assert [job.start_s == 0.0 for job in jobs] == [True, False, False, False, False, True]


def test_all_on_a_node_that_is_drained_are_named_and_run_on() -> None:
    house = together()
    holders = house.core.ledger.holders
    assert [entry.job.job_id for entry in holders([0])] == ["job-1", "job-2"]
    house.drain({"n0": "to be repaired"})
    submit(house, 5.0)
    quiet(house)
    house.resume()
    house.until(lambda: house.store.final_count == 2)
    assert times(house)[:2] == [(0.0, 120.0), (20.0, 70.0)]
    assert house.store.get("job-3").pending_reason is PendingReason.NODES_DRAINED
    house.drain({})
    house.until_final(3)


def test_nobody_goes_beside_another_on_a_drained_node() -> None:
    house = sharing()
    house.drain({"n0": "to be repaired"})
    house.drain({})
    submit(house, 100.0)
    house.until_state("job-1", JobState.RUNNING)
    house.drain({"n0": "to be repaired"})
    submit(house, 10.0)
    house.until_state("job-1", JobState.SUCCEEDED)
    assert house.store.get("job-2").attempt_count == 0


def test_another_policy_that_does_not_share_changes_nothing_of_what_runs() -> None:
    house = together()
    house.set_policy("fcfs")
    submit(house, 5.0)
    house.resume()
    jobs = house.until_final(3)
    assert [job.start_s for job in jobs] == [0.0, 20.0, 120.0]
    assert [job.placement.gpus[0].share for job in jobs] == [0.5] * 3


def test_what_both_keep_is_expected_anew_only_of_those_to_come() -> None:
    house = together()
    before = expected_ends_s(house)
    house.set_pairs(expected(0.9))
    assert expected_ends_s(house) == before
    submit(house, 5.0)
    quiet(house)
    house.resume()
    house.until_state("job-3", JobState.RUNNING)
    assert house.core.ledger.entries["job-3"].told == 0.9
    house.until_final(3)


# ---- refused, not answered, cancelled, lost


def test_a_refused_first_leaves_the_second_alone() -> None:
    house = sharing()
    house.pause()
    house.cluster.refused["job-1"] = [Conflict("a part is taken", reason="GPU_BUSY")] * 2
    submit(house, 10.0)
    submit(house, 20.0, "b")
    house.settle_until(house.now + 5.0)
    entry = house.core.ledger.entries["job-2"]
    assert (entry.job.state, entry.mate, entry.told, entry.expected_end_s) == (JobState.RUNNING, None, 1.0, 20.0)
    assert house.store.get("job-1").pending_reason is PendingReason.LAUNCH_REFUSED
    house.resume()
    first, _ = house.until_final(2)
    assert [each.outcome.startswith("lost: refused") for each in first.attempts] == [True, True, False]
    assert neighbours(house, "job-1", 1) == neighbours(house, "job-1", 2) == []
    check(house, 0, exactly=True)


def test_a_refused_second_leaves_the_first_as_it_was() -> None:
    house = sharing()
    house.cluster.refused["job-2"] = [Conflict("a part is taken", reason="GPU_BUSY")] * 2
    two(house)
    house.until_reason("job-2", PendingReason.LAUNCH_REFUSED)
    entry = house.core.ledger.entries["job-1"]
    assert (entry.mate, entry.told, entry.expected_end_s) == (None, 1.0, 100.0)
    assert house.core.ledger.occupancy.expected_end_s[0] == 100.0
    house.until_final(2)
    check(house, 0, exactly=True)


def test_where_somebody_else_has_a_part_the_launch_is_refused_and_comes_again() -> None:
    house = sharing()
    house.cluster.foreign = {"n0/0"}
    submit(house, 10.0)
    house.until_reason("job-1", PendingReason.LAUNCH_REFUSED)
    house.cluster.foreign.clear()
    house.until_final(1)


def test_the_second_is_launched_after_the_first() -> None:
    house = sharing()
    house.pause()
    house.cluster.unanswered["job-1"] = 1
    house.slow = True
    submit(house, 10.0)
    submit(house, 20.0, "b")
    quiet(house)
    assert [job_id for job_id, _, _ in house.cluster.launches] == ["job-1"]
    house.answer_late()
    quiet(house)
    assert [job_id for job_id, _, _ in house.cluster.launches] == ["job-1", "job-2"]
    house.resume()
    house.until_final(2)


def test_a_second_does_not_wait_for_a_first_whose_launch_is_in_trouble_since() -> None:
    """On a real cluster the end of an attempt that was given up may take half a minute, or for ever."""
    house = sharing(grace_s=1.0)
    house.cluster.refused["job-1"] = [DeadlineExceeded("no answer in 10 s")] * LAUNCH_TRIES
    submit(house, 50.0)
    submit(house, 10.0, "b", begin_time_s=5.0)
    house.until(lambda: house.store.get("job-2").attempt_count == 1)
    began = house.now
    house.until_state("job-2", JobState.RUNNING)
    assert house.now - began < 1.0
    house.until_final(2)


@pytest.mark.parametrize("who", ["job-1", "job-2"])
def test_a_launch_without_an_answer_that_was_carried_out_ends_well(who: str) -> None:
    house = sharing()
    house.cluster.unanswered[who] = LAUNCH_TRIES
    two(house)
    house.until_final(2)
    assert times(house) == [(0.0, 120.0), (20.0, 70.0)]
    assert {job.attempt_count for _, job in house.store.records.values()} == {1}


@pytest.mark.parametrize(("who", "other"), [("job-1", "job-2"), ("job-2", "job-1")])
def test_a_cancelled_job_leaves_the_other_alone(who: str, other: str) -> None:
    house = together()
    house.cancel(who)
    quiet(house)
    entry = house.core.ledger.entries[other]
    assert (entry.mate, entry.told, entry.held) == (None, 1.0, (0,))
    assert house.core.ledger.occupancy.holder[0] == other
    assert expected_ends_s(house) == {other: {"job-1": 100.0, "job-2": 50.0}[other]}
    house.resume()
    house.until_final(2)
    assert house.store.get(who).state is JobState.CANCELLED
    assert house.store.get(other).end_s == {"job-1": 100.0, "job-2": 50.0}[other]
    assert neighbours(house, other) == neighbours(house, who) == []  # they had no time together


def test_a_lost_gpu_loses_both_and_each_had_the_other_until_then() -> None:
    house = sharing(nodes((V100, 1), (V100, 1)))
    house.drain({"n1": "to be repaired"})
    two(house)
    submit(house, 1.0, begin_time_s=40.0)
    house.until(lambda: house.cluster.clock.time_s == 40.0 and house.core.now_s == 40.0)
    house.cluster.lose("n0/0")
    house.drain({})
    jobs = house.until_final(3)
    assert [len(job.attempts) for job in jobs] == [2, 2, 1]
    assert all(job.attempts[0].outcome.startswith("lost: ") for job in jobs[:2])
    assert neighbours(house, "job-1") == [("b", 20.0)]
    assert neighbours(house, "job-2") == [("a", 20.0)]
    check(house, 0, exactly=True)


def test_a_gpu_that_is_lost_before_the_second_launch_arrives_loses_both() -> None:
    house = sharing(nodes((V100, 1), (TURING, 1)))
    submit(house, 100.0, gpu_models=(V100,))
    submit(house, 30.0, "b", begin_time_s=20.0, gpu_models=(V100,))
    house.until(lambda: house.store.get("job-2").attempt_count == 1)
    assert len(house.cluster.launches) == 1
    house.cluster.lose("n0/0")
    house.until(lambda: not house.core.ledger.entries["job-1"].gpus)
    house.until_reason("job-2", PendingReason.NODES_DRAINED)
    house.cluster.give_gpu_back("n0/0")
    house.until_final(2)
    assert neighbours(house, "job-1", 1) == neighbours(house, "job-2", 1) == []
    check(house, 0, exactly=True)


# ---- the program starts later


def test_time_beside_another_counts_from_the_start_of_both_programs() -> None:
    """As runtimes do: what is told to decompose must not have more time beside others than the program ran."""
    house = sharing()
    submit(house, 100.0)
    submit(house, 30.0, "b")
    house.pause()
    house.until_state("job-2", JobState.RUNNING)
    quiet(house)
    model = house.cluster
    for time_s, job_id in ((4.0, "job-1"), (9.0, "job-2")):  # images are fetched
        model.clock = replace(model.clock, time_s=time_s)
        model.emit((EventKind.RUNNING, job_id, 1, house.store.get(job_id).placement))
        quiet(house)
    house.resume()
    _, second = house.until_final(2)
    assert second.end_s == 50.0
    assert second.runtime_s == 41.0
    assert neighbours(house, "job-1") == [("b", 41.0)]
    assert neighbours(house, "job-2") == [("a", 41.0)]


def test_who_left_before_the_program_ran_was_no_neighbour_of_it() -> None:
    house = sharing()
    submit(house, 100.0)
    submit(house, 5.0, "b", begin_time_s=10.0)
    house.until_state("job-2", JobState.SUCCEEDED)
    assert dict(neighbours(house, "job-1")) == pytest.approx({"b": 5.0 / KEPT})
    house.pause()
    house.cluster.clock = replace(house.cluster.clock, time_s=30.0)
    house.cluster.emit((EventKind.RUNNING, "job-1", 1, house.store.get("job-1").placement))
    quiet(house)
    house.resume()
    house.until_final(2)
    assert house.store.outcomes["job-1"].neighbours == ()


# ---- jobs that are stopped for others


LONG = Preemptible(restart_s=2.0, lost_s=3.0)


def preempted(grace_s: float, **spec: Any) -> CoreHouse:
    """Two share the GPU from 0 on; job-3, which needs all of it, comes at 12 s."""
    house = sharing(policy="shares_and_stops", grace_s=grace_s)
    submit(house, 100.0, preemptible=LONG)
    submit(house, 60.0, "b", preemptible=LONG)
    submit(house, 10.0, begin_time_s=12.0, shareable=False, **spec)
    return house


def test_both_are_stopped_for_one_that_needs_the_gpu() -> None:
    house = preempted(0.0)
    first, second, third = house.until_final(3)
    assert third.attempts[0].preempts == (AttemptRef("job-1", 1), AttemptRef("job-2", 1))
    assert (third.start_s, third.end_s) == (12.0, 22.0)
    assert [job.attempts[0].preempted for job in (first, second)] == [True, True]
    # They did 12 s at 0.6 of their speed, and 3 s of that are done again.
    stopped = [next(job for job in house.store.history[job_id] if job.resumes) for job_id in ("job-1", "job-2")]
    assert [job.remaining_ratio for job in stopped] == pytest.approx([(100 - 7.2 + 3) / 100, (60 - 7.2 + 3) / 60])
    assert neighbours(house, "job-1") == [("b", 12.0)]
    assert [each.neighbours for each in house.store.outcomes["job-2"].stopped_runs] == [(NeighbourTime(A, 12.0),)]
    check(house, 0, exactly=True)


def test_what_is_left_of_both_is_estimated_where_the_cluster_does_not_say() -> None:
    house = preempted(0.0)
    house.cluster.tells_share = False
    house.until_final(3)
    stopped = [next(job for job in house.store.history[job_id] if job.resumes) for job_id in ("job-1", "job-2")]
    assert [job.remaining_ratio for job in stopped] == pytest.approx([(100 - 7.2 + 3) / 100, (60 - 7.2 + 3) / 60])


def test_while_both_end_the_other_has_their_gpu_and_one_that_ends_before_leaves_the_other_alone() -> None:
    house = preempted(5.0)
    house.until(lambda: bool(house.cluster.waiting))
    house.pause()
    quiet(house)
    ledger = house.core.ledger
    assert [ledger.entries[f"job-{number}"].held for number in (1, 2, 3)] == [(), (), (0,)]
    assert ledger.entries["job-1"].mate is ledger.entries["job-2"]
    house.cancel("job-2")
    quiet(house)
    assert "job-2" not in ledger.entries
    assert ledger_state(house)["job-1"][2::2] == (1.0, None)
    house.resume()
    assert house.until_final(3)[2].start_s == 17.0
    assert [neighbours(house, job_id) for job_id in ("job-1", "job-2")] == [[("b", 12.0)], [("a", 12.0)]]
    # 12 s at 0.6, and 5 s alone.
    assert next(job for job in house.store.history["job-1"] if job.resumes).remaining_ratio == pytest.approx(
        (100 - 7.2 - 5 + 3) / 100
    )
    check(house, 0, exactly=True)


@pytest.mark.parametrize("grace_s", [0.0, 5.0])
def test_if_the_other_is_refused_both_have_their_gpu_as_before(grace_s: float) -> None:
    house = preempted(grace_s)
    house.cluster.refused["job-3"] = [Conflict("no", reason="NOT_PREEMPTIBLE")] * 2
    house.until_reason("job-3", PendingReason.LAUNCH_REFUSED)
    ledger = house.core.ledger
    first, second = ledger.entries["job-1"], ledger.entries["job-2"]
    assert [entry.held for entry in (first, second)] == [(0,), (0,)]
    assert first.mate is second
    assert [ledger.is_second(entry) for entry in (first, second)] == [False, True]
    assert expected_ends_s(house) == {"job-1": 100.0 / KEPT, "job-2": 60.0 / KEPT}
    assert ledger.occupancy.expected_end_s[0] == 100.0 / KEPT
    house.until_final(3)
    check(house, 0, exactly=True)


def test_one_that_may_share_stops_another_and_is_open_only_then() -> None:
    house = sharing(policy="shares_and_stops", grace_s=5.0)
    submit(house, 100.0, gpu_memory_mib=16384, preemptible=LONG)
    submit(house, 10.0, begin_time_s=12.0, gpu_memory_mib=100)
    submit(house, 10.0, begin_time_s=13.0, gpu_memory_mib=100)
    jobs = house.until_final(3)
    assert [job.start_s for job in jobs[1:]] == [17.0, 17.0]
    assert jobs[1].attempts[0].preempts == (AttemptRef("job-1", 1),)
    assert jobs[2].attempts[0].preempts == ()
    check(house, 0, exactly=True)


# ---- other sessions


def ledger_state(house: CoreHouse) -> dict[str, tuple[object, ...]]:
    """Of each job the GPUs, the start, the share that it is expected to keep, its expected end, and its mate."""
    return {
        job_id: (
            entry.held,
            entry.since_s,
            entry.told,
            round(entry.expected_end_s, 6),
            None if entry.mate is None else entry.mate.job.job_id,
        )
        for job_id, entry in house.core.ledger.entries.items()
    }


def test_a_session_that_begins_while_two_share_adopts_both() -> None:
    house = together()
    before, seen = ledger_state(house), house.core.ledger.observe(20.0)
    house.kill()
    house.start()
    quiet(house)
    assert ledger_state(house) == before
    again = house.core.ledger.observe(20.0)
    for name in ("gpu_remaining_s", "gpu_elapsed_s", "gpu_cores_held", "gpu_memory_held_mib"):
        np.testing.assert_array_equal(getattr(again, name), getattr(seen, name), err_msg=name)
    house.resume()
    house.until_final(2)
    assert times(house) == [(0.0, 120.0), (20.0, 70.0)]
    check(house, 0, exactly=True)


def test_a_session_remembers_what_was_lost_beside_one_that_has_left() -> None:
    house = sharing()
    two(house)
    house.until_state("job-2", JobState.SUCCEEDED)
    before = ledger_state(house)
    assert before["job-1"][3] == 120.0
    house.pause()
    house.kill()
    house.start()
    quiet(house)
    assert ledger_state(house) == before
    house.resume()
    house.until_final(2)


def one_stopped(house: CoreHouse) -> None:
    """job-2 stops job-1, and is then the first of two."""
    submit(house, 100.0, gpu_memory_mib=16384, preemptible=LONG)
    submit(house, 40.0, begin_time_s=12.0, gpu_memory_mib=100)
    submit(house, 30.0, "b", begin_time_s=20.0, gpu_memory_mib=100)


def test_a_session_that_finds_one_for_which_another_was_stopped_and_its_mate_adopts_both() -> None:
    house = sharing(policy="shares_and_stops")
    one_stopped(house)
    until_it_runs(house, "job-3")
    before = {job_id: state for job_id, state in ledger_state(house).items() if state[0]}
    assert before["job-2"][4] == "job-3"
    assert before["job-2"][3] == round(20.0 + 32.0 / KEPT, 6)
    house.kill()
    house.start()
    quiet(house)
    assert {job_id: state for job_id, state in ledger_state(house).items() if state[0]} == before
    house.resume()
    house.until_final(3)
    check(house, 0, exactly=True)


@pytest.mark.parametrize(
    ("begin", "grace_s"),
    [(two, 0.0), (two, 5.0), (one_stopped, 0.0), pytest.param(one_stopped, 5.0, marks=pytest.mark.slow)],
)
def test_killed_at_any_point_it_ends_as_without_a_kill(begin: Callable[[CoreHouse], None], grace_s: float) -> None:
    def run(kill_at: int) -> tuple[CoreHouse, bool]:
        house = sharing(policy="shares_and_stops", grace_s=grace_s)
        begin(house)
        for step in range(10_000):
            if step == kill_at:
                house.kill()
            if house.store.final_count == len(house.store.records):
                return house, step > kill_at
            assert house.advance(), f"nothing more happens, killed at {kill_at}"
        raise AssertionError("it takes for ever")

    undisturbed, _ = run(-1)
    wanted = what_became_of(undisturbed)
    kill_at, killed = 0, True
    while killed:
        house, killed = run(kill_at)
        assert what_became_of(house) == wanted, f"killed at {kill_at}"
        check(house, kill_at, exactly=True)
        kill_at += 1
    assert kill_at > 20


def what_became_of(house: CoreHouse) -> list[object]:
    jobs = [job for _, job in house.store.records.values()]
    outcomes = [house.store.outcomes.get(job.job_id) for job in jobs]
    return [*((job.state, job.attempts, job.remaining_ratio) for job in jobs), *outcomes]


def test_a_cluster_that_kept_one_of_two_and_forgot_the_other() -> None:
    """Another incarnation, as of an adapter that keeps its programs and not its record."""
    house = together()
    house.cluster.clock = replace(house.cluster.clock, time_s=30.0)
    running, courses = dict(house.cluster.running), dict(house.cluster.courses)
    clock = house.cluster.clock
    house.cluster.restart()
    house.cluster.clock = clock
    del running["job-1"], courses["job-1"]
    house.cluster.running, house.cluster.courses = running, courses
    house.cluster._pace()
    house.cluster.on_set_clock(clock)
    house.until(lambda: len(house.lives) == 2 and house.recorded is not None)
    quiet(house)
    assert house.store.get("job-1").attempts[0].excused
    assert neighbours(house, "job-2") == [("a", 10.0)], "they were together until then, as far as is known"
    house.resume()
    house.until_final(2)


# ---- clusters that give whole GPUs


def test_a_cluster_of_whole_gpus_gives_whole_gpus() -> None:
    house = sharing()
    house.cluster.shares = False
    house.kill()
    house.start()
    two(house)
    first, second = house.until_final(2)
    assert [job.placement.gpus[0].share for job in (first, second)] == [1.0, 1.0]
    assert times(house) == [(0.0, 100.0), (100.0, 130.0)]


def test_a_cluster_that_gives_whole_gpus_from_now_on() -> None:
    """What shares a GPU runs on; what starts has a whole one."""
    house = together()
    house.kill()
    house.cluster.shares = False
    house.start()
    quiet(house)
    ledger = house.core.ledger
    assert ledger_state(house)["job-1"][4] == "job-2"
    assert not ledger.can_share_something(20.0)
    submit(house, 10.0, "b")
    quiet(house)
    # The GPU is idle when both have ended.
    assert ledger.observe(20.0).gpu_remaining_s[0, 0] == pytest.approx(80.0 / KEPT)
    house.core.ledger.entries["job-1"].expected_end_s = 30.0
    ledger._tell_end(ledger.entries["job-1"])
    assert ledger.observe(20.0).gpu_remaining_s[0, 0] == pytest.approx(50.0)
    house.resume()
    jobs = house.until_final(3)
    assert [job.start_s for job in jobs] == [0.0, 20.0, 120.0]
    assert jobs[2].placement.gpus[0].share == 1.0
    assert neighbours(house, "job-1") == [("b", 50.0)]


def test_a_cluster_that_shares_from_now_on_shares_what_starts_from_now_on() -> None:
    house = sharing()
    house.cluster.shares = False
    house.kill()
    house.start()
    submit(house, 100.0)
    house.until_state("job-1", JobState.RUNNING)
    house.cluster.shares = True
    house.kill()
    house.start()
    submit(house, 10.0, "b")
    submit(house, 10.0, "b")
    jobs = house.until_final(3)
    assert [job.start_s for job in jobs] == [0.0, 100.0, 100.0]


def test_without_a_table_of_pairs_nobody_shares() -> None:
    """On every model: a table of no kinds has all models."""
    house = CoreHouse(nodes((V100, 1), (TURING, 1)))
    house.cluster.shares = True
    for policy in ("shares", "share_pairs"):
        house.start(policy)
        for _ in range(3):
            submit(house, 10.0)
        house.settle()
        sharing_seen = house.core.ledger.observe(1000.0).sharing
        assert sharing_seen is None or sharing_seen.kept.shape[2] == 2
        house.kill()
    assert all(not attempt.neighbours for _, job in house.store.records.values() for attempt in job.attempts)


def test_the_real_policy_shares_here() -> None:
    house = sharing(policy="share_pairs")
    house.pairs = expected(0.9)
    house.kill()
    house.start()
    two(house)
    house.until_final(2)
    assert [start_s for start_s, _ in times(house)] == [0.0, 20.0]


def test_a_part_that_was_written_down_and_is_refused_now_becomes_a_whole_gpu() -> None:
    """The cluster's adapter has another version since; the job is not to blame."""
    house = sharing()
    submit(house, 10.0)
    house.until(lambda: house.store.get("job-1").attempt_count == 1)
    assert house.cluster.launches == []  # written down, and not launched
    house.kill()
    house.cluster.shares = False
    house.start()
    job = house.until_final(1)[0]
    assert job.state is JobState.SUCCEEDED
    assert [each.placement.gpus[0].share for each in job.attempts] == [0.5, 1.0]


def test_a_cluster_that_says_that_it_shares_and_refuses_parts_fails_jobs_with_the_reason() -> None:
    house = sharing()
    house._max_attempts = 3
    house.kill()
    house.start(max_attempts=3)
    house.cluster.refused["job-1"] = [Unsupported("whole GPUs only", reason="NO_SHARES")] * 3
    submit(house, 10.0)
    job = house.until_final(1)[0]
    assert (job.state, job.attempt_count) == (JobState.FAILED, 3)
    assert "whole GPUs only" in job.message


def test_a_pair_that_cannot_run_together_does_not_count_against_its_job() -> None:
    house = sharing()
    house._max_attempts = 2
    house.kill()
    house.start(max_attempts=2)
    refused = Conflict("they can't run together", reason="CANNOT_SHARE")
    house.cluster.refused["job-1"] = [refused, refused, refused]
    submit(house, 10.0)
    job = house.until_final(1)[0]
    assert job.state is JobState.SUCCEEDED
    assert [each.excused for each in job.attempts] == [True, True, True, False]
