"""The jobs that have not ended, in memory, in the orders that pages of a queue ask for. Uses no gRPC.

Nothing is read while nobody asks. Each request first takes in the changes up to the store's revision at its begin, so
an answer is never older than that; the first one, and one after a long pause, reads all these jobs. Two replicas have
such a table each.
"""

from __future__ import annotations

import asyncio
import bisect
import math
import sys
from dataclasses import replace

from adlro.errors import OutOfRange, Unavailable
from adlro.records.jobs import Job, NormalizedJob
from adlro.records.watching import JobOrder
from adlro.store import JobStore, JobStreamEntry, sequence_of

# Taken in at a time: milliseconds of work for the event loop.
_EVENTS_AT_ONCE = 100
# So far behind, all jobs are read anew, unless there are more of them than changes.
_CHANGES_TAKEN_IN = 5000
_RETRY_S = 0.5

Key = tuple[float, int]
"""Where a job stands in an order: rising. The second is its number, or minus that."""

ORDERS = (JobOrder.NEWEST_FIRST, JobOrder.PRIORITY, JobOrder.WAIT)


def key_of(order: JobOrder, job: Job) -> Key:
    """Where a job stands in an order."""
    number = sequence_of(job.job_id)
    if order is JobOrder.PRIORITY:
        return -job.spec.priority, number
    if order is JobOrder.WAIT:
        return math.inf if job.submit_s is None else job.submit_s, number
    return 0.0, -number


class _Table:
    """Jobs by number, and their places in the orders that were asked for."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.orders: dict[JobOrder, list[Key]] = {}
        # By number, the revision at which `submit_s` was there at the latest: with WAIT a job changes its place once.
        self.placed: dict[int, int] = {}

    def change(self, event: JobStreamEntry) -> None:
        """Takes in a change, unless the job is known as it was after it, or later."""
        number = sequence_of(event.job.job_id)
        known = self.jobs.get(number)
        if known is not None and known.revision >= event.revision:
            return
        if not event.job.state.final:
            self.put(event.job)
        elif known is not None:
            del self.jobs[number]
            self.placed.pop(number, None)
            for order, keys in self.orders.items():
                del keys[bisect.bisect_left(keys, key_of(order, known))]

    def take_places(self, before: _Table) -> None:
        """Takes over since when the jobs have their places, from a table of an earlier time."""
        for number, placed in before.placed.items():
            job = self.jobs.get(number)
            if job is not None and job.submit_s == before.jobs[number].submit_s:
                self.placed[number] = placed

    def put(self, job: Job) -> None:
        """Adds or replaces a job."""
        number = sequence_of(job.job_id)
        before = self.jobs.get(number)
        kept = self.jobs[number] = _small(job)
        for order, keys in self.orders.items():
            key = key_of(order, kept)
            if before is None:
                bisect.insort(keys, key)
            elif (old := key_of(order, before)) != key:
                del keys[bisect.bisect_left(keys, old)]
                bisect.insort(keys, key)
        if kept.submit_s is not None and (before is None or before.submit_s != kept.submit_s):
            self.placed[number] = job.revision


class ActiveJobs:
    """The jobs that have not ended.

    Args:
        store: is read.

    Attributes:
        revision: the newest change that is known.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._table: _Table | None = None
        self.revision = 0
        self._entry: bytes | None = None
        self._turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._known.jobs)

    async def catch_up(self) -> None:
        """Takes in what has changed in the store until now.

        Raises:
            redis.exceptions.RedisError: the store is unusable.
        """
        newest = await self._store.revision()
        async with self._turn:
            # A store that lost changes, and has as many others by now, has another one in the place of the last known.
            entry = await self._store.entry(self.revision)
            known = self._table is not None and entry == self._entry
            if known and newest <= self.revision:
                return
            few = newest - self.revision <= max(_CHANGES_TAKEN_IN, len(self._table.jobs) if self._table else 0)
            if not (known and few and await self._take_in(self._known, newest)):
                lost = newest < self.revision or (entry is not None and entry != self._entry)
                await self._fill(None if lost else self._table)

    def jobs(self) -> list[Job]:
        """All of them, in no order; without payloads."""
        return list(self._known.jobs.values())

    def keys(self, order: JobOrder) -> list[Key]:
        """Where each job stands in one of ORDERS, rising."""
        table = self._known
        if order not in table.orders:
            table.orders[order] = sorted(key_of(order, job) for job in table.jobs.values())
        return table.orders[order].copy()

    def placed_after(self, revision: int, order: JobOrder, upto: Key) -> list[Key]:
        """Jobs that may have come to a place in an order, up to this one, by a change after a revision; rising."""
        if order is not JobOrder.WAIT:
            return []  # of a job nothing changes that other orders go by
        table = self._known
        late = (number for number, placed in table.placed.items() if placed > revision)
        return sorted(key for number in late if (key := key_of(order, table.jobs[number])) <= upto)

    def get(self, key: Key) -> Job | None:
        """The job at a place; None: it has ended meanwhile."""
        return self._known.jobs.get(abs(key[1]))

    @property
    def _known(self) -> _Table:
        return self._table or _Table()

    async def _fill(self, before: _Table | None) -> None:
        """Reads all of them; until then others go on with what was known.

        Args:
            before: the table of an earlier time, if the store has lost nothing since. Of a job that is not in it
                nothing tells since when it has its place: no later than its record's last change.
        """
        table = _Table()
        revision = await self._store.revision()
        entry = await self._store.entry(revision)
        async for page in self._store.active_pages():
            for _, job in page.jobs:
                table.put(job)
        if before is not None:
            table.take_places(before)
        self._table, self.revision, self._entry = table, revision, entry
        # Some are newer than that revision already, and jobs that ended since are among them.
        if not await self._take_in(table, await self._store.revision()):
            self._table = None
            raise Unavailable("jobs change faster than they can be read; try again", retry_after_s=_RETRY_S)

    async def _take_in(self, table: _Table, newest: int) -> bool:
        """Changes up to a revision; False: they are not stored any more."""
        while self.revision < newest:
            try:
                events = await self._store.read_events(self.revision, count=_EVENTS_AT_ONCE)
            except OutOfRange:
                return False
            if not events:
                return False
            entry = await self._store.entry(events[-1].revision)
            for event in events:
                table.change(event)
            self.revision, self._entry = events[-1].revision, entry
            await asyncio.sleep(0)
        return True


def _small(job: Job) -> Job:
    """The job without its payload; of texts that many jobs have in common there is one."""
    spec = replace(job.spec, payload=None, user=sys.intern(job.spec.user), application=sys.intern(job.spec.application))
    return replace(job, spec=spec, normalized=_NOT_NORMALIZED, message=sys.intern(job.message))


_NOT_NORMALIZED = NormalizedJob()
