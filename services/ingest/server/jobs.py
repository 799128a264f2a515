"""JobService: only translates between messages and plain records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc

from adlro.errors import AdlroError, LimitExceeded
from adlro.kit.identity import current_caller
from adlro.kit.validation import attempt_each
from adlro.records.identity import Identity, Role
from adlro.records.job_requests import JobRequest, JobRequestKind
from adlro.records.jobs import Job
from adlro.records.submitting import SubmittedArray
from adlro.records.watching import JobEvent, JobEventKind, JobOrder, JobView
from adlro.services.ingest.admission import Admission
from adlro.services.ingest.groups import GroupedWrites
from adlro.services.ingest.history import AttemptHistories, AttemptQuery
from adlro.services.ingest.listing import JobList
from adlro.services.ingest.ownership import (
    JobsAsSeen,
    check_changes,
    check_sees,
    check_submits,
    must_ask_first,
    only_visible,
)
from adlro.services.ingest.server.logs import JobLogs
from adlro.services.ingest.server.requests import JobRequests
from adlro.services.ingest.server.streams import SHUTTING_DOWN, until
from adlro.services.ingest.server.submitted import MAX_JOBS, SubmissionAnswers
from adlro.services.ingest.watch import Change, Form, JobWatch
from adlro.store import Created, JobStore, NewJob
from adlro.v1 import job_service_pb2, job_service_pb2_grpc
from adlro.wire import (
    array_to_proto,
    change_to_proto,
    changes_end,
    filter_from_proto,
    history_to_proto,
    identity_to_proto,
    job_event_to_proto,
    job_to_proto,
    page_to_proto,
    spec_from_proto,
    submitted_to_proto,
    update_from_proto,
)

Context = grpc.aio.ServicerContext[Any, Any]


class JobServicer(job_service_pb2_grpc.JobServiceServicer):
    """Serves JobService.

    Args:
        store: job records.
        creates: writes the jobs of streams, several at a time.
        admission: accepts or refuses jobs.
        listing: reads jobs in pages.
        histories: reads what ran when.
        tokens_needed: there is a users' file.
        watch: sends changes; `change_message` makes its messages.
        logs: reads the output of jobs.
    """

    def __init__(
        self,
        store: JobStore,
        creates: GroupedWrites[NewJob, Created],
        admission: Admission,
        listing: JobList,
        watch: JobWatch,
        logs: JobLogs,
        histories: AttemptHistories,
        *,
        tokens_needed: bool,
    ) -> None:
        self._store = store
        self._as_seen = JobsAsSeen(store)
        self._requests = JobRequests(store, self._as_seen)
        self._creates = creates
        self._admission = admission
        self._listing = listing
        self._watch = watch
        self._logs = logs
        self._histories = histories
        self._tokens_needed = tokens_needed
        self._draining = asyncio.Event()

    def end_streams(self) -> None:
        """Ends open and later streams: SubmitJobs after its received jobs are recorded, ReadJobLogs at once."""
        self._draining.set()

    async def SubmitJob(
        self, request: job_service_pb2.SubmitJobRequest, context: Context
    ) -> job_service_pb2.SubmitJobResponse:
        """Accepts a job."""
        spec = spec_from_proto(request.job)
        check_submits(spec)
        new = await self._admission.admit(spec, request.request_id)
        # Not with `creates`: alone, a task to gather others costs more than the round trip.
        created = await self._store.create(new.spec, new.normalized, new.request_id, new.created_unix_s)
        message = job_to_proto(await self._as_seen.one(created.job)) if created.existing else created.message
        return job_service_pb2.SubmitJobResponse(job=message, existing=created.existing)

    async def SubmitJobs(
        self,
        request_iterator: AsyncIterator[job_service_pb2.SubmitJobsRequest],
        context: Context,
    ) -> job_service_pb2.SubmitJobsResponse:
        """Accepts a stream of jobs, each independently."""
        jobs = SubmissionAnswers()
        failure: AdlroError | None = None
        async with aclosing(until(self._draining, attempt_each(request_iterator))) as requests:
            try:
                async for _, request, broken_rule in requests:
                    if len(jobs) == MAX_JOBS:
                        failure = _STREAM_TOO_LONG
                        break
                    result: asyncio.Future[Created] | AdlroError
                    try:
                        if request is None:
                            raise broken_rule or AssertionError("attempt_each gives a message or an error")
                        spec = spec_from_proto(request.job)
                        check_submits(spec)
                        result = self._creates.add(await self._admission.admit(spec, request.request_id))
                    except AdlroError as error:
                        result = error
                    await jobs.add(result, request.ByteSize() if request is not None else 0)
            except LimitExceeded as error:  # of the stream itself
                failure = error
        await jobs.decided()
        if self._draining.is_set():
            failure = SHUTTING_DOWN
        if failure is not None:
            raise _after_jobs(failure, jobs)
        return submitted_to_proto(jobs.submitted)

    async def SubmitArray(
        self, request: job_service_pb2.SubmitArrayRequest, context: Context
    ) -> job_service_pb2.SubmitArrayResponse:
        """Accepts the jobs of an array, all or none."""
        spec = spec_from_proto(request.job)
        check_submits(spec)
        new = await self._admission.admit_array(
            spec, tuple(request.indexes), request.max_running_count, request.request_id
        )
        created = await self._store.create_array(new)
        return array_to_proto(
            SubmittedArray(created.array_id, created.first_job_id, created.count, existing=created.existing)
        )

    async def GetJob(self, request: job_service_pb2.GetJobRequest, context: Context) -> job_service_pb2.GetJobResponse:
        """One job."""
        job = await self._store.get(request.job_id)
        check_sees(job)
        return job_service_pb2.GetJobResponse(job=job_to_proto(await self._as_seen.one(job)))

    async def ListJobs(
        self, request: job_service_pb2.ListJobsRequest, context: Context
    ) -> job_service_pb2.ListJobsResponse:
        """Jobs in an order, a page at a time."""
        job_filter = only_visible(filter_from_proto(request.filter))
        order, view = JobOrder(request.order_by or JobOrder.SUBMITTED), JobView(request.view or JobView.FULL)
        page = await self._listing.page(job_filter, request.page_size, request.page_token, order, view)
        return page_to_proto(replace(page, jobs=await self._as_seen.all(page.jobs)), view)

    async def CancelJob(
        self, request: job_service_pb2.CancelJobRequest, context: Context
    ) -> job_service_pb2.CancelJobResponse:
        """Requests a job's cancellation."""
        if must_ask_first():
            check_changes(await self._store.get(request.job_id))
        cancelled = await self._store.request_cancel(request.job_id)
        return job_service_pb2.CancelJobResponse(job=job_to_proto(await self._as_seen.one(cancelled)))

    async def CancelJobs(
        self, request: job_service_pb2.CancelJobsRequest, context: Context
    ) -> job_service_pb2.CancelJobsResponse:
        """Requests the cancellation of several jobs."""
        return job_service_pb2.CancelJobsResponse(results=await self._requests.cancel(request.job_ids))

    async def HoldJobs(
        self, request: job_service_pb2.HoldJobsRequest, context: Context
    ) -> job_service_pb2.HoldJobsResponse:
        """Requests that waiting jobs start only after their release."""
        asked = JobRequest(JobRequestKind.HOLD)
        return job_service_pb2.HoldJobsResponse(
            results=await self._requests.ask(asked, request.job_ids, request.request_id)
        )

    async def ReleaseJobs(
        self, request: job_service_pb2.ReleaseJobsRequest, context: Context
    ) -> job_service_pb2.ReleaseJobsResponse:
        """Requests the release of held jobs."""
        asked = JobRequest(JobRequestKind.RELEASE)
        return job_service_pb2.ReleaseJobsResponse(
            results=await self._requests.ask(asked, request.job_ids, request.request_id)
        )

    async def UpdateJobs(
        self, request: job_service_pb2.UpdateJobsRequest, context: Context
    ) -> job_service_pb2.UpdateJobsResponse:
        """Requests a change of waiting jobs."""
        asked = JobRequest(JobRequestKind.UPDATE, update_from_proto(request.update))
        return job_service_pb2.UpdateJobsResponse(
            results=await self._requests.ask(asked, request.job_ids, request.request_id)
        )

    # Typed wider than the generated base class: the kit lets a stream yield serialised messages.
    async def WatchJobs(  # type: ignore[override]
        self, request: job_service_pb2.WatchJobsRequest, context: Context
    ) -> AsyncIterator[job_service_pb2.WatchJobsResponse | bytes]:
        """The jobs in their present state, then every change in order."""
        job_filter = only_visible(filter_from_proto(request.filter))
        view, interval_s = JobView(request.view or JobView.FULL), request.min_interval_s
        seen: dict[str, int] = {}
        if request.HasField("after_revision"):
            revision = request.after_revision
        else:
            revision, jobs = await self._watch.snapshot(job_filter, seen)
            async for job in jobs:
                seen_job = await self._as_seen.one(job)
                yield job_event_to_proto(JobEvent(JobEventKind.SNAPSHOT, seen_job, job.revision), view)
            yield job_event_to_proto(JobEvent(JobEventKind.SNAPSHOT_END, None, revision))
        if interval_s:
            async for batch in self._watch.batches(revision, job_filter, interval_s, seen):
                parts = [await self._told(change, Form(view, together=True)) for change in batch.changes]
                # Messages one after the other are one message, with all of their fields.
                yield b"".join((*parts, changes_end(batch.revision).SerializeToString()))
            return
        async for change in self._watch.changes(revision, job_filter, seen):
            yield await self._told(change, Form(view))

    async def _told(self, change: Change, form: Form) -> bytes:
        """The message of a change, as its watcher may see it."""
        seen_job = await self._as_seen.one(change.job)
        if seen_job is change.job:
            return self._watch.message_of(change, form)  # made once for all watchers
        return change_message(change.revision, seen_job, form)

    # Typed wider, as WatchJobs.
    def ReadJobLogs(  # type: ignore[override]
        self, request: job_service_pb2.ReadJobLogsRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """The output of a job's program."""
        return self._logs.read(request, self._draining)

    async def QueryAttempts(
        self, request: job_service_pb2.QueryAttemptsRequest, context: Context
    ) -> job_service_pb2.QueryAttemptsResponse:
        """What ran where in a range of cluster time."""
        query = AttemptQuery(
            request.from_s,
            request.to_s if request.HasField("to_s") else None,
            tuple(request.gpu_ids),
            request.max_bars,
            request.cluster,
            request.bucket_count,
        )
        return history_to_proto(await self._histories.query(query))

    async def WhoAmI(self, request: job_service_pb2.WhoAmIRequest, context: Context) -> job_service_pb2.WhoAmIResponse:
        """Who calls, and with which roles."""
        caller = current_caller()
        user, roles = ("", frozenset(Role)) if caller is None else (caller.user, caller.roles)
        ordered = tuple(role for role in Role if role in roles)
        return identity_to_proto(Identity(user, ordered, self._tokens_needed))


_STREAM_TOO_LONG = LimitExceeded(
    f"a stream may have {MAX_JOBS:,} jobs; send the others in another stream",
    reason="STREAM_TOO_LONG",
    metadata={"limit": str(MAX_JOBS)},
)


def _after_jobs(error: AdlroError, jobs: SubmissionAnswers) -> AdlroError:
    """The error, with the number of recorded jobs before it, and the place to resume at."""
    accepted = jobs.accepted_count
    return type(error)(
        f"{error.message}; of the {len(jobs)} received jobs {accepted} are recorded and the others refused: "
        "repeat the stream with the same request ids to get the result of each",
        reason=error.reason,
        metadata={**error.metadata, "index": str(len(jobs)), "accepted_count": str(accepted)},
        retry_after_s=error.retry_after_s,
    )


def change_message(revision: int, job: Job, form: Form) -> bytes:
    """The message of a change, or the part that it has in a message about several."""
    if form.together:
        return change_to_proto(job, revision, form.view).SerializeToString()
    return job_event_to_proto(JobEvent(JobEventKind.CHANGE, job, revision), form.view).SerializeToString()
