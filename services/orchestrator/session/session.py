"""One acting session: from the lease to the first failure, whatever fails.

Plain data; clients and stores are handed in. A session reads everything anew (records from Redis, what runs from the
cluster), reconciles the two, and then follows two logs: the jobs' changes and the cluster's events. Everything that
moves a job happens at an event of the cluster, in order, in one task: a new job or a policy change only asks the
cluster for a wake-up. For each event batch there is one atomic write (ends, intents to launch, and how far the
cluster's log is applied), then the launches, then the acknowledgement, on which a virtual clock waits.

A launch that the cluster refuses, or does not answer, is an input too: the job's attempt is taken back, and all others
go on. Whatever else fails ends the session, and the next one starts from what is written down.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from adlro.decide.winner import winner_and_next
from adlro.errors import Conflict, Stale, Unavailable, Unsupported
from adlro.placement import Placement
from adlro.records.events import NOT_BLOCKING, Clock, ClockMode, ClusterDescription, ClusterEvent, EventBatch, EventKind
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.services.orchestrator.deciding.acting import Acting
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.explain.explanations import runner_up
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.ledger import Entry, Ledger, Phase
from adlro.services.orchestrator.ledger.record_changes import RecordChanges
from adlro.services.orchestrator.ports import ClusterPort
from adlro.services.orchestrator.runtimes.predictions import Expected, ExpectedRuntimes
from adlro.services.orchestrator.runtimes.refresh import RuntimeRefresh
from adlro.services.orchestrator.session.holding import Holding
from adlro.services.orchestrator.session.launching import Launches, Refused, Unanswered
from adlro.services.orchestrator.session.loading import load
from adlro.services.orchestrator.session.reconcile import Reconciled
from adlro.state.observation import Observation
from adlro.store import MOVES_AT_ONCE, Cursor, JobChange, JobStore, sequence_of

# A waiting job's reason is for people: it is brought up to date this often, so many at a time, not at every event.
REASON_REFRESH_S = 1.0
REASONS_AT_ONCE = 500
WAKE_UPS_AT_ONCE = 50_000
ARRIVALS_AT_ONCE = 1000
# How often decompose is asked which GPUs it found slower than their kind.
GPU_SPEEDS_S = 1.0
# A round of decisions lets others have the loop after so long.
ROUND_SLICE_S = 0.005
# What may change what a policy wants: it ends a hold. So does a job that joins the queue.
ENDS_HOLD = frozenset(EventKind) - NOT_BLOCKING - {EventKind.WAKE_UP}
# Pauses of cluster time before a job whose launch was refused is launched again; the last one from then on.
REFUSAL_PAUSES_S = (0.0, 5.0, 15.0, 45.0, 120.0)
# How far the applied events may run ahead of what is written down of it, where nothing else is to be written.
CURSOR_LAG = 1000


@dataclass(frozen=True, slots=True)
class Arrived:
    """New jobs: (record, version, expected)."""

    jobs: Sequence[tuple[Job, int, Expected]]


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A user wants a job's end."""

    job_id: str


@dataclass(frozen=True, slots=True)
class RefreshReasons:
    """Bring the reasons of waiting jobs up to date."""


Input = EventBatch | Arrived | CancelRequested | Refused | Unanswered | RefreshReasons


