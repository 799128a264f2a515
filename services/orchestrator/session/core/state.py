"""What the parts of a session's core share: the ledger, how far the cluster's log is applied, and what is to be done.

A part that needs something of the outside is a generator: it yields the request, and goes on with the answer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeVar

from adlro.decide.policies.base import Policy
from adlro.records.decisions import DecisionBasis
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import Job
from adlro.services.orchestrator.ledger.ledger import Entry, Ledger
from adlro.services.orchestrator.ledger.record_changes import RecordChanges
from adlro.services.orchestrator.session.core.effects import Effects, LogLine, Reminder, Request, WakeUps, Write
from adlro.services.orchestrator.session.core.inputs import Answer, WokenAt
from adlro.services.orchestrator.session.core.story import Story
from adlro.services.orchestrator.session.holding import Holding
from adlro.store import MOVES_AT_ONCE, Cursor

WAKE_UPS_AT_ONCE = 50_000
# How far the applied events may run ahead of what is written down of it, where nothing else is to be written.
CURSOR_LAG = 1000

_T = TypeVar("_T")
Steps = Generator[Request, Answer, _T]
"""A course of steps: yields what is to be asked for, and returns something in the end."""


class SessionState:
    """How a session stands.

    Args:
        record_changes: the ledger, and what is not written yet.
        holding: whether a hold is in force.
        incarnation: of the cluster.
        token: the fencing token of the session's lease.
        applied: revision up to which the cluster's events are applied.
        now_s: cluster time of that.
        clock: of the cluster.
        policy: decides; `basis`: what its last decision rests on.

    Attributes:
        now: seconds of wall time that pass steadily, as told with the present step.
        effects: of the present step, so far.
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
    ) -> None:
        self.record_changes = record_changes
        self.holding = holding
        self.incarnation = incarnation
        self.token = token
        self.applied = self.written = applied
        self.now_s = now_s
        self.virtual = clock.mode is ClockMode.VIRTUAL
        self.policy = policy
        self.basis = basis
        self.now = 0.0
        self.effects = Effects()
        self.story = Story()

    @property
    def ledger(self) -> Ledger:
        """Who holds what, and who waits."""
        return self.record_changes.ledger

    def take_effects(self) -> Effects:
        """What is to be done; it is not asked for twice."""
        effects, self.effects = self.effects, Effects()
        return effects

    def warn(self, event: str, **fields: object) -> None:
        """A line of the log."""
        self.effects.logs.append(LogLine(event, fields))

    def note(self, job_id: str, what: str) -> None:
        """A line of a job's story."""
        self.story.note(self.now_s, job_id, what)

    def remind(self, after_s: float, of: object) -> None:
        """The core is told `Reminded(of)` after so many seconds of wall time."""
        self.effects.reminders.append(Reminder(after_s, of))

    def record(self, entry: Entry, job: Job) -> None:
        """The job's next record."""
        self.record_changes.record(entry, job)

    def wake(self, times_s: Iterable[float]) -> Steps[float]:
        """Asks for wake-ups; returns the cluster time at which they were asked for."""
        times, present_s = sorted(set(times_s)), self.now_s
        for start in range(0, len(times), WAKE_UPS_AT_ONCE):
            woken = yield WakeUps(times[start : start + WAKE_UPS_AT_ONCE])
            assert isinstance(woken, WokenAt)
            present_s = max(present_s, woken.time_s)
        return present_s

    @property
    def cursor(self) -> Cursor:
        """How far the cluster's log is applied."""
        holding = self.holding
        return Cursor(self.incarnation, self.applied, self.now_s, holding.last_event_s, holding.until_s)

    def write(self, cursor: Cursor | None = None, *, always: bool = False) -> Steps[None]:
        """Writes what is new, and how far the cluster's log is applied where `always`, or that would skip something."""
        moves = self.record_changes.take_moves()
        if cursor is not None and not moves and self.applied - self.written < CURSOR_LAG and not always:
            cursor = None  # what it would skip changes nothing
        for move in moves:
            self.story.record(self.now_s, move.job)
        # Redis serves nobody else while it writes, so it is given so many at a time. The cursor comes with the last of
        # them: where it never comes, the events are applied again, and change nothing of what is written.
        while len(moves) > MOVES_AT_ONCE:
            yield Write(moves[:MOVES_AT_ONCE], None)
            moves = moves[MOVES_AT_ONCE:]
        if moves or cursor is not None:
            yield Write(moves, cursor)
            self.written = self.applied if cursor is not None else self.written
