"""Filters of lists and watches of jobs, and the events of a watch. Plain data; no gRPC, no Redis."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adlro.records.jobs import Job, JobState, JobType, PendingReason
from adlro.records.named import NamedEnum

# No job's number has leading zeros or more digits.
_JOB_ID = re.compile(r"job-([1-9][0-9]{0,17})", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter: it matches jobs that match every set field. Collections mean any of them, labels all of them.

    Attributes:
        active_after_s: jobs that have not ended, or ended at this cluster time or later.
        ended_before_s: jobs that ended before this cluster time.
        submitted_after_s, submitted_before_s: jobs whose `submit_s` is this cluster time or later, or before it.
        name_contains: jobs whose name has this text in it, in upper or lower case.
        pending_reasons: jobs that wait for any of these.
        min_priority, max_priority: bounds of the priority, both included.
        array_id: jobs of this array.
    """

    states: Collection[JobState] = ()
    job_types: Collection[JobType] = ()
    user: str = ""
    application: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    job_ids: Collection[str] = ()
    active_after_s: float | None = None
    ended_before_s: float | None = None
    submitted_after_s: float | None = None
    submitted_before_s: float | None = None
    name_contains: str = ""
    pending_reasons: Collection[PendingReason] = ()
    min_priority: float | None = None
    max_priority: float | None = None
    array_id: str = ""

    @property
    def empty(self) -> bool:
        """Whether the filter matches every job."""
        return self.digest() == _EVERY.digest()

    @property
    def active_only(self) -> bool:
        """Whether only jobs that have not ended can match, by their states."""
        return bool(self.states) and not any(state.final for state in self.states)

    @property
    def ended_only(self) -> bool:
        """Whether only jobs that have ended can match, by their states or the time of their end."""
        return self.ended_before_s is not None or (bool(self.states) and all(state.final for state in self.states))

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
            and (not self.name_contains or self.name_contains.casefold() in spec.name.casefold())
            and (not self.pending_reasons or job.pending_reason in self.pending_reasons)
            and (self.min_priority is None or spec.priority >= self.min_priority)
            and (self.max_priority is None or spec.priority <= self.max_priority)
            and (not self.array_id or (spec.array is not None and spec.array.array_id == self.array_id))
            and self._matches_times(job)
        )

    def _matches_times(self, job: Job) -> bool:
        if self.active_after_s is not None and job.state.final and not _at_or_after(job.end_s, self.active_after_s):
            return False
        if self.ended_before_s is not None and not (job.state.final and _before(job.end_s, self.ended_before_s)):
            return False
        if self.submitted_after_s is not None and not _at_or_after(job.submit_s, self.submitted_after_s):
            return False
        return self.submitted_before_s is None or _before(job.submit_s, self.submitted_before_s)

    def job_numbers(self) -> list[int]:
        """The numbers of `job_ids`, rising; invalid ids are omitted, since no such job exists."""
        found = (_JOB_ID.fullmatch(job_id) for job_id in self.job_ids)
        return sorted(int(match[1]) for match in found if match is not None)

    def digest(self) -> bytes:
        """16 bytes that identify a filter, the same in every process and for any order of its parts."""
        parts: list[Any] = [
            sorted(self.states),
            sorted(self.job_types),
            self.user,
            self.application,
            sorted(self.labels.items()),
            sorted(self.job_ids),
        ]
        # Only where they are set: a replica of an older release knows the rest.
        later = {name: getattr(self, name) for name in _LATER if getattr(self, name) not in (None, "")}
        if self.pending_reasons:
            later["pending_reasons"] = sorted(self.pending_reasons)
        if later:
            parts.append(sorted(later.items()))
        return hashlib.sha256(json.dumps(parts).encode()).digest()[:16]


_EVERY = JobFilter()
_LATER = (
    "active_after_s",
    "ended_before_s",
    "submitted_after_s",
    "submitted_before_s",
    "name_contains",
    "min_priority",
    "max_priority",
    "array_id",
)


def _at_or_after(time_s: float | None, bound_s: float) -> bool:
    return time_s is not None and time_s >= bound_s


def _before(time_s: float | None, bound_s: float) -> bool:
    return time_s is not None and time_s < bound_s


class JobOrder(NamedEnum):
    """The order of a list; numbers as in job_service.proto.

    SUBMITTED: of submission. NEWEST_FIRST: the last submission first. PRIORITY: the highest first. WAIT: the longest
    wait first; both need a filter by states that are not final. ENDED: the last end first, before them the jobs that
    have not ended.
    """

    SUBMITTED = 1
    NEWEST_FIRST = 2
    PRIORITY = 3
    WAIT = 4
    ENDED = 5


class JobView(NamedEnum):
    """How much of each job is sent; numbers as in job_service.proto. BASIC: what a table of jobs shows."""

    BASIC = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of a list.

    Attributes:
        jobs: in order.
        next_page_token: empty at the end.
        total_count: how many jobs match, on all pages together; None where that is not known.
    """

    jobs: Sequence[Job]
    next_page_token: str = ""
    total_count: int | None = None


class JobEventKind(NamedEnum):
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
