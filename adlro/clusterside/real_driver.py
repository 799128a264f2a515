"""A cluster that runs programs in real time: the base of most adapters. Plain: no gRPC and no Redis.

An adapter implements the start and stop of a program, and reports its events:

    class MyCluster(RealDriver):
        async def start(self, attempt): ...   # then self.started(attempt), self.runs(attempt), self.ended(attempt, ...)
        async def end(self, attempt): ...     # then self.ended(attempt, ...), when it is over
        async def resume(self, attempt): ...  # after a restart of the adapter: finds the program, and watches it on

Cluster time counts from the first start of the cluster. This class enforces time limits; a program that ends with an
error after a requested stop counts as stopped.

An adapter whose programs can be stopped and go on later sets `Capabilities.preemption`. It does nothing else for it: a
program that ends in any way after `end` was called for another job counts as preempted.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import structlog

from adlro.clusterside.attempts import Attempt
from adlro.clusterside.driver import Driver, Side, for_whom
from adlro.clusterside.kept import Kept
from adlro.clusterside.timers import OneTimer, Timer, Timers
from adlro.errors import AdlroError, InvalidInput, Unavailable
from adlro.placement import Placement
from adlro.records.cluster import Cluster
from adlro.records.events import Clock, ClockMode, ClusterEvent, EventKind
from adlro.records.payloads import ExitStatus

# Pause before a program that could not be ended is to be ended again; it doubles up to the other.
AGAIN_S, MOST_AGAIN_S = 0.5, 30.0


@dataclass(slots=True)
class _Work:
    """The state of an open attempt.

    Attributes:
        starting: its program is being started, or resumed.
        limit: the timer of its time limit.
        overdue: the time limit has passed.
        told: its program was, or may have been, asked to end.
    """

    starting: asyncio.Task[None] | None = None
    limit: Timer | None = None
    overdue: bool = False
    told: bool = False


class RealDriver(Driver):
    """A cluster in real time.

    Attributes:
        enforces_limits: this class ends attempts at their time limits; False: what supervises the programs does.

    Args:
        cluster: nodes and GPUs.
    """

    enforces_limits = True

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._log = structlog.get_logger()
        self._tasks: set[asyncio.Task[None]] = set()
        # Of open attempts, by job and attempt.
        self._work: dict[tuple[str, int], _Work] = {}
        self._timer: OneTimer
        self._base_s = self._told_s = self._began_unix_s = 0.0
        self._base_wall = 0.0

    # ---- what an adapter says

    @abstractmethod
    async def start(self, attempt: Attempt) -> None:
        """Starts the program of an attempt; the adapter calls `started`, `runs` and `ended`, now or later.

        Raises:
            InvalidInput: the job can't be run at all; it fails.
            Exception: it could not be started; the attempt is lost, and the job runs again.
        """

    @abstractmethod
    async def end(self, attempt: Attempt) -> None:
        """Stops the program of an attempt, if it still runs; the adapter calls `ended` when it is over.

        Between the request to end and the end by force the program has `attempt.grace_s`, where its job says that.

        Raises:
            Exception: it could not be stopped; the call is repeated.
        """

    @abstractmethod
    async def resume(self, attempt: Attempt) -> bool:
        """Finds the program of an attempt that the previous process had started; False: there is none.

        It may run, or have ended meanwhile; the adapter reports the end as usual. For an attempt without a start, the
        previous process may still have begun to start the program.

        Raises:
            Exception: the search failed; the call is repeated.
        """

    # ---- what an adapter tells

    def started(self, attempt: Attempt) -> None:
        """Reports that the attempt has its GPUs."""
        if self.side.is_open(attempt) and not attempt.start_revision:
            self._tell(attempt, EventKind.STARTED)
            self._keep_limit(attempt)

    def runs(self, attempt: Attempt) -> None:
        """Reports that its program runs."""
        self.started(attempt)
        if self.side.is_open(attempt) and not attempt.runs:
            self._tell(attempt, EventKind.RUNNING)

    def ended(
        self,
        attempt: Attempt,
        kind: EventKind,
        message: str = "",
        exit_status: ExitStatus | None = None,
        *,
        by_itself: bool = False,
    ) -> None:
        """Reports the end of an attempt.

        Args:
            attempt: the attempt; a repeated report changes nothing.
            kind: FINISHED; FAILED, by an error or because it was stopped; LOST, with its node: the job may run again.
            message: a readable reason.
            exit_status: how its program ended, where that is known.
            by_itself: it is known that its program ended before it was asked to.
        """
        work = self._work_of(attempt)
        self._drop_work(attempt)
        if not self.side.is_open(attempt):
            return
        # One that exits with 0 then has kept its progress, or was done; in that case its next attempt says so.
        told_to_go_on = (
            work.told and not by_itself and attempt.spec is not None and attempt.spec.preemptible is not None
        )
        if kind is EventKind.FAILED and work.overdue:
            assert attempt.spec is not None
            message = f"time limit of {attempt.spec.time_limit_s:g} s reached"
        elif attempt.preempt_asked:
            if kind is EventKind.PREEMPTED or (kind in (EventKind.FINISHED, EventKind.FAILED) and told_to_go_on):
                kind, message = EventKind.PREEMPTED, for_whom(self.side.preemptor_of(attempt))
        elif attempt.stop_asked and (kind in (EventKind.FAILED, EventKind.PREEMPTED) or told_to_go_on):
            kind, message = (kind, message) if kind is EventKind.LOST else (EventKind.STOPPED, "stopped")
        self._tell(attempt, kind, message, exit_status)

    def gpu_lost(self, gpu_id: str, reason: str = "", *, loses_attempt: bool = True) -> None:
        """Reports a lost GPU.

        Args:
            gpu_id: the GPU; it gets no further attempts until `gpu_back`.
            reason: for people.
            loses_attempt: its open attempt is lost, on all its GPUs; what runs on the others is stopped.
        """
        now_s = self.present_s()
        on_it = (
            each
            for each in self.side.open_attempts()
            if gpu_id in each.placement.gpu_ids and not self.side.is_waiting(each)
        )
        lost = list(on_it) if loses_attempt else []
        self.side.emit([ClusterEvent(0, EventKind.GPU_LOST, now_s, placement=Placement.on(gpu_id), message=reason)])
        for attempt in lost:
            self.ended(attempt, EventKind.LOST, f"GPU {gpu_id} was lost" + (f": {reason}" if reason else ""))
            if len(attempt.placement.gpus) > 1:  # what runs on the others would run beside the next job there
                self.spawn(self._end_rest(attempt), f"end {attempt.job_id}")
        self.go_on()

    def gpu_back(self, gpu_id: str) -> None:
        """Reports that a lost GPU is back."""
        self.side.emit([ClusterEvent(0, EventKind.GPU_BACK, self.present_s(), placement=Placement.on(gpu_id))])
        self.go_on()

    def _tell(
        self, attempt: Attempt, kind: EventKind, message: str = "", exit_status: ExitStatus | None = None
    ) -> None:
        now_s = self.present_s()
        about = (attempt.job_id, attempt.attempt, attempt.placement, message, exit_status)
        self.side.emit([ClusterEvent(0, kind, now_s, *about)])
        self.go_on()

    # ---- Driver

    def attach(self, side: Side, timers: Timers) -> None:
        """See Driver."""
        super().attach(side, timers)
        self._timer = OneTimer(timers, self.go_on)
        self._base_wall = timers.time()

    def note(self) -> str:
        """Unix time of cluster time 0."""
        return repr(self._began_unix_s)

    async def begin(self, kept: Kept | None) -> None:
        """See Driver."""
        self._base_wall = self.timers.time()
        if kept is None:
            self._began_unix_s = time.time()
            return
        self._began_unix_s = float(kept.note)
        self._base_s = max(time.time() - self._began_unix_s, kept.time_s)
        known = {gpu.gpu_id for _, gpu in self.cluster.gpus()}
        for attempt in self.side.open_attempts():
            if self.side.is_waiting(attempt):  # nothing of it is there yet
                continue
            if known.issuperset(attempt.placement.gpu_ids):
                self._work_of(attempt).told = attempt.stop_asked
                task = self.spawn(self._resume(attempt), f"resume {attempt.job_id}")
                self._work_of(attempt).starting = task
        self.go_on()

    def launch(self, attempt: Attempt) -> None:
        """See Driver."""
        self._work_of(attempt).starting = self.spawn(self._start(attempt), f"start {attempt.job_id}")

    def stop(self, attempt: Attempt) -> None:
        """See Driver."""
        self.spawn(self._end(attempt), f"end {attempt.job_id}")

    async def close(self) -> None:
        """Stops reports; programs run on."""
        self._timer.set(math.inf)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _resume(self, attempt: Attempt) -> None:
        found = await self._found(attempt)
        if not found and not attempt.start_revision and not attempt.stop_asked:
            await self._start(attempt)
            return
        self._work_of(attempt).starting = None
        if not self.side.is_open(attempt):
            self._drop_work(attempt)
        elif not found:
            self.ended(attempt, EventKind.LOST, "its program had ended when the cluster's service came back")
        elif attempt.stop_asked:
            self.stop(attempt)
        elif attempt.start_revision:
            self._keep_limit(attempt)

    async def _found(self, attempt: Attempt) -> bool:
        """Whether the program of an attempt still exists: only the adapter's answer decides."""
        pause_s = AGAIN_S
        while self.side.is_open(attempt):
            try:
                return await self.resume(attempt)
            except Exception as error:
                self._log.warning(
                    "an attempt could not be resumed; trying again", job_id=attempt.job_id, why=str(error)
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2.0 * pause_s, MOST_AGAIN_S)
        return True

    def _work_of(self, attempt: Attempt) -> _Work:
        return self._work.setdefault((attempt.job_id, attempt.attempt), _Work())

    def _drop_work(self, attempt: Attempt) -> None:
        work = self._work.pop((attempt.job_id, attempt.attempt), None)
        if work is not None and work.limit is not None:
            work.limit.cancel()

    async def _settle(self) -> None:
        """Returns when the next action is journaled, however long it takes."""
        while True:
            try:
                await self.side.settled()
            except Unavailable:
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def _start(self, attempt: Attempt) -> None:
        try:
            # No process would find a program that is not journaled.
            await self._settle()
            if self.side.is_open(attempt):  # its GPU may be lost by now
                await self.start(attempt)
                if not self.side.is_open(attempt):
                    await self.end(attempt)  # its GPU was lost meanwhile; of a program that is over this ends nothing
        except InvalidInput as error:
            self.ended(attempt, EventKind.FAILED, error.message)
        except Exception as error:
            why = error.message if isinstance(error, AdlroError) else f"{type(error).__name__}: {error}"
            self._log.warning("an attempt could not be started", job_id=attempt.job_id, why=why)
            self.ended(attempt, EventKind.LOST, f"it could not be started: {why}")
        if self.side.is_open(attempt):
            self._work_of(attempt).starting = None
        else:
            self._drop_work(attempt)

    async def _end(self, attempt: Attempt) -> None:
        await self._settle()
        starting = self._work_of(attempt).starting
        if starting is not None:  # what is half started can't be ended
            await asyncio.wait([starting])
        await self._end_while(attempt, lambda: self.side.is_open(attempt))

    async def _end_rest(self, attempt: Attempt) -> None:
        """Ends what is left of an attempt that is lost. One that was half started is ended where it is started."""
        await self._end_while(attempt, lambda: True)

    async def _end_while(self, attempt: Attempt, wanted: Callable[[], bool]) -> None:
        pause_s = AGAIN_S
        while wanted():
            if work := self._work.get((attempt.job_id, attempt.attempt)):
                work.told = True
            try:
                await self.end(attempt)
            except Exception as error:
                self._log.warning("an attempt could not be ended; trying again", job_id=attempt.job_id, why=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2.0 * pause_s, MOST_AGAIN_S)
            else:
                return

    def _keep_limit(self, attempt: Attempt) -> None:
        work = self._work_of(attempt)
        if not self.enforces_limits or attempt.spec is None or attempt.spec.time_limit_s is None or work.limit:
            return

        def overdue() -> None:
            if not self.side.is_open(attempt):  # its GPU has left
                self._drop_work(attempt)
                return
            if attempt.preempt_asked:  # it is being ended already
                return
            work.overdue = True
            self.spawn(self._end(attempt), f"end {attempt.job_id}")

        wait_s = attempt.start_s + attempt.spec.time_limit_s - self._now_s()
        work.limit = self.timers.call_at(self.timers.time() + max(wait_s, 0.0), overdue)

    def spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Runs a background task, such as the watch of a program; ended when the driver is closed."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- real time

    def present_s(self) -> float:
        """See Driver."""
        self.go_on()
        return self._now_s()

    def go_on(self) -> None:
        """Fires due wake-ups."""
        now_s, wake_ups = self._now_s(), self.side.wake_ups
        if wake_ups.take(now_s):
            self.side.emit([ClusterEvent(0, EventKind.WAKE_UP, now_s)])
        next_s = wake_ups.next_s
        self._timer.set(math.inf if next_s is None else self._base_wall + (next_s - self._base_s))

    def clock(self, time_s: float | None = None) -> Clock:
        """See Driver."""
        return Clock(ClockMode.REAL, 1.0, False, self._now_s() if time_s is None else time_s)

    def _now_s(self) -> float:
        self._told_s = max(self._told_s, self._base_s + (self.timers.time() - self._base_wall))
        return self._told_s
