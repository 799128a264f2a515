"""The ended jobs by the time of their end, and what ran in a range of time: reads the indexes, and repairs them.

Redis writes them with the move to the end. Jobs that a process of an older version ended are in none: their number is
known at once, and they are looked for, and put there, before anything is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import redis.asyncio as aioredis
from numpy.typing import NDArray
from redis.commands.core import AsyncScript

from adlro.errors import DataLoss, Unavailable
from adlro.store import scripts
from adlro.store.attempts import RanJob, decode_ran_job, ended_arguments
from adlro.store.keys import ENDED
from adlro.store.reads import JobReads

# Some milliseconds of work at a time, for Redis and for the event loop.
_NUMBERS_AT_ONCE = 1000
_RECORDS_AT_ONCE = 50
_ENDED_AT_ONCE = 2000
_READ_AT_ONCE = 500
_RAN_AT_ONCE = 2000
# A call waits so long for jobs of an older version to be indexed.
_INDEXED_WITHIN_S = 5.0
_RETRY_S = 1.0


class End(NamedTuple):
    """A job's number and the cluster time of its end; -inf: not known. Ends compare by time, then by number."""

    end_s: float
    number: int


class Step(NamedTuple):
    """Some entries of the index.

    Attributes:
        found: those that were asked for.
        walked: how many were gone through.
        reached: the last of them; None: there are no more.
    """

    found: list[End]
    walked: int
    reached: End | None


