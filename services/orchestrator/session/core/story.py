"""The history of the jobs that the core knows, for logs and tests. Plain data; bounded."""

from __future__ import annotations

from collections import deque

from adlro.records.jobs import Job, JobState

KEPT = 10_000


class Story:
    """The newest entries of all jobs' stories.

    Args:
        kept: largest number of entries.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._told: deque[tuple[float, str, JobState | None, str]] = deque(maxlen=kept)

    def record(self, time_s: float, job: Job) -> None:
        """Adds a job's next record."""
        self._told.append((time_s, job.job_id, job.state, job.message))

    def note(self, time_s: float, job_id: str, what: str) -> None:
        """Adds another entry for a job."""
        self._told.append((time_s, job_id, None, what))

    def of(self, job_id: str) -> list[tuple[float, str]]:
        """(cluster time, what happened) of a job, oldest first, as far as it is stored."""
        return [
            (time_s, what if state is None else f"{state.name.lower()}: {what}".removesuffix(": "))
            for time_s, told_id, state, what in self._told
            if told_id == job_id
        ]
