"""The outcome of a stream of jobs, as plain data. Knows no gRPC."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rejection:
    """A job of a stream without a record: its place, from 0, and the reason; `code` is a name, as gRPC's."""

    index: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SubmittedJobs:
    """The outcome of a stream of jobs: one id for each, in order, empty for a rejected one."""

    job_ids: tuple[str, ...]
    rejected: tuple[Rejection, ...] = ()

    @property
    def accepted_ids(self) -> tuple[str, ...]:
        """The ids of the accepted jobs."""
        return tuple(each for each in self.job_ids if each)
