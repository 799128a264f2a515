"""Distributes the changes of jobs to watchers: one reader of the stream per process, each change serialised once.

A watcher is a position (a revision). The last changes are held in memory for all watchers; a watcher that is further
behind reads from Redis at its own pace, a page of `PAGE_BYTES` at a time: a slow watcher costs that page, and loses
nothing while the stream holds the next change. A watcher may ask for changes together, every so often (`batches`); the
reader rests as well while all of them do. Uses no gRPC: server.py passes the function that makes a change's bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from redis.exceptions import RedisError

from adlro.errors import AdlroError, OutOfRange, Unavailable
from adlro.kit.redis_errors import store_error
from adlro.records.jobs import Job
from adlro.records.watching import JobFilter, JobView
from adlro.services.ingest.turns import Turns
from adlro.store import PAGE_BYTES, JobStore, JobStreamEntry

# The reader looks after so long without a change whether Redis still has what it had.
_BLOCK_MS = 1000
# Read by the one reader, and taken by a watcher, at a time.
_READ_COUNT = 100
# Pages in one message about several changes: a watcher that is far behind is told now and then.
_PAGES_TOGETHER = 5
# A page of a snapshot is milliseconds of work: two hundred watches that begin at once would keep the event loop from
# everybody else for a second at a time.
_SNAPSHOTS_AT_ONCE = 2
# Jobs of snapshots told in one round of the event loop; changes, which somebody waits for, are told at once.
_SNAPSHOT_JOBS_PER_ROUND = 2
_RETRY_FIRST_S, _RETRY_LAST_S = 0.05, 1.0


class Form(NamedTuple):
    """How a change is told: how much of its job, and whether as a part of a message about several changes."""

    view: JobView
    together: bool = False


ALONE = Form(JobView.FULL)


@dataclass(slots=True)
class Change:
    """A change of a job and its messages: a whole one, others once somebody wants them."""

    revision: int
    job: Job
    message: bytes
    others: dict[Form, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of its messages."""
        return len(self.message) + sum(map(len, self.others.values()))


class Batch(NamedTuple):
    """The last change of each job that has changed, in the order of revisions, and the revision to resume with."""

    changes: Sequence[Change]
    revision: int


class _Page(NamedTuple):
    """The changes that match among those up to a revision; `more`: there are newer ones."""

    changes: Sequence[Change]
    revision: int
    more: bool


class _Epoch:
    """The time from one loss of data in Redis to the next: watches of one that has ended, end."""

    lost_after: int | None = None


