"""What somebody is told who may not know of others' jobs: his own records, in which no other job is named.

Plain records. The services decide who that is, and say which jobs are his.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from adlro.records.jobs import Job, JobAttempt
from adlro.records.outcomes import ApplicationSize, NeighbourTime
from adlro.records.waiting import WaitingExplanation

ANOTHER = "another job"
_JOB_ID = re.compile(r"\b(?:job|array)-([0-9]+)\b")

IsOwn = Callable[[str], bool]
"""Whether the job of an id is his."""


def jobs_named_by(told: Job | WaitingExplanation) -> set[str]:
    """The ids of other jobs in a record or an explanation; of an array that of its first job, whose user has all."""
    if isinstance(told, WaitingExplanation):
        texts: Iterable[str] = (told.sentence, told.no_expected_start)
        ids: Iterable[str] = ()
    else:
        texts = _texts(told)
        ids = (told.reserved_for_job_id, *(ref.job_id for each in told.attempts for ref in each.preempts))
    named = {f"job-{found}" for text in texts if _names_jobs(text) for found in _JOB_ID.findall(text)}
    named.update(ids)
    return named - {"", told.job_id}


def job_without_others(job: Job, is_own: IsOwn) -> Job:
    """A job that names no job of others; itself where nothing had to go.

    Texts say "another job". Attempts that were stopped for it are left out, and who shared its GPU; how long stays.
    """
    strangers = {job_id for job_id in jobs_named_by(job) if not is_own(job_id)}
    if strangers:
        job = replace(
            job,
            message=_without(job.message, strangers),
            reserved_for_job_id="" if job.reserved_for_job_id in strangers else job.reserved_for_job_id,
            attempts=tuple(_attempt_without(each, strangers) for each in job.attempts),
        )
    if any(each.neighbours for each in job.attempts):
        attempts = (replace(each, neighbours=_unnamed(each.neighbours)) for each in job.attempts)
        job = replace(job, attempts=tuple(attempts))
    return job


def explanation_without_others(told: WaitingExplanation, is_own: IsOwn) -> WaitingExplanation:
    """An explanation that names no job of others: its sentences say "another job"; itself where nothing had to go."""
    strangers = {job_id for job_id in jobs_named_by(told) if not is_own(job_id)}
    if not strangers:
        return told
    return replace(
        told,
        sentence=_without(told.sentence, strangers),
        no_expected_start=_without(told.no_expected_start, strangers),
    )


def _texts(job: Job) -> Iterable[str]:
    yield job.message
    for each in job.attempts:
        yield each.outcome
        if each.exit is not None:
            yield each.exit.detail


def _without(text: str, strangers: set[str]) -> str:
    return _JOB_ID.sub(lambda found: ANOTHER if f"job-{found[1]}" in strangers else found[0], text)


def _names_jobs(text: str) -> bool:
    return "job-" in text or "array-" in text


def _attempt_without(attempt: JobAttempt, strangers: set[str]) -> JobAttempt:
    ended = attempt.exit
    texts = (attempt.outcome, "" if ended is None else ended.detail)
    if not attempt.preempts and not any(map(_names_jobs, texts)):
        return attempt
    return replace(
        attempt,
        outcome=_without(attempt.outcome, strangers),
        exit=None if ended is None else replace(ended, detail=_without(ended.detail, strangers)),
        preempts=tuple(ref for ref in attempt.preempts if ref.job_id not in strangers),
    )


def _unnamed(neighbours: Sequence[NeighbourTime]) -> tuple[NeighbourTime, ...]:
    time_s = sum(each.time_s for each in neighbours)
    return (NeighbourTime(ApplicationSize(""), time_s),) if neighbours else ()
