"""Which jobs a list or a watch is about, and what a watcher is told, as plain data. Knows no gRPC and no Redis."""

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
    """Which jobs: those that match every field that is set. Collections mean any of them, labels all of them."""

    states: Collection[JobState] = ()
    job_types: Collection[JobType] = ()
    user: str = ""
    application: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    job_ids: Collection[str] = ()

    @property
    def empty(self) -> bool:
        """Every job matches."""
        return not (self.states or self.job_types or self.user or self.application or self.labels or self.job_ids)

    def matches(self, job: Job) -> bool:
        """Whether the job, as it is, is one of those asked for."""
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
        """The numbers of `job_ids`, rising; what is no job id is left out, as there is no such job."""
        found = (_JOB_ID.fullmatch(job_id) for job_id in self.job_ids)
        return sorted(int(match[1]) for match in found if match is not None)

    def digest(self) -> bytes:
        """16 bytes that tell two filters apart, the same in every process and for any order of its parts."""
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
    """What a watcher is told; numbers as in job_service.proto."""

    SNAPSHOT = 1
    SNAPSHOT_END = 2
    CHANGE = 3


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One message of a watch: a job as it stood, the end of the snapshot (`job` is None), or a change."""

    kind: JobEventKind
    job: Job | None
    revision: int
