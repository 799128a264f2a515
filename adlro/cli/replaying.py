"""Replays a job list through the running services: the steps, without output. For `replay` and `demo`.

The replay pauses the clock, submits all jobs with the begin times of the list, and resumes the clock once the
orchestrator has taken up all of them: so the result does not depend on the speed of the submission. Every call and
every watch is retried for `patience_s`, so that services may be killed and restarted meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from adlro.client import AsyncClient, Clock, ClockMode, JobEvent, JobFilter
from adlro.errors import AdlroError, Conflict, DeadlineExceeded, InvalidInput
from adlro.hardware.speeds import REFERENCE_GPU_MODEL
from adlro.records.cluster import Cluster
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec, JobState, PendingReason
from adlro.workload.job_lists import WorkloadJob

LABEL = "adlro-replay"
# Label of the jobs of `adlro workload`, which are only for demonstrations: a replay cancels them.
WORKLOAD_LABEL = "adlro-workload"
# The phase with a running clock; before it jobs are submitted and taken up.
RUNNING = "running"

_BEGIN_DIGITS = 6
_CLOCK_LOOK_S = 1.0
_CLEAN_UP_S = 20.0
_CANCELS_AT_ONCE = 16
_ASIDE_LOOK_S = 0.2
_OPEN = JobFilter(states=(JobState.PENDING, JobState.RUNNING))


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The settings of a replay.

    Attributes:
        policy: the acting policy during the replay; None: the present one.
        mode: VIRTUAL or SCALED.
        scale: cluster seconds per second; in VIRTUAL the largest, 0: no limit.
        force: replays even if other jobs are queued or running.
        patience_s: longest outage of a service, and longest time without progress.
        replay_id: label of the jobs, and prefix of their request ids.
    """

    policy: str | None = None
    mode: ClockMode = ClockMode.VIRTUAL
    scale: float = 0.0
    force: bool = False
    patience_s: float = 180.0  # the first decision of some policies compiles code for a minute of a core
    replay_id: str = field(default_factory=lambda: str(uuid.uuid4()))


@dataclass(slots=True)
class Board:
    """The states of a replay's jobs; updated with each event."""

    total: int
    phase: str = "submitting"
    begin_s: float = 0.0
    jobs: dict[str, Job] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    cluster_time_s: float = 0.0
    last_move_s: float = field(default_factory=time.monotonic)
    _stages: dict[str, str] = field(default_factory=dict)

    def take(self, event: JobEvent) -> None:
        """Applies an event of the watch."""
        job = event.job
        if job is None:
            return
        before = self.jobs.get(job.job_id)
        if before is not None and before.revision >= job.revision:
            return
        if before is not None:
            self.counts[self._stages[job.job_id]] -= 1
        stage = _stage(job, self.cluster_time_s)
        self.counts[stage] += 1
        self._stages[job.job_id] = stage
        self.jobs[job.job_id] = job
        self.last_move_s = time.monotonic()
        for at_s in (job.start_s, job.end_s):
            if at_s is not None:
                self.cluster_time_s = max(self.cluster_time_s, at_s)

    @property
    def finished(self) -> int:
        """Number of jobs in a final state."""
        return self.counts["finished"]

    @property
    def running(self) -> int:
        """Number of running jobs."""
        return self.counts["running"]

    @property
    def waiting(self) -> int:
        """Number of waiting jobs whose begin time has come."""
        return self.counts["waiting"]

    @property
    def to_come(self) -> int:
        """Number of jobs whose begin time is in the future, or that are not submitted yet."""
        return self.total - self.finished - self.running - self.waiting

    @property
    def taken_up(self) -> bool:
        """Whether the orchestrator has taken up every job."""
        return len(self.jobs) == self.total and self.counts["submitted"] == 0

    @property
    def done(self) -> bool:
        """Whether every job is in a final state."""
        return self.finished == self.total