class EndedJobs:
    """Reads the indexes of ended jobs.

    Args:
        redis: a client with `decode_responses=False` whose writes are not retried.
        store: reads the records.

    Raises:
        Unavailable: NOT_INDEXED, from every method that reads: jobs of an older version are still being indexed.
        redis.exceptions.ConnectionError: from every method while Redis does not answer.
    """

    def __init__(self, redis: aioredis.Redis, store: JobReads) -> None:
        self._redis: Any = redis  # redis-py's stubs mix sync and async results
        self._store = store
        self._not_indexed: AsyncScript = self._redis.register_script(scripts.NOT_INDEXED)
        self._put: AsyncScript = self._redis.register_script(scripts.INDEX_ENDED)
        self._read_before: AsyncScript = self._redis.register_script(scripts.ENDED_BEFORE)
        self._count_within: AsyncScript = self._redis.register_script(scripts.COUNT_RAN)
        self._read_within: AsyncScript = self._redis.register_script(scripts.RAN_WITHIN)
        self._read_class: AsyncScript = self._redis.register_script(scripts.RAN_OF_CLASS)
        self._ends_of: AsyncScript = self._redis.register_script(scripts.ENDS_OF)
        self._read_many: AsyncScript = self._redis.register_script(scripts.READ)
        self._indexing = asyncio.Lock()

    async def index(self, within_s: float = float("inf")) -> int:
        """Puts the ended jobs of older versions into the indexes; returns their number.

        Other processes may do the same concurrently, and end jobs meanwhile.

        Args:
            within_s: it stops after this time, and has more to do.
        """
        count = 0
        over_s = time.monotonic() + within_s
        async with self._indexing:
            if not (await self._missing(1, 0))[0]:
                return 0
            # The newest first: these are asked for.
            last = await self._store.last_sequence()
            for end in range(last, 0, -_NUMBERS_AT_ONCE):
                left, numbers = await self._missing(max(1, end - _NUMBERS_AT_ONCE + 1), end)
                for first in range(0, len(numbers), _RECORDS_AT_ONCE):
                    await self._index(numbers[first : first + _RECORDS_AT_ONCE])
                    await asyncio.sleep(0)
                count += len(numbers)
                if left <= len(numbers) or time.monotonic() > over_s:
                    break
        return count

    async def before(
        self,
        after: End | None = None,
        from_s: float = float("-inf"),
        to_s: float | None = None,
        user: str = "",
        at_once: int = _ENDED_AT_ONCE,
    ) -> AsyncIterator[End]:
        """Ended jobs, the last end first, of one end the highest number first.

        Args:
            after: only those that follow it in this order.
            from_s, to_s: only those that ended at or after the one and before the other; None: no bound.
            user: only his jobs, and perhaps some others'.
            at_once: how many are gone through in one step.
        """
        async for step in self.steps(after, from_s, to_s, user, at_once):
            for end in step.found:
                yield end

    async def steps(
        self,
        after: End | None = None,
        from_s: float = float("-inf"),
        to_s: float | None = None,
        user: str = "",
        at_once: int = _ENDED_AT_ONCE,
    ) -> AsyncIterator[Step]:
        """As `before`, step by step: of a user with few jobs a step may find none, however many it goes through."""
        at = after
        while True:
            args: list[str | int] = [at_once, *(("", "") if at is None else (repr(at.end_s), _member(at.number)))]
            args += [repr(from_s), "" if to_s is None else repr(to_s), user]
            missing, walked, last, last_s, *found = await self._read_before(args=args)
            if missing:
                await self._indexed()
                continue
            ends = (End(float(end_s), int(number)) for number, end_s in zip(found[::2], found[1::2], strict=True))
            # Where the job it goes on after is no longer there, those of the same end come once more.
            new = [end for end in ends if (at is None or end < at) and (to_s is None or end.end_s < to_s)]
            reached = End(float(last_s), int(last)) if walked else None
            over = walked < at_once or reached is None or reached.end_s < from_s
            yield Step([end for end in new if end.end_s >= from_s], walked, None if over else reached)
            if over:
                return
            at = reached

    async def count(self, from_s: float, to_s: float | None) -> int:
        """How many jobs ended at or after the one time and before the other; None: no bound."""
        return int(await self._redis.zcount(ENDED, repr(from_s), "+inf" if to_s is None else f"({to_s!r}"))

    async def ends_of(self, numbers: Sequence[int]) -> list[float | None]:
        """The ends of jobs by number; None: it has not ended."""
        while (await self._missing(1, 0))[0]:
            await self._indexed()
        found = await self._ends_of(args=[_member(number) for number in numbers]) if numbers else []
        return [float(each) if each else None for each in found]

    async def count_within(self, from_s: float, to_s: float) -> int:
        """How many jobs `ran_within` would give; costs Redis next to nothing, however many."""
        while True:
            missing, count = await self._count_within(args=[repr(from_s), repr(to_s)])
            if not missing:
                return int(count)
            await self._indexed()

    async def ran_within(self, from_s: float, to_s: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The ended jobs that may have run in a range: all that did, and about as many more.

        Returns:
            Their numbers, rising, and the cluster times of their ends.
        """
        while True:
            missing, *classes = await self._read_within(args=[repr(from_s), repr(to_s), _RAN_AT_ONCE])
            if not missing:
                for number, found in enumerate(classes):
                    if len(found) == 2 * _RAN_AT_ONCE:
                        await self._read_on(number, found, to_s)
                return await asyncio.to_thread(_by_number, classes)
            await self._indexed()

    async def _read_on(self, class_: int, found: list[bytes], to_s: float) -> None:
        """Adds what follows of a class of durations, in parts: Redis answers others in between."""
        begin, size = b"", _RAN_AT_ONCE
        while True:
            # Those of the last end come once more; where all are of one end, more of them at a time.
            size = 2 * size if found[-1] == begin else size
            begin = found[-1]
            some = await self._read_class(args=[begin, repr(to_s), size, class_])
            found += some
            if len(some) < 2 * size:
                return

    async def ran(self, numbers: Sequence[int]) -> AsyncIterator[RanJob]:
        """The attempts of these jobs; unreadable records are skipped."""
        pages = [numbers[first : first + _READ_AT_ONCE] for first in range(0, len(numbers), _READ_AT_ONCE)]
        coming: asyncio.Future[Any] | None = None
        try:
            for place, page in enumerate(pages):
                ids = [f"job-{number}" for number in page]
                records = await (coming or self._read_many(args=[0, *ids]))
                if place + 1 < len(pages):  # Redis reads the next page while this one is decoded
                    following = [f"job-{number}" for number in pages[place + 1]]
                    coming = asyncio.ensure_future(self._read_many(args=[0, *following]))
                for count, (job_id, found) in enumerate(zip(ids, records, strict=True)):
                    if not count % _RECORDS_AT_ONCE:
                        await asyncio.sleep(0)
                    if isinstance(found, list) and found[0] is not None:
                        try:
                            yield decode_ran_job(job_id, found[0])
                        except DataLoss as error:
                            self._store.unreadable.add(job_id, error)
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def _indexed(self) -> None:
        """Raises Unavailable unless all ended jobs are in the indexes."""
        await self.index(_INDEXED_WITHIN_S)
        left, _ = await self._missing(1, 0)
        if left:
            raise Unavailable(
                f"{left} ended jobs of an older version are not in the index by time yet; try again in a moment",
                reason="NOT_INDEXED",
                metadata={"missing_jobs": str(left)},
                retry_after_s=_RETRY_S,
            )

    async def _missing(self, first: int, last: int) -> tuple[int, list[int]]:
        left, *numbers = await self._not_indexed(args=[first, last])
        # Fewer than none: somebody has deleted records' counts by hand. What is there is indexed.
        return max(0, int(left)), [int(number) for number in numbers]

    async def _index(self, numbers: Iterable[int]) -> None:
        args: list[str] = []
        ids = [f"job-{number}" for number in numbers]
        for job_id, job in zip(ids, await self._store.get_many(ids), strict=True):
            # Unreadable or gone: its place in the index says so, and it is not looked for again.
            args += [job_id, *(("", "") if job is None else ended_arguments(job))]
        await self._put(args=args)


def _by_number(classes: Sequence[Sequence[bytes]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Members and scores of all classes, sorted by member."""
    numbers = np.array([each for found in classes for each in found[::2]], dtype="S").astype(np.int64)
    ends_s = np.array([each for found in classes for each in found[1::2]], dtype="S").astype(np.float64)
    numbers, first = np.unique(numbers, return_index=True)
    return numbers, ends_s[first]


def _member(number: int) -> str:
    return f"{number:018d}"
