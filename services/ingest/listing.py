"""Lists jobs a page at a time, in the order that is asked for. Uses no gRPC.

In the order of submission, and newest first, a page reads records by number; in the order of ends it goes through the
index of ended jobs; a queue in another order comes from the table of active jobs. Where a page goes on is a place in
the order, not a count: what is added or removed elsewhere moves nothing across it.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TypeVar

from adlro.errors import InvalidInput
from adlro.records.jobs import Job
from adlro.records.payloads import Payload
from adlro.records.watching import JobFilter, JobOrder, JobPage, JobView
from adlro.services.ingest.active import ORDERS, ActiveJobs, Key
from adlro.services.ingest.candidates import Candidates
from adlro.store import JobStore
from adlro.store.ended import End, EndedJobs
from adlro.store.pages import PageTokens, Position

T = TypeVar("T")

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

# Read at a time: little enough that other calls get their turn in between.
_READ_BYTES = 256 << 10
# Looked at for one page: beyond it the page ends early, with a token to go on.
_SCAN_LIMIT = 20_000
# A page ends early beyond this: many clients take no message of more than 4 MiB.
_PAGE_BYTES = 3 << 20
# Jobs of the table that are looked at in one round of the event loop.
_LOOKED_AT_ONCE = 2000
# Ended jobs whose records are read at a time.
_ENDED_AT_ONCE = 200

_BEGIN = Position(0)
_QUEUE_ORDERS = (JobOrder.PRIORITY, JobOrder.WAIT)


class JobList:
    """Pages of jobs.

    Args:
        store: job records.
        tokens: makes and reads page tokens.
        active: the jobs that have not ended.
        ended: the ended jobs by the time of their end.
    """

    def __init__(self, store: JobStore, tokens: PageTokens, active: ActiveJobs, ended: EndedJobs) -> None:
        self._store = store
        self._tokens = tokens
        self._active = active
        self._ended = ended
        self._may_match = Candidates(store, ended, _SCAN_LIMIT)

    async def page(
        self,
        job_filter: JobFilter,
        page_size: int,
        page_token: str,
        order: JobOrder = JobOrder.SUBMITTED,
        view: JobView = JobView.FULL,
    ) -> JobPage:
        """Jobs that match, and the token of the next page, empty at the end.

        A page may be shorter than requested and still have a next one, if few of many jobs match.

        Args:
            job_filter: which jobs.
            page_size: 0: DEFAULT_PAGE_SIZE.
            page_token: of the page before, empty: the first page.
            order: of all pages.
            view: with BASIC, jobs of the table of active jobs have no more than that view.

        Raises:
            InvalidInput: the token does not belong to this filter and order, or the order is for queues only.
            Unavailable: NOT_INDEXED: jobs of an older version are still being indexed.
        """
        if order in _QUEUE_ORDERS and not job_filter.active_only:
            raise InvalidInput(
                f"order_by: {order.name} is an order of jobs that have not ended; set filter.states to PENDING, "
                "RUNNING or both, or use another order",
                field="order_by",
                reason="ORDER_NEEDS_STATES",
            )
        size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        digest = _digest(job_filter, order)
        after = await self._tokens.decode(page_token, digest) if page_token else None
        total: int | None
        if job_filter.active_only and order in (*ORDERS, JobOrder.ENDED):
            table_order = JobOrder.NEWEST_FIRST if order is JobOrder.ENDED else order
            jobs, position, total = await self._of_table(job_filter, table_order, view, after, size)
        else:
            total = await self._total(job_filter)
            jobs, position = await self._of_records(job_filter, order, after, size)
        token = "" if position is None else await self._tokens.encode(position, digest)
        return JobPage(jobs, token, total)

    async def _total(self, job_filter: JobFilter) -> int | None:
        """How many jobs match, where that is in the store as a number."""
        if JobFilter(user=job_filter.user).digest() != job_filter.digest():
            return None
        return await self._store.count_of(job_filter.user)

    async def _of_records(
        self, job_filter: JobFilter, order: JobOrder, after: Position | None, size: int
    ) -> tuple[list[Job], Position | None]:
        jobs: list[Job] = []
        position = after or _BEGIN
        scanned = weight = 0
        async for place, job, looked_at in self._candidates(job_filter, order, after, size):
            if scanned >= _SCAN_LIMIT:
                return jobs, position
            scanned += looked_at
            if job is not None and job_filter.matches(job):
                weight += _weight(job)
                if len(jobs) == size or (jobs and weight > _PAGE_BYTES):
                    # One more than fits: so there is a next page, and it begins with this one.
                    return jobs, position
                jobs.append(job)
            position = place
        return jobs, None

    async def _candidates(
        self, job_filter: JobFilter, order: JobOrder, after: Position | None, size: int
    ) -> AsyncIterator[tuple[Position, Job | None, int]]:
        """Places in the order, with the job there, and how many entries were looked at for that."""
        # One more than fits shows that there is a next page: often all that has to be read.
        first = size + 1
        if order is JobOrder.ENDED:
            async for each in self._by_end(job_filter, after, first):
                yield each
            return
        begin = 0 if after is None else after.number
        forwards = order is JobOrder.SUBMITTED
        numbers = await self._may_match.numbers(job_filter)
        if numbers is None and job_filter.user:
            if forwards:
                found = self._store.each_of_user(job_filter.user, begin, _READ_BYTES, first=first)
            else:
                found = self._store.each_of_user_back(job_filter.user, begin or None, _READ_BYTES, first=first)
        else:
            if numbers is None:
                numbers = range(1, await self._store.last_sequence() + 1)
            if forwards:
                numbers = numbers[bisect.bisect_right(numbers, begin) :]
            else:
                numbers = numbers[: len(numbers) if after is None else bisect.bisect_left(numbers, begin)][::-1]
            found = self._store.each(numbers, _READ_BYTES, first=first)
        async for number, job in found:
            yield Position(number), job, 1

    async def _by_end(
        self, job_filter: JobFilter, after: Position | None, first: int
    ) -> AsyncIterator[tuple[Position, Job | None, int]]:
        """The jobs that have not ended, newest first, then the last end first."""
        if job_filter.job_ids or job_filter.array_id:
            numbers = await self._may_match.numbers(job_filter) or ()
            ends = await self._ended.ends_of(numbers)
            places = [Position(n, math.inf if end is None else end) for n, end in zip(numbers, ends, strict=True)]
            places.sort(key=_end_of, reverse=True)
            async for each in self._read([each for each in places if after is None or _end_of(each) < _end_of(after)]):
                yield each
            return
        if not job_filter.ended_only and (after is None or after.key == math.inf):
            active = await self._store.active_sequences(job_filter.user)
            numbers = active if after is None else active[: bisect.bisect_left(active, after.number)]
            async for number, job in self._store.each(numbers[::-1], _READ_BYTES, first=first):
                # One that has ended meanwhile comes among the ended ones.
                yield Position(number, math.inf), None if job is not None and job.state.final else job, 1
        last = None if after is None or after.key == math.inf else End(after.key, after.number)
        from_s = -math.inf if job_filter.active_after_s is None else job_filter.active_after_s
        at_once = max(first, 2 * _ENDED_AT_ONCE)
        async for step in self._ended.steps(last, from_s, job_filter.ended_before_s, job_filter.user, at_once):
            places = [Position(end.number, end.end_s) for end in step.found]
            while places:
                async for each in self._read(places[: min(first, _ENDED_AT_ONCE)]):
                    yield each
                places, first = places[min(first, _ENDED_AT_ONCE) :], _ENDED_AT_ONCE
            if step.reached is not None:
                # Entries of other users were looked at, too: the page may end here, having found nothing.
                yield Position(step.reached.number, step.reached.end_s), None, step.walked - len(step.found)

    async def _read(self, places: Sequence[Position]) -> AsyncIterator[tuple[Position, Job | None, int]]:
        at = iter(places)
        async for _, job in self._store.each([each.number for each in places], _READ_BYTES):
            yield next(at), job, 1

    async def _of_table(
        self, job_filter: JobFilter, order: JobOrder, view: JobView, after: Position | None, size: int
    ) -> tuple[list[Job], Position | None, int]:
        """A page of active jobs, where the next one goes on, and the number of all that match."""
        await self._active.catch_up()
        revision, keys = self._active.revision, self._active.keys(order)
        rest, place = keys, None
        if after is not None:
            place = (after.key, -after.number if order is JobOrder.NEWEST_FIRST else after.number)
            # What came to a place before this one since the last page would be on no page.
            late = self._active.placed_after(after.revision, order, place)
            rest = [*late, *keys[bisect.bisect_right(keys, place) :]]
        total = 0
        async for _ in self._matching(job_filter, keys):
            total += 1
        jobs: list[Job] = []
        weight = 0
        last: Key | None = None
        found = self._matching(job_filter, rest)
        async for key, job in found if view is JobView.BASIC else self._whole(job_filter, found, size + 1):
            weight += _weight(job)
            if last is not None and (len(jobs) == size or weight > _PAGE_BYTES):
                # Once all late ones are told, the next page goes on where the last one did: not at a late one's place.
                reached = max(last, place) if place is not None and key > place else last
                return jobs, Position(abs(reached[1]), reached[0], revision), total
            jobs.append(job)
            last = key
        return jobs, None, total

    async def _matching(self, job_filter: JobFilter, keys: Sequence[Key]) -> AsyncIterator[tuple[Key, Job]]:
        for count, key in enumerate(keys, start=1):
            if not count % _LOOKED_AT_ONCE:
                await asyncio.sleep(0)
            job = self._active.get(key)
            if job is not None and job_filter.matches(job):
                yield key, job

    async def _whole(
        self, job_filter: JobFilter, found: AsyncIterator[tuple[Key, Job]], first: int
    ) -> AsyncIterator[tuple[Key, Job]]:
        """The jobs with all of their records, as they are now, if they still match."""
        more = True
        while more:
            keys = [key async for key, _ in _some(found, first)]
            more = len(keys) == first
            at = iter(keys)
            async for _, job in self._store.each([abs(number) for _, number in keys], _READ_BYTES):
                key = next(at)
                if job is not None and job_filter.matches(job):
                    yield key, job


async def _some(found: AsyncIterator[T], count: int) -> AsyncIterator[T]:
    """The next ones, so many at most."""
    for _ in range(count):
        try:
            yield await anext(found)
        except StopAsyncIteration:
            return


def _end_of(position: Position) -> tuple[float, int]:
    return position.key, position.number


def _digest(job_filter: JobFilter, order: JobOrder) -> bytes:
    """16 bytes that identify filter and order; in the order of submission as of older releases."""
    digest = job_filter.digest()
    if order is JobOrder.SUBMITTED:
        return digest
    return hashlib.sha256(digest + bytes([order])).digest()[:16]


def _weight(job: Job) -> int:
    """The approximate size of a job on the wire, in bytes; accurate for large ones."""
    texts = (job.spec.name, job.spec.application, job.message, *job.spec.labels.keys(), *job.spec.labels.values())
    attempts = sum(100 + len(each.outcome) + (len(each.exit.detail) if each.exit else 0) for each in job.attempts)
    return 400 + sum(4 + len(text.encode()) for text in (*texts, *_texts_of(job.spec.payload))) + attempts


def _texts_of(payload: Payload | None) -> Iterator[str]:
    """What makes a payload large; all else is at most 5 kB."""
    if payload is None:
        return
    yield from payload.argv
    yield from payload.environment
    yield from payload.environment.values()
    yield from payload.secret_names
    for mount in payload.container.mounts if payload.container is not None else ():
        yield from (mount.source, mount.target)
