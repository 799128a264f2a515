"""One acting session: from the lease to the first failure, whatever fails.

Plain data; clients and stores are handed in.

A session reads everything anew (records from Redis, what runs from the cluster), reconciles the two, and then follows
two logs: the jobs' changes and the cluster's events. Everything that moves a job happens at an event of the cluster,
in order, in one task: a new job or a policy change only asks the cluster for a wake-up. For each event batch there is
one atomic write (ends, intents to launch, and how far the cluster's log is applied), then the launches, then the
acknowledgement, on which a virtual clock waits.

There is no repair inside a session: any failure ends it, and the next one starts from what is written down.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from adlro.errors import Conflict, InvalidInput, NotFound, Stale, Unavailable, Unsupported
from adlro.events import Clock, ClusterDescription, ClusterEvent, EventBatch, EventKind
from adlro.jobs import Job, JobState, PendingReason
from adlro.jobstore import Cursor, JobStore, Move, Outcome, sequence_of
from adlro.sim.observation import Floats
from services.orchestrator import transitions
from services.orchestrator.decisions import Decision, DecisionLog, Made
from services.orchestrator.ledger import Entry, Ledger, Phase
from services.orchestrator.policies import Policy
from services.orchestrator.ports import ClusterPort
from services.orchestrator.predictions import Predictions

SUBMITTED, CANCEL_REQUESTED = 1, 2

# Events after which something may have become possible; the cluster's virtual clock waits for their acknowledgement.
BLOCKING = frozenset(EventKind) - {EventKind.STARTED, EventKind.CLOCK_SET}

# A waiting job's reason is for people: it is brought up to date this often, not at every event.
REASON_REFRESH_S = 1.0
REASONS_AT_ONCE = 500
WAKE_UPS_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True)
class Arrived:
    """New jobs with their expected durations, (J, M)."""

    jobs: Sequence[Job]
    durations_s: Floats


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A user wants a job's end."""

    job: Job


@dataclass(frozen=True, slots=True)
class Refused:
    """The cluster did not take a launch."""

    entry: Entry
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class RefreshReasons:
    """Bring the reasons of waiting jobs up to date."""


Input = EventBatch | Arrived | CancelRequested | Refused | RefreshReasons


