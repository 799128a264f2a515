"""Which jobs may match a filter, without reading them: lists and the snapshots of watches begin with these. No gRPC."""

from __future__ import annotations

import math
from collections.abc import Sequence

from adlro.records.watching import JobFilter
from adlro.store import JobStore
from adlro.store.ended import EndedJobs


class Candidates:
    """Reads the set of active jobs and the index of ended ones.

    Args:
        store: the active jobs.
        ended: the ended jobs by the time of their end.
        most: where more jobs ended in a filter's range of time, nothing is known of them: for pages, each of which
            would read them anew.
    """

    def __init__(self, store: JobStore, ended: EndedJobs, most: float = math.inf) -> None:
        self._store = store
        self._ended = ended
        self._most = most

    async def numbers(self, job_filter: JobFilter) -> Sequence[int] | None:
        """The numbers of the jobs that may match now, rising; None: nothing but the user and the records tells.

        Raises:
            Unavailable: NOT_INDEXED: jobs of an older version are still being indexed.
        """
        if job_filter.job_ids:
            return job_filter.job_numbers()
        if job_filter.array_id:
            return await self._store.array_numbers(job_filter.array_id)
        # The usual request, for waiting and running jobs, does not read all finished jobs.
        if job_filter.active_only:
            return await self._store.active_sequences(job_filter.user)
        if job_filter.active_after_s is None and job_filter.ended_before_s is None:
            return None
        from_s = -math.inf if job_filter.active_after_s is None else job_filter.active_after_s
        if await self._ended.count(from_s, job_filter.ended_before_s) > self._most:
            return None
        # The active ones first: one that ends meanwhile is in both, not in neither.
        numbers = set() if job_filter.ended_only else set(await self._store.active_sequences(job_filter.user))
        ended = self._ended.before(None, from_s, job_filter.ended_before_s, job_filter.user)
        numbers.update([end.number async for end in ended])
        return sorted(numbers)
