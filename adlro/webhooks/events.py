"""What can happen, and the documents that tell receivers of it. Pure: no clock, no network, no files.

A document tells no program's arguments, no environment, no secrets and no output: what a receiver shows may be read by
many. `docs/notifications.md` has every field.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from adlro.records.jobs import Job, JobState
from adlro.records.payloads import EndReason, ExitStatus, signal_name

VERSION = 1
"""Of the documents: grows when a field goes or changes its meaning; new fields come without."""


class EventName(enum.StrEnum):
    """What can happen; receivers find it as `event`."""

    JOB_ENDED = "job_ended"
    GPU_LOST = "gpu_lost"
    GPU_BACK = "gpu_back"
    POLICY_FELL_BACK = "policy_fell_back"
    POLICY_RECOVERED = "policy_recovered"
    DRIFT_FLAGGED = "drift_flagged"
    DRIFT_ENDED = "drift_ended"
    TEST = "test"


CHOSEN = tuple(each for each in EventName if each is not EventName.TEST)
"""Those that the file of webhooks may name: a test goes to whom it is sent."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        event_id: the same whenever the same thing is told again.
        cluster: its name.
        noted_unix_s: wall time at which it was noted.
        cluster_time_s: when it happened, where that is known.
        subject: what it is about: an object `job`, `gpu`, `policy` or `drift`.
        revision: of the job's record; 0: it is about no job.
    """

    name: EventName
    event_id: str
    cluster: str
    noted_unix_s: float
    cluster_time_s: float | None
    subject: Mapping[str, Any]
    revision: int = 0

    def document(self) -> dict[str, Any]:
        """What a receiver gets, but for `lost_count`, which is known when the message is sent."""
        return {
            "version": VERSION,
            "id": self.event_id,
            "event": str(self.name),
            "cluster": self.cluster,
            "time": iso_time(self.noted_unix_s),
            "time_unix_s": round(self.noted_unix_s, 3),
            "cluster_time_s": self.cluster_time_s,
            **self.subject,
        }


def iso_time(unix_s: float) -> str:
    """A wall time in ISO 8601, in UTC: `2026-11-27T22:09:40.125Z`."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def event_id(*parts: object) -> str:
    """32 hexadecimal digits that are the same for the same parts."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


def job_ended(job: Job, cluster: str, noted_unix_s: float) -> Event:
    """The end of a job.

    Args:
        job: its final record.
        cluster: the cluster's name.
        noted_unix_s: wall time now.
    """
    # A store that was rolled back may let a job end a second time: that is another end.
    identity = event_id("job_ended", job.job_id, repr(job.created_unix_s), job.state.name, repr(job.end_s))
    return Event(
        EventName.JOB_ENDED, identity, cluster, noted_unix_s, job.end_s, {"job": job_document(job)}, job.revision
    )


def job_document(job: Job) -> dict[str, Any]:
    """A job that has ended, for receivers."""
    spec = job.spec
    ended = job.attempts[-1].exit if job.attempts else None
    return {
        "job_id": job.job_id,
        "name": spec.name,
        "user": spec.user,
        "state": job.state.name.lower(),
        "message": _message(job, ended),
        "exit": None if ended is None else _exit_document(ended),
        "labels": dict(spec.labels),
        "job_type": spec.job_type.label,
        "application": spec.application,
        "priority": spec.priority,
        "gpu_count": spec.gpu_count,
        "gpu_model": job.gpu_model,
        "gpu_ids": list(job.placement.gpu_ids),
        "attempt_count": job.attempt_count,
        "created_unix_s": job.created_unix_s,
        "submit_s": job.submit_s,
        "start_s": job.start_s,
        "end_s": job.end_s,
        "jct_s": job.jct_s,
        "runtime_s": job.runtime_s,
    }


def _exit_document(ended: ExitStatus) -> dict[str, Any]:
    return {
        "reason": ended.reason.name.lower(),
        "code": ended.code,
        "signal": signal_name(ended.signal) if ended.signal else "",
        "peak_memory_mib": ended.peak_memory_mib,
    }


def _message(job: Job, ended: ExitStatus | None) -> str:
    """One line for people; of programs in our own words: the record's may quote their command and environment."""
    if job.spec.payload is None or job.state is JobState.CANCELLED or not job.attempts:
        return job.message
    if job.state is JobState.SUCCEEDED:
        return ""
    if ended is None:
        return f"failed after {job.attempt_count} attempt{'s' if job.attempt_count != 1 else ''}"
    match ended.reason:
        case EndReason.EXITED:
            return f"exit code {ended.code}"
        case EndReason.SIGNALLED:
            return f"killed by {signal_name(ended.signal)}"
        case EndReason.NOT_STARTED:
            return f"its program could not be started; `adlro describe job {job.job_id}` has the reason"
        case _:
            return ended.reason.name.lower().replace("_", " ")


def sample_event(webhook: str, cluster: str, noted_unix_s: float) -> Event:
    """A message that says that messages arrive."""
    identity = event_id("test", webhook, repr(noted_unix_s))
    return Event(EventName.TEST, identity, cluster, noted_unix_s, None, {"webhook": webhook})
