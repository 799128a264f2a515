"""Lists jobs a page at a time, in the order of submission. Uses no gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from adlro.records.jobs import Job
from adlro.records.payloads import Payload
from adlro.records.watching import JobFilter
from adlro.store import JobStore
from adlro.store.pages import PageTokens

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

# Read at a time: little enough that other calls get their turn in between.
_READ_BYTES = 256 << 10
# Looked at for one page: beyond it the page ends early, with a token to go on.
_SCAN_LIMIT = 20_000
# A page ends early beyond this: many clients take no message of more than 4 MiB.
_PAGE_BYTES = 3 << 20


class JobList:
    """Pages of jobs."""

    def __init__(self, store: JobStore, tokens: PageTokens) -> None:
        self._store = store
        self._tokens = tokens

    async def page(self, job_filter: JobFilter, page_size: int, page_token: str) -> tuple[list[Job], str]:
        """Jobs that match, and the token of the next page, empty at the end.

        A page may be shorter than requested and still have a next one, if few of many jobs match.

        Raises:
            InvalidInput: the token does not belong to this filter.
        """
        size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        digest = job_filter.digest()
        position = await self._tokens.decode(page_token, digest) if page_token else 0
        jobs: list[Job] = []
        scanned = weight = 0
        async for number, job in self._candidates(job_filter, position, size):
            if scanned == _SCAN_LIMIT:
                return jobs, await self._tokens.encode(position, digest)
            scanned += 1
            if job is not None and job_filter.matches(job):
                weight += _weight(job)
                if len(jobs) == size or (jobs and weight > _PAGE_BYTES):
                    # One more than fits: so there is a next page, and it begins with this one.
                    return jobs, await self._tokens.encode(position, digest)
                jobs.append(job)
            position = number
        return jobs, ""

    async def _candidates(
        self, job_filter: JobFilter, position: int, size: int
    ) -> AsyncIterator[tuple[int, Job | None]]:
        # The usual request, for waiting and running jobs, does not read all finished jobs.
        active_only = bool(job_filter.states) and not any(state.final for state in job_filter.states)
        # One more than fits shows that there is a next page: often all that has to be read.
        first = size + 1
        if job_filter.user and not job_filter.job_ids and not active_only:
            found = self._store.each_of_user(job_filter.user, position, _READ_BYTES, first=first)
        else:
            found = self._store.each(await self._numbers(job_filter, position, active_only), _READ_BYTES, first=first)
        async for number, job in found:
            yield number, job

    async def _numbers(self, job_filter: JobFilter, position: int, active_only: bool) -> Sequence[int]:
        if job_filter.job_ids:
            return [number for number in job_filter.job_numbers() if number > position]
        if active_only:
            return [number for number in await self._store.active_sequences(job_filter.user) if number > position]
        return range(position + 1, await self._store.last_sequence() + 1)


def _weight(job: Job) -> int:
    """The approximate size of a job on the wire, in bytes; accurate for large ones."""
    texts = (job.spec.name, job.spec.application, job.message, *job.spec.labels.keys(), *job.spec.labels.values())
    attempts = sum(100 + len(each.outcome) + (len(each.exit.detail) if each.exit else 0) for each in job.attempts)
    return 400 + sum(4 + len(text.encode()) for text in (*texts, *_texts_of(job.spec.payload))) + attempts


def _texts_of(payload: Payload | None) -> Iterator[str]:
    """What makes a payload large; all else is at most 5 kB."""
    if payload is None:
        return
    yield from payload.argv
    yield from payload.environment
    yield from payload.environment.values()
    yield from payload.secret_names
    for mount in payload.container.mounts if payload.container is not None else ():
        yield from (mount.source, mount.target)
