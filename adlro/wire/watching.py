"""Filters of jobs, watch events and outcomes of streams of jobs, and their messages."""

from __future__ import annotations

from google.rpc import code_pb2

from adlro.records.submitting import Rejection, SubmittedJobs
from adlro.records.watching import JobEvent, JobFilter
from adlro.v1 import job_service_pb2
from adlro.wire.fields import Part, Translation
from adlro.wire.jobs import job_from_proto, job_to_proto

_FILTER = Translation(JobFilter, job_service_pb2.JobFilter)
filter_to_proto, filter_from_proto = _FILTER.to_proto, _FILTER.from_proto

_EVENT = Translation(
    JobEvent,
    job_service_pb2.WatchJobsResponse,
    parts={
        "job": Part(
            {"job": lambda job: None if job is None else job_to_proto(job)},
            lambda message: job_from_proto(message.job) if message.HasField("job") else None,
        )
    },
)
job_event_to_proto, job_event_from_proto = _EVENT.to_proto, _EVENT.from_proto

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
