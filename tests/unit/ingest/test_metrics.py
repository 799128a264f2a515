"""ingest's counters of jobs: what is recorded counts once, however often it is sent."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from adlro.errors import AlreadyExists
from adlro.kit.redis import connect, connect_blocking
from adlro.records.jobs import JobSpec, JobType, NormalizedJob
from adlro.services.ingest.metrics import CountedStore, JobMetrics
from adlro.store import NewJob, SubmitLimits


async def test_jobs_are_counted_when_they_are_recorded(redis_url: str) -> None:
    registry, metrics = CollectorRegistry(), JobMetrics()
    metrics.register(registry)
    redis, blocking = connect(redis_url), connect_blocking(redis_url)
    try:
        store = CountedStore(redis, blocking, metrics)
        specs = [JobSpec(f"j{number}", "ann", JobType.SIMULATION) for number in range(3)]
        new = [NewJob(spec, NormalizedJob(), f"r-{number}", 0.0) for number, spec in enumerate(specs)]
        await store.create_many([*new, new[0]])
        assert (await store.create(specs[1], NormalizedJob(), "r-1", 0.0)).existing
        with pytest.raises(AlreadyExists):
            await store.create(specs[1], NormalizedJob(), "r-2", 0.0)
    finally:
        await redis.aclose()
        await blocking.aclose()
    assert registry.get_sample_value("adlro_ingest_submitted_jobs_total", {"job_type": "simulation"}) == 3
    assert registry.get_sample_value("adlro_ingest_submitted_jobs_total", {"job_type": "machine_learning"}) == 0
    assert registry.get_sample_value("adlro_ingest_repeated_submissions_total") == 2
    assert registry.get_sample_value("adlro_ingest_limited_submissions_total") == 0


async def test_what_a_limit_refuses_is_counted(redis_url: str) -> None:
    registry, metrics = CollectorRegistry(), JobMetrics()
    metrics.register(registry)
    redis, blocking = connect(redis_url), connect_blocking(redis_url)
    try:
        store = CountedStore(redis, blocking, metrics, SubmitLimits(max_jobs=2))
        spec = JobSpec("j", "ann", JobType.SIMULATION)
        await store.create_many([NewJob(spec, NormalizedJob(), f"r-{number}", 0.0) for number in range(5)])
    finally:
        await redis.aclose()
        await blocking.aclose()
    assert registry.get_sample_value("adlro_ingest_submitted_jobs_total", {"job_type": "simulation"}) == 2
    assert registry.get_sample_value("adlro_ingest_limited_submissions_total") == 3
