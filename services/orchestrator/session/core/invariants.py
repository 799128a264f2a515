"""Invariants of a session's core between two steps, for tests."""

from __future__ import annotations

from collections import Counter

from adlro.services.orchestrator.ledger.entry import Phase
from adlro.services.orchestrator.ledger.invariants import check_ledger
from adlro.services.orchestrator.session.core.arrivals import Arrivals
from adlro.services.orchestrator.session.core.launches import Launches
from adlro.services.orchestrator.session.core.state import SessionState
from adlro.store import Move


def check(state: SessionState, arrivals: Arrivals, launches: Launches, *, between: bool) -> None:
    """Checks all invariants.

    Args:
        between: no course of steps waits for an answer.

    Raises:
        AssertionError: on the first violation.
    """
    check_ledger(state.ledger)
    _check_moves(state)
    _check_launches(state, launches)
    assert state.written <= state.applied, "more is written down than is applied"
    holding = state.holding
    assert holding.until_s is None or holding.until_s >= holding.last_event_s, "a hold ends before it began"
    if between:
        to_come = {id(entry) for entry in arrivals.waiting}
        for entry in state.ledger.entries.values():
            comes = entry.phase in (Phase.ARRIVING, Phase.BEGIN, Phase.PAUSED)
            assert not comes or id(entry) in to_come, f"{entry.job.job_id}: nobody waits for its time"
        arrivals.check()


def _check_moves(state: SessionState) -> None:
    newest: dict[str, Move] = {}
    for move in state.record_changes.moves:
        before = newest.get(move.job.job_id)
        assert before is None or move.version == before.version + 1, f"{move.job.job_id}: a version is left out"
        newest[move.job.job_id] = move
    for job_id, move in newest.items():
        entry = state.ledger.entries.get(job_id)
        current = entry is None or entry.version == move.version + 1
        assert current, f"{job_id}: its newest record is not the one to be written"


def _check_launches(state: SessionState, launches: Launches) -> None:
    for (job_id, attempt), flight in launches.flights.items():
        assert flight.key == (job_id, attempt)
        entry = state.ledger.entries.get(job_id)
        assert entry in (None, flight.entry), f"{job_id}: its launch is another entry's"
        assert flight.job.attempt_count <= flight.entry.job.attempt_count, f"{job_id}: an attempt that is not there"
        assert flight.after <= launches.flights.keys(), f"{job_id}: its launch waits for an answer that never comes"
    waits = Counter(id(flight.moment) for flight in launches.flights.values() if flight.moment is not None)
    revisions = [moment.revision for moment in launches.moments]
    assert revisions == sorted(revisions), "moments are acknowledged out of order"
    for moment in launches.moments:
        assert moment.revision <= state.applied, "a moment to come is acknowledged"
        assert 0 <= moment.open_count - waits[id(moment)] <= 1, "a moment waits for nobody"  # one more for a wake-up
    assert not launches.moments or launches.moments[0].open_count, "nothing keeps the first moment"
