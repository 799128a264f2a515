"""The outcomes of submissions and of requests about several jobs, as plain data. Knows no gRPC."""

from __future__ import annotations

from dataclasses import dataclass

from adlro.records.jobs import Job


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


@dataclass(frozen=True, slots=True)
class SubmittedArray:
    """A recorded array: its jobs' numbers follow one another, in the order of the indexes.

    Attributes:
        existing: the request id was known: this is the array of the first call.
    """

    array_id: str
    first_job_id: str
    job_count: int
    existing: bool = False

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The ids of its jobs, in the order of their indexes."""
        first = int(self.first_job_id.removeprefix("job-"))
        return tuple(f"job-{number}" for number in range(first, first + self.job_count))


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What became of a request about one job.

    Attributes:
        job: in the view BASIC, with its requests (without their updates); None: the request was refused.
        code: of the refusal, a name as gRPC's; "OK": none.
        message: why it was refused, for people.
        reason: why, for code, such as "JOB_FINAL".
    """

    job_id: str
    job: Job | None = None
    code: str = "OK"
    message: str = ""
    reason: str = ""

    @property
    def accepted(self) -> bool:
        """Whether the request is recorded."""
        return self.job is not None
