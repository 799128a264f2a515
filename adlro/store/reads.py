"""Reads job records, and follows their changes. Changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import redis.asyncio as aioredis
from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from adlro.errors import DataLoss, NotFound, OutOfRange
from adlro.records.attained import AttainedService
from adlro.records.jobs import Job, JobState
from adlro.store import scripts
from adlro.store.keys import ACTIVE, ATTAINED, CURSOR, EVENTS, REVISION, SEQUENCE, TOKEN, job_key, user_key
from adlro.store.records import (
    MOVED_PREFIX,
    Cursor,
    JobEnd,
    JobStreamEntry,
    decode_event,
    decode_job,
    unreadable,
    whole_number,
)
from adlro.store.unreadable import Unreadable

# Some milliseconds of work at a time for Redis, and about one for the event loop, whatever there is to read.
ACTIVE_AT_ONCE = 500
DECODED_AT_ONCE = 50
# Read at a time by what may stop in the middle for long, as a watch does whose client is slow: so much it holds.
PAGE_BYTES = 64 << 10
_PAGE_JOBS = 200
# Ids of a user's jobs, looked at in one step.
_IDS_AT_ONCE = 500
_JOB_ID = re.compile(rb"job-([0-9]{1,18})")
_ARRAY_ID = re.compile(r"array-([1-9][0-9]{0,17})", re.ASCII)


class ActivePage(NamedTuple):
    """Some of the jobs that are not final.

    Attributes:
        jobs: with the orchestrator's version of each.
        unreadable_count: the number of unreadable records between them.
    """

    jobs: list[tuple[int, Job]]
    unreadable_count: int


class JobReads:
    """The reading part of `JobStore`.

    An unreadable record affects only its job: reads of many jobs skip it.

    Args:
        redis: a client with `decode_responses=False` whose writes are not retried (adlro.kit.redis.connect).
        blocking: a separate client for blocking reads (adlro.kit.redis.connect_blocking); needed only for reads
            with a block time.

    Attributes:
        unreadable: records such records.

    Raises:
        redis.exceptions.ConnectionError: from every method while Redis does not answer; nothing is retried here.
    """

    def __init__(self, redis: aioredis.Redis, blocking: aioredis.Redis | None = None) -> None:
        # redis-py's stubs mix sync and async results; Any keeps the awaits readable.
        self._redis: Any = redis
        self._blocking: Any = blocking
        self._read_many: AsyncScript = self._redis.register_script(scripts.READ)
        self._read_of_user: AsyncScript = self._redis.register_script(scripts.OF_USER)
        self._read_of_user_back: AsyncScript = self._redis.register_script(scripts.OF_USER_BACK)
        self._read_active_of_user: AsyncScript = self._redis.register_script(scripts.ACTIVE_OF_USER)
        self._count_of_user: AsyncScript = self._redis.register_script(scripts.COUNT_OF_USER)
        self._read_ends: AsyncScript = self._redis.register_script(scripts.ENDS)
        self._read_events: AsyncScript = self._redis.register_script(scripts.READ_EVENTS)
        self.unreadable = Unreadable()

    async def cursor(self) -> Cursor | None:
        """The position in the applied cluster events; None before the first, or if unreadable."""
        fields = ("incarnation", "revision", "time_s", "last_event_s", "hold_until_s", "reserved")
        found = await self._redis.hmget(CURSOR, *fields)
        if found[0] is None:
            return None
        incarnation, revision, time_s, last_event_s, hold_until_s, reserved = found
        try:
            return Cursor(
                incarnation.decode(),
                int(revision),
                float(time_s),
                float(last_event_s or time_s),
                float(hold_until_s) if hold_until_s else None,
                *_reservation(reserved, int(revision)),
            )
        except (ValueError, TypeError) as error:
            self.unreadable.add(CURSOR, error)
            return None

    async def newest_token(self) -> int:
        """The last issued fencing token; 0 before the first."""
        return int(await self._redis.get(TOKEN) or 0)

    async def user_service(self) -> dict[str, AttainedService]:
        """By user, the GPU time of all ended attempts; users without any are not in it."""
        user_service = {}
        for user, had in (await self._redis.hgetall(ATTAINED)).items():
            try:
                user_service[user.decode()] = AttainedService(*map(float, had.split(maxsplit=1)))
            except (TypeError, ValueError) as error:
                self.unreadable.add(f"{ATTAINED} {user!r}", error)
        return user_service

    async def get(self, job_id: str) -> Job:
        """One job.

        Raises:
            NotFound: no such job.
            DataLoss: its record can't be read.
        """
        try:
            body, revision = await self._redis.hmget(job_key(job_id), "m", "rev")
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            raise unreadable(job_id, "its key holds another kind of value") from error
        if body is None:
            raise not_found(job_id)
        return decode_job(job_id, body, revision)

    async def get_many(self, job_ids: Iterable[str]) -> list[Job | None]:
        """Jobs in the requested order, None for a missing or unreadable one, in one round trip."""
        return [found[1] if isinstance(found, tuple) else None for found in await self._many(list(job_ids))]

    async def each(
        self,
        sequences: Sequence[int],
        page_bytes: int = PAGE_BYTES,
        turn: asyncio.Semaphore | None = None,
        first: int = _PAGE_JOBS,
    ) -> AsyncIterator[tuple[int, Job | None]]:
        """Jobs by their numbers, in the requested order, None for a missing or unreadable one.

        Args:
            sequences: the numbers.
            page_bytes: size of the records that are read at a time; one job may be larger.
            turn: held while a page is read; limits concurrent reads.
            first: number of jobs in the first page, for callers that may need no more; it doubles with each page.
        """
        at = 0
        while at < len(sequences):
            asked = sequences[at : at + min(first, _PAGE_JOBS)]
            first = min(2 * first, _PAGE_JOBS)
            async with turn or contextlib.nullcontext():
                page = await self._records([f"job-{number}" for number in asked], page_bytes)
            at += len(page)
            # One at a time, as far as they are wanted: a page in one go would keep the loop from others.
            for number, record in zip(asked, page, strict=False):
                found = self._record(f"job-{number}", record)
                yield number, found[1] if isinstance(found, tuple) else None

    async def each_of_user(
        self,
        user: str,
        after: int = 0,
        page_bytes: int = PAGE_BYTES,
        turn: asyncio.Semaphore | None = None,
        first: int = _PAGE_JOBS,
    ) -> AsyncIterator[tuple[int, Job | None]]:
        """The jobs of a user, as from `each`, by the index: other users' jobs cost nothing.

        While the index has gaps (see `JobStore.index_jobs`), the result contains other users' jobs.

        Args:
            user: his name.
            after: jobs with larger numbers only.
            page_bytes, turn, first: as in `each`.
        """
        indexed, last, *found = await self._read_of_user(args=[user, after, "", _IDS_AT_ONCE])
        while True:
            ends = [int(reached) for reached, _ in found if reached]
            end = min(ends, default=indexed)
            numbers = {number for _, ids in found for number in self._numbers(user_key(user), ids)}
            async for each in self.each(sorted(n for n in numbers if n <= end), page_bytes, turn, first):
                yield each
            after = max(after, end)
            if not ends:
                break
            _, _, *found = await self._read_of_user(args=[user, after, indexed, _IDS_AT_ONCE])
        async for each in self.each(range(after + 1, last + 1), page_bytes, turn, first):
            yield each

    async def each_of_user_back(
        self, user: str, before: int | None = None, page_bytes: int = PAGE_BYTES, first: int = _PAGE_JOBS
    ) -> AsyncIterator[tuple[int, Job | None]]:
        """As `each_of_user`, the newest first.

        Args:
            user: his name.
            before: jobs with smaller numbers only; None: all.
            page_bytes, first: as in `each`.
        """
        indexed, last, *found = await self._read_of_user_back(args=[user, before or "+inf", _IDS_AT_ONCE])
        newest = last if before is None else min(last, before - 1)
        async for each in self.each(range(newest, indexed, -1), page_bytes, first=first):
            yield each
        while True:
            reached = max((int(lowest) for lowest, _ in found if lowest), default=0)
            numbers = {number for _, ids in found for number in self._numbers(user_key(user), ids)}
            wanted = sorted((n for n in numbers if reached <= n <= min(newest, indexed)), reverse=True)
            async for each in self.each(wanted, page_bytes, first=first):
                yield each
            if not reached:
                return
            _, _, *found = await self._read_of_user_back(args=[user, reached, _IDS_AT_ONCE])

    async def active(self) -> list[tuple[int, Job]]:
        """All jobs that are not final, with the orchestrator's version of each, in order of submission."""
        return [found async for page in self.active_pages() for found in page.jobs]

    async def active_pages(self) -> AsyncGenerator[ActivePage, None]:
        """As `active`, ACTIVE_AT_ONCE jobs at a time: other tasks run between two pages.

        Redis reads the next page while this one is decoded. A job that changes meanwhile may have
        its earlier state.
        """
        sequences = await self.active_sequences()
        firsts = range(0, len(sequences), ACTIVE_AT_ONCE)
        pages = ([f"job-{n}" for n in sequences[first : first + ACTIVE_AT_ONCE]] for first in firsts)
        ids = next(pages, [])
        coming = asyncio.ensure_future(self._records(ids))
        try:
            while ids:
                these, records = ids, await coming
                ids = next(pages, [])
                coming = asyncio.ensure_future(self._records(ids))
                found: list[tuple[int, Job] | DataLoss | None] = []
                for number, (job_id, record) in enumerate(zip(these, records, strict=True)):
                    if not number % DECODED_AT_ONCE:
                        await asyncio.sleep(0)  # the next page is asked for, and taken in, between
                    found.append(self._record(job_id, record))
                # It may have ended since its number was read.
                jobs = [each for each in found if isinstance(each, tuple) and not each[1].state.final]
                yield ActivePage(jobs, sum(isinstance(each, DataLoss) for each in found))
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    async def _many(self, job_ids: list[str]) -> list[tuple[int, Job] | DataLoss | None]:
        """Of each job its version and record, or why that can't be read; None where there is none."""
        records = await self._records(job_ids)
        return [self._record(job_id, found) for job_id, found in zip(job_ids, records, strict=True)]

    async def _records(self, job_ids: list[str], page_bytes: int = 0) -> list[Any]:
        """What READ gives: with `page_bytes` of the first jobs only, as many as have so many bytes together."""
        # As one script: a reply for each job would cost three times as much here.
        return list(await self._read_many(args=[page_bytes, *job_ids])) if job_ids else []

    def _record(self, job_id: str, found: Any) -> tuple[int, Job] | DataLoss | None:
        """A job's version and record of what READ gave for it, or why that can't be read; None where there is none."""
        try:
            if isinstance(found, bytes):
                raise unreadable(job_id, "its key holds another kind of value")
            body, revision, version = found
            job = None if body is None else decode_job(job_id, body, revision)
            return None if job is None else (whole_number(job_id, version), job)
        except DataLoss as error:
            self.unreadable.add(job_id, error)
            return error

    async def active_sequences(self, user: str = "") -> list[int]:
        """The numbers of all jobs that are not final, rising; of a user's, perhaps with others'."""
        if not user:
            return sorted(self._numbers(ACTIVE, await self._redis.smembers(ACTIVE)))
        indexed, last, *found = await self._read_active_of_user(args=[user])
        numbers = {number for ids in found for number in self._numbers(user_key(user), ids)}
        if indexed < last:
            numbers.update(number for number in await self.active_sequences() if number > indexed)
        return sorted(numbers)

    def _numbers(self, key: str, members: Iterable[bytes]) -> Iterator[int]:
        """Of job ids under a key."""
        for member in members:
            if match := _JOB_ID.fullmatch(member):
                yield int(match[1])
            else:
                self.unreadable.add(f"{key} {member!r}", "it is no job's id")

    async def list_page(self, after_sequence: int, limit: int) -> list[tuple[int, Job]]:
        """Up to `limit` jobs submitted after job number `after_sequence`, in order, with their numbers.

        Empty only at the end.
        """
        last = await self.last_sequence()
        for start in range(after_sequence + 1, last + 1, limit):
            numbers = range(start, min(start + limit, last + 1))
            jobs = await self.get_many(f"job-{n}" for n in numbers)
            if page := [(n, job) for n, job in zip(numbers, jobs, strict=True) if job is not None]:
                return page
        return []

    async def last_sequence(self) -> int:
        """The number of the newest job; 0 before the first."""
        return int(await self._redis.get(SEQUENCE) or 0)

    async def revision(self) -> int:
        """The newest revision; 0 before the first change."""
        return int(await self._redis.get(REVISION) or 0)

    async def entry(self, revision: int) -> bytes | None:
        """The bytes of a change, None where it is not stored: a store that lost changes has others in their place."""
        entries = await self._redis.xrange(EVENTS, f"{revision}-0", f"{revision}-0")
        return entries[0][1].get(b"m", b"") if entries else None

    async def oldest_revision(self) -> int:
        """The oldest stored change; the newest plus one if none is stored."""
        entries = await self._redis.xrange(EVENTS, count=1)
        return _revision_of(entries[0][0]) if entries else await self.revision() + 1

    async def count_of(self, user: str = "") -> int | None:
        """How many jobs there are, of a user where he is given; None while the index of users has a gap."""
        if not user:
            return await self.last_sequence()
        count = await self._count_of_user(args=[user])
        return None if count is None else int(count)

    async def owned(self, user: str, job_ids: Iterable[str]) -> set[str]:
        """Those of some jobs that are a user's, ended or not; while the index of users has a gap, perhaps not all."""
        asked = list(job_ids)
        places = await self._redis.zmscore(user_key(user), asked) if asked else []
        return {job_id for job_id, place in zip(asked, places, strict=True) if place is not None}

    async def ends(self, ids: Iterable[str]) -> dict[str, JobEnd]:
        """By id of a job or an array, whether it has ended, and how; those that do not exist are not in it."""
        asked, out = list(ids), {}
        for start in range(0, len(asked), _IDS_AT_ONCE):
            part = asked[start : start + _IDS_AT_ONCE]
            for each, found in zip(part, await self._read_ends(args=part), strict=True):
                if len(found) == 1:
                    state = JobState(int(found[0]))
                    out[each] = JobEnd(1, int(state.final), int(state.final and state is not JobState.SUCCEEDED))
                elif found:
                    out[each] = JobEnd(*map(int, found))
        return out

    async def array_numbers(self, array_id: str) -> range:
        """The numbers of an array's jobs; empty where there is none."""
        match = _ARRAY_ID.fullmatch(array_id)
        end = (await self.ends([array_id])).get(array_id) if match else None
        if match is None or end is None:
            return range(0)
        first = int(match[1])
        return range(first, first + end.count)

    async def snapshot(self, turn: asyncio.Semaphore | None = None, user: str = "") -> tuple[int, AsyncIterator[Job]]:
        """A revision and all jobs, each at that revision or later.

        Follow with the changes after the revision, and skip changes that are not newer than the job's revision here.

        Args:
            turn: as in `each`.
            user: only his jobs, as from `each_of_user`; empty: all users' jobs.
        """
        revision = await self.revision()
        if user:
            each = self.each_of_user(user, turn=turn)
        else:
            each = self.each(range(1, await self.last_sequence() + 1), turn=turn)

        async def jobs() -> AsyncIterator[Job]:
            async for _, job in each:
                if job is not None:
                    yield job

        return revision, jobs()

    async def read_events(
        self, after_revision: int, *, block_ms: int | None = None, count: int = 1000, max_bytes: int | None = None
    ) -> list[JobStreamEntry]:
        """Changes after a revision, in order, without a gap; empty when there are none (within `block_ms`).

        Args:
            after_revision: the last known one.
            block_ms: how long to wait for a change, milliseconds; None: not at all.
            count: largest number of changes.
            max_bytes: largest size of the changes, at least one change; not together with `block_ms`.

        Raises:
            OutOfRange: the next change is no longer stored, or can't be read: read the jobs again.
        """
        if max_bytes is None:
            entries = await self._read(after_revision, block_ms, count)
        else:
            found = await self._read_events(args=[after_revision, count, max_bytes])
            entries = _without_gap(after_revision, [(_revision_of(entry_id), body) for entry_id, body in found])
        return self._decoded(after_revision, entries)

    async def read_requests(
        self, after_revision: int, *, block_ms: int | None = None, count: int = 1000
    ) -> tuple[int, list[JobStreamEntry]]:
        """As `read_events`, but only changes by ingest (submissions, requests); also the next position.

        Raises:
            OutOfRange: the next change is no longer stored, or can't be read: read the jobs again.
        """
        entries = await self._read(after_revision, block_ms, count)
        last = entries[-1][0] if entries else after_revision
        asked = [(revision, body) for revision, body in entries if not body.startswith(MOVED_PREFIX)]
        events = self._decoded(after_revision, asked)
        return (last if len(events) == len(asked) else events[-1].revision), events

    def _decoded(self, after_revision: int, entries: Sequence[tuple[int, bytes]]) -> list[JobStreamEntry]:
        """The readable changes up to the first unreadable one; raises OutOfRange if that is the first."""
        events: list[JobStreamEntry] = []
        for revision, body in entries:
            try:
                events.append(decode_event(revision, body))
            except DataLoss as error:
                self.unreadable.add(f"{EVENTS} {revision}-0", error)
                if not events:
                    raise OutOfRange(
                        f"{error.message}, so the changes after revision {after_revision} are unknown; "
                        "request a new snapshot",
                        reason="REVISION_UNREADABLE",
                        metadata={"unreadable_revision": str(revision)},
                    ) from error
                break
        return events

    async def _read(self, after_revision: int, block_ms: int | None, count: int) -> list[tuple[int, bytes]]:
        client = self._redis if block_ms is None else self._blocking
        answer = await client.xread({EVENTS: f"{after_revision}-0"}, count=count, block=block_ms)
        if not answer:
            return []
        pairs = answer[EVENTS.encode()][0] if isinstance(answer, dict) else answer[0][1]  # RESP3 or RESP2
        return _without_gap(
            after_revision, [(_revision_of(entry_id), fields.get(b"m", b"")) for entry_id, fields in pairs]
        )


