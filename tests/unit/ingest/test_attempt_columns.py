"""What is kept of ended jobs: answers are those that a new process would give, and nothing is kept without a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.redis import connect
from adlro.records.history import AttemptOutcome, Bar
from adlro.records.jobs import JobType
from adlro.services.ingest import attempt_columns
from adlro.services.ingest.attempt_columns import KeptJobs, RowsInMaking, none_kept, with_more
from adlro.services.ingest.history import AttemptHistories, AttemptQuery
from adlro.store.attempts import RanAttempt, RanJob
from tests.unit.ingest.test_history import Attempts

ALL = AttemptQuery(-1.0, 1e6)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


async def a_queue(url: str, seed: int) -> Attempts:
    queue = Attempts(connect(f"{url}?db=4"))
    await queue.redis.flushdb()
    await queue.described()
    await queue.fill(Random(seed), 60, 300)
    return queue


async def bars(histories: AttemptHistories, query: AttemptQuery = ALL) -> list[Bar]:
    found = await histories.query(query)
    assert found.bars is not None
    return list(found.bars)


def read_counts(queue: Attempts, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each query reads, as it happens."""
    counts: list[int] = []
    ran = queue.ended.ran

    def counted(numbers: Sequence[int]) -> Any:
        counts.append(len(numbers))
        return ran(numbers)

    monkeypatch.setattr(queue.ended, "ran", counted)
    return counts


def test_a_record_of_an_ended_job_is_read_once(
    runner: asyncio.Runner, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_server.start()

    async def asked() -> None:
        queue, random = await a_queue(redis_server.url, 5), Random(6)
        counts, histories = read_counts(queue, monkeypatch), queue.histories()
        first = await bars(histories)
        assert first
        assert first == await bars(queue.histories())
        assert counts[0] == counts[1] > 20
        assert await bars(histories) == first
        assert counts[2] == 0
        # Some more jobs end, some part of the past is asked for.
        for _ in range(60):
            await queue.step(random.randrange(1, 61), random)
        for query in (ALL, AttemptQuery(0.0, queue.now_s / 2), AttemptQuery(queue.now_s / 2, queue.now_s)):
            assert await bars(histories, query) == await bars(queue.histories(), query)
        assert counts[3] < counts[4]
        await queue.redis.aclose()

    runner.run(asked())


def test_jobs_of_another_store_are_not_those_of_the_one_before(
    runner: asyncio.Runner, redis_server: EmbeddedRedis
) -> None:
    redis_server.start()

    async def asked() -> None:
        queue = await a_queue(redis_server.url, 5)
        histories = queue.histories()
        before = await bars(histories)
        await queue.redis.aclose()
        other = await a_queue(redis_server.url, 7)
        histories._ended, histories._active, histories._store = other.ended, other.active, other.store
        now = await bars(histories)
        assert now == await bars(other.histories()) != before
        await other.redis.aclose()

    runner.run(asked())


def test_queries_at_the_same_time_answer_alike(runner: asyncio.Runner, redis_server: EmbeddedRedis) -> None:
    redis_server.start()

    async def asked() -> None:
        queue = await a_queue(redis_server.url, 5)
        histories = queue.histories()
        halves = AttemptQuery(0.0, queue.now_s / 2), AttemptQuery(queue.now_s / 2, queue.now_s)
        answers = await asyncio.gather(*(bars(histories, query) for query in (*halves, ALL, *halves)))
        for query, answer in zip((*halves, ALL), answers[:3], strict=True):
            assert answer == await bars(queue.histories(), query) == await bars(histories, query)
        await queue.redis.aclose()

    runner.run(asked())


def kept_with(kept: KeptJobs, numbers: Sequence[int], gpus: int = 2) -> KeptJobs:
    rows = RowsInMaking(kept.texts)
    for number in numbers:
        shares = tuple((f"node/{gpu}", 1.0) for gpu in range(gpus))
        attempt = RanAttempt(1, shares, float(number), number + 0.5, AttemptOutcome.SUCCEEDED)
        rows.add(RanJob(f"job-{number}", f"user-{number}", JobType.SIMULATION, (attempt,)))
    return with_more(kept, rows.made(), {number: number + 0.5 for number in numbers})


def test_of_too_many_rows_those_of_the_newest_jobs_are_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_columns, "MOST_ROWS", 9)
    kept = kept_with(none_kept(), [3, 1, 2])
    assert kept.job.tolist() == [1, 2, 3]
    kept = kept_with(kept, [10, 11, 5])
    assert kept.job.tolist() == [3, 5, 10, 11]  # nine rows, but none of half a job
    assert kept.end_s.tolist() == [3.5, 5.5, 10.5, 11.5]
    assert kept.rows_of(kept.places_of(kept.job[[0, 3]], kept.end_s[[0, 3]])).job.tolist() == [3, 3, 11, 11]
    assert kept.places_of(kept.job, kept.end_s + 1.0).tolist() == [-1] * 4
    assert kept_with(none_kept(), [1], gpus=10).job.tolist() == []


def test_names_are_not_kept_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_columns, "MOST_TEXTS", 5)
    kept = kept_with(none_kept(), [1, 2, 3])
    assert len(kept.texts) == 5
    kept = kept_with(kept, [4])
    assert (len(kept.texts), len(kept.job)) == (0, 0)
