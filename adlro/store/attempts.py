"""The attempts of a job as history needs them: read from the bytes of its record, without the rest of it. No Redis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from adlro.records.history import AttemptOutcome
from adlro.records.jobs import Job, JobAttempt, JobType
from adlro.store.keys import LONGEST_RAN
from adlro.store.records import unreadable
from adlro.v1 import job_pb2
from adlro.wire import check_format


class RanAttempt(NamedTuple):
    """An attempt that began to run; `gpus` are ids with shares, `end_s` inf: it runs."""

    attempt: int
    gpus: tuple[tuple[str, float], ...]
    start_s: float
    end_s: float
    outcome: AttemptOutcome


class RanJob(NamedTuple):
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
        attempts = []
        for each in message.attempts:
            if each.HasField("start_s"):
                # Of each record in a long range: not as a Placement, which checks it once more.
                gpus = tuple([(gpu.gpu_id, gpu.share) for gpu in each.placement.gpus])
                if not gpus and each.gpu_id:
                    gpus = ((each.gpu_id, 1.0),)
                ended = each.HasField("end_s")
                end_s = each.end_s if ended else math.inf
                attempts.append(RanAttempt(each.attempt, gpus, each.start_s, end_s, _outcome(each.outcome, ended)))
        spec = message.spec
        return RanJob(job_id, spec.user, _JOB_TYPES[spec.job_type], tuple(attempts))
    except (DecodeError, ValueError, KeyError) as error:
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
            tuple([(gpu.gpu_id, gpu.share) for gpu in each.placement.gpus]),
            each.start_s,
            math.inf if each.end_s is None else each.end_s,
            _outcome(each.outcome, each.end_s is not None),
        )
        for each in attempts
        if each.start_s is not None
    )


_JOB_TYPES = {int(each): each for each in JobType}
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
    known = _OUTCOMES.get(text)
    if known is not None:
        return known
    # Of an outcome in other words the attempt did not end well.
    return _OUTCOMES.get(text.partition(":")[0].partition(" ")[0], AttemptOutcome.FAILED)
