"""The indexes of ended jobs say what the records say, whoever ended the jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from adlro.errors import Unavailable
from adlro.kit.redis import connect
from adlro.placement import Placement
from adlro.records.jobs import JobAttempt, JobState, PendingReason
from adlro.store import ended as ended_module
from adlro.store.ended import End
from adlro.store.keys import ENDED, LONGEST_RAN, ran_key
from tests.ended_index import check_ended_index
from tests.older_stores import restore
from tests.unit.ingest.queue_for_tests import Queue


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with connect(redis_url) as redis:
        yield Queue(redis)


async def forget(redis: Any, *numbers: int) -> None:
    """Leaves what a move of a release before the indexes leaves."""
    for number in numbers:
        for key in (ENDED, *(ran_key(each) for each in range(LONGEST_RAN + 1))):
            await redis.zrem(key, f"{number:018d}")
        await redis.hdel(f"adlro:job:job-{number}", "ran")


async def ends(queue: Queue, **how: Any) -> list[End]:
    return [end async for end in queue.ended.before(**how)]


def expected(queue: Queue) -> list[End]:
    found = [End(job.end_s, number) for number, job in queue.jobs.items() if job.end_s is not None]
    return sorted(found, reverse=True)


@pytest.mark.parametrize("seed", range(5))
async def test_each_move_to_an_end_is_in_the_indexes_at_once(queue: Queue, seed: int) -> None:
    random = Random(seed)
    await queue.submit(random, 30)
    for _ in range(150):
        await queue.step(random.choice(list(queue.jobs)), random)
        if random.random() < 0.2:
            await check_ended_index(queue.redis)
    await check_ended_index(queue.redis)
    assert await ends(queue) == await ends(queue, at_once=3) == expected(queue)
    middle = expected(queue)[len(expected(queue)) // 2]
    assert await ends(queue, after=middle, at_once=3) == [each for each in expected(queue) if each < middle]
    within = [each for each in expected(queue) if 10.0 <= each.end_s < middle.end_s]
    assert await ends(queue, from_s=10.0, to_s=middle.end_s, at_once=4) == within


async def test_how_many_ended_in_a_range_is_known_without_reading_them(queue: Queue) -> None:
    await queue.submit(Random(3), 6)
    for number, end_s in enumerate((0.0, 1.0, 1.0, 2.5, 3.0), start=1):
        await queue.move(number, state=JobState.CANCELLED, submit_s=0.0, end_s=end_s, pending_reason=PendingReason.NONE)
    infinite = float("inf")
    for from_s in (-infinite, 0.0, 1.0, 2.0, 4.0):
        for to_s in (None, 0.0, 1.0, 2.5, 9.0):
            found = await ends(queue, from_s=from_s, to_s=to_s)
            assert await queue.ended.count(from_s, to_s) == len(found), (from_s, to_s)


async def test_a_place_that_is_gone_is_no_end_of_a_list(queue: Queue) -> None:
    await queue.fill(Random(1), 30, 150)
    middle = expected(queue)[5]
    await queue.redis.zrem(ENDED, f"{middle.number:018d}")
    await queue.redis.decr("adlro:jobs:sequence")  # or it would be found again
    assert [end async for end in queue.ended.before(middle)] == expected(queue)[6:]


async def test_a_job_that_changes_after_its_end_leaves_the_class_it_was_in(queue: Queue) -> None:
    await queue.submit(Random(2))
    attempt = JobAttempt(1, Placement.on("volta-0/0"), "v100", start_s=3.0, end_s=5.0, outcome="succeeded")
    ended = {"state": JobState.SUCCEEDED, "pending_reason": PendingReason.NONE, "end_s": 5.0}
    await queue.move(1, **ended, submit_s=1.0, start_s=3.0, attempts=(attempt,))
    assert await ends(queue) == [End(5.0, 1)]
    job = queue.jobs[1]
    assert job.end_s is not None
    later = replace(job.attempts[-1], end_s=job.end_s + 1e6)
    await queue.move(1, end_s=job.end_s + 1e6, attempts=(*job.attempts[:-1], later))
    await check_ended_index(queue.redis)
    assert await ends(queue) == [End(job.end_s + 1e6, 1)]


async def test_jobs_that_an_older_release_ended_are_found_before_anything_is_read(queue: Queue) -> None:
    await queue.fill(Random(3), 40, 200)
    every = expected(queue)
    await forget(queue.redis, *(end.number for end in every[::2]))
    assert await ends(queue) == every
    await check_ended_index(queue.redis)
    # And those of one that still acts.
    await forget(queue.redis, every[0].number)
    assert await queue.ended.ends_of([every[0].number]) == [every[0].end_s]
    await forget(queue.redis, every[1].number)
    assert every[1].number in (await queue.ended.ran_within(0.0, 1e9))[0] or not queue.jobs[every[1].number].attempts
    assert await queue.ended.index() == 0


@pytest.mark.parametrize("at_once", [1, 2, 7])
async def test_what_ran_in_a_range_is_read_in_parts(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Also where more jobs than a part has ended at one moment."""
    await queue.fill(Random(4), 60, 300)
    ranges = [(-1.0, 1e9), (0.0, queue.now_s / 2), (queue.now_s / 2, queue.now_s), (queue.now_s, 1e9)]
    whole = [await queue.ended.ran_within(*each) for each in ranges]
    assert len(whole[0][0]) > 20
    monkeypatch.setattr("adlro.store.ended._RAN_AT_ONCE", at_once)
    for (numbers, ends_s), each in zip(whole, ranges, strict=True):
        found, found_s = await queue.ended.ran_within(*each)
        assert found.tolist() == numbers.tolist() == sorted(set(numbers.tolist()))
        assert found_s.tolist() == ends_s.tolist() == [queue.jobs[number].end_s for number in numbers.tolist()]


