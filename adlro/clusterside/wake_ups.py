"""The requested wake-up times, in cluster time: each once, however often it is requested. Plain."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable


class WakeUps:
    """Times to come, in order.

    Attributes:
        new: times added since the list was last emptied.
        taken_s: all times up to this one are removed.
    """

    def __init__(self) -> None:
        self.new: list[float] = []
        self.taken_s = -math.inf
        self._heap: list[float] = []
        self._known: set[float] = set()

    @property
    def next_s(self) -> float | None:
        """The next one; None: there is none."""
        return self._heap[0] if self._heap else None

    @property
    def times_s(self) -> list[float]:
        """All of them."""
        return sorted(self._heap)

    def add(self, times_s: Iterable[float]) -> None:
        """Adds times; known ones change nothing."""
        for time_s in times_s:
            if time_s not in self._known:
                self._known.add(time_s)
                heapq.heappush(self._heap, time_s)
                self.new.append(time_s)

    def take(self, time_s: float) -> bool:
        """Removes the times up to a given one; False: none."""
        taken = False
        while self._heap and self._heap[0] <= time_s:
            self._known.discard(heapq.heappop(self._heap))
            self.taken_s = max(self.taken_s, time_s)
            taken = True
        return taken
