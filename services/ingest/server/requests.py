"""Requests about several jobs at once: which of them the caller may make, and what became of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from adlro.errors import AdlroError, InvalidInput
from adlro.kit.identity import current_caller
from adlro.kit.status import to_code
from adlro.records.job_requests import JobRequest, JobRequestKind, JobUpdate
from adlro.records.jobs import Job
from adlro.records.submitting import RequestResult
from adlro.services.ingest.ownership import JobsAsSeen, check_changes, check_releases
from adlro.store import JobStore
from adlro.v1 import job_service_pb2
from adlro.wire import result_to_proto

MOST_LABELS = 64  # as in job.proto
_WORDS = {JobRequestKind.HOLD: "hold", JobRequestKind.RELEASE: "release", JobRequestKind.UPDATE: "change"}


class JobRequests:
    """Records what callers ask for several jobs, each independently.

    Args:
        store: job records.
        as_seen: leaves out what a caller may not know.
    """

    def __init__(self, store: JobStore, as_seen: JobsAsSeen) -> None:
        self._store = store
        self._as_seen = as_seen

    async def cancel(self, job_ids: Sequence[str]) -> list[job_service_pb2.JobRequestResult]:
        """Requests the cancellation of jobs."""
        refused = await self._refused(job_ids, check_changes)
        allowed = [job_id for job_id in job_ids if job_id not in refused]
        found = dict(zip(allowed, await self._store.request_cancels(allowed), strict=True))
        return await self._results(job_ids, {**found, **refused})

    async def ask(
        self, request: JobRequest, job_ids: Sequence[str], request_id: str
    ) -> list[job_service_pb2.JobRequestResult]:
        """Requests a change of waiting jobs.

        Args:
            request: its kind and its update.
            job_ids: of the jobs.
            request_id: of the call; empty: no protection against its repetition.

        Raises:
            InvalidInput: the update changes nothing.
        """
        if request.update is not None and request.update == JobUpdate():
            raise InvalidInput(
                "update: changes nothing; set priority, time_limit_s, set_labels or remove_labels", field="update"
            )
        mine: set[str] = set()  # those of the caller, where he is known
        caller = current_caller()

        def check(job: Job) -> None:
            check_changes(job, _WORDS[request.kind])
            if request.kind is JobRequestKind.RELEASE:
                check_releases(job)
            if request.update is not None:
                _check_labels(job, request.update)
            if caller is not None and job.spec.user == caller.user:
                mine.add(job.job_id)

        refused = await self._refused(job_ids, check)
        allowed = [job_id for job_id in job_ids if job_id not in refused]
        found: dict[str, Job | AdlroError] = {}
        for by_operator in (False, True):
            part = [each for each in allowed if by_operator == (caller is not None and each not in mine)]
            user = "" if caller is None else caller.user
            asked = replace(request, user=user, by_operator=by_operator)
            found |= zip(part, await self._store.request(asked, part, request_id), strict=True)
        return await self._results(job_ids, {**found, **refused})

    async def _refused(self, job_ids: Sequence[str], check: Callable[[Job], None]) -> dict[str, AdlroError]:
        """Why the caller may not make the request, by job; jobs that can't be read are left to the store."""
        refused: dict[str, AdlroError] = {}
        for job_id, job in zip(job_ids, await self._store.get_many(job_ids), strict=True):
            if job is None:
                continue
            try:
                check(job)
            except AdlroError as error:
                refused[job_id] = error
        return refused

    async def _results(
        self, job_ids: Sequence[str], found: dict[str, Job | AdlroError]
    ) -> list[job_service_pb2.JobRequestResult]:
        jobs = [each for each in found.values() if isinstance(each, Job)]
        seen = {job.job_id: job for job in await self._as_seen.all(jobs)}
        return [result_to_proto(_result(job_id, found[job_id], seen)) for job_id in job_ids]


def _result(job_id: str, found: Job | AdlroError, seen: dict[str, Job]) -> RequestResult:
    if isinstance(found, Job):
        return RequestResult(job_id, seen[job_id])
    return RequestResult(job_id, None, to_code(found).name, found.message, found.reason)


def _check_labels(job: Job, update: JobUpdate) -> None:
    spec = job.spec
    for each in (*(asked.update for asked in job.requests if asked.update is not None), update):
        spec = each.applied_to(spec)
    labels = spec.labels
    if len(labels) > MOST_LABELS:
        raise InvalidInput(
            f"update.set_labels: {job.job_id} would have {len(labels)} labels, of at most {MOST_LABELS}; "
            "remove some with remove_labels",
            field="update.set_labels",
        )
