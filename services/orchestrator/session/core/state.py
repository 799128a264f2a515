"""The state that the parts of a session's core share: the ledger, the applied revision, and the step's effects.

A part that needs an answer from outside is a generator: it yields the request, and continues with the answer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeVar

from adlro.decide.policies.base import Policy
from adlro.records.decisions import DecisionBasis
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import Job
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.record_changes import RecordChanges
from adlro.services.orchestrator.session.core.effects import Effects, LogLine, Reminder, Request, WakeUps, Write
from adlro.services.orchestrator.session.core.inputs import Answer, WokenAt
from adlro.services.orchestrator.session.core.story import Story
from adlro.services.orchestrator.session.holding import Holding
from adlro.store import MOVES_AT_ONCE, Cursor

WAKE_UPS_AT_ONCE = 50_000
# Largest lag of the stored cursor behind the applied events while there is nothing else to write.
CURSOR_LAG = 1000

_T = TypeVar("_T")
Steps = Generator[Request, Answer, _T]
"""A course of steps: yields requests, and returns a result."""


class SessionState:
    """The state of a session.

    Args:
        record_changes: the ledger, and the unwritten records.
        holding: whether a hold is in force.
        incarnation: the cluster's incarnation.
        token: the fencing token of the session's lease.
        applied: revision up to which the cluster's events are applied.
        now_s: cluster time of that revision.
        clock: the cluster's clock.
        policy: the acting policy; `basis`: the basis of its last decision.
        reserved: by the stored cursor, the job that GPUs are kept free for, empty: none, and since when.

    Attributes:
        now: seconds of a monotonic wall clock, as given with the present step.
        effects: the present step's effects so far.
    """

    def __init__(
        self,
        record_changes: RecordChanges,
        holding: Holding,
        incarnation: str,
        token: int,
        applied: int,
        now_s: float,
        clock: Clock,
        policy: Policy,
        basis: DecisionBasis,
        reserved: tuple[str, float],
    ) -> None:
        self.record_changes = record_changes
        self.holding = holding
        self.incarnation = incarnation
        self.token = token
        self.applied = self.written = applied
        self.now_s = now_s
        self.use_clock(clock)
        self.policy = policy
        self.basis = basis
        self.now = 0.0
        self.effects = Effects()
        self.story = Story()
        self._written_reservation = reserved

    def use_clock(self, clock: Clock) -> None:
        """Notes how the cluster's clock goes."""
        # A virtual clock stands while a launch is under way.
        self.virtual = self.ledger.stop_rules.starts_at_once = clock.mode is ClockMode.VIRTUAL

    @property
    def ledger(self) -> Ledger:
        """The jobs on the GPUs and in the queue."""
        return self.record_changes.ledger

    def take_effects(self) -> Effects:
        """Returns the effects so far, and clears them."""
        effects, self.effects = self.effects, Effects()
        return effects

    def warn(self, event: str, **fields: object) -> None:
        """Adds a line to the log."""
        self.effects.logs.append(LogLine(event, fields))

    def note(self, job_id: str, what: str) -> None:
        """Adds a line to a job's story."""
        self.story.note(self.now_s, job_id, what)

    def remind(self, after_s: float, of: object) -> None:
        """Requests the input `Reminded(of)` after so many seconds of wall time."""
        self.effects.reminders.append(Reminder(after_s, of))

    def record(self, entry: Entry, job: Job) -> None:
        """Sets the job's next record."""
        self.record_changes.record(entry, job)

    def wake(self, times_s: Iterable[float]) -> Steps[float]:
        """Requests wake-ups; returns the cluster time of the request."""
        times, present_s = sorted(set(times_s)), self.now_s
        for start in range(0, len(times), WAKE_UPS_AT_ONCE):
            woken = yield WakeUps(times[start : start + WAKE_UPS_AT_ONCE])
            assert isinstance(woken, WokenAt)
            present_s = max(present_s, woken.time_s)
        return present_s

    @property
    def cursor(self) -> Cursor:
        """The position up to which the cluster's log is applied."""
        holding = self.holding
        return Cursor(
            self.incarnation, self.applied, self.now_s, holding.last_event_s, holding.until_s, *self._reservation
        )

    @property
    def _reservation(self) -> tuple[str, float]:
        """The job that GPUs are kept free for, empty: none, and since when."""
        reserved = self.ledger.reserved
        return ("", 0.0) if reserved is None else (reserved.job.job_id, self.ledger.reserved_since_s)

    def write(self, cursor: Cursor | None = None, *, always: bool = False) -> Steps[None]:
        """Writes the unwritten records and `cursor`; a cursor alone only if `always`, or once it lags far enough."""
        moves = self.record_changes.take_moves()
        # A session that has forgotten a reservation would keep GPUs free for nothing, and begin again.
        always = always or self._reservation != self._written_reservation
        if cursor is not None and not moves and self.applied - self.written < CURSOR_LAG and not always:
            cursor = None  # if these events are applied again, they change nothing
        for move in moves:
            self.story.record(self.now_s, move.job)
        # Redis serves no other call during a script, so each script has a bounded size. The cursor comes with the last
        # one: if that is never written, the events are applied again, and change nothing in the written records.
        while len(moves) > MOVES_AT_ONCE:
            yield Write(moves[:MOVES_AT_ONCE], None)
            moves = moves[MOVES_AT_ONCE:]
        if moves or cursor is not None:
            yield Write(moves, cursor)
            if cursor is not None:
                self.written, self._written_reservation = self.applied, self._reservation
