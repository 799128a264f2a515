"""The store's arguments and results, and their encoding: plain dataclasses, and the bytes in Redis."""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError, Message

from adlro.errors import DataLoss
from adlro.records.attained import AttainedService
from adlro.records.jobs import Job, JobSpec, JobType, NormalizedJob
from adlro.records.outcomes import NeighbourTime, StoppedRun
from adlro.store.keys import job_key
from adlro.v1 import job_pb2, stream_pb2
from adlro.wire import (
    FORMAT,
    check_format,
    job_from_proto,
    neighbour_time_to_proto,
    placement_to_proto,
    spec_to_proto,
    stopped_run_to_proto,
)


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to record; `request_id` empty: no protection against a repeated call."""

    spec: JobSpec
    normalized: NormalizedJob
    request_id: str
    created_unix_s: float


@dataclass(frozen=True, slots=True)
class NewArray:
    """An array to record.

    Attributes:
        spec: what its jobs have in common.
        indexes: in rising order.
        max_running_count: the most of them that may run at once; 0: any number.
        request_id: empty: no protection against a repeated call.
    """

    spec: JobSpec
    normalized: NormalizedJob
    indexes: Sequence[int]
    max_running_count: int
    request_id: str
    created_unix_s: float


@dataclass(frozen=True, slots=True)
class CreatedArray:
    """The result of `create_array`: the number of its first job, which the others follow.

    Attributes:
        existing: its request id was known.
    """

    array_id: str
    count: int
    existing: bool

    @property
    def first_job_id(self) -> str:
        """The id of the job with the first index."""
        return f"job-{sequence_of(self.array_id)}"


@dataclass(frozen=True, slots=True)
class JobEnd:
    """Whether what another job waits for has ended, and how.

    Attributes:
        count: jobs: 1, or those of an array.
        ended_count: of these, final.
        failed_count: of these, not SUCCEEDED.
    """

    count: int
    ended_count: int
    failed_count: int


@dataclass(frozen=True, slots=True)
class Created:
    """The result of `create`: the job as a message, and whether its request id was known."""

    message: job_pb2.Job
    existing: bool

    @property
    def job(self) -> Job:
        """The job as a plain record."""
        return job_from_proto(self.message)


@dataclass(frozen=True, slots=True)
class SubmitLimits:
    """Limits of one user's submissions; 0: no limit of that kind.

    Attributes:
        max_jobs: unfinished jobs.
        rate_per_s: jobs a second, in the long run.
        burst: jobs at once, after a pause; at least 1 if the rate is limited.
    """

    max_jobs: int = 0
    rate_per_s: float = 0.0
    burst: int = 1


class JobChange(enum.IntEnum):
    """The kinds of changes of a job; numbers as in stream.proto (and in the scripts)."""

    SUBMITTED = 1
    CANCEL_REQUESTED = 2
    MOVED = 3
    REQUESTED = 4


@dataclass(frozen=True, slots=True)
class JobStreamEntry:
    """One change of a job."""

    revision: int
    change: JobChange
    job: Job


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job that ended by itself.

    Attributes:
        runtime_s: of its last attempt.
        cluster: its cluster, empty: the default one.
        spread: its GPUs were on more nodes than could hold them in the empty cluster.
        stopped_runs: its earlier attempts that were stopped and went on, in order.
        neighbours: of its last attempt; the rest of runtime_s it was alone.
    """

    runtime_s: float
    succeeded: bool
    cluster: str = ""
    spread: bool = False
    stopped_runs: tuple[StoppedRun, ...] = ()
    neighbours: tuple[NeighbourTime, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """The orchestrator's next record of a job; `version` is the one it replaces.

    `user_service`: if an attempt ends with it, the GPU time of all ended attempts of the job's user.
    """

    job: Job
    version: int
    outcome: Outcome | None = None
    user_service: AttainedService | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position in the applied cluster events, and the state at that point.

    Attributes:
        last_event_s: when a job last joined the queue or ended, or a GPU last changed.
        hold_until_s: end of the policy's hold, unless an event ends it earlier; None: no hold.
        reserved_job_id, reserved_since_s: the job that GPUs are kept free for, and since when; empty: none.
    """

    incarnation: str
    revision: int
    time_s: float
    last_event_s: float = 0.0
    hold_until_s: float | None = None
    reserved_job_id: str = ""
    reserved_since_s: float = 0.0


def sequence_of(job_id: str) -> int:
    """The number in a job id: jobs are ordered by it."""
    return int(job_id.rpartition("-")[2])


def digest_of(message: Message) -> str:
    """A digest that distinguishes two payloads with one request id."""
    return hashlib.sha256(message.SerializeToString(deterministic=True)).hexdigest()[:32]


def outcome_entry(job: Job, outcome: Outcome) -> bytes:
    """An OutcomeStreamEntry; what the job ran is learned from by its application alone."""
    return stream_pb2.OutcomeStreamEntry(
        job_id=job.job_id,
        spec=spec_to_proto(replace(job.spec, payload=None)),
        gpu_id=job.gpu_id,
        gpu_model=job.gpu_model,
        runtime_s=outcome.runtime_s,
        end_s=job.end_s or 0.0,
        succeeded=outcome.succeeded,
        cluster=outcome.cluster,
        spread=outcome.spread,
        format=FORMAT,
        placement=placement_to_proto(job.placement),
        stopped_runs=map(stopped_run_to_proto, outcome.stopped_runs),
        neighbours=map(neighbour_time_to_proto, outcome.neighbours),
    ).SerializeToString()


# How a serialised JobStreamEntry with change = MOVED begins.
MOVED_PREFIX = b"\x08\x03"


def decode_event(revision: int, body: bytes) -> JobStreamEntry:
    """The change in a JobStreamEntry, at its revision.

    Raises:
        DataLoss: it can't be decoded, or has impossible values.
    """
    try:
        entry = stream_pb2.JobStreamEntry.FromString(body)
        check_format(entry.job)
        entry.job.revision = revision
        event = JobStreamEntry(revision, JobChange(entry.change), job_from_proto(entry.job))
        problem = _contradiction(event.job)
    except _UNREADABLE as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise DataLoss(f"the change with revision {revision} can't be read ({problem})", reason="REVISION_UNREADABLE")
    return event


def decode_job(job_id: str, body: bytes, revision: bytes | int | None) -> Job:
    """A job from its record, which is stored without the revision.

    Raises:
        DataLoss: it can't be decoded, or has impossible values.
    """
    try:
        message = job_pb2.Job.FromString(body)
        check_format(message)
        message.revision = whole_number(job_id, revision)
        job = job_from_proto(message)
    except _UNREADABLE as error:
        raise unreadable(job_id, f"{type(error).__name__}: {error}") from error
    problem = f"it is the record of {job.job_id!r}" if job.job_id != job_id else _contradiction(job)
    if problem:
        raise unreadable(job_id, problem)
    return job


def whole_number(job_id: str, text: bytes | int | None) -> int:
    """A number that stands beside a record.

    Raises:
        DataLoss: it is none.
    """
    try:
        return int(text)  # type: ignore[arg-type]  # None: TypeError
    except (ValueError, TypeError) as error:
        raise unreadable(job_id, f"{text!r} is no version or revision") from error


def unreadable(job_id: str, why: str) -> DataLoss:
    """The error for an unreadable record."""
    return DataLoss(
        f"job_id: the record of {job_id} in Redis can't be read ({why}), so no service acts on it; restore "
        f"{job_key(job_id)} from a backup, or submit the job again",
        field="job_id",
        reason="JOB_RECORD_UNREADABLE",
        metadata={"job_id": job_id},
    )


# What bytes that nobody wrote as a record may raise while they are read.
_UNREADABLE = (DecodeError, ValueError, TypeError, OverflowError)


def _contradiction(job: Job) -> str:
    """The reason why a job is impossible; empty for a possible one. Readers of records rely on this check."""
    spec = job.spec
    for each in (job.submit_s, job.start_s, job.end_s, spec.begin_time_s, spec.priority):
        if each is not None and not math.isfinite(each):
            return "one of its times, or its priority, is not a number"
    runtime = spec.expected_runtime
    if runtime is not None and not 0.0 < runtime.runtime_s < math.inf:
        return f"its expected runtime is {runtime.runtime_s}"
    if min(spec.cpu_cores, spec.memory_mib, spec.gpu_memory_mib, spec.gpu_count, spec.max_node_count) < 0:
        return "it requests a negative amount"
    stops = spec.preemptible
    if stops is not None and not all(
        0.0 <= each < math.inf for each in (stops.restart_s, stops.lost_s, stops.grace_s or 0.0)
    ):
        return "a stop of it costs a negative time, or one without end"
    if not 0.0 <= job.remaining_ratio <= 1.0:
        return f"{job.remaining_ratio} of its work is left"
    if spec.job_type is JobType.UNSPECIFIED and spec.payload is None:
        return "it has neither a job type nor a payload"
    return ""
