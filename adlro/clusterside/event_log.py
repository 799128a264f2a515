"""The cluster's event log: revisions, messages, acknowledgement, any number of followers. Plain records and asyncio.

The log is shared: a follower has only a position, so a slow one delays no other and uses no memory.
If events are journaled before they are sent, `tell` sets the revision up to which they may be sent.
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
        incarnation: the log's incarnation.
        events_kept: smallest number of stored events, in addition to unacknowledged ones.
        held_back: appended events are sent after `tell`; otherwise at once.

    Attributes:
        revision: of the newest event.
        told_revision: of the newest sent event.
        told_s: cluster time of the clock that was sent with it.
    """

    def __init__(self, incarnation: str, events_kept: int = EVENTS_KEPT, *, held_back: bool = False) -> None:
        self.incarnation = incarnation
        self.revision = self.told_revision = 0
        self.told_s = 0.0
        self._held_back = held_back
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
        """The oldest stored event; the next one's revision if none is stored."""
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
        if not self._held_back:
            self.tell(self.revision)
        return numbered

    def tell(self, revision: int) -> None:
        """Sends followers all events up to a revision, at which a batch ends."""
        if revision > self.told_revision:
            self.told_revision = revision
            self.told_s = self._batches[bisect_right(self._ends, revision, lo=self._first) - 1].clock.time_s
            self._wake_followers()

    def after(self, revision: int) -> list[EventBatch]:
        """The batches after a revision, at which a batch ends."""
        return self._batches[bisect_right(self._ends, revision, lo=self._first) :]

    def restore(self, incarnation: str, batches: Sequence[EventBatch], revision: int, acknowledged: int) -> None:
        """Restores journaled events, all of which may have been sent.

        Args:
            incarnation: of the log.
            batches: its stored batches, in order.
            revision: of the newest event.
            acknowledged: how far it was acknowledged.
        """
        self.incarnation = incarnation
        self.revision = self.told_revision = revision
        self.acknowledged = acknowledged
        self._batches, self._ends = list(batches), [batch.events[-1].revision for batch in batches]
        self._first = 0
        self.told_s = batches[-1].clock.time_s if batches else 0.0

    def acknowledge(self, revision: int) -> None:
        """Acknowledges all events up to a revision; an older revision than before changes nothing.

        Raises:
            OutOfRange: there is no such event yet.
        """
        if revision > self.told_revision:
            raise OutOfRange(
                f"event {revision} cannot be acknowledged: the newest is {self.told_revision}", field="revision"
            )
        if revision > self.acknowledged:
            self.acknowledged = revision
            self._drop_old()

    def check_incarnation(self, incarnation: str) -> None:
        """Refuses another incarnation than this one.

        Raises:
            Stale: the cluster's journal was lost since, and it began anew.
        """
        if incarnation != self.incarnation:
            raise Stale(
                f"the cluster's incarnation is {self.incarnation}, not {incarnation}: its journal was lost; "
                "call DescribeCluster and continue from its revision",
                reason="OTHER_INCARNATION",
                metadata={"incarnation": self.incarnation},
            )

    def check_position(self, after_revision: int) -> None:
        """Refuses a position from which the log cannot be followed.

        Raises:
            OutOfRange: events after it are no longer stored, or it is ahead of the log.
        """
        if not self.oldest_revision - 1 <= after_revision <= self.told_revision:
            raise OutOfRange(
                f"events after {after_revision} are not available: {self.oldest_revision} to {self.told_revision} are "
                "stored; call DescribeCluster and continue from its revision",
                field="after_revision",
                reason="REVISION_NOT_KEPT",
                metadata={"oldest_revision": str(self.oldest_revision), "revision": str(self.told_revision)},
            )

    def next_after(self, revision: int) -> EventBatch | None:
        """The next message after a position: the rest of a moment, or all starts of one moment; None: nothing yet.

        Raises:
            OutOfRange: events after it are no longer stored.
        """
        if revision == self.told_revision:
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
            if later.events[0].revision > self.told_revision:
                break
            events += later.events
            batch = later
        return EventBatch(self.incarnation, events, batch.clock)

    async def follow(self, after_revision: int) -> AsyncIterator[EventBatch]:
        """Every message after a position, then new ones, until the log is closed.

        Raises:
            OutOfRange: events after the position are not stored, or no longer, because this follower is too slow.
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
        """Ends all followers; after a restart they receive the missing events."""
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
