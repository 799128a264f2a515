"""The cluster times at which somebody wants to be woken: each once, however often it is asked for. Plain."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class WakeUps:
    """Times to come, in order."""

    def __init__(self) -> None:
        self._heap: list[float] = []
        self._known: set[float] = set()

    @property
    def next_s(self) -> float | None:
        """The next one; None: there is none."""
        return self._heap[0] if self._heap else None

    def add(self, times_s: Iterable[float]) -> list[float]:
        """Notes times; returns those that were not known."""
        new = []
        for time_s in times_s:
            if time_s not in self._known:
                self._known.add(time_s)
                heapq.heappush(self._heap, time_s)
                new.append(time_s)
        return new

    def take(self, time_s: float) -> bool:
        """Takes out those that have come by a time; False: none."""
        taken = False
        while self._heap and self._heap[0] <= time_s:
            self._known.discard(heapq.heappop(self._heap))
            taken = True
        return taken
