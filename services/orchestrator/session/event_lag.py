"""Which of the cluster's events are known here, and since when those that are not applied. Plain data, no clock."""

from __future__ import annotations

from collections import deque

from adlro.records.events import EventBatch
from adlro.records.status import EventLag

EVENTS_AT_ONCE = 1000
"""Events that are applied together at most, so that the event loop serves others in between."""


class KnownEvents:
    """How far the cluster's log goes, as far as it is known here.

    Args:
        applied: revision up to which it is applied.
        newest: of the cluster's description.
        now: seconds of a monotonic wall clock.
    """

    def __init__(self, applied: int, newest: int, now: float) -> None:
        self._newest = applied
        self._since: deque[tuple[int, float]] = deque()  # revision, and since when the log is known to go so far
        self._goes_to(newest, now)

    def heard(self, batch: EventBatch, applied: int, now: float) -> None:
        """Notes a message of the cluster; `applied`: revision up to which its log is applied."""
        self._forget(applied)
        self._goes_to(max(batch.events[-1].revision if batch.events else 0, batch.newest_revision), now)

    def lag(self, applied: int, now: float) -> EventLag:
        """How far the applied events are behind."""
        self._forget(applied)
        if applied >= self._newest:
            return EventLag(0, 0.0, self._newest)
        return EventLag(self._newest - applied, max(now - self._since[0][1], 0.0), self._newest)

    def _goes_to(self, revision: int, now: float) -> None:
        if revision > self._newest:
            self._newest = revision
            self._since.append((revision, now))

    def _forget(self, applied: int) -> None:
        while self._since and self._since[0][0] <= applied:
            self._since.popleft()


class Arriving:
    """Messages of the cluster that wait together to be applied."""

    def __init__(self, batch: EventBatch) -> None:
        self._batches = [batch]
        self._count = len(batch.events)

    def take_up(self, batch: EventBatch) -> bool:
        """Lets a message wait with these; False: not with these."""
        if self._count + len(batch.events) > EVENTS_AT_ONCE:
            return False
        self._batches.append(batch)
        self._count += len(batch.events)
        return True

    def together(self) -> EventBatch:
        """All of them as one message: their events in order, and the newest clock."""
        last = self._batches[-1]
        if len(self._batches) == 1:
            return last
        events = tuple(event for batch in self._batches for event in batch.events)
        return EventBatch(last.incarnation, events, last.clock, last.newest_revision)
