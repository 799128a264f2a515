"""The store: reads job records, and changes them by the scripts."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import redis.asyncio as aioredis
from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from adlro.errors import AlreadyExists, Conflict, DataLoss, LimitExceeded, Stale
from adlro.records.jobs import Job, JobSpec, NormalizedJob
from adlro.store import scripts
from adlro.store.attempts import ended_arguments
from adlro.store.keys import UNKNOWN_USER
from adlro.store.reads import JobReads, not_found
from adlro.store.records import Created, Cursor, Move, NewJob, SubmitLimits, decode_job, digest_of, outcome_entry
from adlro.v1 import job_pb2
from adlro.wire import job_to_proto

MOVES_AT_ONCE = 500
"""Usual number of moves in a call: Redis serves no other client meanwhile."""

# Put into the index in one step.
_INDEXED_AT_ONCE = 50

# What the script that creates says of a job.
_CREATED, _EXISTING, _TOO_MANY, _TOO_FAST = range(4)
# The end of a job is unknown; a client that retries at this interval does no harm.
_TOO_MANY_RETRY_S = 5.0


class JobStore(JobReads):
    """Reads and changes job records.

    Args:
        redis: a client with `decode_responses=False` whose writes are not retried (adlro.kit.redis.connect).
        blocking: a separate client for blocking reads (adlro.kit.redis.connect_blocking); needed only for reads
            with a block time.
        limits: of one user's submissions.

    Raises:
        redis.exceptions.ConnectionError: from every method while Redis does not answer; nothing is retried here.
    """

    def __init__(
        self, redis: aioredis.Redis, blocking: aioredis.Redis | None = None, limits: SubmitLimits | None = None
    ) -> None:
        super().__init__(redis, blocking)
        self._limits = limits or SubmitLimits()
        self._create: AsyncScript = self._redis.register_script(scripts.CREATE)
        self._index: AsyncScript = self._redis.register_script(scripts.INDEX)
        self._cancel: AsyncScript = self._redis.register_script(scripts.CANCEL)
        self._move: AsyncScript = self._redis.register_script(scripts.MOVE)
        self._raise_token: AsyncScript = self._redis.register_script(scripts.RAISE_TOKEN)

    async def create(self, spec: JobSpec, normalized: NormalizedJob, request_id: str, created_unix_s: float) -> Created:
        """Records a job; the same user and request id give the job of the first call.

        Raises:
            AlreadyExists: the request id belongs to another payload.
            LimitExceeded: its user has too many jobs, or submits too fast.
            DataLoss: the record of the first call's job can't be read.
        """
        answer = (await self.create_many([NewJob(spec, normalized, request_id, created_unix_s)]))[0]
        if isinstance(answer, Created):
            return answer
        raise answer

    async def create_many(self, jobs: Sequence[NewJob]) -> list[Created | AlreadyExists | LimitExceeded | DataLoss]:
        """Records jobs in one round trip, each independently; answers in order."""
        limits = self._limits
        args: list[bytes | str | int] = [limits.max_jobs, repr(limits.rate_per_s), limits.burst]
        made: list[tuple[job_pb2.Job, str]] = []
        for new in jobs:
            job = Job(job_id="", spec=new.spec, normalized=new.normalized, created_unix_s=new.created_unix_s)
            message = job_to_proto(job)
            digest = digest_of(message.spec)
            request = f"{new.spec.user} {new.request_id}" if new.request_id else ""
            args += [request, digest, message.SerializeToString(), new.spec.user]
            made.append((message, digest))
        answers = cast(list[Any], await self._create(args=args))
        out: list[Created | AlreadyExists | LimitExceeded | DataLoss] = []
        for new, (message, digest), (status, number, value) in zip(jobs, made, answers, strict=True):
            text = value.decode()
            if status >= _TOO_MANY:
                out.append(_limit_exceeded(new.spec.user, limits, status, number))
                continue
            if status == _CREATED:
                message.job_id = text
                message.revision = number
                out.append(Created(message, existing=False))
                continue
            job_id, _, first_digest = text.partition(" ")
            if first_digest != digest:
                out.append(
                    AlreadyExists(
                        f"request_id: {new.request_id!r} was used before, for {job_id} with another payload; "
                        "send a new request_id for a new job, or the same payload to repeat the call",
                        field="request_id",
                        reason="REQUEST_ID_REUSED",
                        metadata={"job_id": job_id},
                    )
                )
                continue
            try:
                out.append(Created(job_to_proto(await self.get(job_id)), existing=True))
            except DataLoss as error:  # the others are recorded
                out.append(error)
        return out

    async def index_jobs(self) -> int:
        """Adds jobs of older versions to the index of users; returns their number.

        Other processes may do the same concurrently, and record jobs meanwhile.
        """
        count = 0
        done, last = await self._index(args=[0])
        while done < last:
            numbers = range(done + 1, min(done + _INDEXED_AT_ONCE, last) + 1)
            users = [UNKNOWN_USER if job is None else job.spec.user async for _, job in self.each(numbers)]
            await asyncio.sleep(0)
            done, last = await self._index(args=[done, *users])
            count += len(users)
        return count

    async def request_cancel(self, job_id: str) -> Job:
        """Requests a job's cancellation by the orchestrator; a repetition changes nothing.

        Raises:
            NotFound: no such job.
            Conflict: the job is final.
            DataLoss: its record can't be read.
        """
        await self.get(job_id)  # the request must not be announced with a record that no follower can read
        status, revision, body = await self._cancel(args=[job_id])
        if status == 0:
            raise not_found(job_id)
        job = decode_job(job_id, body, revision)
        if status == 1:
            raise Conflict(
                f"{job_id} is {job.state.name} already; only a pending or running job can be cancelled",
                reason="JOB_FINAL",
                metadata={"job_id": job_id, "state": job.state.name},
            )
        return job

    async def move(self, token: int, moves: Sequence[Move], cursor: Cursor | None = None) -> list[int]:
        """Replaces records, announces each change, and notes the cursor: all or nothing. For the acting orchestrator.

        Args:
            token: its fencing token.
            moves: new records in order; several of one job have rising versions.
            cursor: the position in the cluster's events after these moves.

        Returns:
            The revision of each change.

        Raises:
            Stale: another orchestrator has taken over, or a record has changed meanwhile; read all records again.
        """
        args: list[bytes | str | int] = [token, "", 0, 0, 0, "", ""]
        if cursor is not None:
            args[1:4] = [cursor.incarnation, cursor.revision, repr(cursor.time_s)]
            args[4:6] = [repr(cursor.last_event_s), _text(cursor.hold_until_s)]
            if cursor.reserved_job_id:
                args[6] = f"{cursor.revision} {cursor.reserved_since_s!r} {cursor.reserved_job_id}"
        for move in moves:
            outcome = b"" if move.outcome is None else outcome_entry(move.job, move.outcome)
            body = job_to_proto(dataclasses.replace(move.job, revision=0)).SerializeToString()
            args += [move.job.job_id, move.version, int(move.job.state), body, outcome]
            args += [move.job.spec.user, _text(move.user_service_s), *ended_arguments(move.job)]
        try:
            return cast(list[int], await self._move(args=args))
        except ResponseError as error:
            text = str(error)
            if "FENCED" in text or "STALE" in text:
                raise Stale(f"this orchestrator's state is outdated: {text}") from error
            raise

    async def raise_token(self, token: int) -> None:
        """Raises the counter of fencing tokens above a token that a cluster has received; for an orchestrator."""
        await self._raise_token(args=[token])


def _limit_exceeded(user: str, limits: SubmitLimits, status: int, number: int) -> LimitExceeded:
    if status == _TOO_MANY:
        return LimitExceeded(
            f"job.user: {user} has {number} unfinished jobs, of at most {limits.max_jobs} for a user; "
            "wait for the end of one, or cancel one",
            field="job.user",
            reason="TOO_MANY_JOBS",
            metadata={"limit": str(limits.max_jobs)},
            retry_after_s=_TOO_MANY_RETRY_S,
        )
    wait_s = number / 1000
    return LimitExceeded(
        f"job.user: {user} submits more than {limits.rate_per_s:g} jobs a second; try again after {wait_s:g} s",
        field="job.user",
        reason="TOO_FAST",
        metadata={"limit_per_s": f"{limits.rate_per_s:g}"},
        retry_after_s=wait_s,
    )


def _text(number: float | None) -> str:
    return "" if number is None else repr(number)
