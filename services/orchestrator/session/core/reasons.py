"""The pending reasons in the records of waiting jobs: set when a job joins the queue, updated regularly. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adlro.records.jobs import JobReservation
from adlro.services.orchestrator.deciding.decisions import holds_back
from adlro.services.orchestrator.explain.waits import waits
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.session.core.effects import MORE
from adlro.services.orchestrator.session.core.state import SessionState, Steps

# Pending reasons are for people: one call updates so many jobs, at this interval, not at every event.
REASON_REFRESH_S = 1.0
REASONS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ReasonsDue:
    """Reminder: the reasons of waiting jobs are due for an update."""


class Reasons:
    """Updates the pending reasons of the queue.

    Args:
        state: the session's state.
    """

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._from = 0
        self._due = False
        self._told: JobReservation | None = None
        self._holder: Entry | None = None  # whose record says that it holds the reservation

    def tell(self, entries: Sequence[Entry]) -> Steps[None]:
        """Records the reasons of waiting jobs where they differ from the records."""
        state, ledger = self._state, self._state.ledger
        held = holds_back(state.policy, state.basis)
        for start in range(0, len(entries), REASONS_AT_ONCE):
            if start:
                yield MORE
            part = entries[start : start + REASONS_AT_ONCE]
            found = waits(ledger, part, state.now_s, held, self._told)
            reservation = self._told = found.reservation
            for entry, wait in zip(part, found.reasons, strict=True):
                job = transitions.waiting(
                    entry.job,
                    wait.reason,
                    wait.text,
                    reservation=reservation if entry is ledger.reserved else None,
                    reserved_for=wait.reserved_for,
                    reserved_until_s=wait.reserved_until_s,
                )
                if job != entry.job:
                    state.record(entry, job)

    def tell_reservation(self) -> Steps[None]:
        """Records that a job holds the reservation, or no longer does, where that has changed."""
        before, now = self._holder, self._state.ledger.reserved
        if before is not now:
            self._holder = now
            yield from self.tell([each for each in (before, now) if each is not None and each.phase is Phase.QUEUED])

    def refresh(self) -> Steps[None]:
        """Updates the next few hundred jobs of the queue; later calls update the others."""
        self._due = False
        ledger, end = self._state.ledger, self._from + REASONS_AT_ONCE
        entries = ledger.queued(self._from, end)
        if ledger.reserved is not None and ledger.reserved not in entries:
            entries = [ledger.reserved, *entries]  # its figures change with what starts and ends
        yield from self.tell(entries)
        self._from = end if end < self._state.ledger.queue_length else 0
        if self._from:
            self.refresh_later()

    def refresh_later(self, after_s: float = REASON_REFRESH_S) -> None:
        """Schedules an update after a change of the queue."""
        if not self._due:
            self._due = True
            self._state.remind(after_s, ReasonsDue())
