"""ingest's metrics of jobs, and the store that feeds them. Knows plain records."""

from __future__ import annotations

from collections.abc import Sequence

import redis.asyncio as aioredis
from prometheus_client import CollectorRegistry, Counter

from adlro.errors import AlreadyExists, DataLoss, LimitExceeded
from adlro.records.jobs import JobType
from adlro.store import Created, CreatedArray, JobStore, NewArray, NewJob, SubmitLimits, Unreadable


class JobMetrics:
    """Counters of one process, made before the registry exists."""

    def __init__(self) -> None:
        self.submitted = Counter("adlro_ingest_submitted_jobs", "jobs recorded", ["job_type"], registry=None)
        for job_type in JobType:  # a series that begins at its first job hides that job from rate()
            self.submitted.labels(job_type.label)
        self.repeated = Counter(
            "adlro_ingest_repeated_submissions", "submissions whose request id was known: no new job", registry=None
        )

        self.limited = Counter(
            "adlro_ingest_limited_submissions", "submissions refused by the limits of a user", registry=None
        )

        self.unreadable = Counter(
            "adlro_unreadable_records", "records in Redis that could not be read, each counted once", registry=None
        )

    def register(self, registry: CollectorRegistry) -> None:
        """Registers the counters."""
        registry.register(self.submitted)
        registry.register(self.repeated)
        registry.register(self.limited)
        registry.register(self.unreadable)


class CountedStore(JobStore):
    """A JobStore that counts recorded jobs.

    Args:
        redis: see JobStore.
        blocking: see JobStore.
        metrics: counters.
        limits: see JobStore.
    """

    def __init__(
        self, redis: aioredis.Redis, blocking: aioredis.Redis, metrics: JobMetrics, limits: SubmitLimits | None = None
    ) -> None:
        super().__init__(redis, blocking, limits)
        self.unreadable = Unreadable(metrics.unreadable.inc)
        self._metrics = metrics

    async def create_many(self, jobs: Sequence[NewJob]) -> list[Created | AlreadyExists | LimitExceeded | DataLoss]:
        """See JobStore.create_many."""
        answers = await super().create_many(jobs)
        for new, answer in zip(jobs, answers, strict=True):
            if isinstance(answer, LimitExceeded):
                self._metrics.limited.inc()
            if not isinstance(answer, Created):
                continue
            if answer.existing:
                self._metrics.repeated.inc()
            else:
                self._metrics.submitted.labels(new.spec.job_type.label).inc()
        return answers

    async def create_array(self, new: NewArray) -> CreatedArray:
        """See JobStore.create_array."""
        try:
            created = await super().create_array(new)
        except LimitExceeded:
            self._metrics.limited.inc()
            raise
        if created.existing:
            self._metrics.repeated.inc()
        else:
            self._metrics.submitted.labels(new.spec.job_type.label).inc(created.count)
        return created
