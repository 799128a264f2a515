"""What the store takes and gives, and how it is written: plain dataclasses, and the bytes that Redis holds."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

from adlro.jobs import Job, JobSpec, NormalizedJob
from adlro.v1 import job_pb2, stream_pb2
from adlro.wire import job_from_proto, spec_to_proto


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be recorded; `request_id` empty: no protection against a repeated call."""

    spec: JobSpec
    normalized: NormalizedJob
    request_id: str
    created_unix_s: float


@dataclass(frozen=True, slots=True)
class Created:
    """What `create` answers: the job, as it goes over the wire, and whether its request id was known."""

    message: job_pb2.Job
    existing: bool

    @property
    def job(self) -> Job:
        """The job as a plain record."""
        return job_from_proto(self.message)


@dataclass(frozen=True, slots=True)
class SubmitLimits:
    """What one user may submit; 0: no limit of that kind.

    Attributes:
        max_jobs: that have not ended.
        rate_per_s: jobs a second, in the long run.
        burst: jobs at once, while he has been quiet; at least 1 where the rate is limited.
    """

    max_jobs: int = 0
    rate_per_s: float = 0.0
    burst: int = 1


class JobChange(enum.IntEnum):
    """Who changed a job, and how; numbers as in stream.proto (and in the scripts above)."""

    SUBMITTED = 1
    CANCEL_REQUESTED = 2
    MOVED = 3


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One change of a job."""

    revision: int
    change: JobChange
    job: Job


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is learned from a job that ended by itself; `cluster` is where, empty the default one."""

    runtime_s: float
    succeeded: bool
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """The orchestrator's next record of a job; `version` is the one it replaces.

    `attained_s`: where an attempt ends with this, what the job's user has had of GPU time, in all his ended attempts.
    """

    job: Job
    version: int
    outcome: Outcome | None = None
    attained_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the cluster's events have been applied, and how things stood then.

    Attributes:
        last_event_s: when a job last joined the queue or ended, or a GPU last changed.
        hold_until_s: until then the policy is not asked, unless something happens; None: it holds nothing.
    """

    incarnation: str
    revision: int
    time_s: float
    last_event_s: float = 0.0
    hold_until_s: float | None = None


def sequence_of(job_id: str) -> int:
    """The number in a job id: jobs are ordered by it."""
    return int(job_id.rpartition("-")[2])


def digest_of(message: job_pb2.JobSpec) -> str:
    """Tells two payloads under one request id apart."""
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()[:32]


def outcome_entry(job: Job, outcome: Outcome) -> bytes:
    """An OutcomeStreamEntry."""
    return stream_pb2.OutcomeStreamEntry(
        job_id=job.job_id,
        spec=spec_to_proto(job.spec),
        gpu_id=job.gpu_id,
        gpu_model=job.gpu_model,
        runtime_s=outcome.runtime_s,
        end_s=job.end_s or 0.0,
        succeeded=outcome.succeeded,
        cluster=outcome.cluster,
    ).SerializeToString()


# How a serialised JobStreamEntry with change = MOVED begins.
MOVED_PREFIX = b"\x08\x03"


def decode_event(revision: int, body: bytes) -> JobEvent:
    """What a JobStreamEntry tells, at its revision."""
    entry = stream_pb2.JobStreamEntry.FromString(body)
    entry.job.revision = revision
    return JobEvent(revision, JobChange(entry.change), job_from_proto(entry.job))


def decode_job(body: bytes, revision: bytes | int) -> Job:
    """A job from its record, which is kept without the revision."""
    message = job_pb2.Job.FromString(body)
    message.revision = int(revision)
    return job_from_proto(message)