@dataclass(slots=True)
class Acting:
    """What outlives a session, in this process."""

    policy: Policy
    drained: dict[str, str]
    decisions: DecisionLog
    # The clock as last told by the cluster, and by which of its incarnations.
    clock: Clock | None = None
    incarnation: str = ""


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
        predictions: Predictions,
        token: int,
        max_attempts: int,
        log: structlog.typing.FilteringBoundLogger,
        on_decision: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.acting = acting
        self.token = token
        self.ready = asyncio.Event()
        self.ledger: Ledger
        self.now_s = 0.0
        self.applied = 0
        self._store = store
        self._cluster = cluster
        self._predictions = predictions
        self._max_attempts = max_attempts
        self._log = log
        self._on_decision = on_decision
        self._inbox: asyncio.Queue[Input] = asyncio.Queue()
        self._moves: list[Move] = []
        self._arriving: list[Entry] = []
        self._begins: list[tuple[float, int, Entry]] = []
        self._cancelling: list[str] = []
        self._refresh_due: asyncio.TimerHandle | None = None
        self._acknowledged: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup

    # ---- the whole of it

    async def run(self) -> None:
        """Acts until something fails.

        Raises:
            ExceptionGroup: of what failed; `Stale` in it where another instance has taken over.
        """
        description = await self._cluster.describe()
        job_revision, relaunch = await self._reconcile(description)
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._follow_cluster(), name="follow cluster")
                group.create_task(self._follow_jobs(job_revision), name="follow jobs")
                group.create_task(self._act(), name="act")
                # What an earlier session had written down and perhaps not launched; then what it had applied and
                # perhaps not acknowledged.
                self._launch(relaunch, self.applied)
                await self._wake_at({0.0, *(begin for begin, _, _ in self._begins)})
                self.ready.set()
        finally:
            if self._refresh_due is not None:
                self._refresh_due.cancel()

    async def _act(self) -> None:
        while True:
            match await self._inbox.get():
                case EventBatch() as batch:
                    await self._apply(batch)
                case Arrived(jobs, durations):
                    await self._take_up(jobs, durations)
                case CancelRequested(job):
                    await self._cancel(job)
                case Refused() as refused:
                    await self._take_back(refused)
                case RefreshReasons():
                    self._refresh_reasons()
            if self._moves and self._inbox.empty():
                await self._write(None)

    async def _follow_cluster(self) -> None:
        async for batch in self._cluster.events(self.acting.incarnation, self.applied):
            self._inbox.put_nowait(batch)
        raise Unavailable("the cluster ended its event stream")

    async def _follow_jobs(self, revision: int) -> None:
        while True:
            revision, events = await self._store.read_requests(revision, block_ms=1000)
            new = [event.job for event in events if event.change == SUBMITTED]
            if new:
                durations = await self._predictions.predict([job.spec for job in new], self.ledger.layout.gpu_models)
                self._inbox.put_nowait(Arrived(new, durations))
            for event in events:
                if event.change == CANCEL_REQUESTED:
                    self._inbox.put_nowait(CancelRequested(event.job))

    # ---- the beginning: what is written down against what runs

    async def _reconcile(self, description: ClusterDescription) -> tuple[int, list[Entry]]:
        """Builds the ledger; returns the jobs' revision to follow from, and what must be launched (again)."""
        self.ledger = Ledger(description.cluster, self.acting.drained)
        self.ledger.set_lost(description.lost_gpu_ids, True)
        job_revision = await self._store.revision()
        records = await self._store.active()
        cursor = await self._store.cursor()
        durations = await self._predictions.predict([job.spec for _, job in records], self.ledger.layout.gpu_models)

        same = (
            cursor is not None
            and cursor.incarnation == description.incarnation
            and cursor.revision >= description.oldest_revision - 1
        )
        self.applied = cursor.revision if same and cursor else description.revision
        self.now_s = (
            cursor.time_s if same and cursor else max(description.clock.time_s, cursor.time_s if cursor else 0.0)
        )
        self.acting.clock = description.clock if same else await self._restore_clock(description)
        self.acting.incarnation = description.incarnation

        runs = {(each.job_id, each.attempt): each for each in description.running}
        relaunch: list[Entry] = []
        for (version, job), row in zip(records, durations, strict=True):
            entry = self.ledger.enter(job, version, row)
            launched = job.state is JobState.RUNNING or job.pending_reason is PendingReason.LAUNCHING
            if launched and job.gpu_id in self.ledger.layout.gpu_number:
                self.ledger.place(entry, self.ledger.layout.gpu_number[job.gpu_id], job.start_s or self.now_s)
                if (job.job_id, job.attempt_count) in runs:
                    running = runs.pop((job.job_id, job.attempt_count))
                    if job.state is not JobState.RUNNING and not same:
                        self._record(entry, transitions.started(job, running.start_s))
                elif not same:
                    self._lose(entry, "the cluster was restarted")
                elif job.state is JobState.PENDING:
                    relaunch.append(entry)  # idempotent: what already ran is told by the events that follow
            elif launched:
                self._lose(entry, f"{job.gpu_id} is no longer part of the cluster")
            elif job.submit_s is None:
                self._schedule(entry)
            elif job.submit_s > self.now_s:
                self._wait_for_begin(entry)
            else:
                self.ledger.enqueue(entry)
            if job.cancel_requested:
                self._inbox.put_nowait(CancelRequested(job))
        if not same:
            await self._write(Cursor(description.incarnation, self.applied, self.now_s))
        for orphan in runs.values():
            # Nobody waits for it (its record is final, or on a later attempt): it must not hold a GPU.
            known = self.ledger.entries.get(orphan.job_id)
            if same and known is not None and known.job.attempt_count == orphan.attempt:
                continue
            self._log.warning(
                "stopping an attempt that no record stands for", job_id=orphan.job_id, attempt=orphan.attempt
            )
            await self._cluster.stop(orphan.job_id, orphan.attempt, self.token)
        self._refresh_reasons()
        await self._write(None)
        return job_revision, relaunch

    async def _restore_clock(self, description: ClusterDescription) -> Clock:
        """A simulated cluster that was restarted goes on with the clock it had; cluster time never goes back.

        Where this process is new as well, the cluster's own mode holds, and only its time may be behind.
        """
        own = description.clock
        wanted = dataclasses.replace(self.acting.clock or own, time_s=max(self.now_s, own.time_s))
        if description.running or wanted == own:
            return own
        try:
            await self._cluster.set_clock(wanted)
        except (Unsupported, Conflict) as error:
            self._log.info("the cluster keeps its own clock", reason=str(error))
            return own
        return wanted

    # ---- jobs come and go

    async def _take_up(self, jobs: Sequence[Job], durations: Floats) -> None:
        wake_at_s: set[float] = set()
        for job, row in zip(jobs, durations, strict=True):
            if job.job_id in self.ledger.entries or job.state.final:
                continue
            entry = self.ledger.enter(job, 0, row)
            wake_at_s.add(self._schedule(entry))
        await self._write(None)
        await self._wake_at(wake_at_s)

    def _schedule(self, entry: Entry) -> float:
        """Decides when a job joins the queue; returns the cluster time to be woken at."""
        begin_s = entry.job.spec.begin_time_s
        if begin_s is None or begin_s <= self.now_s:
            # When it came, in cluster time, the next event says.
            entry.phase = Phase.ARRIVING
            self._arriving.append(entry)
            return 0.0
        text = f"begins at {begin_s:.10g} s of cluster time"
        self._record(entry, transitions.taken_up(entry.job, begin_s, PendingReason.BEGIN_TIME, text))
        self._wait_for_begin(entry)
        return begin_s

    def _wait_for_begin(self, entry: Entry) -> None:
        entry.phase = Phase.BEGIN
        assert entry.job.submit_s is not None
        heapq.heappush(self._begins, (entry.job.submit_s, sequence_of(entry.job.job_id), entry))

    async def _cancel(self, job: Job) -> None:
        entry = self.ledger.entries.get(job.job_id)
        if entry is None:
            return
        entry.job = transitions.cancel_requested(entry.job)
        if entry.phase is Phase.PLACED:
            await self._cluster.stop(job.job_id, entry.job.attempt_count, self.token)
        else:
            self._cancelling.append(job.job_id)
            await self._cluster.wake_at([0.0])

    async def _wake_at(self, times_s: set[float]) -> None:
        times = sorted(times_s)
        for start in range(0, len(times), WAKE_UPS_AT_ONCE):
            await self._cluster.wake_at(times[start : start + WAKE_UPS_AT_ONCE])

    async def kick(self) -> None:
        """Asks for a new round of decisions, as after a change of policy."""
        await self._cluster.wake_at([0.0])

    async def _take_back(self, refused: Refused) -> None:
        entry = refused.entry
        if entry.phase is not Phase.PLACED or entry.job.attempt_count != refused.attempt:
            return
        job = transitions.refused(entry.job, self.now_s, refused.why, self._max_attempts)
        self._return_or_forget(entry, job)
        await self._write(None)
        raise Stale(f"the cluster refused {entry.job.job_id} on attempt {refused.attempt}: {refused.why}")

    # ---- the cluster's events

    async def _apply(self, batch: EventBatch) -> None:
        self.acting.clock = batch.clock
        events = [event for event in batch.events if event.revision > self.applied]
        if not events:
            return
        for event in events:
            self._apply_event(event)
        self.applied = events[-1].revision
        self.now_s = max(self.now_s, events[-1].time_s)
        if not any(event.kind in BLOCKING for event in events):
            return  # written with the next batch, or when nothing else waits
        fresh = self._join_queue()
        picks = self._decide()
        self._explain_waits(entry for entry in fresh if entry.phase is Phase.QUEUED)
        await self._write(Cursor(batch.incarnation, self.applied, self.now_s))
        self._launch(picks, self.applied)
        if self.ledger.queue_length:
            self._refresh_later()

    def _apply_event(self, event: ClusterEvent) -> None:
        if event.kind is EventKind.GPU_LOST or event.kind is EventKind.GPU_BACK:
            self.ledger.set_lost([event.gpu_id], event.kind is EventKind.GPU_LOST)
            return
        entry = self.ledger.entries.get(event.job_id)
        if entry is None or entry.phase is not Phase.PLACED or entry.job.attempt_count != event.attempt:
            return  # of an attempt that was given up
        match event.kind:
            case EventKind.STARTED:
                if entry.job.state is JobState.PENDING:
                    self._record(entry, transitions.started(entry.job, event.time_s))
            case EventKind.FINISHED:
                self._end(entry, transitions.succeeded(entry.job, event.time_s), learn=True)
            case EventKind.FAILED:
                self._end(entry, transitions.failed(entry.job, event.time_s, event.message), learn=True)
            case EventKind.STOPPED:
                self._end(entry, transitions.stopped(entry.job, event.time_s), learn=False)
            case EventKind.LOST:
                self._lose(entry, event.message or "its GPU was lost", event.time_s)

    def _end(self, entry: Entry, job: Job, *, learn: bool) -> None:
        outcome = None
        if learn and job.start_s is not None and job.end_s is not None:
            outcome = Outcome(job.end_s - job.start_s, job.state is JobState.SUCCEEDED)
        self._record(entry, job, outcome)
        self.ledger.forget(entry)

    def _lose(self, entry: Entry, why: str, time_s: float | None = None) -> None:
        end_s = self.now_s if time_s is None else time_s
        self._return_or_forget(entry, transitions.lost(entry.job, end_s, why, self._max_attempts))

    def _return_or_forget(self, entry: Entry, job: Job) -> None:
        self._record(entry, job)
        self.ledger.release(entry)
        if job.state.final:
            self.ledger.forget(entry)
        else:
            self.ledger.enqueue(entry)

    def _join_queue(self) -> list[Entry]:
        """What has arrived, and what begins by now, joins the queue; what was cancelled leaves."""
        fresh = []
        arrived, self._arriving = self._arriving, []
        for entry in arrived:
            if entry.job.job_id not in self.ledger.entries:
                continue
            entry.job = transitions.taken_up(entry.job, self.now_s, entry.job.pending_reason, entry.job.message)
            self.ledger.enqueue(entry)
            fresh.append(entry)
        while self._begins and self._begins[0][0] <= self.now_s:
            entry = heapq.heappop(self._begins)[2]
            if entry.phase is Phase.BEGIN and entry.job.job_id in self.ledger.entries:
                self.ledger.enqueue(entry)
        cancelling, self._cancelling = self._cancelling, []
        for job_id in cancelling:
            cancelled = self.ledger.entries.get(job_id)
            if cancelled is not None and cancelled.phase is not Phase.PLACED:
                self._record(cancelled, transitions.cancelled_while_waiting(cancelled.job, self.now_s))
                self.ledger.forget(cancelled)
                cancelled.phase = Phase.ARRIVING
        return fresh

    # ---- decisions

    def _decide(self) -> list[Entry]:
        """Starts what the policy wants started at this moment; each is written down before it is launched."""
        picks: list[Entry] = []
        policy = self.acting.policy
        while self.ledger.can_start_something:
            began = time.perf_counter()
            observation = self.ledger.observe(self.now_s)
            scores = policy.scores(observation)
            job, gpu = (int(number) for number in policy.choose(observation, scores)[0])
            took_s = time.perf_counter() - began
            self._on_decision(took_s)
            if job < 0:
                break
            entry = self.ledger.at(job)
            queue_length = self.ledger.queue_length
            layout, before = self.ledger.layout, self.ledger.occupancy.copy()
            gpu_id, model = layout.gpu_ids[gpu], layout.model_of(gpu)
            self.ledger.place(entry, gpu, self.now_s)
            self._record(entry, transitions.launching(entry.job, gpu_id, model))
            self.acting.decisions.add(
                Made(
                    decision_id=f"d-{self.token}-{self.acting.decisions.count + 1}",
                    job_id=entry.job.job_id,
                    spec=entry.job.spec,
                    chosen=gpu,
                    policy=policy.name,
                    time_s=self.now_s,
                    queue_length=queue_length,
                    attempt=entry.job.attempt_count,
                    decision_us=took_s * 1e6,
                    scores=scores[0, job].copy(),
                    durations_s=entry.durations_s,
                    occupancy=before,
                    summary=f"{policy.name} starts {entry.job.job_id} on {gpu_id} ({model}), "
                    f"where {entry.durations_s[gpu]:.4g} s are expected",
                )
            )
            picks.append(entry)
        return picks

    def explain_waiting(self, job_id: str) -> Decision | None:
        """Why a job of the queue is not placed now; None where it does not wait."""
        entry = self.ledger.entries.get(job_id)
        if entry is None or entry.phase is not Phase.QUEUED:
            return None
        observation = self.ledger.observe(self.now_s)
        place = self.ledger.queued().index(entry)
        scores = self.acting.policy.scores(observation)[0, place]
        return Made(
            decision_id="",
            job_id=job_id,
            spec=entry.job.spec,
            chosen=-1,
            policy=self.acting.policy.name,
            time_s=self.now_s,
            queue_length=self.ledger.queue_length,
            attempt=entry.job.attempt_count,
            decision_us=0.0,
            scores=scores,
            durations_s=entry.durations_s,
            occupancy=self.ledger.occupancy,
            summary=f"{job_id} is number {place + 1} in the queue: {entry.job.message}",
        ).explained()

    def _launch(self, picks: Sequence[Entry], revision: int) -> None:
        """Launches in the background, then acknowledges; acknowledgements keep their order."""
        before = self._acknowledged
        self._acknowledged = self._group.create_task(self._launch_all(list(picks), revision, before))

    async def _launch_all(self, picks: list[Entry], revision: int, before: asyncio.Task[None] | None) -> None:
        if picks:
            await asyncio.gather(*(self._launch_one(entry, entry.job) for entry in picks))
        if before is not None:
            await before
        await self._cluster.acknowledge(self.acting.incarnation, revision, self.token)

    async def _launch_one(self, entry: Entry, job: Job) -> None:
        try:
            await self._cluster.launch(job.job_id, job.attempt_count, job.spec, job.gpu_id, self.token)
        except (Conflict, InvalidInput, NotFound) as error:
            if error.reason == "STALE_FENCING_TOKEN":
                raise Stale(str(error)) from error
            self._inbox.put_nowait(Refused(entry, job.attempt_count, error.message))
        if entry.job.cancel_requested and not job.cancel_requested:
            await self._cluster.stop(job.job_id, job.attempt_count, self.token)

    # ---- writing down

    def _record(self, entry: Entry, job: Job, outcome: Outcome | None = None) -> None:
        self._moves.append(Move(job, entry.version, outcome))
        entry.job = job
        entry.version += 1

    async def _write(self, cursor: Cursor | None) -> None:
        if not self._moves:
            return  # a cursor alone is not worth a write: what it would skip changes nothing
        moves, self._moves = self._moves, []
        await self._store.move(self.token, moves, cursor)

    def _explain_waits(self, entries: Iterable[Entry]) -> None:
        fresh = set(map(id, entries))
        if not fresh:
            return
        for entry, reason, text in self.ledger.reasons(self.now_s, self.acting.policy.name):
            if id(entry) in fresh:
                self._record(entry, transitions.waiting(entry.job, reason, text))

    def _refresh_reasons(self) -> None:
        self._refresh_due = None
        changed = 0
        for entry, reason, text in self.ledger.reasons(self.now_s, self.acting.policy.name):
            if (entry.job.pending_reason, entry.job.message) == (reason, text):
                continue
            if changed == REASONS_AT_ONCE:
                self._refresh_later()
                break
            self._record(entry, transitions.waiting(entry.job, reason, text))
            changed += 1

    def _refresh_later(self) -> None:
        if self._refresh_due is None:
            loop = asyncio.get_running_loop()
            self._refresh_due = loop.call_later(REASON_REFRESH_S, self._inbox.put_nowait, RefreshReasons())


def failures(error: BaseException) -> list[BaseException]:
    """The single errors of a (nested) group."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in failures(each)]
    return [error]
