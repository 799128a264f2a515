"""The pending reasons in the records of waiting jobs: set when a job joins the queue, updated regularly. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adlro.services.orchestrator.deciding.decisions import holds_back
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.ledger import Entry
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

    def tell(self, entries: Sequence[Entry]) -> Steps[None]:
        """Records the reasons of waiting jobs where they differ from the records."""
        state = self._state
        held = holds_back(state.policy, state.basis)
        for start in range(0, len(entries), REASONS_AT_ONCE):
            if start:
                yield MORE
            for entry, reason, text in state.ledger.reasons(entries[start : start + REASONS_AT_ONCE], held):
                if (entry.job.pending_reason, entry.job.message) != (reason, text):
                    state.record(entry, transitions.waiting(entry.job, reason, text))

    def refresh(self) -> Steps[None]:
        """Updates the next few hundred jobs of the queue; later calls update the others."""
        self._due = False
        end = self._from + REASONS_AT_ONCE
        yield from self.tell(self._state.ledger.queued(self._from, end))
        self._from = end if end < self._state.ledger.queue_length else 0
        if self._from:
            self.refresh_later()

    def refresh_later(self, after_s: float = REASON_REFRESH_S) -> None:
        """Schedules an update after a change of the queue."""
        if not self._due:
            self._due = True
            self._state.remind(after_s, ReasonsDue())
