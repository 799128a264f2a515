"""The attempts of a job as history needs them: read from the bytes of its record, without the rest of it. No Redis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from adlro.placement import GpuShare
from adlro.records.history import AttemptOutcome
from adlro.records.jobs import Job, JobAttempt, JobType
from adlro.store.keys import LONGEST_RAN
from adlro.store.records import unreadable
from adlro.v1 import job_pb2
from adlro.wire import check_format, placement_from_proto


@dataclass(frozen=True, slots=True)
class RanAttempt:
    """An attempt that began to run; `end_s` inf: it runs."""

    attempt: int
    gpus: tuple[GpuShare, ...]
    start_s: float
    end_s: float
    outcome: AttemptOutcome


@dataclass(frozen=True, slots=True)
class RanJob:
    """A job and its attempts that began to run."""

    job_id: str
    user: str
    job_type: JobType
    attempts: tuple[RanAttempt, ...]


def ran_job(job: Job) -> RanJob:
    """What history needs of a record."""
    return RanJob(job.job_id, job.spec.user, job.spec.job_type, _ran(job.attempts))


def decode_ran_job(job_id: str, body: bytes) -> RanJob:
    """As `ran_job`, of a record's bytes, for a third of the time.

    Raises:
        DataLoss: it can't be decoded, or has impossible values.
    """
    try:
        message = job_pb2.Job.FromString(body)
        check_format(message)
        attempts = tuple(
            RanAttempt(
                each.attempt,
                placement_from_proto(each).gpus,
                each.start_s,
                each.end_s if each.HasField("end_s") else math.inf,
                _outcome(each.outcome, each.HasField("end_s")),
            )
            for each in message.attempts
            if each.HasField("start_s")
        )
        return RanJob(job_id, message.spec.user, JobType(message.spec.job_type), attempts)
    except (DecodeError, ValueError, TypeError, OverflowError) as error:
        raise unreadable(job_id, f"{type(error).__name__}: {error}") from error


def ended_arguments(job: Job) -> tuple[str, str]:
    """What the scripts index an ended job by: the time of its end and its class of durations, empty where unknown."""
    if not job.state.final or job.end_s is None:
        return "", ""
    starts_s = [each.start_s for each in job.attempts if each.start_s is not None]
    return repr(job.end_s), str(duration_class(job.end_s - min(starts_s))) if starts_s else ""


def duration_class(duration_s: float) -> int:
    """The lowest class that a duration is in, or the one above: at most 2^class seconds; the last one has no bound."""
    _, exponent = math.frexp(max(duration_s, 0.0))
    return min(max(exponent, 0), LONGEST_RAN)


def _ran(attempts: Iterable[JobAttempt]) -> tuple[RanAttempt, ...]:
    return tuple(
        RanAttempt(
            each.attempt,
            each.placement.gpus,
            each.start_s,
            math.inf if each.end_s is None else each.end_s,
            _outcome(each.outcome, each.end_s is not None),
        )
        for each in attempts
        if each.start_s is not None
    )


_OUTCOMES = {
    "succeeded": AttemptOutcome.SUCCEEDED,
    "failed": AttemptOutcome.FAILED,
    "lost": AttemptOutcome.LOST,
    "stopped": AttemptOutcome.STOPPED,
    "preempted": AttemptOutcome.PREEMPTED,
}


def _outcome(text: str, ended: bool) -> AttemptOutcome:
    if not ended:
        return AttemptOutcome.RUNNING
    # Of an outcome in other words the attempt did not end well.
    return _OUTCOMES.get(text.partition(":")[0].partition(" ")[0], AttemptOutcome.FAILED)