class JobWatch:
    """The watchers of one process.

    Args:
        store: with a separate client for blocking reads.
        encode: the message of a change, in a form.
        changes_kept: number of changes in memory, for all watchers together.
        bytes_kept: size of their messages.
        may_match: the numbers of the jobs that a snapshot reads; None, or nothing: all of the filter's user.
    """

    def __init__(
        self,
        store: JobStore,
        encode: Callable[[int, Job, Form], bytes],
        changes_kept: int,
        bytes_kept: int = 16 << 20,
        may_match: Callable[[JobFilter], Awaitable[Sequence[int] | None]] | None = None,
    ) -> None:
        self._store = store
        self._encode = encode
        self._changes_kept = changes_kept
        self._bytes_kept = bytes_kept
        self._may_match = may_match or _named
        self._recent: deque[Change] = deque()  # revisions without a gap
        self._recent_bytes = 0
        self._position: int | None = None  # the newest revision that was read; None while nobody watches
        # Of each watcher, the seconds between its messages; 0: it is told at once.
        self._intervals_s: list[float] = []
        self._wanted = asyncio.Event()
        self._waiting = 0  # watchers that have what was read
        self._called = asyncio.Event()  # one of them came, or one of all watchers came or left
        self._over = asyncio.Event()
        self._advanced = asyncio.Event()
        self._epoch = _Epoch()
        self._page_turn = asyncio.Semaphore(_SNAPSHOTS_AT_ONCE)
        self._turns = Turns(_SNAPSHOT_JOBS_PER_ROUND)

    @property
    def watcher_count(self) -> int:
        """The number of watchers."""
        return len(self._intervals_s)

    @property
    def bytes_held(self) -> int:
        """The size of the messages in memory, bytes."""
        return self._recent_bytes

    async def run(self) -> None:
        """Reads the stream while there are watchers, endlessly. After a failure of Redis it resumes at its position."""
        retry_s = _RETRY_FIRST_S
        while True:
            await self._wanted.wait()
            try:
                more = await self._read_on()
                retry_s = _RETRY_FIRST_S
                if not more:
                    await self._rest()
                if not self._wanted.is_set():
                    self._position = None
            except RedisError:
                # The kit's loop tells health and the log of it. Also what Redis refuses for a while, such as READONLY
                # during a failover, must not end the service.
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_LAST_S)

    def message_of(self, change: Change, form: Form) -> bytes:
        """A change's message, made once for all watchers of that form."""
        if form == ALONE:
            return change.message
        found = change.others.get(form)
        if found is None:
            found = change.others[form] = self._encode(change.revision, change.job, form)
            place = change.revision - self._recent[0].revision if self._recent else -1
            if 0 <= place < len(self._recent) and self._recent[place] is change:
                self._recent_bytes += len(found)
        return found

    def close(self) -> None:
        """Ends all present and later watches, each with the revision to resume with."""
        self._over.set()
        self._wake()

    async def snapshot(self, job_filter: JobFilter, seen: dict[str, int]) -> tuple[int, AsyncIterator[Job]]:
        """A revision, and the matching jobs, each in its state at that revision or later.

        Args:
            job_filter: which jobs.
            seen: filled with the sent jobs that are newer than the revision; an argument of `changes`.
        """
        revision = await self._store.revision()
        numbers = await self._may_match(job_filter)
        if numbers is not None:
            jobs = self._numbered(numbers)
        else:
            revision, jobs = await self._store.snapshot(self._page_turn, job_filter.user)

        async def matching() -> AsyncIterator[Job]:
            async for job in jobs:
                if self._over.is_set():
                    raise Unavailable(_SHUTTING_DOWN.message, reason=_SHUTTING_DOWN.reason, retry_after_s=0.5)
                if job_filter.matches(job):
                    # Only what is told: a change on the way to a state that doesn't match may match.
                    if job.revision > revision:
                        seen[job.job_id] = job.revision
                    if not self._turns.take_now():
                        await self._turns.take()
                    yield job

        return revision, matching()

    async def changes(
        self, after_revision: int, job_filter: JobFilter, seen: dict[str, int] | None = None
    ) -> AsyncGenerator[Change]:
        """Every change after a revision, in order, endlessly.

        Args:
            after_revision: the last revision that the watcher knows.
            job_filter: matched against the job after the change.
            seen: revisions of jobs known beyond `after_revision`; changes up to them are skipped.

        Raises:
            OutOfRange: the revision is in the future, or the changes after it are no longer stored.
            AdlroError: the store is unusable, or the service ends; the message has the revision to resume with.
        """
        async with aclosing(self._pages(after_revision, job_filter, seen, 0.0)) as pages:
            async for page in pages:
                for change in page.changes:
                    yield change

    async def batches(
        self, after_revision: int, job_filter: JobFilter, interval_s: float, seen: dict[str, int] | None = None
    ) -> AsyncGenerator[Batch]:
        """As `changes`, but every `interval_s` at most, and of each job only its last change that matches.

        Who is far behind gets a page after the other without a pause.
        """
        batch: dict[str, Change] = {}
        page_count, revision = 0, after_revision
        async with aclosing(self._pages(after_revision, job_filter, seen, interval_s)) as pages:
            try:
                async for page in pages:
                    for change in page.changes:
                        batch.pop(change.job.job_id, None)  # to the end: its order is that of the last change
                        batch[change.job.job_id] = change
                    page_count, revision = page_count + 1, page.revision
                    size = sum(change.size for change in batch.values())
                    full = page_count >= _PAGES_TOGETHER or size >= PAGE_BYTES
                    if page.more and not full:
                        continue
                    if batch:
                        yield Batch(list(batch.values()), revision)
                        batch = {}
                    page_count = 0
                    # Also where nothing was told: others have their turn.
                    await self._pause(0.0 if page.more else interval_s)
            except Unavailable:
                # The error tells to resume after what was read.
                if batch:
                    yield Batch(list(batch.values()), revision)
                raise

    async def _pages(
        self, after_revision: int, job_filter: JobFilter, seen: dict[str, int] | None, interval_s: float
    ) -> AsyncGenerator[_Page]:
        """What comes after a revision, a page at a time, for a watcher that wants a message every so often."""
        position = after_revision
        ahead = seen if seen is not None else {}
        self._intervals_s.append(interval_s)
        self._wanted.set()
        self._called.set()
        try:
            known = self._position
            newest = await self._store.revision()
            if known is not None and newest < known == self._position:
                self._lose(newest)
            epoch = self._epoch
            if after_revision > newest:
                raise OutOfRange(
                    f"after_revision: {after_revision} is in the future, the newest revision is {newest}; "
                    "resume with the last revision that you received, or omit it for a snapshot",
                    field="after_revision",
                    reason="REVISION_IN_FUTURE",
                    metadata={"newest_revision": str(newest)},
                )
            while True:
                # The reader may have rested: who waited for his message gets what has come until now.
                newest = await self._store.revision() if interval_s else 0
                found = await self._next(position, epoch)
                position = found[-1].revision
                changes = [
                    change
                    for change in found
                    if change.revision > ahead.get(change.job.job_id, 0) and job_filter.matches(change.job)
                ]
                yield _Page(changes, position, more=position < max(newest, self._position or 0))
        except RedisError as error:
            problem = store_error(error, unsure="")
            if problem is None:
                raise
            raise _resumable(problem, position) from error
        finally:
            self._intervals_s.remove(interval_s)
            self._called.set()
            if not self._intervals_s:
                self._wanted.clear()

    async def _next(self, position: int, epoch: _Epoch) -> list[Change]:
        """Changes after a position, at least one; waits for it."""
        while True:
            if self._over.is_set():
                raise _resumable(_SHUTTING_DOWN, position)
            if epoch.lost_after is not None:
                raise _lost(epoch.lost_after)
            advanced, recent = self._advanced, self._recent
            if self._position is None or position >= self._position:
                self._waiting += 1
                self._called.set()
                try:
                    await advanced.wait()
                finally:
                    if not advanced.is_set():
                        self._waiting -= 1
            elif recent and position + 1 >= recent[0].revision:
                first = position + 1 - recent[0].revision
                return self._page(first)
            elif events := await self._store.read_events(position, count=_READ_COUNT, max_bytes=PAGE_BYTES):
                return [self._change(event) for event in events]
            else:
                raise _lost(await self._store.revision())

    async def _pause(self, interval_s: float) -> None:
        """Between two messages of a watcher; ends with the service."""
        if not interval_s:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await self._over.wait()

    async def _rest(self) -> None:
        """While every watcher is between two of its messages; a second at most: Redis may lose what they know."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_BLOCK_MS / 1e3):
                while min(self._intervals_s, default=0.0) > 0.0 and not self._waiting:
                    self._called.clear()
                    await self._called.wait()

    async def _read_on(self) -> bool:
        """Reads what has come, or waits for it; whether there may be more."""
        if self._position is None:
            self._recent.clear()
            self._recent_bytes = 0
            self._position = await self._store.revision()
            self._wake()
        position = self._position
        try:
            events = await self._store.read_events(position, block_ms=_BLOCK_MS, count=_READ_COUNT)
        except OutOfRange:
            # More changes went by in one go than the stream keeps. Begin anew; each watcher finds out for itself.
            self._position = None
            return True
        if self._position != position:
            return True  # a loss was found meanwhile
        if events:
            self._keep(events)
            self._position = events[-1].revision
            self._wake()
        elif (newest := await self._store.revision()) < position:
            self._lose(newest)
        return len(events) >= _READ_COUNT

    def _keep(self, events: list[JobStreamEntry]) -> None:
        recent = self._recent
        for event in events:
            change = self._change(event)
            recent.append(change)
            self._recent_bytes += change.size
        while len(recent) > self._changes_kept or (self._recent_bytes > self._bytes_kept and len(recent) > 1):
            self._recent_bytes -= recent.popleft().size

    def _page(self, first: int) -> list[Change]:
        """What a watcher takes of the changes in memory; it holds them until its client has read them."""
        out: list[Change] = []
        size = 0
        # By index, not islice: a deque finds its last items at once, and walks to them from the left.
        for index in range(first, min(len(self._recent), first + _READ_COUNT)):
            change = self._recent[index]
            size += change.size
            if out and size > PAGE_BYTES:
                break
            out.append(change)
        return out

    async def _numbered(self, numbers: Sequence[int]) -> AsyncIterator[Job]:
        async for _, job in self._store.each(numbers, turn=self._page_turn):
            if job is not None:
                yield job

    def _lose(self, newest: int) -> None:
        """Redis came back without its last changes: earlier messages to watchers are invalid."""
        self._epoch.lost_after = newest
        self._epoch = _Epoch()
        self._position = None
        self._wake()

    def _change(self, event: JobStreamEntry) -> Change:
        return Change(event.revision, event.job, self._encode(event.revision, event.job, ALONE))

    def _wake(self) -> None:
        self._waiting = 0
        self._advanced.set()
        self._advanced = asyncio.Event()


async def _named(job_filter: JobFilter) -> Sequence[int] | None:
    return job_filter.job_numbers() if job_filter.job_ids else None


_SHUTTING_DOWN = Unavailable("this ingest is shutting down", reason="SHUTTING_DOWN", retry_after_s=0.5)


def _resumable(error: AdlroError, position: int) -> AdlroError:
    return type(error)(
        f"{error.message}; resume with after_revision = {position}",
        reason=error.reason,
        metadata={"revision": str(position)},
        retry_after_s=error.retry_after_s,
    )


def _lost(revision: int) -> OutOfRange:
    return OutOfRange(
        f"Redis has lost the changes after revision {revision}, which watchers may have received; "
        "request a new snapshot",
        reason="REVISION_LOST",
    )
