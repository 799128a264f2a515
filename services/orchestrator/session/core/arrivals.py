"""Jobs that arrive, that wait for their begin time, and that are cancelled before they run. No I/O."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence

from adlro.records.jobs import Job, PendingReason
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.runtimes.predictions import Expected
from adlro.services.orchestrator.session.core.effects import MORE
from adlro.services.orchestrator.session.core.state import SessionState, Steps
from adlro.store import sequence_of

ARRIVALS_AT_ONCE = 1000


class Arrivals:
    """The jobs that join the queue at the next event.

    Args:
        state: the session's state.
    """

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._arriving: list[Entry] = []
        self._begins: list[tuple[float, int, Entry]] = []
        self._cancelling: list[str] = []

    @property
    def waiting(self) -> list[Entry]:
        """Jobs that join the queue at the next event or at a later time; some of these may have ended meanwhile."""
        return [*self._arriving, *(entry for _, _, entry in self._begins)]

    def take_up(self, jobs: Sequence[tuple[Job, int, Expected]]) -> Steps[None]:
        """Requests the wake-ups at which the jobs join the queue: at their begin times, or now without a future one."""
        state = self._state
        entries = [state.ledger.enter(job, version, *row) for job, version, row in jobs]
        present_s = yield from state.wake(entry.job.spec.begin_time_s or 0.0 for entry in entries)
        for entry in entries:
            begin_s = entry.job.spec.begin_time_s
            if begin_s is None or begin_s <= present_s:
                entry.arrived_s = present_s
                self._arriving.append(entry)
                continue
            text = f"begins at {begin_s:.10g} s of cluster time"
            state.record(entry, transitions.taken_up(entry.job, begin_s, PendingReason.BEGIN_TIME, text))
            self._wait_for_begin(entry)
        yield from state.write()

    def wait_for_begins(self, entries: Iterable[Entry]) -> set[float]:
        """Registers jobs that an earlier session has taken up; returns their begin times."""
        for entry in entries:
            self._wait_for_begin(entry)
        return {begin_s for begin_s, _, _ in self._begins}

    def wait_until(self, time_s: float, entry: Entry) -> None:
        """Lets an entry outside the queue join it at that time."""
        heapq.heappush(self._begins, (time_s, sequence_of(entry.job.job_id), entry))

    def cancel(self, job_id: str) -> Steps[None]:
        """Lets a job that is not placed leave at the next event."""
        self._cancelling.append(job_id)
        if len(self._cancelling) == 1:  # one wake-up serves all requests before it
            yield from self._state.wake([0.0])

    def join_queue(self) -> Steps[tuple[list[Entry], list[Entry]]]:
        """Lets arrived jobs, and those whose begin time has come, join the queue; cancelled jobs leave.

        Returns:
            The jobs that arrived just now, and those that had waited for their begin time, without the cancelled ones.
        """
        state, begun = self._state, []
        fresh, self._arriving = self._arriving, []
        for number, entry in enumerate(fresh, start=1):
            if not number % ARRIVALS_AT_ONCE:
                yield MORE
            job = entry.job
            entry.job = transitions.taken_up(job, entry.arrived_s, job.pending_reason, job.message)
            self._enqueue(entry)
        for number in itertools.count(1):
            if not self._begins or self._begins[0][0] > state.now_s:
                break
            if not number % ARRIVALS_AT_ONCE:
                yield MORE
            entry = heapq.heappop(self._begins)[2]
            if entry.phase in (Phase.BEGIN, Phase.PAUSED):
                self._enqueue(entry)
                begun.append(entry)
        cancelling, self._cancelling = self._cancelling, []
        for number, job_id in enumerate(cancelling, start=1):
            if not number % ARRIVALS_AT_ONCE:
                yield MORE
            cancelled = state.ledger.entries.get(job_id)
            if cancelled is not None and cancelled.phase is not Phase.PLACED:
                job = transitions.cancelled_while_waiting(cancelled.job, state.now_s)
                state.record_changes.end(cancelled, job, learn=False)
                state.holding.ask_again()  # the policy may have held for this job
        return fresh, [entry for entry in begun if entry.phase is Phase.QUEUED]

    def _wait_for_begin(self, entry: Entry) -> None:
        entry.phase = Phase.BEGIN
        self._state.ledger.count_anew(entry)
        assert entry.job.submit_s is not None
        self.wait_until(entry.job.submit_s, entry)

    def _enqueue(self, entry: Entry) -> None:
        self._state.ledger.enqueue(entry)
        self._state.holding.happened(self._state.now_s)
