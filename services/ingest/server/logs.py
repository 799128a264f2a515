"""The output of jobs: checks who may see it, and passes the cluster's messages on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from adlro.errors import AdlroError, Conflict, NotFound, OutOfRange, PermissionDenied, Unauthenticated, Unavailable
from adlro.errors import Unsupported as NotOffered
from adlro.kit.channel import open_channel
from adlro.kit.credentials import Credentials
from adlro.kit.status import from_rpc_error
from adlro.records.jobs import Job, JobAttempt
from adlro.records.watching import JobFilter
from adlro.services.ingest.ownership import check_sees
from adlro.services.ingest.server.streams import SHUTTING_DOWN, until
from adlro.services.ingest.watch import JobWatch
from adlro.store import JobStore
from adlro.v1 import cluster_service_pb2, job_service_pb2

_READ_LOGS = "/adlro.v1.ClusterService/ReadLogs"


class JobLogs:
    """Reads the output of jobs from the cluster.

    Args:
        address: of the cluster's service; empty: there is none.
        credentials: of the calls.
        store: job records.
        watch: reports the changes of jobs that have not started.
    """

    def __init__(self, address: str, credentials: Credentials, store: JobStore, watch: JobWatch) -> None:
        self._store = store
        self._watch = watch
        self._channel = open_channel(address, credentials) if address else None
        # Its answers stay bytes: the fields of ReadLogsResponse and ReadJobLogsResponse are the same.
        self._read_logs = (
            None
            if self._channel is None
            else self._channel.unary_stream(
                _READ_LOGS,
                request_serializer=cluster_service_pb2.ReadLogsRequest.SerializeToString,
                response_deserializer=bytes,
            )
        )

    async def close(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            await self._channel.close(None)

    async def read(self, request: job_service_pb2.ReadJobLogsRequest, draining: asyncio.Event) -> AsyncIterator[bytes]:
        """The messages of ReadJobLogs, serialised.

        Args:
            request: of the caller.
            draining: ends the stream.

        Raises:
            NotFound: no such job for this caller, no such attempt, or its output is deleted.
            Conflict: the job has not started, or its cluster stores no output.
            Unavailable: the cluster does not answer, or the service ends.
        """
        job = await self._store.get(request.job_id)
        check_sees(job)
        if self._read_logs is None:
            raise Conflict("this suite has no cluster with output", reason="NO_LOGS")
        attempt = attempt_to_read(job, request.attempt)
        if attempt is None and request.follow:
            attempt = await self._started(job, request.attempt, draining)
        if attempt is None:
            why = job.message or job.pending_reason.name.lower().replace("_", " ")
            raise Conflict(
                f"{job.job_id} has no output yet, it has not started: {why}; follow it to wait for its start",
                reason="NOT_STARTED",
                metadata={"job_id": job.job_id, "pending_reason": job.pending_reason.name},
            )
        of_cluster = cluster_service_pb2.ReadLogsRequest(
            job_id=job.job_id,
            attempt=attempt.attempt,
            stream=request.stream,
            offset=request.offset if request.HasField("offset") else None,
            tail_bytes=request.tail_bytes,
            follow=request.follow,
            rank=request.rank,
        )
        call = self._read_logs(of_cluster)
        try:
            async with aclosing(until(draining, aiter(call))) as messages:
                async for message in messages:
                    yield message
        except grpc.aio.AioRpcError as error:
            raise _told(from_rpc_error(error)) from error
        finally:
            call.cancel()
        if draining.is_set():
            raise SHUTTING_DOWN

    async def _started(self, job: Job, attempt: int, draining: asyncio.Event) -> JobAttempt:
        """Waits until a job's attempt has started.

        Raises:
            Conflict: the job ended before.
            Unavailable: the service ends.
        """
        only = JobFilter(job_ids=(job.job_id,))
        while not draining.is_set():
            seen: dict[str, int] = {}
            try:
                revision, jobs = await self._watch.snapshot(only, seen)
                async for now in jobs:
                    if (found := attempt_to_read(now, attempt)) is not None:
                        return found
                async with aclosing(self._watch.changes(revision, only, seen)) as changes:
                    async for change in changes:
                        if (found := attempt_to_read(change.job, attempt)) is not None:
                            return found
            except OutOfRange:  # more changes of other jobs went by than are stored
                continue
        raise SHUTTING_DOWN


def attempt_to_read(job: Job, number: int) -> JobAttempt | None:
    """The attempt of a job whose output is asked for; None: it has not started yet.

    Args:
        job: the job.
        number: of the attempt; 0: the newest one that has started.

    Raises:
        NotFound: the job has no such attempt.
        Conflict: the attempt, or the whole job, ended before it started.
    """
    if number > job.attempt_count:
        raise NotFound(
            f"attempt: {job.job_id} has {job.attempt_count} attempts so far, no attempt {number}",
            field="attempt",
            reason="NO_SUCH_ATTEMPT",
        )
    asked = job.attempts[number - 1 : number] if number else job.attempts
    for attempt in reversed(asked):
        if attempt.start_s is not None:
            return attempt
    ended = bool(number) and asked[0].end_s is not None
    if job.state.final or ended:
        what = f"attempt {number} of {job.job_id}" if number else job.job_id
        why = asked[-1].outcome if asked and asked[-1].outcome else job.message
        raise Conflict(
            f"{what} has no output, it ended before it started: {why}",
            reason="NEVER_STARTED",
            metadata={"job_id": job.job_id},
        )
    return None


def _told(error: AdlroError) -> AdlroError:
    """The error of the cluster as the caller's."""
    match error:
        case NotOffered():
            return Conflict(f"there is no output: {error.message}", reason="NO_LOGS")
        case Unavailable():
            return Unavailable(
                f"the cluster does not answer: {error.message}", reason="CLUSTER_UNAVAILABLE", retry_after_s=1.0
            )
        case Unauthenticated() | PermissionDenied():
            return Unavailable(
                f"the cluster refuses this ingest: {error.message}; give both ADLRO_SERVICE_TOKEN_FILE and the same "
                "users' file",
                reason="CLUSTER_REFUSES",
                retry_after_s=1.0,
            )
    return error
