"""The jobs that a caller may see and change. Without users (adlro.kit.identity): all jobs. Uses no gRPC.

A job that a caller may not see gives NotFound, as an unused id does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from adlro.errors import PermissionDenied
from adlro.kit.identity import current_caller
from adlro.records.jobs import Job, JobSpec
from adlro.records.outcomes import ApplicationSize, NeighbourTime
from adlro.records.watching import JobFilter
from adlro.store import not_found


def check_submits(spec: JobSpec) -> None:
    """Raises PermissionDenied if the caller may not submit in the name of the job's user."""
    caller = current_caller()
    if caller is not None and not caller.acts_for_all and spec.user != caller.user:
        raise PermissionDenied(
            f"job.user: is {spec.user!r}, but the token is {caller.user}'s, who may not submit for others; "
            f"set it to {caller.user}",
            field="job.user",
            reason="NOT_YOUR_NAME",
            metadata={"user": caller.user},
        )


def check_sees(job: Job) -> None:
    """Raises NotFound if the caller may not see the job."""
    caller = current_caller()
    if caller is not None and not caller.sees_all and job.spec.user != caller.user:
        raise not_found(job.job_id)


def check_cancels(job: Job) -> None:
    """Raises NotFound if the caller may not see the job, PermissionDenied if he may only see it."""
    check_sees(job)
    caller = current_caller()
    if caller is not None and not caller.acts_for_all and job.spec.user != caller.user:
        raise PermissionDenied(
            f"job_id: {job.job_id} is {job.spec.user}'s; only he or an operator may cancel it",
            field="job_id",
            reason="NOT_YOUR_JOB",
            metadata={"job_id": job.job_id},
        )


def as_seen(job: Job) -> Job:
    """A job without what the caller may not know of others' jobs: which ones shared its GPU. How long stays."""
    caller = current_caller()
    if caller is None or caller.sees_all or not any(each.neighbours for each in job.attempts):
        return job
    attempts = (replace(each, neighbours=_unnamed(each.neighbours)) for each in job.attempts)
    return replace(job, attempts=tuple(attempts))


def _unnamed(neighbours: Sequence[NeighbourTime]) -> tuple[NeighbourTime, ...]:
    time_s = sum(each.time_s for each in neighbours)
    return (NeighbourTime(ApplicationSize(""), time_s),) if neighbours else ()


def may_know(user: str) -> bool:
    """Whether the caller may know of a user's jobs."""
    caller = current_caller()
    return caller is None or caller.sees_all or user == caller.user


def only_visible(job_filter: JobFilter) -> JobFilter:
    """The filter, restricted to the caller's visible jobs.

    Raises:
        PermissionDenied: it names another user.
    """
    caller = current_caller()
    if caller is None or caller.sees_all:
        return job_filter
    if job_filter.user not in ("", caller.user):
        raise PermissionDenied(
            f"filter.user: is {job_filter.user!r}, but the token is {caller.user}'s, who sees his own jobs only; "
            "omit it",
            field="filter.user",
            reason="NOT_YOUR_NAME",
            metadata={"user": caller.user},
        )
    return replace(job_filter, user=caller.user)


def must_ask_first() -> bool:
    """Whether a job must be read before the caller may cancel it."""
    caller = current_caller()
    return caller is not None and not caller.acts_for_all
