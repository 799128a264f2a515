"""The simulated cluster as it runs: simulator, clock and event log put together. Plain: knows no gRPC.

Nothing here waits or sleeps: every call first lets happen what is due, then acts at the present moment of cluster time,
then sets one timer for the next moment. A VIRTUAL clock goes on to the next moment as soon as every event that may
change what the orchestrator wants (all but STARTED and CLOCK_SET) is acknowledged. No clock is seen beyond its ceiling,
which `adlro.services.simcluster.timekeeping` raises: what is due later waits, and then happens at its own time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import math
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from adlro.errors import Conflict
from adlro.records.events import NOT_BLOCKING, Clock, ClockMode, ClusterDescription, ClusterEvent, EventKind
from adlro.records.jobs import JobSpec
from adlro.services.simcluster.clock import ClusterClock, clock_scale
from adlro.services.simcluster.eventlog import EVENTS_KEPT, EventLog
from adlro.sim.gpu_metrics import MetricsSample
from adlro.sim.simulator import ClusterSimulator

# How many attempts that ended are remembered, so that a repeated launch is answered and not run again.
OUTCOMES_KEPT = 100_000
# Seconds of wall time by which the ceiling of a REAL or SCALED clock is ahead of it.
CEILING_AHEAD_S = 1.0
ENDS = frozenset((EventKind.FINISHED, EventKind.FAILED, EventKind.STOPPED, EventKind.LOST))


class Timer(Protocol):
    """A callback that will be called."""

    def cancel(self) -> None:
        """Not to be called after all."""


class Timers(Protocol):
    """Wall time and callbacks: `LoopTimers`, or what a test moves by hand."""

    def time(self) -> float:
        """Wall time, seconds; it never goes back."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Calls back at a wall time."""


class LoopTimers:
    """Timers of the running event loop, on a clock finer than its own: uvloop's has steps of a millisecond."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def time(self) -> float:
        """Wall time, seconds; it never goes back."""
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Calls back at a wall time, up to a millisecond late, never early."""
        wait_ms = math.ceil((when - time.monotonic()) * 1000)
        return self._loop.call_later(max(wait_ms, 0) / 1000, callback)


@dataclass(frozen=True, slots=True)
class Launched:
    """The answer to a launch: `existing` where this attempt had been launched before."""

    existing: bool
    start_s: float
    revision: int


@dataclass(slots=True)
class _Attempt:
    attempt: int
    gpu_id: str
    start_s: float
    start_revision: int
    end_revision: int = 0


