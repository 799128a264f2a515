"""Filters of lists and watches of jobs, and the events of a watch. Plain data; no gRPC, no Redis."""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from adlro.records.jobs import Job, JobState, JobType

# No job's number has leading zeros or more digits.
_JOB_ID = re.compile(r"job-([1-9][0-9]{0,17})", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter: it matches jobs that match every set field. Collections mean any of them, labels all of them."""

    states: Collection[JobState] = ()
    job_types: Collection[JobType] = ()
    user: str = ""
    application: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    job_ids: Collection[str] = ()

    @property
    def empty(self) -> bool:
        """Whether the filter matches every job."""
        return not (self.states or self.job_types or self.user or self.application or self.labels or self.job_ids)

    def matches(self, job: Job) -> bool:
        """Whether the job in its present state matches."""
        spec = job.spec
        return (
            (not self.job_ids or job.job_id in self.job_ids)
            and (not self.states or job.state in self.states)
            and (not self.job_types or spec.job_type in self.job_types)
            and (not self.user or spec.user == self.user)
            and (not self.application or spec.application == self.application)
            and (not self.labels or all(spec.labels.get(key) == value for key, value in self.labels.items()))
        )

    def job_numbers(self) -> list[int]:
        """The numbers of `job_ids`, rising; invalid ids are omitted, since no such job exists."""
        found = (_JOB_ID.fullmatch(job_id) for job_id in self.job_ids)
        return sorted(int(match[1]) for match in found if match is not None)

    def digest(self) -> bytes:
        """16 bytes that identify a filter, the same in every process and for any order of its parts."""
        parts = [
            sorted(self.states),
            sorted(self.job_types),
            self.user,
            self.application,
            sorted(self.labels.items()),
            sorted(self.job_ids),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).digest()[:16]


class JobEventKind(enum.IntEnum):
    """The kind of a watch event; numbers as in job_service.proto."""

    SNAPSHOT = 1
    SNAPSHOT_END = 2
    CHANGE = 3


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One message of a watch: a job's state, the end of the snapshot (`job` is None), or a change."""

    kind: JobEventKind
    job: Job | None
    revision: int
