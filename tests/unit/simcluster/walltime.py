"""Wall time that a test moves by hand, in place of an event loop's."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class HandTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class HandTimers:
    """`move` takes wall time forward and calls back what falls due, in order, `late_s` after its time."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now = 1000.0
        self._late_s = late_s
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, HandTimer]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> HandTimer:
        timer = HandTimer(callback)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    @property
    def pending(self) -> list[float]:
        return sorted(when for when, _, timer in self._timers if timer.callback is not None)

    def move(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] + self._late_s <= end:
            when, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self.now = max(self.now, when + self._late_s)
                timer.callback()
        self.now = end
