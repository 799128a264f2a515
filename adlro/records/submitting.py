"""What becomes of a stream of jobs, as plain data. Knows no gRPC."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rejection:
    """A job of a stream that is not on record: its place, from 0, and why; `code` is a name, as gRPC's."""

    index: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SubmittedJobs:
    """What became of a stream of jobs: one id for each, in order, empty where it was rejected."""

    job_ids: tuple[str, ...]
    rejected: tuple[Rejection, ...] = ()

    @property
    def accepted_ids(self) -> tuple[str, ...]:
        """The ids of the jobs that were taken."""
        return tuple(each for each in self.job_ids if each)