def _stage(job: Job, now_s: float) -> str:
    if job.state.final:
        return "finished"
    if job.state is JobState.RUNNING:
        return "running"
    if job.pending_reason is PendingReason.SUBMITTED:
        return "submitted"
    # During an outage of the cluster, jobs with a future begin time also have that reason.
    may_be_early = job.pending_reason in (PendingReason.BEGIN_TIME, PendingReason.CLUSTER_UNAVAILABLE)
    return "to come" if may_be_early and (job.spec.begin_time_s or 0.0) > now_s else "waiting"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A finished replay: its jobs in the order of the list, all final."""

    replay_id: str
    policy: str
    cluster: Cluster
    jobs: tuple[Job, ...]
    begin_s: float
    elapsed_s: float


def replay_specs(workload: Sequence[WorkloadJob], *, exact_runtimes: bool = True) -> list[JobSpec]:
    """The specs of a job list; begin times count from the list's own zero.

    Args:
        workload: the list.
        exact_runtimes: states the true runtime as the expected one; otherwise the list's own estimate.
    """
    specs = []
    for index, job in enumerate(workload):
        spec = job.spec(f"replay-{index}")
        if exact_runtimes:
            spec = replace(spec, expected_runtime=ExpectedRuntime(REFERENCE_GPU_MODEL, job.work_s))
        specs.append(spec)
    return specs


async def replay(
    client: AsyncClient,
    specs: Sequence[JobSpec],
    options: ReplayOptions,
    on_change: Callable[[Board], None] = lambda _board: None,
) -> ReplayResult:
    """Replays a job list, and restores clock and policy.

    Args:
        client: should have a patience of `options.patience_s`.
        specs: `begin_time_s` counts from the start of the replay.
        options: the settings.
        on_change: called with the board after each change.

    Raises:
        Conflict: other jobs are queued or running, and not `force`.
        InvalidInput: a job was refused.
        DeadlineExceeded: no progress for `patience_s`.
    """
    if not specs:
        raise InvalidInput("the job list is empty")
    if not options.force:
        await _refuse_a_busy_cluster(client)
    clock_before = await client.clock()
    policy_before = (await client.status()).policy
    began_s = time.monotonic()
    board = Board(total=len(specs))
    try:
        if options.policy is not None and options.policy != policy_before:
            await client.set_policy(options.policy)
        # A whole second, and begin times on whole microseconds: jobs of one instant in the list are at one instant here
        # too, at any time of the clock.
        begin_s = float(math.ceil((await client.set_clock(paused=True)).time_s))
        if not options.force:
            await _set_workload_aside(client, options.patience_s)
        board.begin_s = board.cluster_time_s = begin_s
        job_ids = await _submit(client, specs, begin_s, options)
        on_change(board)
        await _run(client, board, options, on_change)
    except BaseException:
        await _within(_CLEAN_UP_S, _cancel_open(client, options.replay_id))
        await _within(_CLEAN_UP_S, _restore(client, clock_before, policy_before, options))
        raise
    await _restore(client, clock_before, policy_before, options)
    return ReplayResult(
        replay_id=options.replay_id,
        policy=options.policy or policy_before,
        cluster=await client.cluster(),
        jobs=tuple(board.jobs[job_id] for job_id in job_ids),
        begin_s=begin_s,
        elapsed_s=time.monotonic() - began_s,
    )


async def _refuse_a_busy_cluster(client: AsyncClient) -> None:
    busy = [job async for job in client.list(_OPEN) if WORKLOAD_LABEL not in job.spec.labels]
    if busy:
        raise Conflict(
            f"{len(busy)} other jobs are queued or running ({busy[0].job_id} is one), and would run during the replay; "
            "wait for their end, cancel them with `adlro cancel --all`, or use --force"
        )


async def _set_workload_aside(client: AsyncClient, patience_s: float) -> None:
    """Cancels the jobs of `adlro workload`; while the clock stands still, it submits no more.

    Raises:
        DeadlineExceeded: they have not ended in that time.
    """
    end_s = time.monotonic() + patience_s
    while mine := [job async for job in client.list(_OPEN) if WORKLOAD_LABEL in job.spec.labels]:
        if time.monotonic() > end_s:
            raise DeadlineExceeded(f"{len(mine)} jobs of the workload are still there; stop `adlro workload`")
        for job in mine:
            with contextlib.suppress(Conflict):  # it has just ended by itself
                await client.cancel(job.job_id)
        await asyncio.sleep(_ASIDE_LOOK_S)


async def _submit(
    client: AsyncClient, specs: Sequence[JobSpec], begin_s: float, options: ReplayOptions
) -> tuple[str, ...]:
    answer = await client.submit_many(
        (
            replace(
                spec,
                begin_time_s=round(begin_s + (spec.begin_time_s or 0.0), _BEGIN_DIGITS),
                labels={**spec.labels, LABEL: options.replay_id},
            )
            for spec in specs
        ),
        f"replay-{options.replay_id}",
    )
    if answer.rejected:
        first = answer.rejected[0]
        raise InvalidInput(
            f"{len(answer.rejected)} of {len(specs)} jobs were refused; job {first.index} of the list: {first.message}"
        )
    return answer.job_ids


async def _run(client: AsyncClient, board: Board, options: ReplayOptions, on_change: Callable[[Board], None]) -> None:
    """Follows the jobs; resumes the clock once all are taken up, and returns once all are final."""
    guard: asyncio.Task[None] | None = None
    board.phase = "taken up by the orchestrator"
    try:
        events = client.watch(job_filter=JobFilter(labels={LABEL: options.replay_id}), patience_s=options.patience_s)
        async for event in _with_ticks(events):
            if event is None:
                await _refuse_a_standstill(client, board, options)
            else:
                board.take(event)
            on_change(board)
            if guard is None and board.taken_up:
                await _cancel_unplaceable(client, board)
                board.phase = RUNNING
                await client.set_clock(options.mode, scale=options.scale, paused=False)
                guard = asyncio.create_task(_keep_clock(client, options))
            if board.done:
                return
    finally:
        if guard is not None:
            guard.cancel()
            await asyncio.wait([guard])


async def _with_ticks(events: AsyncIterator[JobEvent]) -> AsyncIterator[JobEvent | None]:
    """The events; None after each second without one."""
    following = aiter(events)
    pending: asyncio.Task[JobEvent] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(following))
            await asyncio.wait([pending], timeout=1.0)
            if pending.done():
                done, pending = pending, None
                yield done.result()
            else:
                yield None
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.wait([pending])


async def _refuse_a_standstill(client: AsyncClient, board: Board, options: ReplayOptions) -> None:
    """Raises DeadlineExceeded after an implausibly long time without progress."""
    silent_s = time.monotonic() - board.last_move_s
    # A clock with a speed limit may give no events for long while a job runs or waits for its begin time.
    limited = board.phase == RUNNING and (options.mode is not ClockMode.VIRTUAL or options.scale > 0)
    if silent_s < options.patience_s or (limited and (board.running or board.counts["to come"])):
        return
    open_jobs = [job for job in board.jobs.values() if not job.state.final]
    problem = ""
    with contextlib.suppress(AdlroError):
        problem = (await client.status()).problem
    raise DeadlineExceeded(
        f"nothing has moved for {silent_s:.0f} s"
        f" ({board.running} jobs run, {board.waiting} wait, {board.to_come} are not submitted yet)"
        + (f"; the orchestrator says: {problem}" if problem else "")
        + (f"; {open_jobs[0].job_id}: {open_jobs[0].message}" if open_jobs else "")
    )


async def _cancel_unplaceable(client: AsyncClient, board: Board) -> None:
    """Cancels jobs that no GPU of the cluster can hold, which would wait for ever."""
    for job in list(board.jobs.values()):
        if job.pending_reason in (PendingReason.NO_FITTING_GPU, PendingReason.NO_FITTING_NODES):
            await client.cancel(job.job_id)


async def _keep_clock(client: AsyncClient, options: ReplayOptions) -> None:
    """Sets the clock again if it differs from the settings, as after a restart of the cluster."""
    while True:
        await asyncio.sleep(_CLOCK_LOOK_S)
        # The watch decides when to give up: the cluster returns, or the watch ends.
        with contextlib.suppress(AdlroError):
            clock = await client.clock()
            if clock.paused or clock.mode is not options.mode or clock.scale != options.scale:
                await client.set_clock(options.mode, scale=options.scale, paused=False)


async def _restore(client: AsyncClient, clock: Clock, policy: str, options: ReplayOptions) -> None:
    await client.set_clock(clock.mode, scale=clock.scale, paused=clock.paused)
    if options.policy is not None and options.policy != policy:
        await client.set_policy(policy)


async def _cancel_open(client: AsyncClient, replay_id: str) -> None:
    """Cancels the open jobs of an abandoned replay."""
    mine = JobFilter(states=(JobState.PENDING, JobState.RUNNING), labels={LABEL: replay_id})
    left = asyncio.Semaphore(_CANCELS_AT_ONCE)

    async def cancel(job_id: str) -> None:
        async with left:
            with contextlib.suppress(AdlroError):
                await client.cancel(job_id)

    await asyncio.gather(*[cancel(job.job_id) async for job in client.list(mine)])


async def _within(timeout_s: float, work: Awaitable[None]) -> None:
    """Cleans up as far as possible in that time; a failure must not hide the error before it."""
    with contextlib.suppress(AdlroError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            await work
