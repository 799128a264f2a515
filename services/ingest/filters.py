"""Filters of lists and watches of jobs. Plain data; no I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from adlro.records.jobs import Job, JobState, JobType

# No job's number has leading zeros or more digits.
_JOB_ID = re.compile(r"job-([1-9][0-9]{0,17})", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A job must match every field that is set; empty: any."""

    states: frozenset[JobState] = frozenset()
    job_types: frozenset[JobType] = frozenset()
    user: str = ""
    application: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    job_ids: frozenset[str] = frozenset()

    @property
    def empty(self) -> bool:
        """Every job matches."""
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
