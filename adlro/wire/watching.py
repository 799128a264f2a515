"""Filters of jobs, watch events and outcomes of streams of jobs, and their messages."""

from __future__ import annotations

from dataclasses import replace

from google.rpc import code_pb2

from adlro.records.jobs import Job, PendingReason
from adlro.records.submitting import Rejection, RequestResult, SubmittedArray, SubmittedJobs
from adlro.records.watching import JobEvent, JobEventKind, JobFilter, JobPage, JobView
from adlro.v1 import job_pb2, job_service_pb2
from adlro.wire.fields import Part, Translation
from adlro.wire.jobs import basic_job_to_proto, job_from_proto, job_to_proto, request_to_proto

_FILTER = Translation(
    JobFilter,
    job_service_pb2.JobFilter,
    parts={
        # The record's NONE is the contract's number 0, which no filter has.
        "pending_reasons": Part(
            {"pending_reasons": lambda reasons: [int(each) for each in reasons]},
            lambda message: frozenset(map(PendingReason, message.pending_reasons)),
        )
    },
)
filter_to_proto, filter_from_proto = _FILTER.to_proto, _FILTER.from_proto


def job_of_view_to_proto(job: Job, view: JobView) -> job_pb2.Job:
    """The message of a job, with as much of it as the view has."""
    return basic_job_to_proto(job) if view is JobView.BASIC else job_to_proto(job)


def page_to_proto(page: JobPage, view: JobView) -> job_service_pb2.ListJobsResponse:
    """The message of a page."""
    return job_service_pb2.ListJobsResponse(
        jobs=[job_of_view_to_proto(job, view) for job in page.jobs],
        next_page_token=page.next_page_token,
        total_count=page.total_count,
    )


def page_from_proto(message: job_service_pb2.ListJobsResponse) -> JobPage:
    """A page from its message."""
    return JobPage(
        [job_from_proto(each) for each in message.jobs],
        message.next_page_token,
        message.total_count if message.HasField("total_count") else None,
    )


_EVENT = Translation(
    JobEvent,
    job_service_pb2.WatchJobsResponse,
    parts={
        "job": Part(
            {"job": lambda job: None if job is None else job_to_proto(job)},
            lambda message: job_from_proto(message.job) if message.HasField("job") else None,
        )
    },
    left_out=["changes"],
)


def job_events_from_proto(message: job_service_pb2.WatchJobsResponse) -> tuple[JobEvent, ...]:
    """The events of a message: one, or those of all jobs that changed meanwhile."""
    if not message.changes:
        return (_EVENT.from_proto(message),)
    kind = JobEventKind(message.kind)
    return tuple([JobEvent(kind, job_from_proto(each.job), each.revision) for each in message.changes])


def change_to_proto(job: Job, revision: int, view: JobView) -> job_service_pb2.WatchJobsResponse:
    """A part of a message about several changes: such parts one after the other, and `changes_end`, are the message."""
    change = job_service_pb2.WatchJobsResponse.Change(job=job_of_view_to_proto(job, view), revision=revision)
    return job_service_pb2.WatchJobsResponse(changes=[change])


def changes_end(revision: int) -> job_service_pb2.WatchJobsResponse:
    """What stands beside the jobs in a message about several changes: the revision to resume with."""
    return job_service_pb2.WatchJobsResponse(
        kind=job_service_pb2.WatchJobsResponse.KIND_CHANGE,
        revision=revision,
    )


def job_event_to_proto(event: JobEvent, view: JobView = JobView.FULL) -> job_service_pb2.WatchJobsResponse:
    """The message of an event, with as much of its job as the view has."""
    if view is JobView.FULL or event.job is None:
        return _EVENT.to_proto(event)
    return job_service_pb2.WatchJobsResponse(
        kind=int(event.kind),  # type: ignore[arg-type]  # the numbers of JobEventKind
        job=basic_job_to_proto(event.job),
        revision=event.revision,
    )


_CODE_NUMBERS = dict(code_pb2.Code.items())
_CODE_NAMES = {number: name for name, number in _CODE_NUMBERS.items()}
_CODE = Part(
    {"code": lambda name: _CODE_NUMBERS[name] if name in _CODE_NUMBERS else int(name)},
    lambda message: _CODE_NAMES.get(message.code) or str(message.code),
)
"""A status code by gRPC's name; a number if it is none of its codes."""

Translation(Rejection, job_service_pb2.SubmitJobsResponse.Rejected, parts={"code": _CODE})
_SUBMITTED = Translation(
    SubmittedJobs,
    job_service_pb2.SubmitJobsResponse,
    parts={
        "job_ids": Part(
            {"job_ids": list, "accepted_count": lambda job_ids: sum(map(bool, job_ids))},
            lambda message: tuple(message.job_ids),
        )
    },
)
submitted_to_proto, submitted_from_proto = _SUBMITTED.to_proto, _SUBMITTED.from_proto

_ARRAY = Translation(SubmittedArray, job_service_pb2.SubmitArrayResponse)
array_to_proto, array_from_proto = _ARRAY.to_proto, _ARRAY.from_proto
_RESULT = Translation(
    RequestResult,
    job_service_pb2.JobRequestResult,
    parts={
        "code": _CODE,
        "job": Part(
            {"job": lambda job: None if job is None else job_to_proto(job)},
            lambda message: job_from_proto(message.job) if message.HasField("job") else None,
        ),
    },
)
result_from_proto = _RESULT.from_proto


def result_to_proto(result: RequestResult) -> job_service_pb2.JobRequestResult:
    """The message of a result: of its job the view BASIC, and which requests it has: a thousand must fit."""
    message = _RESULT.to_proto(replace(result, job=None))
    if result.job is not None:
        message.job.CopyFrom(basic_job_to_proto(result.job))
        message.job.applied_request = result.job.applied_request
        message.job.requests.extend(request_to_proto(replace(each, update=None)) for each in result.job.requests)
    return message
