"""The event log: messages, positions, what is kept, followers of different speed."""

from __future__ import annotations

import asyncio

import pytest

from adlro.clusterside.event_log import EventLog
from adlro.errors import OutOfRange, Stale
from adlro.records.events import Clock, ClockMode, ClusterEvent, EventKind

CLOCK = Clock(ClockMode.VIRTUAL, 0.0, False, 0.0)


def event(kind: EventKind, time_s: float = 0.0, job_id: str = "") -> ClusterEvent:
    return ClusterEvent(0, kind, time_s, job_id)


def revisions(batch):
    return [each.revision for each in batch.events]


def test_revisions_count_from_one():
    log = EventLog("x")
    assert (log.revision, log.oldest_revision) == (0, 1)
    assert [each.revision for each in log.append([event(EventKind.WAKE_UP)] * 2, CLOCK)] == [1, 2]
    assert [each.revision for each in log.append([event(EventKind.WAKE_UP)], CLOCK)] == [3]
    assert log.oldest_revision == 1


def test_a_message_is_one_moment_and_starts_of_one_moment_go_together():
    log = EventLog("x")
    log.append([event(EventKind.FINISHED), event(EventKind.WAKE_UP)], CLOCK)
    log.append([event(EventKind.STARTED)], CLOCK)
    log.append([event(EventKind.STARTED)], CLOCK)
    log.append([event(EventKind.STARTED, 5.0)], CLOCK)
    log.append([event(EventKind.FINISHED, 5.0)], CLOCK)
    got, seen = [], 0
    while (batch := log.next_after(seen)) is not None:
        got.append(revisions(batch))
        seen = got[-1][-1]
    assert got == [[1, 2], [3, 4], [5], [6]]
    # In the middle of a message: what is left of it.
    assert revisions(log.next_after(1)) == [2]
    assert revisions(log.next_after(3)) == [4]


def test_everything_unacknowledged_and_the_last_events_are_kept():
    log = EventLog("x", events_kept=10)
    for _ in range(5000):
        log.append([event(EventKind.WAKE_UP)], CLOCK)
    assert log.oldest_revision == 1
    log.acknowledge(4000)
    assert log.oldest_revision == 4001
    log.acknowledge(5000)
    assert log.oldest_revision == 4991
    assert revisions(log.next_after(4990)) == [4991]
    for _ in range(5000):
        log.append([event(EventKind.WAKE_UP)], CLOCK)
        log.acknowledge(log.revision)
    assert log.oldest_revision == 9991
    assert len(log._batches) < 3000


@pytest.mark.parametrize("position", [0, 89, 101])
def test_a_position_outside_the_log_is_refused(position):
    log = EventLog("x", events_kept=10)
    for _ in range(100):
        log.append([event(EventKind.WAKE_UP)], CLOCK)
    log.acknowledge(100)
    with pytest.raises(OutOfRange, match="91 to 100 are stored; call DescribeCluster"):
        log.check_position(position)
    log.check_position(90)
    log.check_position(100)


def test_another_incarnation_is_refused():
    log = EventLog("x")
    log.check_incarnation("x")
    with pytest.raises(Stale) as refused:
        log.check_incarnation("y")
    assert refused.value.metadata == {"incarnation": "x"}


async def test_followers_have_positions_of_their_own_and_one_that_stands_holds_up_nobody():
    log = EventLog("x")
    slow = log.follow(0)
    log.append([event(EventKind.WAKE_UP)], CLOCK)
    assert revisions(await anext(slow)) == [1]  # and takes no more for now

    async def fast():
        got = []
        async for batch in log.follow(0):
            got += revisions(batch)
            if len(got) == 100:
                return got
        return got

    follower = asyncio.create_task(fast())
    for _ in range(99):
        log.append([event(EventKind.WAKE_UP)], CLOCK)
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert await follower == list(range(1, 101))
        assert [revisions(await anext(slow)) for _ in range(99)] == [[n] for n in range(2, 101)]


async def test_a_follower_too_slow_for_what_is_kept_is_told_so():
    log = EventLog("x", events_kept=10)
    slow = log.follow(0)
    log.append([event(EventKind.WAKE_UP)], CLOCK)
    await anext(slow)
    for _ in range(100):
        log.append([event(EventKind.WAKE_UP)], CLOCK)
    log.acknowledge(log.revision)
    with pytest.raises(OutOfRange):
        await anext(slow)


async def test_closing_ends_followers_that_wait():
    log = EventLog("x")

    async def follow():
        return [batch async for batch in log.follow(0)]

    follower = asyncio.create_task(follow())
    await asyncio.sleep(0)
    log.close()
    async with asyncio.timeout(60):
        assert await follower == []
