"""The running simulated cluster: simulator and clock, as a driver of the cluster side. Plain: no gRPC.

Nothing here waits or sleeps: every call first runs all due events, then acts at the present cluster time,
then sets one timer for the next moment. A VIRTUAL clock moves to the next moment as soon as every event that may
change the orchestrator's decisions is acknowledged: it moves with events, which are journaled before they are sent.
No REAL or SCALED clock is reported beyond its ceiling, which `adlro.services.simcluster.timekeeping` raises: later
events wait, and then happen at their own times.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from adlro.clusterside.attempts import Attempt
from adlro.clusterside.driver import Driver, Side, for_whom
from adlro.clusterside.kept import Kept
from adlro.clusterside.timers import OneTimer, Timers
from adlro.errors import Conflict
from adlro.records.events import Capabilities, Clock, ClockMode, ClusterEvent, EventKind, RunningJob
from adlro.records.jobs import JobSpec
from adlro.services.simcluster.clock import ClusterClock, clock_scale
from adlro.sim.gpu_metrics import MetricsSample
from adlro.sim.runs import EarlierRun, Moment, RunState
from adlro.sim.simulator import ClusterSimulator

# Seconds of wall time by which the ceiling of a REAL or SCALED clock is ahead of it.
CEILING_AHEAD_S = 1.0


class SimulatedCluster(Driver):
    """A simulator with a clock.

    Attributes:
        ceiling_s: limit of the reported and reached cluster time.
        on_ceiling_reached: called when the ceiling stops the clock, or soon will.

    Args:
        simulator: the cluster, at the clock's time.
        clock: the initial clock.
    """

    capabilities = Capabilities(
        virtual_clock=True, gpu_availability=True, stop=True, gangs=True, shares=True, preemption=True
    )

    def __init__(self, simulator: ClusterSimulator, clock: Clock) -> None:
        self.cluster = simulator.cluster
        self.simulator = simulator
        self.ceiling_s = math.inf
        self.on_ceiling_reached: Callable[[], None] = lambda: None
        self._first_clock = clock
        self._clock: ClusterClock
        self._timer: OneTimer
        self._closed = False

    def attach(self, side: Side, timers: Timers) -> None:
        """See Driver."""
        super().attach(side, timers)
        self._clock = ClusterClock(timers.time, self._first_clock)
        self._timer = OneTimer(timers, self.go_on)

    # ---- jobs and GPUs

    def launch(self, attempt: Attempt) -> None:
        """Starts it now."""
        self.preempt(attempt, ())

    def preempt(self, attempt: Attempt, victims: Sequence[Attempt]) -> None:
        """Stops the others and starts it, all at this instant."""
        assert attempt.spec is not None
        events = self.simulator.launch(
            attempt.job_id,
            attempt.attempt,
            attempt.spec,
            attempt.placement,
            share=attempt.remaining_ratio,
            resumes=attempt.resumes,
            stops=[each.job_id for each in victims],
        )
        attempt.note = _note_of(self.simulator.state_of(attempt.job_id))
        self._emit(events)

    def stop(self, attempt: Attempt) -> None:
        """Ends it now."""
        if attempt.preempt_asked:
            self._emit([self.simulator.preempt(attempt.job_id, for_whom(None))])
            return
        event = self.simulator.stop(attempt.job_id)
        assert event is not None
        self._emit([event])

    def _emit(self, events: Sequence[ClusterEvent]) -> Sequence[ClusterEvent]:
        """Reports events, with the notes of those that work at another speed since: they are journaled together."""
        for job_id in self.simulator.take_moved():
            self.side.renew_note(job_id, _note_of(self.simulator.state_of(job_id)))
        return self.side.emit(events)

    def set_gpu_availability(self, gpu_id: str, available: bool) -> str:
        """See Driver."""
        self.present_s()
        change = self.simulator.restore_gpu if available else self.simulator.lose_gpu
        events = self._emit(change(gpu_id))
        self.go_on()
        return next((event.job_id for event in events if event.job_id), "")

    def sample(self) -> tuple[float, MetricsSample]:
        """See Driver."""
        now_s = self.present_s()
        metrics = self.simulator.sample(now_s)
        if self._clock.mode is ClockMode.VIRTUAL and self.side.told_s is not None:
            return self.side.told_s, metrics  # no time is told before its events are
        return now_s, metrics

    # ---- its clock

    def clock(self, time_s: float | None = None) -> Clock:
        """See Driver."""
        return self._clock.at(self.simulator.now_s if time_s is None else time_s)

    def note(self) -> str:
        """The simulator's state, to the last bit."""
        moment = self.simulator.moment
        return f"{self.simulator.origin_s!r} {moment.time_s!r} {moment.after_origin_s!r}"

    def begin_at(self, clock: Clock, kept: Kept | None = None) -> None:
        """Restores the stored state; called before all other methods.

        Running attempts run on, with unchanged ends. Events that were due between the last stored event
        and the clock's time happen at their own times.

        Args:
            clock: the clock; a REAL or SCALED one at its ceiling.
            kept: the rest of the stored state.
        """
        if kept is None:
            self.simulator.advance_to(clock.time_s)
            self.simulator.set_origin()
        else:
            origin_s, time_s, after_origin_s = map(float, kept.note.split())
            known = {gpu.gpu_id for _, gpu in self.cluster.gpus()}
            runs = [
                _run_of(each, each.spec)
                for each in kept.open_attempts
                if each.spec is not None and known.issuperset(each.placement.gpu_ids)
            ]
            lost = [gpu_id for gpu_id in kept.lost_gpu_ids if gpu_id in known]
            self.simulator.resume(origin_s, Moment(time_s, after_origin_s), runs, lost)
            clock = dataclasses.replace(clock, time_s=max(clock.time_s, time_s))
        self._clock.set(clock)
        self.set_ceiling_of(clock)

    def planned_clock(
        self,
        mode: ClockMode | None = None,
        scale: float | None = None,
        paused: bool | None = None,
        not_before_s: float | None = None,
    ) -> Clock:
        """The clock that `set_clock_now` would set now; changes nothing.

        Raises:
            InvalidInput: the mode cannot have that scale.
            Conflict: JOBS_RUNNING: a move forward while jobs run.
        """
        now_s = self.present_s()
        before = self._clock.at(now_s)
        mode = mode or before.mode
        scale = clock_scale(mode, scale, before)
        if not_before_s is not None and not_before_s > now_s:
            running = self.simulator.running
            if running:
                raise Conflict(
                    f"the clock stands at {now_s:g} s and cannot be set to {not_before_s:g} s while {len(running)} "
                    f"jobs run, such as {running[0].job_id}; stop them first",
                    reason="JOBS_RUNNING",
                )
            now_s = not_before_s
        return Clock(mode, scale, before.paused if paused is None else paused, now_s)

    def set_clock_now(
        self,
        mode: ClockMode | None = None,
        scale: float | None = None,
        paused: bool | None = None,
        not_before_s: float | None = None,
    ) -> Clock:
        """Sets the given values of the clock, and moves it forward to a time, if it is behind.

        Raises:
            InvalidInput, Conflict: as `planned_clock`.
        """
        clock = self.planned_clock(mode, scale, paused, not_before_s)
        if clock.time_s > self.simulator.now_s:
            self.simulator.advance_to(clock.time_s)
        self.simulator.set_origin()
        self._clock.set(clock)
        events = [ClusterEvent(0, EventKind.CLOCK_SET, clock.time_s)]
        if self.side.wake_ups.take(clock.time_s):
            events.append(ClusterEvent(0, EventKind.WAKE_UP, clock.time_s))
        self.side.emit(events)
        self.go_on()
        return clock

    def wanted_ceiling(self) -> Clock:
        """The clock with its target ceiling; for a VIRTUAL clock without meaning."""
        self.go_on()
        return self.ceiling_of(self._clock.at(max(self._clock.now_s(), self.simulator.now_s)))

    def ceiling_of(self, clock: Clock) -> Clock:
        """A clock with its target ceiling at its time."""
        if clock.paused or clock.mode is ClockMode.VIRTUAL:
            return clock
        return dataclasses.replace(clock, time_s=clock.time_s + CEILING_AHEAD_S * clock.scale)

    def set_ceiling(self, ceiling_s: float) -> None:
        """Sets the ceiling; it must not be below a reported or reached time."""
        self.ceiling_s = ceiling_s
        self.go_on()

    def set_ceiling_of(self, clock: Clock) -> None:
        """Notes a stored clock: it may run up to that time. A VIRTUAL clock moves with its stored events."""
        self.set_ceiling(math.inf if clock.mode is ClockMode.VIRTUAL else clock.time_s)

    def stand(self) -> Clock:
        """Stops the clock, at the returned time."""
        self.ceiling_s = self.present_s()
        self._closed = True
        self._timer.set(math.inf)
        return self._clock.at(self.ceiling_s)

    # ---- the course of time

    def go_on(self) -> None:
        """Runs every due moment, in order, each at its exact time; then sets the timer."""
        while (next_s := self._next_s()) is not None:
            if self._stands():
                break
            wall_at = self._clock.wall_at(next_s)
            if self.timers.time() < wall_at and self._clock.now_s() < next_s:
                self._timer.set(wall_at)
                return
            if next_s > self.ceiling_s:
                self.on_ceiling_reached()
                break
            self._clock.step_to(next_s)
            events = self.simulator.advance_to(next_s)  # ends come before the wake-up
            if self.side.wake_ups.take(next_s):
                events.append(ClusterEvent(0, EventKind.WAKE_UP, next_s))
            self._emit(events)
        self._timer.set(math.inf)

    def present_s(self) -> float:
        """Cluster time now, after all earlier due events, with the simulator at that time."""
        self.go_on()
        now_s = max(min(self._clock.now_s(), self.ceiling_s), self.simulator.now_s)
        next_s = self._next_s()
        if next_s is not None and next_s <= now_s:
            return self.simulator.now_s  # only where the clock stands: what is next stands before it too
        self.simulator.advance_to(now_s)
        return now_s

    def _next_s(self) -> float | None:
        end_s, wake_s = self.simulator.next_event_time(), self.side.wake_ups.next_s
        if end_s is None or wake_s is None:
            return wake_s if end_s is None else end_s
        return min(end_s, wake_s)

    def _stands(self) -> bool:
        if self._clock.paused or self._closed:
            return True
        return self._clock.mode is ClockMode.VIRTUAL and self.side.waits


def _note_of(state: RunState) -> str:
    """The note of an attempt: its state, to the last bit."""
    return " ".join(map(repr, state))


def _run_of(attempt: Attempt, spec: JobSpec) -> EarlierRun:
    """An open attempt as the simulator takes it back; notes of older versions have its start alone."""
    times = [float(each) for each in attempt.note.split()]
    return EarlierRun(
        RunningJob(attempt.job_id, attempt.attempt, attempt.placement, attempt.start_s),
        spec,
        times[0],
        attempt.remaining_ratio,
        attempt.resumes,
        RunState(*times) if len(times) > 1 else None,
    )
