"""Cluster time from wall time: real, scaled, or virtual (from event to event), each pausable. Plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable

from adlro.errors import InvalidInput
from adlro.records.events import Clock, ClockMode


def clock_scale(mode: ClockMode, scale: float | None, before: Clock | None = None) -> float:
    """The scale of a clock after a change.

    Args:
        mode: the new mode.
        scale: the requested scale; None: unchanged, if the mode stays.
        before: the present clock.

    Returns:
        Cluster seconds a second: 1 for REAL; in VIRTUAL the upper limit, 0: none.

    Raises:
        InvalidInput: the mode cannot have that scale, or SCALED has none.
    """
    if scale is None and before is not None and before.mode is mode:
        return before.scale
    if scale is None and mode is not ClockMode.SCALED:
        return 1.0 if mode is ClockMode.REAL else 0.0
    if mode is ClockMode.SCALED and not (scale and scale > 0):
        raise InvalidInput("a SCALED clock needs a scale above 0: cluster seconds a second", field="scale")
    if mode is ClockMode.REAL and scale != 1:
        raise InvalidInput(f"a REAL clock has scale 1, not {scale}; mode SCALED runs at other scales", field="scale")
    assert scale is not None
    return scale


class ClusterClock:
    """A cluster's clock.

    REAL and SCALED run with wall time. VIRTUAL stands at the time of the last event until `step_to` moves it to the
    next one; its scale bounds how soon that may be. A paused clock stands.

    Args:
        wall: seconds that never go back, such as an event loop's `time`.
        clock: initial mode, scale, paused and time.
    """

    def __init__(self, wall: Callable[[], float], clock: Clock) -> None:
        self._wall = wall
        self.set(clock)

    @property
    def mode(self) -> ClockMode:
        """REAL, SCALED or VIRTUAL."""
        return self._mode

    @property
    def paused(self) -> bool:
        """Whether the clock is paused."""
        return self._paused

    def set(self, clock: Clock) -> None:
        """Continues with the mode, scale, pause and time of the given clock."""
        self._mode, self._scale, self._paused = clock.mode, clock.scale, clock.paused
        self._anchor_s, self._anchor_wall = clock.time_s, self._wall()

    def at(self, time_s: float) -> Clock:
        """This clock, as a record with a given time."""
        return Clock(self._mode, self._scale, self._paused, time_s)

    def now_s(self) -> float:
        """Cluster time."""
        if self._paused or self._mode is ClockMode.VIRTUAL:
            return self._anchor_s
        return self._anchor_s + self._scale * (self._wall() - self._anchor_wall)

    def wall_at(self, time_s: float) -> float:
        """The wall time of a cluster time; inf while paused."""
        if time_s <= self._anchor_s:
            return self._anchor_wall
        if self._paused:
            return math.inf
        if self._scale == 0:
            return self._anchor_wall
        return self._anchor_wall + (time_s - self._anchor_s) / self._scale

    def step_to(self, time_s: float) -> None:
        """Moves a VIRTUAL clock forward; other clocks move by themselves."""
        if self._mode is ClockMode.VIRTUAL:
            self._anchor_s, self._anchor_wall = time_s, self._wall()
