"""Wall time and callbacks: those of the running event loop, or a test's, moved by hand."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A callback that will be called."""

    def cancel(self) -> None:
        """Not to be called after all."""


class Timers(Protocol):
    """Wall time and callbacks: `LoopTimers`, or a test's, moved by hand."""

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


class OneTimer:
    """One callback, set to another time as often as wanted.

    Args:
        timers: wall time and callbacks.
        callback: what is called.
    """

    def __init__(self, timers: Timers, callback: Callable[[], None]) -> None:
        self._timers = timers
        self._callback = callback
        self._timer: Timer | None = None
        self._at = math.inf

    def set(self, wall_at: float) -> None:
        """Calls back at this wall time in place of any other; inf: not at all."""
        if wall_at == self._at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at = wall_at
        self._timer = None if wall_at == math.inf else self._timers.call_at(wall_at, self._due)

    def _due(self) -> None:
        self._timer, self._at = None, math.inf
        self._callback()
