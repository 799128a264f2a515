"""The store: reads job records, and changes them by the scripts."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, cast

import redis.asyncio as aioredis
from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from adlro.errors import AdlroError, AlreadyExists, Conflict, DataLoss, InvalidInput, LimitExceeded, Stale
from adlro.records.attained import AttainedService
from adlro.records.job_requests import JobHold, JobRequest, JobRequestKind
from adlro.records.jobs import Job, JobSpec, NormalizedJob
from adlro.store import scripts
from adlro.store.attempts import ended_arguments
from adlro.store.keys import UNKNOWN_USER
from adlro.store.reads import JobReads, not_found
from adlro.store.records import (
    Created,
    CreatedArray,
    Cursor,
    Move,
    NewArray,
    NewJob,
    SubmitLimits,
    decode_job,
    digest_of,
    outcome_entry,
)
from adlro.v1 import job_pb2, job_service_pb2
from adlro.wire import job_to_proto, request_to_proto

MOVES_AT_ONCE = 500
"""Usual number of moves in a call: Redis serves no other client meanwhile."""

# Put into the index in one step.
_INDEXED_AT_ONCE = 50

# What the script that creates says of a job.
_CREATED, _EXISTING, _TOO_MANY, _TOO_FAST = range(4)
# What the scripts that record requests say of a job.
_NOT_FOUND, _FINAL, _ASKED, _RUNS, _TOO_MANY_REQUESTS = range(5)
_REQUESTS_OPEN = 16
"""The most requests of a job that are not applied."""
_DIGEST_BYTES = 16
_DONE = {JobRequestKind.HOLD: "held", JobRequestKind.RELEASE: "released", JobRequestKind.UPDATE: "updated"}
_NAME_CHARACTERS = 253  # as in job.proto
_ARRAY_MIB = 64  # of all jobs of an array together: Redis records them in one step
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
        self._create_array: AsyncScript = self._redis.register_script(scripts.CREATE_ARRAY)
        self._request: AsyncScript = self._redis.register_script(scripts.REQUEST)
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
            message = job_to_proto(_first_record(new.spec, new.normalized, new.created_unix_s))
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
                out.append(_reused(new.request_id, job_id))
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

    async def create_array(self, new: NewArray) -> CreatedArray:
        """Records the jobs of an array, all or none; the same user and request id give the array of the first call.

        Raises:
            AlreadyExists: the request id belongs to another payload.
            LimitExceeded: its user would have too many jobs, or submits too fast.
            InvalidInput: its jobs together are too large.
        """
        limits, user, count = self._limits, new.spec.user, len(new.indexes)
        common = job_to_proto(_first_record(new.spec, new.normalized, new.created_unix_s))
        digest = digest_of(
            job_service_pb2.SubmitArrayRequest(
                job=common.spec, indexes=new.indexes, max_running_count=new.max_running_count
            )
        )
        request = f"{user} {new.request_id}" if new.request_id else ""
        args: list[bytes | str | int] = [limits.max_jobs, repr(limits.rate_per_s), limits.burst]
        body = common.SerializeToString()
        args += [request, digest, user, body]
        for index in new.indexes:
            task = job_pb2.ArrayTask(index=index, count=count, max_running_count=new.max_running_count)
            own = job_pb2.Job(spec=job_pb2.JobSpec(name=_task_name(new.spec.name, index), array=task))
            args.append(own.SerializeToString())
        size_mib = count * len(body) / 2**20
        if size_mib > _ARRAY_MIB:
            raise InvalidInput(
                f"indexes: {count} jobs of this size take {size_mib:.0f} MiB, of at most {_ARRAY_MIB}; "
                "submit fewer at once, or put what is large (such as the environment) into a file that they read",
                field="indexes",
            )
        status, number, value = cast(tuple[int, int, bytes], await self._create_array(args=args))
        if status >= _TOO_MANY:
            raise _limit_exceeded(user, limits, status, number)
        array_id, _, first_digest = value.decode().partition(" ")
        if status == _EXISTING and first_digest != digest:
            raise _reused(new.request_id, array_id)
        return CreatedArray(array_id, count, status == _EXISTING)

    async def request_cancel(self, job_id: str) -> Job:
        """As `request_cancels`, of one job."""
        return raised((await self.request_cancels([job_id]))[0])

    async def request_cancels(self, job_ids: Sequence[str]) -> list[Job | AdlroError]:
        """Requests the cancellation of jobs by the orchestrator; a repetition changes nothing.

        Returns:
            The job with the request, or why it was refused: NotFound; Conflict: the job is final; DataLoss: its record
            can't be read.
        """
        return await self._ask(self._cancel, job_ids, [], "a pending or running job can be cancelled")

    async def request(
        self, request: JobRequest, job_ids: Sequence[str], request_id: str = ""
    ) -> list[Job | AdlroError]:
        """Requests a change of waiting jobs by the orchestrator.

        Args:
            request: without its number.
            request_id: a job among whose last requests is the same one, with this id, gets no other one; empty: no
                protection against a repeated call.

        Returns:
            The job with the request, or why it was refused: NotFound; Conflict: the job is final, or it runs;
            LimitExceeded: too many of its requests are not applied; DataLoss: its record can't be read.
        """
        body = request_to_proto(request).SerializeToString(deterministic=True)
        what = f"a job that waits can be {_DONE[request.kind]}"
        # The user is in the body: nobody's id is another's.
        once = hashlib.sha256(request_id.encode() + b" " + body).digest()[:_DIGEST_BYTES].hex() if request_id else ""
        return await self._ask(self._request, job_ids, [_REQUESTS_OPEN, body, once], what)

    async def _ask(
        self, script: AsyncScript, job_ids: Sequence[str], first: Sequence[bytes | str | int], only: str
    ) -> list[Job | AdlroError]:
        """Runs a script that records a request of each job."""
        out: dict[str, Job | AdlroError] = {}
        # A request must not be announced with a record that no follower can read.
        for job_id, found in zip(job_ids, await self._many(list(job_ids)), strict=True):
            if not isinstance(found, tuple):
                out[job_id] = not_found(job_id) if found is None else found
        asked = [job_id for job_id in dict.fromkeys(job_ids) if job_id not in out]
        for start in range(0, len(asked), MOVES_AT_ONCE):
            part = asked[start : start + MOVES_AT_ONCE]
            for job_id, (status, revision, body) in zip(part, await script(args=[*first, *part]), strict=True):
                out[job_id] = _after_request(job_id, status, revision, body, only)
        return [out[job_id] for job_id in job_ids]

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
            body = job_to_proto(dataclasses.replace(move.job, revision=0, requests=())).SerializeToString()
            args += [move.job.job_id, move.version, int(move.job.state), body, outcome]
            args += [move.job.spec.user, _attained(move.user_service), *ended_arguments(move.job)]
            args += [move.job.applied_request, "" if (array := move.job.spec.array) is None else array.array_id]
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


def _first_record(spec: JobSpec, normalized: NormalizedJob, created_unix_s: float) -> Job:
    """The record of a new job, without its id."""
    hold = JobHold() if spec.held else None
    return Job(job_id="", spec=spec, normalized=normalized, created_unix_s=created_unix_s, hold=hold)


def raised(result: Job | AdlroError) -> Job:
    """The job of a result; raises its error."""
    if isinstance(result, AdlroError):
        raise result
    return result


def _after_request(job_id: str, status: int, revision: int, body: bytes, only: str) -> Job | AdlroError:
    """What a script that records a request says of a job: its record, or why the request was refused."""
    if status == _NOT_FOUND:
        return not_found(job_id)
    try:
        job = decode_job(job_id, body, revision)
    except DataLoss as error:
        return error
    if status in (_FINAL, _RUNS):
        return Conflict(
            f"{job_id} is {job.state.name} already; only {only}",
            field="job_id",
            reason="JOB_FINAL" if status == _FINAL else "JOB_RUNS",
            metadata={"job_id": job_id, "state": job.state.name},
        )
    if status == _TOO_MANY_REQUESTS:
        return LimitExceeded(
            f"{job_id} has {_REQUESTS_OPEN} requests that the orchestrator has not applied; try again in a moment",
            field="job_id",
            reason="TOO_MANY_REQUESTS",
            metadata={"job_id": job_id},
            retry_after_s=1.0,
        )
    return job


def _reused(request_id: str, first: str) -> AlreadyExists:
    """The error for a request id of another payload; `first`: the id of the job, or the array, of the first call."""
    return AlreadyExists(
        f"request_id: {request_id!r} was used before, for {first} with another payload; "
        "send a new request_id for a new job, or the same payload to repeat the call",
        field="request_id",
        reason="REQUEST_ID_REUSED",
        metadata={"job_id": first},
    )


def _task_name(name: str, index: int) -> str:
    """The name of an array's job."""
    own = f"[{index}]"
    return name[: _NAME_CHARACTERS - len(own)] + own


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


def _attained(had: AttainedService | None) -> str:
    return "" if had is None else f"{had.gpu_s!r} {had.at_s!r}"


def _text(number: float | None) -> str:
    return "" if number is None else repr(number)
