"""Jobs that are not in the queue yet: they arrive, are held, wait for others or for their begin time. No I/O.

What a job has to pass, in this order: its hold, the ends of the jobs that it waits for, its begin time. Cancelled jobs
leave, and what was asked for waiting jobs is applied. All of that happens at an event of the cluster.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from adlro.records.job_requests import JobRequest, JobRequestKind
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.runtimes.predictions import Expected
from adlro.services.orchestrator.session.core.dependencies import Dependencies, Verdict
from adlro.services.orchestrator.session.core.effects import MORE, ReadEnds
from adlro.services.orchestrator.session.core.inputs import EndsRead
from adlro.services.orchestrator.session.core.state import SessionState, Steps
from adlro.store import JobEnd, sequence_of

ARRIVALS_AT_ONCE = 1000


class Arrivals:
    """The jobs that join the queue at the next event, or at a later one.

    Args:
        state: the session's state.
    """

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._dependencies = Dependencies(state.ledger)
        self._arriving: list[Entry] = []
        self._begins: list[tuple[float, int, Entry]] = []
        self._cancelling: list[str] = []
        self._asked: list[tuple[str, Sequence[JobRequest]]] = []
        self._doomed: list[tuple[Entry, str]] = []  # what can never start, and why
        self._late: list[Entry] = []  # what has arrived after a hold or other jobs

    @property
    def waiting(self) -> list[Entry]:
        """Jobs that join the queue at the next event or at a later time; some of these may have ended meanwhile."""
        doomed = (entry for entry, _ in self._doomed)
        return [*self._arriving, *(entry for _, _, entry in self._begins), *doomed]

    def take_up(self, jobs: Sequence[tuple[Job, int, Expected]]) -> Steps[None]:
        """Requests the wake-ups at which the jobs join the queue: at their begin times, or now without a future one."""
        state = self._state
        entries = [state.ledger.enter(job, version, *row) for job, version, row in jobs]
        ends = yield from self._ends_for(entries)
        present_s = yield from state.wake(entry.job.spec.begin_time_s or 0.0 for entry in entries)
        for entry in entries:
            self._admit(entry, ends, present_s)
        if self._doomed:
            yield from state.wake([0.0])  # they end at the next event, which may else be a begin time far away
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
        yield from self._wake_for_requests()

    def ask(self, job_id: str, requests: Sequence[JobRequest]) -> Steps[None]:
        """Applies what was asked for a job at the next event."""
        self._asked.append((job_id, requests))
        yield from self._wake_for_requests()

    def _wake_for_requests(self) -> Steps[None]:
        if len(self._cancelling) + len(self._asked) == 1:  # one wake-up serves all requests before it
            yield from self._state.wake([0.0])

    def join_queue(self) -> Steps[tuple[list[Entry], list[Entry]]]:
        """Lets jobs join the queue that have nothing to wait for any more; cancelled jobs leave.

        Returns:
            The jobs that joined it for the first time, and those that had waited for something before.
        """
        state, begun = self._state, []
        yield from self._apply_requests()
        yield from self._follow_ends()
        fresh = yield from self._take_in()
        due = []
        while self._begins and self._begins[0][0] <= state.now_s:
            due.append(heapq.heappop(self._begins)[2])
        for number, entry in enumerate(due, start=1):
            if not number % ARRIVALS_AT_ONCE:
                yield MORE
            if entry.phase in (Phase.BEGIN, Phase.PAUSED):
                self._enqueue(entry)
                begun.append(entry)
        if (yield from self._cancel_requested()):
            yield from self._follow_ends()
            fresh += yield from self._take_in()
        late, self._late = self._late, []
        return fresh, [entry for entry in (*begun, *late) if entry.phase is Phase.QUEUED]

    def _take_in(self) -> Steps[list[Entry]]:
        """Lets arrived jobs join the queue."""
        arriving, self._arriving = self._arriving, []
        fresh = []
        for number, entry in enumerate(arriving, start=1):
            if not number % ARRIVALS_AT_ONCE:
                yield MORE
            if entry.phase is not Phase.ARRIVING:
                continue  # it is held, or here a second time
            job = entry.job
            if not job.attempts or job.submit_s is None:
                entry.job = transitions.taken_up(job, entry.arrived_s, job.pending_reason, job.message)
            self._enqueue(entry)
            fresh.append(entry)
        return fresh

    def check(self) -> None:
        """Checks that jobs wait for others, and are held, exactly as their records say; for tests.

        Raises:
            AssertionError: on the first contradiction.
        """
        waiting = {entry.job.job_id for entry in self._state.ledger.entries.values() if entry.phase is Phase.DEPENDENT}
        assert self._dependencies.waiting == waiting, f"{self._dependencies.waiting ^ waiting} wait for nobody's end"
        for entry in self._state.ledger.entries.values():
            held = entry.phase is Phase.HELD
            assert held == (entry.job.hold is not None), f"{entry.job.job_id} is {entry.phase.value}: {entry.job.hold}"

    # ---- the gates

    def _admit(self, entry: Entry, ends: Mapping[str, JobEnd], present_s: float) -> None:
        """Lets a job that is in no queue wait for what it has to, or arrive."""
        if entry.job.hold is not None:
            self._hold(entry, entry.job)
            return
        if self._waits_for_nothing(entry, ends):
            self._pass(entry, present_s)

    def _waits_for_nothing(self, entry: Entry, ends: Mapping[str, JobEnd]) -> bool:
        """Whether all that a job waits for has ended as it must; otherwise it waits, or ends at the next event."""
        verdict = self._dependencies.wait(entry, ends)
        if verdict.never:
            self._set_phase(entry, Phase.ARRIVING)
            self._doomed.append((entry, verdict.never))
        elif verdict.waits_for:
            self._set_phase(entry, Phase.DEPENDENT)
            self._tell(entry, transitions.depends(entry.job, verdict.waits_for))
        return verdict == Verdict()

    def _pass(self, entry: Entry, present_s: float) -> None:
        """Lets a job that is not held, and waits for no others, arrive now or at its begin time."""
        job = entry.job
        begin_s = job.spec.begin_time_s
        if begin_s is None or begin_s <= present_s or job.attempts:
            self._set_phase(entry, Phase.ARRIVING)
            entry.arrived_s = present_s
            self._arriving.append(entry)
            return
        text = f"begins at {begin_s:.10g} s of cluster time"
        self._state.record(entry, transitions.taken_up(job, begin_s, PendingReason.BEGIN_TIME, text))
        self._wait_for_begin(entry)

    def _pass_late(self, entries: Sequence[Entry]) -> Steps[None]:
        """As `_pass`, for jobs that were held or have waited for others."""
        begins_s = {entry.job.spec.begin_time_s or 0.0 for entry in entries}
        if later := {begin_s for begin_s in begins_s if begin_s > self._state.now_s}:
            yield from self._state.wake(later)
        for entry in entries:
            self._pass(entry, self._state.now_s)
        self._late += entries

    def _ends_for(self, entries: Iterable[Entry]) -> Steps[dict[str, JobEnd]]:
        """The ends that some jobs wait for, as far as the ledger does not have them."""
        unknown = self._dependencies.unknown(entries)
        if not unknown:
            return {}
        yield from self._state.write()  # the store must know of all ends that the ledger knows
        read = yield ReadEnds(unknown)
        assert isinstance(read, EndsRead)
        ends = dict(read.ends)
        # The store counts the ends that are written, and `_follow_ends` will count some of these: each once.
        for job in self._state.ledger.ended:
            if job.spec.array is not None and (end := ends.get(job.spec.array.array_id)) is not None:
                failed = int(job.state is not JobState.SUCCEEDED)
                ends[job.spec.array.array_id] = JobEnd(end.count, end.ended_count - 1, end.failed_count - failed)
        return ends

    def _hold(self, entry: Entry, job: Job) -> None:
        assert job.hold is not None
        self._dependencies.leave(job.job_id)
        self._state.ledger.hold(entry)
        self._tell(entry, transitions.held(job, job.hold))

    def _tell(self, entry: Entry, job: Job) -> None:
        if job != entry.job:
            self._state.record(entry, job)

    def _set_phase(self, entry: Entry, phase: Phase) -> None:
        entry.phase = phase
        self._state.ledger.count_anew(entry)

    def _wait_for_begin(self, entry: Entry) -> None:
        self._set_phase(entry, Phase.BEGIN)
        assert entry.job.submit_s is not None
        self.wait_until(entry.job.submit_s, entry)

    def _enqueue(self, entry: Entry) -> None:
        self._state.ledger.enqueue(entry)
        self._state.holding.happened(self._state.now_s)

    # ---- what was asked for

    def _apply_requests(self) -> Steps[None]:
        state = self._state
        released: dict[str, Entry] = {}
        asked, self._asked = self._asked, []
        for number, (job_id, requests) in enumerate(asked, start=1):
            if not number % ARRIVALS_AT_ONCE:
                yield MORE
            entry = state.ledger.entries.get(job_id)
            for request in requests if entry is not None else ():
                assert entry is not None
                if request.number > entry.job.applied_request:
                    self._apply(entry, request)
                    released[job_id] = entry
        free = [entry for entry in released.values() if entry.phase is Phase.HELD and entry.job.hold is None]
        if not free:
            return
        ends = yield from self._ends_for(free)
        passed = [entry for entry in free if self._waits_for_nothing(entry, ends)]
        yield from self._pass_late(passed)

    def _apply(self, entry: Entry, request: JobRequest) -> None:
        """Applies a request to a job that waits; one that comes after its launch changes nothing."""
        state, waits = self._state, entry.phase is not Phase.PLACED
        job = transitions.request_applied(entry.job, request.number)
        match request.kind:
            case JobRequestKind.HOLD if waits:
                hold = transitions.hold_after(job.hold, request)
                state.note(job.job_id, "is held")
                if entry.phase is not Phase.HELD:
                    state.holding.ask_again()  # the policy may have held for this job
                self._dependencies.leave(job.job_id)
                state.ledger.hold(entry)
                state.record(entry, transitions.held(job, hold))
                return
            case JobRequestKind.RELEASE if job.hold is not None and (request.by_operator or not job.hold.by_operator):
                state.note(job.job_id, "is released")
                job = transitions.released(job)
            case JobRequestKind.UPDATE if waits and request.update is not None:
                state.note(job.job_id, "is changed on request")
                job = transitions.updated(job, request.update)
                state.holding.ask_again()
        state.record(entry, job)
        state.ledger.update(entry)

    def _cancel_requested(self) -> Steps[bool]:
        """Whether a job has left."""
        state, left = self._state, False
        cancelling, self._cancelling = self._cancelling, []
        for number, job_id in enumerate(cancelling, start=1):
            if not number % ARRIVALS_AT_ONCE:
                yield MORE
            cancelled = state.ledger.entries.get(job_id)
            if cancelled is not None and cancelled.phase is not Phase.PLACED:
                self._end(cancelled, transitions.cancelled_while_waiting(cancelled.job, state.now_s))
                left = True
        return left

    def _end(self, entry: Entry, job: Job) -> None:
        self._dependencies.leave(job.job_id)
        self._state.record_changes.end(entry, job, learn=False)
        self._state.holding.ask_again()  # the policy may have held for this job

    # ---- the ends of other jobs

    def _follow_ends(self) -> Steps[None]:
        """Lets go what waited for jobs that have ended; what can never start ends as well, and is followed too."""
        state = self._state
        free: list[Entry] = []
        doomed, self._doomed = self._doomed, []
        for entry, why in doomed:
            if entry.phase is Phase.ARRIVING:
                self._end(entry, transitions.cancelled_by_dependency(entry.job, state.now_s, why))
        while ended := state.ledger.take_ended():
            for number, job in enumerate(ended, start=1):
                if not number % ARRIVALS_AT_ONCE:
                    yield MORE
                for entry, verdict in self._dependencies.ended(job):
                    self._after_end(entry, verdict)
                    if verdict == Verdict():
                        free.append(entry)
        yield from self._pass_late(free)

    def _after_end(self, entry: Entry, verdict: Verdict) -> None:
        if verdict.never:
            self._end(entry, transitions.cancelled_by_dependency(entry.job, self._state.now_s, verdict.never))
        elif verdict.waits_for:
            self._tell(entry, transitions.depends(entry.job, verdict.waits_for))