class Session:
    """One acting session.

    Args:
        acting: what outlives it; the policy and drains may change while it runs (then call `kick`).
        store: job records.
        cluster: runs jobs.
        predictions: expected durations.
        token: the fencing token of its lease.
        max_attempts: lost attempts after which a job fails.
        log: a structlog logger.
        on_decision: called with each policy call's duration in seconds.
    """

    def __init__(
        self,
        acting: Acting,
        store: JobStore,
        cluster: ClusterPort,
        predictions: ExpectedRuntimes,
        token: int,
        max_attempts: int,
        log: structlog.typing.FilteringBoundLogger,
        on_decision: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.acting = acting
        self.token = token
        self.ready = asyncio.Event()
        self.now_s = 0.0
        self.applied = 0
        self.unreadable_count = 0
        self._store = store
        self._cluster = cluster
        self._predictions = predictions
        self._max_attempts = max_attempts
        self._log = log
        self._on_decision = on_decision
        self._inbox: asyncio.Queue[Input] = asyncio.Queue()
        self._arriving: list[Entry] = []
        self._begins: list[tuple[float, int, Entry]] = []
        self._cancelling: list[str] = []
        self._written = 0
        self._described = 0
        self._vanished: list[tuple[Entry, int]] = []
        self._strays: list[tuple[str, int]] = []
        self._stopped: list[Entry] = []
        self._refresh_due: asyncio.TimerHandle | None = None
        self._refresh_from = 0
        self._launches: Launches
        self._book: RecordChanges
        self._expectations: RuntimeRefresh
        self._holding: Holding

    @property
    def ledger(self) -> Ledger:
        """Who holds what, and who waits; there once the session is ready."""
        return self._book.ledger

    # ---- the whole of it

    async def run(self) -> None:
        """Acts until something fails.

        Raises:
            ExceptionGroup: of what failed; `Stale` in it where another instance has taken over.
        """
        description = await self._cluster.describe()
        await self._refuse_spent_token(description)
        loaded = await load(self._store, self._predictions, description, self.acting.drained, self._max_attempts)
        found, cursor = loaded.found, loaded.cursor
        self.unreadable_count = loaded.unreadable_count
        self._expectations = RuntimeRefresh(self._predictions, caught_up=loaded.generation)
        self._holding = Holding(found.now_s)
        if cursor is not None and found.same:
            held = not (self.acting.ask_again or found.book.moves)
            self._holding = Holding(cursor.last_event_s, cursor.hold_until_s if held else None)
        self.acting.ask_again = False
        await self._begin(description, found)
        for job_id in loaded.cancelling:
            self._inbox.put_nowait(CancelRequested(job_id))
        try:
            async with asyncio.TaskGroup() as group:
                self._launches = Launches(self._cluster, self.acting, self.token, group, self._inbox.put_nowait)
                group.create_task(self._follow_cluster(), name="follow cluster")
                group.create_task(self._follow_jobs(loaded.job_revision, loaded.newest), name="follow jobs")
                group.create_task(self._follow_gpu_speeds(), name="follow GPU speeds")
                group.create_task(self._act(), name="act")
                # What an earlier session had written down and perhaps not launched; then what it had applied and
                # perhaps not acknowledged.
                self._launches.start(found.relaunch, self.applied)
                await self._wake_at({0.0, *(begin_s for begin_s, _, _ in self._begins)})
                self.ready.set()
        finally:
            if self._refresh_due is not None:
                self._refresh_due.cancel()

    async def _begin(self, description: ClusterDescription, found: Reconciled) -> None:
        self._book, self.applied, self.now_s = found.book, found.applied, found.now_s
        self._described, self._vanished = description.revision, found.vanished
        self._lose_vanished()
        clock = description.clock if found.same else await self._catch_up(description)
        self.acting.note_clock(clock)
        self.acting.incarnation = description.incarnation
        self._written = self.applied
        if not found.same:
            await self._write(self._cursor(), always=True)
        # Their records are final, or on a later attempt: they must not hold a GPU.
        for stray in found.unclaimed.values():
            self._log.warning("stopping an attempt without a record", job_id=stray.job_id, attempt=stray.attempt)
            with contextlib.suppress(Unsupported):  # it ends by itself
                await self._cluster.stop(stray.job_id, stray.attempt, self.token, self.acting.incarnation)
        for entry in found.begins:
            self._wait_for_begin(entry)
        for start in range(0, len(found.arriving), ARRIVALS_AT_ONCE):
            self._inbox.put_nowait(Arrived(found.arriving[start : start + ARRIVALS_AT_ONCE]))
        self._inbox.put_nowait(RefreshReasons())

    async def _catch_up(self, description: ClusterDescription) -> Clock:
        """A cluster that keeps no time of its own over a restart is taken to where the records are."""
        own = description.clock
        can = description.capabilities
        if description.running or own.time_s >= self.now_s or (can is not None and not can.virtual_clock):
            return own
        try:
            return await self._cluster.advance_to(self.now_s)
        except (Unsupported, Conflict) as error:
            self._log.info("the cluster keeps its own clock", reason=str(error))
            return own

    async def _refuse_spent_token(self, description: ClusterDescription) -> None:
        """Where the store has lost how many tokens it gave, the cluster would refuse this one as an old one."""
        if description.fencing_token < self.token:
            return
        await self._store.raise_token(description.fencing_token)
        raise Stale(
            f"the cluster has seen fencing token {description.fencing_token}, and the newest lease has {self.token}: "
            "the store has lost its counter; it goes on from what the cluster has seen"
        )

    async def _act(self) -> None:
        while True:
            match await self._inbox.get():
                case EventBatch() as batch:
                    await self._apply(batch)
                case Arrived(jobs):
                    await self._take_up(jobs)
                case CancelRequested(job_id):
                    await self._cancel(job_id)
                case Refused() as refused:
                    await self._take_back(refused)
                case Unanswered() as unanswered:
                    await self._tell_unanswered(unanswered)
                case RefreshReasons():
                    await self._refresh_reasons()
            if self._inbox.empty():
                await self._write(None)

    async def _follow_cluster(self) -> None:
        async for batch in self._cluster.events(self.acting.incarnation, self.applied):
            self._inbox.put_nowait(batch)
        raise Unavailable("the cluster ended its event stream")

    async def _follow_jobs(self, revision: int, newest: int) -> None:
        """Follows what ingest writes; jobs up to number `newest` were read with the records."""
        while True:
            revision, events = await self._store.read_requests(revision, block_ms=1000)
            new = [
                event.job
                for event in events
                if event.change is JobChange.SUBMITTED and sequence_of(event.job.job_id) > newest
            ]
            if new:
                expected = await self._predictions.predict([job.spec for job in new], self.ledger.layout.gpu_models)
                self._inbox.put_nowait(Arrived([(job, 0, row) for job, row in zip(new, expected, strict=True)]))
            for event in events:
                if event.change is JobChange.CANCEL_REQUESTED:
                    self._inbox.put_nowait(CancelRequested(event.job.job_id))

    async def _follow_gpu_speeds(self) -> None:
        """A GPU that was found slower than its kind is expected to take longer, from the next event on."""
        while True:
            speed_of = await self._predictions.gpu_speeds(self.ledger.layout.cluster.name)
            if speed_of is not None:
                self._expectations.gpu_speeds = speed_of
            await asyncio.sleep(GPU_SPEEDS_S)

    # ---- jobs come and go

    async def _take_up(self, jobs: Sequence[tuple[Job, int, Expected]]) -> None:
        """Asks for the wake-ups at which the jobs join the queue; what has no begin time, or a past one, joins now."""
        entries = [self.ledger.enter(job, version, *row) for job, version, row in jobs]
        present_s = await self._wake_at({entry.job.spec.begin_time_s or 0.0 for entry in entries})
        for entry in entries:
            begin_s = entry.job.spec.begin_time_s
            if begin_s is None or begin_s <= present_s:
                entry.arrived_s = present_s
                self._arriving.append(entry)
                continue
            text = f"begins at {begin_s:.10g} s of cluster time"
            job = transitions.taken_up(entry.job, begin_s, PendingReason.BEGIN_TIME, text)
            self._book.record(entry, job)
            self._wait_for_begin(entry)
        await self._write(None)

    def _wait_for_begin(self, entry: Entry) -> None:
        entry.phase = Phase.BEGIN
        assert entry.job.submit_s is not None
        heapq.heappush(self._begins, (entry.job.submit_s, sequence_of(entry.job.job_id), entry))

    async def _cancel(self, job_id: str) -> None:
        entry = self.ledger.entries.get(job_id)
        if entry is None:
            return
        entry.job = transitions.cancel_requested(entry.job)
        if entry.phase is Phase.PLACED:
            self._launches.stop(job_id, entry.job.attempt_count)
            return
        self._cancelling.append(job_id)
        if len(self._cancelling) == 1:  # one wake-up is for all that come before it
            await self._wake_at({0.0})

    async def _wake_at(self, times_s: set[float]) -> float:
        """Asks for wake-ups; returns the cluster time at which they were asked for."""
        times = sorted(times_s)
        present_s = self.now_s
        for start in range(0, len(times), WAKE_UPS_AT_ONCE):
            clock = await self._cluster.wake_at(times[start : start + WAKE_UPS_AT_ONCE])
            present_s = max(present_s, clock.time_s)
        return present_s

    async def kick(self) -> None:
        """Asks for a new round of decisions, as after a change of policy."""
        self._holding.ask_again()
        await self._wake_at({0.0})

    async def _take_back(self, refused: Refused) -> None:
        """The job waits, after a pause that grows with each refusal, or has failed; its GPU is free for others."""
        entry = refused.entry
        if entry.is_open(refused.attempt):
            await self._refuse(entry, refused.why, refused.retry_after_s, final=refused.final)
        refused.taken_back.set()

    async def _refuse(self, entry: Entry, why: str, retry_after_s: float = 0.0, *, final: bool = False) -> None:
        job = entry.job
        self._log.warning(
            "launch refused", job_id=job.job_id, attempt=job.attempt_count, gpu_id=job.gpu_id, why=why, final=final
        )
        present_s = await self._wake_at({0.0})  # its GPU may be what others waited for
        pause_s = REFUSAL_PAUSES_S[min(transitions.refusals_in_a_row(job), len(REFUSAL_PAUSES_S) - 1)]
        retry_s = present_s + max(pause_s, retry_after_s)
        if self._book.refuse(entry, why, present_s, retry_s, final=final):
            heapq.heappush(self._begins, (retry_s, sequence_of(job.job_id), entry))
            await self._wake_at({retry_s})
        self._holding.ask_again()
        await self._write(None)

    async def _tell_unanswered(self, unanswered: Unanswered) -> None:
        entry = unanswered.entry
        if entry.is_open(unanswered.attempt):
            self._book.record(entry, transitions.unanswered(entry.job, unanswered.why, given_up=unanswered.given_up))
            await self._write(None)
        unanswered.written.set()

    # ---- the cluster's events

    async def _apply(self, batch: EventBatch) -> None:
        self.acting.note_clock(batch.clock)
        events = [event for event in batch.events if event.revision > self.applied]
        if not events:
            return
        for event in events:
            if event.kind in ENDS_HOLD:
                self._holding.happened(event.time_s)
            elif event.kind is EventKind.WAKE_UP:
                self._holding.woken(event.time_s)
            self._apply_event(event)
        self.applied = events[-1].revision
        self.now_s = max(self.now_s, events[-1].time_s)
        self._stop_strays()
        for entry in self._stopped:
            await self._refuse(entry, entry.job.attempts[-1].outcome)
        self._stopped.clear()
        self._lose_vanished()
        if all(event.kind in NOT_BLOCKING for event in events):
            return  # written with the next batch, or when nothing else waits
        fresh, begun = await self._join_queue()
        if await self._expectations.bring_up_to_date(self.ledger, begun, virtual=self._virtual):
            self._holding.ask_again()  # what it held for may not be worth it
        self._expectations.use_gpu_speeds(self.ledger)
        picks = await self._decide()
        await self._tell_reasons([entry for entry in fresh if entry.phase is Phase.QUEUED])
        await self._write(self._cursor())
        self._launches.start(picks, self.applied, self._holding.next_wake_up_s(self.now_s))
        if self.ledger.queue_length:
            self._refresh_later()

    def _apply_event(self, event: ClusterEvent) -> None:
        if event.kind in (EventKind.GPU_LOST, EventKind.GPU_BACK):
            if event.revision > self._described:  # older ones are in the description already
                self.ledger.set_lost([event.gpu_id], event.kind is EventKind.GPU_LOST)
            return
        if event.kind is EventKind.CLUSTER_CHANGED:
            if event.revision > self._described:
                raise Stale("nodes or GPUs of the cluster joined or left; the next session begins with those it has")
            return
        if event.kind is EventKind.RUNNING:
            return  # a sign of life; since STARTED the attempt counts as running
        entry = self.ledger.entries.get(event.job_id)
        if entry is None or not entry.is_placed(event.attempt):
            if event.kind is EventKind.STARTED and event.revision > self._described:
                self._strays.append((event.job_id, event.attempt))
            return  # of an attempt that was given up
        book, job = self._book, entry.job
        match event.kind:
            case EventKind.STARTED:
                if job.state is JobState.PENDING:
                    book.record(entry, transitions.started(job, event.time_s))
                    self.ledger.runs_since(entry, event.time_s)
            case EventKind.FINISHED:
                book.end(entry, transitions.succeeded(job, event.time_s), learn=True)
                self._expectations.ended()
            case EventKind.FAILED:
                book.end(entry, transitions.failed(job, event.time_s, event.message), learn=True)
            case EventKind.STOPPED if transitions.is_given_up(job) and not job.cancel_requested:
                self._stopped.append(entry)  # by this orchestrator, which had no answer to its launch
            case EventKind.STOPPED:
                book.end(entry, transitions.stopped(job, event.time_s), learn=False)
            case EventKind.LOST:
                book.lose(entry, event.message or "its GPU was lost", event.time_s)

    def _stop_strays(self) -> None:
        """What started after it was given up holds a GPU that counts as idle here."""
        strays, self._strays = self._strays, []
        for job_id, attempt in strays:
            self._log.warning("stopping an attempt that was given up", job_id=job_id, attempt=attempt)
            self._launches.stop(job_id, attempt)

    def _lose_vanished(self) -> None:
        """What does not run, and whose end no event is left to tell: it was told while its record was unreadable."""
        if self.applied < self._described:
            return
        vanished, self._vanished = self._vanished, []
        for entry, attempt in vanished:
            if entry.is_placed(attempt):
                self._holding.ask_again()
                gone = entry.job.gpu_id not in self.ledger.layout.gpu_number
                why = "its GPU left the cluster" if gone else "it ended while its record could not be read"
                self._book.lose(entry, why, self.now_s, excused=True)

    async def _join_queue(self) -> tuple[list[Entry], list[Entry]]:
        """What arrived, and what begins by now, joins the queue; what was cancelled leaves.

        Returns:
            What arrived just now, and what had waited for its begin time, as far as it is not cancelled.
        """
        begun = []
        fresh, self._arriving = self._arriving, []
        for number, entry in enumerate(fresh, start=1):
            if not number % ARRIVALS_AT_ONCE:
                await asyncio.sleep(0)
            job = entry.job
            entry.job = transitions.taken_up(job, entry.arrived_s, job.pending_reason, job.message)
            self._enqueue(entry)
        while self._begins and self._begins[0][0] <= self.now_s:
            entry = heapq.heappop(self._begins)[2]
            if entry.phase in (Phase.BEGIN, Phase.PAUSED):
                self._enqueue(entry)
                begun.append(entry)
        cancelling, self._cancelling = self._cancelling, []
        for job_id in cancelling:
            cancelled = self.ledger.entries.get(job_id)
            if cancelled is not None and cancelled.phase is not Phase.PLACED:
                job = transitions.cancelled_while_waiting(cancelled.job, self.now_s)
                self._book.end(cancelled, job, learn=False)
                self._holding.ask_again()  # perhaps it was what the policy held for
        return fresh, [entry for entry in begun if entry.phase is Phase.QUEUED]

    def _enqueue(self, entry: Entry) -> None:
        self.ledger.enqueue(entry)
        self._holding.happened(self.now_s)

    # ---- decisions

    async def _decide(self) -> list[Entry]:
        """Starts what the policy wants started at this moment; each is written down before it is launched."""
        ledger, acting = self.ledger, self.acting
        picks: list[Entry] = []
        seen = None
        slice_ends = time.perf_counter() + ROUND_SLICE_S
        while ledger.can_start_something and not self._holding.in_force(self.now_s):
            began = time.perf_counter()
            if seen is None or seen != (ledger.changes, acting.policy):
                seen, policy = (ledger.changes, acting.policy), acting.policy
                observation, queue = ledger.observe(self.now_s), ledger.queued()
            if not len(observation.table.job):
                break
            judgement = await acting.guard.judge(policy, observation, virtual=self._virtual)
            if seen != (ledger.changes, acting.policy):
                continue  # a node was drained, or another policy set, while this one was thinking
            row, second = winner_and_next(judgement.scores)
            job, gpu = judgement.action(observation.table, row)
            took_s = time.perf_counter() - began
            self._on_decision(took_s)
            if job < 0:
                self._tell(observation, queue, (job, gpu))
                self._holding.begin(self.now_s)
                break
            entry = queue[job]
            decision_id = f"d-{self.token}-{acting.decisions.count + 1}"
            made = Made.now(decision_id, entry, policy, ledger, self.now_s)
            next_best = runner_up(judgement, observation.table, second, queue, ledger)
            ledger.place(entry, gpu, self.now_s)
            gpu_id, model = ledger.layout.gpu_ids[gpu], ledger.layout.model_of(gpu)
            self._book.record(entry, transitions.launching(entry.job, Placement.on(gpu_id), model))
            made = made.placed(gpu, judgement, observation, job, entry.job.attempt_count, next_best, took_s * 1e6)
            acting.decisions.add(made)
            self._tell(observation, queue, (job, gpu), made)
            observation = ledger.reflect(observation, job, gpu)
            picks.append(entry)
            if time.perf_counter() > slice_ends:
                await asyncio.sleep(0)  # the lease, health and callers go on during a long round
                slice_ends = time.perf_counter() + ROUND_SLICE_S
        return picks

    def _tell(
        self, observation: Observation, queue: Sequence[Entry], action: tuple[int, int], made: Made | None = None
    ) -> None:
        """Has the policy in the shadow asked as well; whoever watches decisions is told, with its answer."""
        decisions = self.acting.decisions
        self.acting.shadow.decided(
            observation,
            lambda: tuple(entry.job.job_id for entry in queue),
            self.ledger.layout.gpu_ids,
            action,
            lambda answer: None if made is None else decisions.tell(made, answer),
        )

    @property
    def _virtual(self) -> bool:
        clock = self.acting.clock()
        return clock is not None and clock.mode is ClockMode.VIRTUAL

    # ---- writing down

    def _cursor(self) -> Cursor:
        holding = self._holding
        return Cursor(self.acting.incarnation, self.applied, self.now_s, holding.last_event_s, holding.until_s)

    async def _write(self, cursor: Cursor | None, *, always: bool = False) -> None:
        """Writes what is new, and how far the cluster's log is applied where `always`, or that would skip something."""
        moves = self._book.take_moves()
        if cursor is not None and not moves and self.applied - self._written < CURSOR_LAG and not always:
            cursor = None  # what it would skip changes nothing
        # Redis serves nobody else while it writes, so it is given so many at a time. The cursor comes with the last of
        # them: where it never comes, the events are applied again, and change nothing of what is written.
        while len(moves) > MOVES_AT_ONCE:
            await self._store.move(self.token, moves[:MOVES_AT_ONCE])
            moves = moves[MOVES_AT_ONCE:]
        if moves or cursor is not None:
            await self._store.move(self.token, moves, cursor)
            self._written = self.applied if cursor is not None else self._written

    async def _tell_reasons(self, entries: Sequence[Entry]) -> None:
        """Records why jobs wait, where that is not what their records say."""
        holds_back = self.acting.holds_back
        for start in range(0, len(entries), REASONS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            for entry, reason, text in self.ledger.reasons(entries[start : start + REASONS_AT_ONCE], holds_back):
                if (entry.job.pending_reason, entry.job.message) != (reason, text):
                    self._book.record(entry, transitions.waiting(entry.job, reason, text))

    async def _refresh_reasons(self) -> None:
        """The reasons of the next few hundred of the queue; the others have their turn later."""
        self._refresh_due = None
        end = self._refresh_from + REASONS_AT_ONCE
        await self._tell_reasons(self.ledger.queued(self._refresh_from, end))
        self._refresh_from = end if end < self.ledger.queue_length else 0
        if self._refresh_from:
            self._refresh_later()

    def _refresh_later(self) -> None:
        if self._refresh_due is None:
            loop = asyncio.get_running_loop()
            self._refresh_due = loop.call_later(REASON_REFRESH_S, self._inbox.put_nowait, RefreshReasons())


def failures(error: BaseException) -> list[BaseException]:
    """The single errors of a (nested) group."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in failures(each)]
    return [error]