def _without_gap(after_revision: int, entries: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The entries; raises OutOfRange if they do not follow the revision directly."""
    for expected, (revision, _) in enumerate(entries, start=after_revision + 1):
        if revision != expected:
            raise OutOfRange(
                f"the changes after revision {after_revision} are no longer stored (the next one is {revision}); "
                "request a new snapshot",
                reason="REVISION_COMPACTED",
                metadata={"oldest_revision": str(revision)},
            )
    return entries


def _reservation(found: bytes | None, revision: int) -> tuple[str, float]:
    """The job that holds a reservation, empty: none, and since when.

    Args:
        found: "<revision> <since> <job id>".
        revision: of the cursor: an older release writes that alone, and what stands beside it is out of date.
    """
    of_revision, _, rest = (found or b"").decode().partition(" ")
    since_s, _, job_id = rest.partition(" ")
    return (job_id, float(since_s)) if job_id and int(of_revision) == revision else ("", 0.0)


def _revision_of(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def not_found(job_id: str) -> NotFound:
    """The error for an unknown job; an array's id is that of none, and its first job is named."""
    first = job_id.removeprefix("array-")
    is_array = first != job_id and first.isascii() and first.isdigit()
    way_out = "`adlro queue --all` or ListJobs lists the existing jobs"
    if is_array:
        way_out = f"an array is no job: its first one is job-{first}"
    return NotFound(
        f"job_id: there is no job {job_id!r}; {way_out}",
        field="job_id",
        reason="JOB_NOT_FOUND",
        metadata={"job_id": job_id},
    )