class ClusterRuntime:
    """A simulated cluster with its clock and its event log.

    Attributes:
        ceiling_s: no cluster time beyond it is told or reached.
        fencing_token: the newest that is known to have been given.
        on_ceiling_reached: called when the ceiling holds the clock up, or soon will.

    Args:
        simulator: the cluster, at the clock's time.
        clock: the clock to begin with.
        timers: wall time and callbacks.
        events_kept: events the log keeps beyond those that are not acknowledged.
        outcomes_kept: ended attempts that are remembered beyond those that are not acknowledged.
    """

    def __init__(
        self,
        simulator: ClusterSimulator,
        clock: Clock,
        timers: Timers,
        *,
        events_kept: int = EVENTS_KEPT,
        outcomes_kept: int = OUTCOMES_KEPT,
    ) -> None:
        self.log = EventLog(uuid.uuid4().hex, events_kept)
        self.event_counts: Counter[EventKind] = Counter()
        self.ceiling_s = math.inf
        self.fencing_token = 0
        self._used_token = 0
        self.on_ceiling_reached: Callable[[], None] = lambda: None
        self._simulator = simulator
        self._clock = ClusterClock(timers.time, clock)
        self._timers = timers
        self._timer: Timer | None = None
        self._timer_at = math.inf
        self._outcomes_kept = outcomes_kept
        self._attempts: dict[str, _Attempt] = {}
        self._ended: deque[tuple[int, str]] = deque()
        self._wakes: list[float] = []
        self._wake_times: set[float] = set()
        self._last_blocking = 0
        self._closed = False

    # ---- what others ask for

    def describe(self) -> ClusterDescription:
        """What the cluster is and how it stands, all at one moment."""
        now_s = self._present()
        return ClusterDescription(
            cluster=self._simulator.cluster,
            running=self._simulator.running,
            lost_gpu_ids=self._simulator.lost_gpu_ids,
            clock=self._clock.at(now_s),
            incarnation=self.log.incarnation,
            revision=self.log.revision,
            oldest_revision=self.log.oldest_revision,
            fencing_token=self._spent_token,
        )

    def sample(self) -> tuple[float, MetricsSample]:
        """The present cluster time, and what the GPUs report."""
        now_s = self._present()
        return now_s, self._simulator.sample(now_s)

    @property
    def running_count(self) -> int:
        """Jobs that run."""
        return len(self._simulator.running)

    def launch(self, job_id: str, attempt: int, spec: JobSpec, gpu_id: str, fencing_token: int) -> Launched:
        """Starts an attempt of a job now; the same attempt again gives the first answer, also after it ended.

        Raises:
            Conflict: STALE_FENCING_TOKEN, UNKNOWN_FENCING_TOKEN; OLD_ATTEMPT: a later one is known;
                ATTEMPT_ON_OTHER_GPU; and what ClusterSimulator.launch refuses.
            NotFound: no such GPU.
        """
        self._check_token(fencing_token)
        self._present()
        known = self._attempts.get(job_id)
        if known is not None and known.attempt == attempt:
            if known.gpu_id != gpu_id:
                raise Conflict(
                    f"attempt {attempt} of {job_id} was launched on {known.gpu_id}, not {gpu_id}",
                    reason="ATTEMPT_ON_OTHER_GPU",
                    metadata={"gpu_id": known.gpu_id},
                )
            return Launched(True, known.start_s, known.start_revision)
        if known is not None and attempt < known.attempt:
            raise Conflict(
                f"attempt {attempt} of {job_id} is older than attempt {known.attempt}, which is known",
                reason="OLD_ATTEMPT",
                metadata={"attempt": str(known.attempt)},
            )
        (started,) = self._emit([self._simulator.launch(job_id, attempt, spec, gpu_id)])
        self._attempts[job_id] = _Attempt(attempt, gpu_id, started.time_s, started.revision)
        self._pump()
        return Launched(False, started.time_s, started.revision)

    def stop(self, job_id: str, attempt: int, fencing_token: int) -> bool:
        """Ends an attempt now (0: whatever runs); False where it does not run (any more).

        Raises:
            Conflict: STALE_FENCING_TOKEN, UNKNOWN_FENCING_TOKEN.
        """
        self._check_token(fencing_token)
        self._present()
        running = self._simulator.running_job(job_id)
        if running is None or attempt not in (0, running.attempt):
            return False
        event = self._simulator.stop(job_id)
        assert event is not None
        self._emit([event])
        self._pump()
        return True

    def acknowledge(self, incarnation: str, revision: int, fencing_token: int) -> None:
        """The orchestrator is done with everything up to a revision; a virtual clock may go on.

        Raises:
            Stale: another incarnation.
            Conflict: STALE_FENCING_TOKEN, UNKNOWN_FENCING_TOKEN.
            OutOfRange: no such event yet.
        """
        self.log.check_incarnation(incarnation)
        self._check_token(fencing_token)
        self.log.acknowledge(revision)
        self._forget_outcomes()
        self._pump()

    def wake_at(self, times_s: Sequence[float]) -> Clock:
        """Asks for WAKE_UP events; of those times that have passed, all together give one event now, paused or not.

        Returns:
            The clock when it was asked: what lies up to it has passed.
        """
        now_s = self._present()
        clock = self._clock.at(now_s)
        for time_s in times_s:
            if time_s > now_s and time_s not in self._wake_times:
                self._wake_times.add(time_s)
                heapq.heappush(self._wakes, time_s)
        if min(times_s) <= now_s:
            self._emit([ClusterEvent(0, EventKind.WAKE_UP, now_s)])
        self._pump()
        return clock

    def begin(self, clock: Clock) -> None:
        """Goes on from a clock that was written down, at its ceiling; before anything else is asked of it."""
        self._simulator.advance_to(clock.time_s)
        self._simulator.set_origin()
        self._clock.set(clock)
        self.ceiling_s = clock.time_s

    def planned_clock(
        self,
        mode: ClockMode | None = None,
        scale: float | None = None,
        paused: bool | None = None,
        not_before_s: float | None = None,
    ) -> Clock:
        """The clock that `set_clock` would set now; changes nothing.

        Raises:
            InvalidInput: the mode cannot have that scale.
            Conflict: JOBS_RUNNING: it is to go forward while something runs.
        """
        now_s = self._present()
        before = self._clock.at(now_s)
        mode = mode or before.mode
        scale = clock_scale(mode, scale, before)
        if not_before_s is not None and not_before_s > now_s:
            running = self._simulator.running
            if running:
                raise Conflict(
                    f"the clock stands at {now_s:g} s and cannot be set to {not_before_s:g} s while {len(running)} "
                    f"jobs run, such as {running[0].job_id}; stop them first",
                    reason="JOBS_RUNNING",
                )
            now_s = not_before_s
        return Clock(mode, scale, before.paused if paused is None else paused, now_s)

    def set_clock(
        self,
        mode: ClockMode | None = None,
        scale: float | None = None,
        paused: bool | None = None,
        not_before_s: float | None = None,
    ) -> Clock:
        """Sets what is given of the clock, and takes it forward to a time, if it is behind.

        Raises:
            InvalidInput, Conflict: as `planned_clock`.
        """
        clock = self.planned_clock(mode, scale, paused, not_before_s)
        if clock.time_s > self._simulator.now_s:
            self._simulator.advance_to(clock.time_s)
        self._simulator.set_origin()
        self._clock.set(clock)
        events = [ClusterEvent(0, EventKind.CLOCK_SET, clock.time_s)]
        if self._take_wakes(clock.time_s):
            events.append(ClusterEvent(0, EventKind.WAKE_UP, clock.time_s))
        self._emit(events)
        self._pump()
        return clock

    def wanted_ceiling(self) -> Clock:
        """The clock with the ceiling that it should have now."""
        self._pump()
        return self.ceiling_of(self._clock.at(max(self._clock.now_s(), self._simulator.now_s)))

    def ceiling_of(self, clock: Clock) -> Clock:
        """A clock with the ceiling that it should have at its time."""
        if clock.paused:
            return clock
        if clock.mode is ClockMode.VIRTUAL:
            next_s = self._next_s()
            soon = next_s is not None and self._clock.wall_at(next_s) <= self._timers.time() + CEILING_AHEAD_S
            return dataclasses.replace(clock, time_s=max(clock.time_s, next_s)) if next_s and soon else clock
        return dataclasses.replace(clock, time_s=clock.time_s + CEILING_AHEAD_S * clock.scale)

    def set_ceiling(self, ceiling_s: float) -> None:
        """No cluster time beyond this one is told or reached; it must not be below one that was."""
        self.ceiling_s = ceiling_s
        self._pump()

    def set_gpu_availability(self, gpu_id: str, available: bool) -> str:
        """Takes a GPU away or gives it back, now; returns the job that was lost, or "".

        Raises:
            NotFound: no such GPU.
        """
        self._present()
        change = self._simulator.restore_gpu if available else self._simulator.lose_gpu
        events = self._emit(change(gpu_id))
        self._pump()
        return events[-1].job_id if events else ""

    def close(self) -> Clock:
        """Ends all followers of the log, and the timer; the clock stands at the time that is returned."""
        self.ceiling_s = self._present()
        self._closed = True
        self._set_timer(math.inf)
        self.log.close()
        return self._clock.at(self.ceiling_s)

    # ---- the course of time

    def _pump(self) -> None:
        """Lets every moment happen that is due, in order, each with its exact time; then sets the timer."""
        while (next_s := self._next_s()) is not None:
            if self._stands():
                if next_s > self.ceiling_s and not (self._clock.paused or self._closed):
                    self.on_ceiling_reached()  # raised while the last events are dealt with
                break
            wall_at = self._clock.wall_at(next_s)
            if self._timers.time() < wall_at and self._clock.now_s() < next_s:
                self._set_timer(wall_at)
                return
            if next_s > self.ceiling_s:
                self.on_ceiling_reached()
                break
            self._clock.step_to(next_s)
            events = self._simulator.advance_to(next_s)  # ends come before the wake-up
            if self._take_wakes(next_s):
                events.append(ClusterEvent(0, EventKind.WAKE_UP, next_s))
            self._emit(events)
        self._set_timer(math.inf)

    def _present(self) -> float:
        """Cluster time now, with everything due before it done, and the simulator there."""
        self._pump()
        now_s = max(min(self._clock.now_s(), self.ceiling_s), self._simulator.now_s)
        next_s = self._next_s()
        if next_s is not None and next_s <= now_s:
            return self._simulator.now_s  # only where the clock stands: what is next stands before it too
        self._simulator.advance_to(now_s)
        return now_s

    def _next_s(self) -> float | None:
        end_s = self._simulator.next_event_time()
        if not self._wakes:
            return end_s
        return self._wakes[0] if end_s is None else min(end_s, self._wakes[0])

    def _stands(self) -> bool:
        if self._clock.paused or self._closed:
            return True
        return self._clock.mode is ClockMode.VIRTUAL and self.log.acknowledged < self._last_blocking

    def _take_wakes(self, time_s: float) -> bool:
        taken = False
        while self._wakes and self._wakes[0] <= time_s:
            self._wake_times.discard(heapq.heappop(self._wakes))
            taken = True
        return taken

    def _set_timer(self, wall_at: float) -> None:
        if wall_at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wall_at
        self._timer = None if wall_at == math.inf else self._timers.call_at(wall_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._pump()

    # ---- events and what is remembered of them

    def _emit(self, events: Sequence[ClusterEvent]) -> Sequence[ClusterEvent]:
        if not events:
            return events
        numbered = self.log.append(events, self._clock.at(self._simulator.now_s))
        for event in numbered:
            self.event_counts[event.kind] += 1
            if event.kind not in NOT_BLOCKING:
                self._last_blocking = event.revision
            if event.kind in ENDS:
                self._attempts[event.job_id].end_revision = event.revision
                self._ended.append((event.revision, event.job_id))
        return numbered

    def note_token(self, fencing_token: int) -> None:
        """A lease has been given with this token; those of older leases are refused from now on."""
        self.fencing_token = max(self.fencing_token, fencing_token)

    def _check_token(self, fencing_token: int) -> None:
        if fencing_token < self.fencing_token:
            raise Conflict(
                f"fencing token {fencing_token} is older than {self.fencing_token}, which was given since: another "
                "orchestrator has taken over",
                reason="STALE_FENCING_TOKEN",
                metadata={"fencing_token": str(self.fencing_token)},
            )
        if fencing_token > self.fencing_token:
            raise Conflict(
                f"fencing token {fencing_token} was given by no lease: the newest is {self.fencing_token}; take the "
                "lease, and use the token that comes with it",
                reason="UNKNOWN_FENCING_TOKEN",
                metadata={"fencing_token": str(self.fencing_token)},
            )
        self._used_token = fencing_token

    @property
    def _spent_token(self) -> int:
        """The newest that no new lease may have. One that was looked up and never used is free for its lease."""
        return self.fencing_token if self._used_token == self.fencing_token else self.fencing_token - 1

    def _forget_outcomes(self) -> None:
        while len(self._ended) > self._outcomes_kept and self._ended[0][0] <= self.log.acknowledged:
            revision, job_id = self._ended.popleft()
            known = self._attempts.get(job_id)
            if known is not None and known.end_revision == revision:
                del self._attempts[job_id]