async def test_a_long_history_of_an_older_release_is_refused_until_it_is_indexed(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.fill(Random(4), 40, 200)
    numbers = [end.number for end in expected(queue)]
    await forget(queue.redis, *numbers)
    monkeypatch.setattr(ended_module, "_INDEXED_WITHIN_S", -1.0)
    monkeypatch.setattr(ended_module, "_NUMBERS_AT_ONCE", 10)
    with pytest.raises(Unavailable, match=r"of an older version are not in the index") as refused:
        await ends(queue)
    assert refused.value.reason == "NOT_INDEXED"
    assert refused.value.retry_after_s
    assert await queue.ended.index() > 0
    assert await ends(queue) == expected(queue)
    await check_ended_index(queue.redis)


async def test_unreadable_and_missing_records_are_looked_for_once(queue: Queue) -> None:
    await queue.fill(Random(5), 40, 250)
    every = expected(queue)
    one, other = every[0].number, every[1].number
    await forget(queue.redis, one, other)
    await queue.redis.hset(f"adlro:job:job-{one}", "m", b"\xff\xff")
    await queue.redis.delete(f"adlro:job:job-{other}")
    assert [end for end in await ends(queue) if end.end_s > 0] == [end for end in every[2:] if end.end_s > 0]
    assert await queue.ended.index() == 0
    assert [ran.job_id async for ran in queue.ended.ran([one, other])] == []


async def test_a_job_cancelled_before_anybody_knew_the_time_comes_last(queue: Queue) -> None:
    await queue.submit(Random(6), 2)
    await queue.move(1, state=JobState.CANCELLED, pending_reason=PendingReason.NONE)
    await queue.move(2, state=JobState.CANCELLED, pending_reason=PendingReason.NONE, end_s=0.0)
    assert await ends(queue) == [End(0.0, 2), End(float("-inf"), 1)]
    await check_ended_index(queue.redis)


@pytest.mark.parametrize("commit", ["2b8a1f0"])
async def test_the_store_of_an_older_release_is_taken_over(redis_url: str, commit: str) -> None:
    restore(redis_url, commit)
    async with connect(redis_url) as redis:
        queue = Queue(redis)
        found = await ends(queue)
        assert found
        assert found == sorted(found, reverse=True)
        await check_ended_index(redis)
        ran = [each.job_id async for each in queue.ended.ran((await queue.ended.ran_within(0.0, 1e9))[0].tolist())]
        assert ran
