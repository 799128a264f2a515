"""The jobs that a caller may see and change. Without users (adlro.kit.identity): all jobs. Uses no gRPC.

A job that a caller may not see gives NotFound, as an unused id does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from adlro.errors import PermissionDenied
from adlro.kit.identity import current_caller
from adlro.records.job_requests import JobRequestKind
from adlro.records.jobs import Job, JobSpec
from adlro.records.redaction import job_without_others, jobs_named_by
from adlro.records.watching import JobFilter
from adlro.store import not_found
from adlro.store.reads import JobReads

_KNOWN_AT_MOST = 10_000


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


def check_changes(job: Job, what: str = "cancel") -> None:
    """Raises NotFound if the caller may not see the job, PermissionDenied if he may only see it.

    Args:
        job: a job.
        what: what he wants to do with it, for the message.
    """
    check_sees(job)
    caller = current_caller()
    if caller is not None and not caller.acts_for_all and job.spec.user != caller.user:
        raise PermissionDenied(
            f"job_id: {job.job_id} is {job.spec.user}'s; only he or an operator may {what} it",
            field="job_id",
            reason="NOT_YOUR_JOB",
            metadata={"job_id": job.job_id},
        )


def check_releases(job: Job) -> None:
    """Raises PermissionDenied if an operator holds the job, or has asked to hold it, and the caller is none."""
    caller = current_caller()
    if caller is None or caller.acts_for_all:
        return
    asked = any(each.kind is JobRequestKind.HOLD and each.by_operator for each in job.requests)
    if asked or (job.hold is not None and job.hold.by_operator):
        raise PermissionDenied(
            f"job_id: an operator holds {job.job_id}; only an operator may release it",
            field="job_id",
            reason="HELD_BY_OPERATOR",
            metadata={"job_id": job.job_id},
        )


class JobsAsSeen:
    """Jobs without what the caller may not know of others' jobs.

    Args:
        store: says whose a job is that another one names. That never changes, so it is asked once: lists and streams
            name the same jobs again and again.
    """

    def __init__(self, store: JobReads) -> None:
        self._store = store
        self._known: dict[tuple[str, str], bool] = {}

    async def one(self, job: Job) -> Job:
        """A job of the caller's, as he may see it; itself where nothing has to go."""
        return (await self.all([job]))[0]

    async def all(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Jobs of the caller's, as he may see them; those in which nothing has to go themselves."""
        caller = current_caller()
        if caller is None or caller.sees_all:
            return jobs
        own = {job.job_id for job in jobs}
        named = {job_id for job in jobs for job_id in jobs_named_by(job)} - own
        if named:
            own |= await self._own(caller.user, named)
        return [job_without_others(job, own.__contains__) for job in jobs]

    async def _own(self, user: str, job_ids: set[str]) -> set[str]:
        known = self._known
        if unknown := [job_id for job_id in job_ids if (user, job_id) not in known]:
            own = await self._store.owned(user, unknown)
            if len(known) > _KNOWN_AT_MOST:
                known.clear()
            known.update(((user, job_id), job_id in own) for job_id in unknown)
            return own | {job_id for job_id in job_ids if known.get((user, job_id))}
        return {job_id for job_id in job_ids if known[user, job_id]}


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
