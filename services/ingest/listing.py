"""Lists jobs a page at a time, in the order of submission. Knows no gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

from adlro.jobs import Job
from adlro.jobstore import JobStore
from services.ingest.filters import JobFilter
from services.ingest.pages import PageTokens

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

# Read at a time: short enough that other calls get their turn in between.
_CHUNK = 200
# Looked at for one page: beyond it the page ends early, with a token to go on.
_SCAN_LIMIT = 20_000


class JobList:
    """Pages of jobs."""

    def __init__(self, store: JobStore, tokens: PageTokens) -> None:
        self._store = store
        self._tokens = tokens

    async def page(self, job_filter: JobFilter, page_size: int, page_token: str) -> tuple[list[Job], str]:
        """Jobs that match, and the token of the next page, empty at the end.

        A page may be shorter than asked for and yet have a next one, where few of many jobs match.

        Raises:
            InvalidInput: the token is not one of this filter.
        """
        size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        digest = job_filter.digest()
        position = await self._tokens.decode(page_token, digest) if page_token else 0
        jobs: list[Job] = []
        numbers = self._named(job_filter, position) if job_filter.job_ids else self._all(position)
        scanned = 0
        async for number, job in numbers:
            if scanned == _SCAN_LIMIT:
                return jobs, await self._tokens.encode(position, digest)
            scanned += 1
            if job is not None and job_filter.matches(job):
                if len(jobs) == size:
                    # One more than fits: so there is a next page, and it begins with this one.
                    return jobs, await self._tokens.encode(position, digest)
                jobs.append(job)
            position = number
        return jobs, ""

    async def _all(self, position: int) -> AsyncIterator[tuple[int, Job | None]]:
        while page := await self._store.list_page(position, _CHUNK):
            for number, job in page:
                yield number, job
            position = page[-1][0]

    async def _named(self, job_filter: JobFilter, position: int) -> AsyncIterator[tuple[int, Job | None]]:
        numbers = [number for number in job_filter.job_numbers() if number > position]
        for start in range(0, len(numbers), _CHUNK):
            chunk = numbers[start : start + _CHUNK]
            for number, job in zip(chunk, await self._store.get_many(f"job-{n}" for n in chunk), strict=True):
                yield number, job
