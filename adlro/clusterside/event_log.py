"""The cluster's event log: revisions, messages, acknowledgement, any number of followers. Plain records and asyncio.

The log is shared: a follower has a position and nothing else, so a slow one holds up nobody and fills no memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence

from adlro.errors import OutOfRange, Stale
from adlro.records.events import Clock, ClusterEvent, EventBatch, EventKind

EVENTS_KEPT = 100_000
# Starts of one moment that lie in the log together go out together, up to so many.
STARTS_TOGETHER = 1000


class EventLog:
    """Events of one incarnation of the cluster, in batches of one moment.

    Args:
        incarnation: whose events they are.
        events_kept: at least so many are kept, and all that are not acknowledged.
    """

    def __init__(self, incarnation: str, events_kept: int = EVENTS_KEPT) -> None:
        self.incarnation = incarnation
        self.revision = 0
        self.acknowledged = 0
        self.closed = False
        self._events_kept = events_kept
        self._batches: list[EventBatch] = []
        # The last revision of each batch, for finding a position.
        self._ends: list[int] = []
        # Batches before this one are dropped; the lists are cut now and then.
        self._first = 0
        self._changed = asyncio.Event()

    @property
    def oldest_revision(self) -> int:
        """The oldest event still kept; the next one's revision where none is."""
        if self._first == len(self._batches):
            return self.revision + 1
        return self._batches[self._first].events[0].revision

    def append(self, events: Sequence[ClusterEvent], clock: Clock) -> tuple[ClusterEvent, ...]:
        """Records the events of one moment; returns them with their revisions."""
        numbered = tuple(
            dataclasses.replace(event, revision=revision) for revision, event in enumerate(events, self.revision + 1)
        )
        self.revision += len(numbered)
        self._batches.append(EventBatch(self.incarnation, numbered, clock))
        self._ends.append(self.revision)
        self._drop_old()
        self._wake_followers()
        return numbered

    def acknowledge(self, revision: int) -> None:
        """Everything up to a revision is dealt with; an older one than before changes nothing.

        Raises:
            OutOfRange: there is no such event yet.
        """
        if revision > self.revision:
            raise OutOfRange(
                f"event {revision} cannot be acknowledged: the newest is {self.revision}", field="revision"
            )
        if revision > self.acknowledged:
            self.acknowledged = revision
            self._drop_old()

    def check_incarnation(self, incarnation: str) -> None:
        """Refuses another incarnation than this one.

        Raises:
            Stale: the cluster was restarted since.
        """
        if incarnation != self.incarnation:
            raise Stale(
                f"the cluster's incarnation is {self.incarnation}, not {incarnation}: it was restarted; "
                "call DescribeCluster and go on from there",
                reason="OTHER_INCARNATION",
                metadata={"incarnation": self.incarnation},
            )

    def check_position(self, after_revision: int) -> None:
        """Refuses a position from which the log cannot be followed.

        Raises:
            OutOfRange: events after it are no longer kept, or it lies ahead of the log.
        """
        if not self.oldest_revision - 1 <= after_revision <= self.revision:
            raise OutOfRange(
                f"events after {after_revision} cannot be told: {self.oldest_revision} to {self.revision} are kept; "
                "call DescribeCluster and go on from its revision",
                field="after_revision",
                reason="REVISION_NOT_KEPT",
                metadata={"oldest_revision": str(self.oldest_revision), "revision": str(self.revision)},
            )

    def next_after(self, revision: int) -> EventBatch | None:
        """The next message after a position: the rest of a moment, or all starts of one moment; None: nothing yet.

        Raises:
            OutOfRange: events after it are no longer kept.
        """
        if revision == self.revision:
            return None
        self.check_position(revision)
        place = bisect_right(self._ends, revision, lo=self._first)
        batch = self._batches[place]
        if batch.events[0].revision <= revision:
            events = tuple(event for event in batch.events if event.revision > revision)
            return dataclasses.replace(batch, events=events)
        if not _only_starts(batch):
            return batch
        events = batch.events
        time_s = events[0].time_s
        for later in self._batches[place + 1 : place + STARTS_TOGETHER]:
            if not _only_starts(later) or later.events[0].time_s != time_s:
                break
            events += later.events
            batch = later
        return EventBatch(self.incarnation, events, batch.clock)

    async def follow(self, after_revision: int) -> AsyncIterator[EventBatch]:
        """Every message after a position, then new ones, until the log is closed.

        Raises:
            OutOfRange: events after the position are not kept, or no longer, because this follower is too slow.
        """
        self.check_position(after_revision)
        while not self.closed:
            changed = self._changed
            batch = self.next_after(after_revision)
            if batch is None:
                await changed.wait()
                continue
            yield batch
            after_revision = batch.events[-1].revision

    def close(self) -> None:
        """Ends all followers; what they have not seen they find nowhere, since the incarnation ends too."""
        self.closed = True
        self._wake_followers()

    def _wake_followers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _drop_old(self) -> None:
        limit = min(self.acknowledged, self.revision - self._events_kept)
        while self._first < len(self._ends) and self._ends[self._first] <= limit:
            self._first += 1
        if self._first > 1024 and self._first * 2 > len(self._ends):
            del self._batches[: self._first], self._ends[: self._first]
            self._first = 0


def _only_starts(batch: EventBatch) -> bool:
    return all(event.kind is EventKind.STARTED for event in batch.events)
