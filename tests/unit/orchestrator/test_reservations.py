"""A reservation as a fact of the session: written with the decision, read back, told, and ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adlro.errors import Stale
from adlro.records.jobs import JobReservation, JobState, PendingReason
from adlro.services.orchestrator.explain.reservations import as_told, held_reservation
from adlro.store import Cursor, Move
from tests.unit.orchestrator.core_house import CoreHouse
from tests.unit.orchestrator.test_gangs import TURING, V100, nodes


def reserving() -> CoreHouse:
    """A node of four GPUs: job-1 has two until 20, job-2 waits for four and has the reservation, job-3 waits behind."""
    house = CoreHouse(nodes((V100, 4)))
    house.start("reserves")
    house.pause()
    house.submit(20.0, gpu_count=2)
    house.submit(10.0, gpu_count=4)
    house.submit(30.0)
    house.submit(5.0)
    house.until_reason("job-3", PendingReason.RESERVED)
    house.until_state("job-4", JobState.RUNNING)
    house.settle_until(house.now + 3.0)
    return house


def holder(house: CoreHouse) -> str:
    reserved = house.core.ledger.reserved
    return "" if reserved is None else reserved.job.job_id


def written(house: CoreHouse) -> tuple[str, float]:
    """Who has the reservation by the store, and since when."""
    assert house.store.cursor is not None
    return house.store.cursor.reserved_job_id, house.store.cursor.reserved_since_s


HELD = JobReservation("job-2", 0.0, V100, ("n0",), 20.0, 0, 4)


def test_it_is_written_with_the_decision_and_told_to_all_whom_it_concerns() -> None:
    house = reserving()
    assert house.store.get("job-4").state is JobState.RUNNING  # it ends before
    assert written(house) == ("job-2", 0.0)
    assert house.store.get("job-2").reservation == HELD
    waits = house.store.get("job-3")
    assert waits.message == "could start, but GPUs are kept free for job-2 until about 20 s of cluster time"
    assert (waits.reserved_for_job_id, waits.reserved_until_s) == ("job-2", 20.0)
    assert held_reservation(house.core.ledger, house.core.now_s) == HELD
    made = {each.made.job_id: each.made.explained() for each in house.decided if each.made is not None}
    assert made["job-1"].reservation is None
    assert made["job-4"].reservation == HELD


def test_it_ends_with_the_start_of_its_job_and_the_records_forget_it() -> None:
    house = reserving()
    house.resume()
    jobs = house.until_final(4)
    assert [job.start_s for job in jobs] == [0.0, 20.0, 30.0, 0.0]
    assert house.core.ledger.reserved is None
    assert written(house) == ("", 0.0)
    for job in jobs:
        assert (job.reservation, job.reserved_for_job_id, job.reserved_until_s) == (None, "", None)
    launching = next(job for job in house.store.history["job-2"] if job.pending_reason is PendingReason.LAUNCHING)
    assert launching.reservation is None


def test_it_survives_a_kill() -> None:
    house = reserving()
    house.kill()
    house.start()
    house.settle_until(house.now + 5.0)
    assert len(house.lives) == 2
    assert holder(house) == "job-2"
    assert house.core.ledger.reserved_since_s == 0.0
    assert house.store.get("job-2").reservation == HELD
    house.resume()
    house.until_final(4)
    assert [house.store.get(f"job-{number}").start_s for number in (2, 3)] == [20.0, 30.0]


def test_it_survives_the_end_of_the_cluster_and_its_job_goes_first() -> None:
    house = reserving()
    house.kill()
    house.cluster.restart()
    house.pause()
    house.start()
    assert house.until_state("job-2", JobState.RUNNING).attempt_count == 1
    assert house.store.get("job-1").state is JobState.PENDING


def test_a_session_that_dies_before_the_script_has_neither_the_decision_nor_the_reservation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = CoreHouse(nodes((V100, 4)))
    house.start("reserves")
    house.pause()
    house.submit(20.0, gpu_count=2)
    house.submit(10.0, gpu_count=4)
    house.settle()
    move = house.store.move

    def refuse(moves: Sequence[Move], cursor: Cursor | None) -> None:
        if cursor is not None and cursor.reserved_job_id:
            raise Stale("another one acts")
        move(moves, cursor)

    monkeypatch.setattr(house.store, "move", refuse)
    house.submit(5.0)  # something that could start beside it: the policy is asked, and reserves
    house.until(lambda: bool(house.failures))
    assert house.store.get("job-3").attempt_count == 0
    assert written(house) == ("", 0.0)
    monkeypatch.undo()
    house.until_state("job-3", JobState.RUNNING)
    assert written(house)[0] == "job-2"


def test_it_ends_when_its_job_is_cancelled() -> None:
    house = reserving()
    house.cancel("job-2")
    house.until_state("job-2", JobState.CANCELLED)
    job = house.until_state("job-3", JobState.RUNNING)
    assert (job.reserved_for_job_id, job.start_s) == ("", 0.0)
    assert house.core.ledger.reserved is None
    assert house.store.get("job-2").reservation is None
    assert written(house) == ("", 0.0)


def test_it_ends_with_the_policy_that_wanted_it() -> None:
    house = reserving()
    house.set_policy("sjf")
    house.until_state("job-3", JobState.RUNNING)
    assert house.core.ledger.reserved is None
    house.settle_until(house.now + 3.0)
    assert house.store.get("job-2").reservation is None
    assert house.store.get("job-2").pending_reason is PendingReason.GANG_NODES


def test_it_ends_when_the_cluster_can_never_hold_its_job_any_more() -> None:
    house = CoreHouse(nodes((V100, 4), (TURING, 2)))
    house.start("reserves")
    house.pause()
    house.submit(20.0, gpu_count=2)
    house.submit(10.0, gpu_count=4)
    house.submit(5.0)
    house.until(lambda: bool(house.store.get("job-2").reservation))
    house.cluster.change(nodes((TURING, 2)))
    job = house.until_reason("job-2", PendingReason.NO_FITTING_NODES)
    assert job.reservation is None
    assert house.core.ledger.reserved is None
    assert written(house) == ("", 0.0)


def test_lost_gpus_leave_it_without_figures_and_the_policy_ends_it() -> None:
    house = reserving()
    house.cluster.lose("n0/3")
    house.settle_until(house.now + 3.0)
    assert holder(house) == "job-2"
    assert held_reservation(house.core.ledger, house.core.now_s) is None
    house.resume()
    assert house.until_state("job-3", JobState.RUNNING).start_s == 5.0
    assert house.core.ledger.reserved is None


def test_small_moves_of_the_start_are_not_told_again() -> None:
    nearly = replace(HELD, expected_start_s=24.0, slack_gpu_count=1)
    assert as_told(None, HELD, 0.0) == HELD
    assert as_told(HELD, nearly, 0.0) == replace(nearly, expected_start_s=20.0)
    later = replace(HELD, expected_start_s=31.0)
    assert as_told(HELD, later, 0.0) == later
    assert as_told(replace(HELD, expected_start_s=1000.0), replace(HELD, expected_start_s=1045.0), 0.0) is not None
    assert as_told(HELD, nearly, 21.0) == nearly  # what was told is past
    assert as_told(HELD, None, 0.0) is None
    other = replace(HELD, job_id="job-9")
    assert as_told(HELD, other, 0.0) == other


def test_the_newest_figures_stand_in_the_record_of_the_job_that_holds_it() -> None:
    house = reserving()
    house.submit(400.0, gpu_count=4)
    house.core.ledger.set_speeds({})
    entry = house.core.ledger.entries["job-1"]
    entry.expected_end_s = house.core.ledger.occupancy.expected_end_s[list(entry.gpus)] = 300.0
    house.settle_until(house.now + 5.0)
    held = house.store.get("job-2").reservation
    assert held is not None
    assert held.expected_start_s == 300.0
    assert house.store.get("job-3").reserved_until_s in (300.0, None)
