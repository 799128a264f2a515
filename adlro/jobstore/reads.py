"""Reading job records, and following their changes. Changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import redis.asyncio as aioredis

from adlro.errors import NotFound, OutOfRange
from adlro.jobs import Job
from adlro.jobstore.keys import ACTIVE, ATTAINED, CURSOR, EVENTS, JOB, REVISION, SEQUENCE
from adlro.jobstore.records import MOVED_PREFIX, Cursor, JobEvent, decode_event, decode_job, sequence_of


class JobReads:
    """The part of `JobStore` that reads.

    Args:
        redis: a client with `decode_responses=False` whose writes are not retried (adlro.kit.redis.connect).
        blocking: a client of its own for blocking reads (adlro.kit.redis.connect_blocking); needed only for reads
            with a block time.

    Raises:
        redis.exceptions.ConnectionError: from every method while Redis does not answer; nothing is retried here.
    """

    def __init__(self, redis: aioredis.Redis, blocking: aioredis.Redis | None = None) -> None:
        # redis-py's stubs mix sync and async results; Any keeps the awaits readable.
        self._redis: Any = redis
        self._blocking: Any = blocking

    async def cursor(self) -> Cursor | None:
        """How far the cluster's events have been applied; None before the first."""
        found = await self._redis.hmget(CURSOR, "incarnation", "revision", "time_s", "last_event_s", "hold_until_s")
        if found[0] is None:
            return None
        incarnation, revision, time_s, last_event_s, hold_until_s = found
        return Cursor(
            incarnation.decode(),
            int(revision),
            float(time_s),
            float(last_event_s or time_s),
            float(hold_until_s) if hold_until_s else None,
        )

    async def attained_s(self) -> dict[str, float]:
        """By user, the GPU seconds of all ended attempts; users without any are not in it."""
        return {user.decode(): float(had_s) for user, had_s in (await self._redis.hgetall(ATTAINED)).items()}

    async def get(self, job_id: str) -> Job:
        """One job.

        Raises:
            NotFound: no such job.
        """
        body, revision = await self._redis.hmget(JOB + job_id, "m", "rev")
        if body is None:
            raise not_found(job_id)
        return decode_job(body, revision)

    async def get_many(self, job_ids: Iterable[str]) -> list[Job | None]:
        """Jobs in the order asked for, None where there is none, in one round trip."""
        pipeline = self._redis.pipeline(transaction=False)
        ids = list(job_ids)
        for job_id in ids:
            pipeline.hmget(JOB + job_id, "m", "rev")
        return [decode_job(body, rev) if body is not None else None for body, rev in await pipeline.execute()]

    async def active(self) -> list[tuple[int, Job]]:
        """All jobs that are not final, with the orchestrator's version of each, in order of submission."""
        ids = [f"job-{n}" for n in await self.active_sequences()]
        out: list[tuple[int, Job]] = []
        for start in range(0, len(ids), 1000):
            pipeline = self._redis.pipeline(transaction=False)
            for job_id in ids[start : start + 1000]:
                pipeline.hmget(JOB + job_id, "m", "rev", "version")
            for body, revision, version in await pipeline.execute():
                if body is not None:
                    out.append((int(version), decode_job(body, revision)))
        return out

    async def active_sequences(self) -> list[int]:
        """The numbers of all jobs that are not final, rising."""
        return sorted(sequence_of(member.decode()) for member in await self._redis.smembers(ACTIVE))

    async def list_page(self, after_sequence: int, limit: int) -> list[tuple[int, Job]]:
        """Up to `limit` jobs submitted after job number `after_sequence`, in order, with their numbers."""
        last = await self.last_sequence()
        numbers = range(after_sequence + 1, min(last, after_sequence + limit) + 1)
        jobs = await self.get_many(f"job-{n}" for n in numbers) if numbers else []
        return [(n, job) for n, job in zip(numbers, jobs, strict=True) if job is not None]

    async def last_sequence(self) -> int:
        """The number of the newest job; 0 before the first."""
        return int(await self._redis.get(SEQUENCE) or 0)

    async def revision(self) -> int:
        """The newest revision; 0 before the first change."""
        return int(await self._redis.get(REVISION) or 0)

    async def oldest_revision(self) -> int:
        """The oldest change that is still kept; the newest plus one where none is."""
        entries = await self._redis.xrange(EVENTS, count=1)
        return _revision_of(entries[0][0]) if entries else await self.revision() + 1

    async def snapshot(self) -> tuple[int, AsyncIterator[Job]]:
        """A revision and all jobs, each at that revision or later.

        Follow with the changes after the revision, leaving out those that are not newer than the job seen here.
        """
        revision = await self.revision()
        last = await self.last_sequence()

        async def jobs() -> AsyncIterator[Job]:
            for start in range(1, last + 1, 500):
                for job in await self.get_many(f"job-{n}" for n in range(start, min(start + 500, last + 1))):
                    if job is not None:
                        yield job

        return revision, jobs()

    async def read_events(
        self, after_revision: int, *, block_ms: int | None = None, count: int = 1000
    ) -> list[JobEvent]:
        """Changes after a revision, in order, without a gap; empty when there are none (within `block_ms`).

        Raises:
            OutOfRange: the next change is no longer kept: read the jobs anew.
        """
        entries = await self._read(after_revision, block_ms, count)
        return [decode_event(revision, body) for revision, body in entries]

    async def read_requests(
        self, after_revision: int, *, block_ms: int | None = None, count: int = 1000
    ) -> tuple[int, list[JobEvent]]:
        """As `read_events`, but only what ingest wrote (submissions, cancel requests); also the revision to go on from.

        Raises:
            OutOfRange: the next change is no longer kept: read the jobs anew.
        """
        entries = await self._read(after_revision, block_ms, count)
        last = entries[-1][0] if entries else after_revision
        return last, [decode_event(rev, body) for rev, body in entries if not body.startswith(MOVED_PREFIX)]

    async def _read(self, after_revision: int, block_ms: int | None, count: int) -> list[tuple[int, bytes]]:
        client = self._redis if block_ms is None else self._blocking
        answer = await client.xread({EVENTS: f"{after_revision}-0"}, count=count, block=block_ms)
        if not answer:
            return []
        pairs = answer[EVENTS.encode()][0] if isinstance(answer, dict) else answer[0][1]  # RESP3 or RESP2
        entries = [(_revision_of(entry_id), fields[b"m"]) for entry_id, fields in pairs]
        for expected, (revision, _) in enumerate(entries, start=after_revision + 1):
            if revision != expected:
                raise OutOfRange(
                    f"the changes after revision {after_revision} are no longer kept (the next one is {revision}); "
                    "take a new snapshot",
                    reason="REVISION_COMPACTED",
                    metadata={"oldest_revision": str(revision)},
                )
        return entries


def _revision_of(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def not_found(job_id: str) -> NotFound:
    """What to tell where there is no such job."""
    return NotFound(
        f"job_id: there is no job {job_id!r}; `adlro queue --all` or ListJobs shows those there are",
        field="job_id",
        reason="JOB_NOT_FOUND",
        metadata={"job_id": job_id},
    )
