"""The status as a stream: worked out and encoded once, however many watch, and not at all while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from adlro.errors import Unavailable
from adlro.services.orchestrator import status_feed
from adlro.services.orchestrator.status_feed import StatusFeed

PATIENCE_S = 30.0


class Status:
    """What is worked out, and how often."""

    def __init__(self) -> None:
        self.value = b"0"
        self.count = 0
        self.error: Exception | None = None

    async def encoded(self) -> bytes:
        self.count += 1
        if self.error is not None:
            raise self.error
        return self.value


def watched(feed: StatusFeed, ended: asyncio.Future[object], interval_s: float = 0.01) -> AsyncIterator[bytes]:
    return feed.watch(interval_s, ended, lambda: None)


@pytest.fixture
async def ended() -> asyncio.Future[object]:
    return asyncio.get_running_loop().create_future()


async def test_all_watchers_get_the_same_bytes(ended: asyncio.Future[object]) -> None:
    status = Status()
    feed = StatusFeed(status.encoded)
    watches = [watched(feed, ended) for _ in range(50)]
    for watch in watches:
        assert await anext(watch) == b"0"
    counted = status.count
    coming = [asyncio.ensure_future(anext(watch)) for watch in watches]
    await asyncio.sleep(0.02)
    status.value = b"1"
    async with asyncio.timeout(PATIENCE_S):
        told = await asyncio.gather(*coming)
    assert set(told) == {b"1"}
    assert len({id(each) for each in told}) == 1
    assert status.count - counted < 50, "not once for each"


async def test_nothing_is_worked_out_while_nobody_watches(ended: asyncio.Future[object]) -> None:
    status = Status()
    feed = StatusFeed(status.encoded)
    watch = watched(feed, ended)
    await anext(watch)
    status.value = b"1"
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(watch) == b"1"
    await watch.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0.02)
    count = status.count
    await asyncio.sleep(0.05)
    assert status.count == count


async def test_a_silent_status_comes_again_as_a_sign_of_life(
    ended: asyncio.Future[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_feed, "ALIVE_S", 0.05)
    feed = StatusFeed(Status().encoded)
    watch = watched(feed, ended)
    async with asyncio.timeout(PATIENCE_S):
        assert [await anext(watch) for _ in range(3)] == [b"0"] * 3


async def test_the_stream_ends_with_the_drain_with_a_refusal_and_with_an_error(ended: asyncio.Future[object]) -> None:
    status = Status()
    feed = StatusFeed(status.encoded)
    watch = watched(feed, ended)
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0.02)
    ended.set_result(None)
    async with asyncio.timeout(PATIENCE_S):
        assert await waiting is None

    def refuse() -> None:
        raise Unavailable("another acts")

    open_end: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    refusing = feed.watch(0.01, open_end, refuse)
    await anext(refusing)
    status.value = b"1"
    with pytest.raises(Unavailable):
        await anext(refusing)

    failing = watched(feed, open_end)
    await anext(failing)
    status.error = Unavailable("no status")
    with pytest.raises(Unavailable, match="no status"):
        await anext(failing)


async def test_a_slow_watcher_holds_no_other_back_and_nothing_older_follows(ended: asyncio.Future[object]) -> None:
    """The worker sleeps for an hour for the slow one; a watcher who joins then is as up to date as any other."""
    status = Status()

    async def counted() -> bytes:
        status.value = b"%d" % (status.count + 1)
        return await status.encoded()

    feed = StatusFeed(counted)
    slow = watched(feed, ended, 3600.0)
    await anext(slow)
    slow_waits = asyncio.ensure_future(anext(slow))
    for _ in range(2):  # the first of them has the worker begin its long sleep, by leaving
        quick = watched(feed, ended)
        async with asyncio.timeout(PATIENCE_S):
            told = [int(await anext(quick)) for _ in range(5)]
        assert told == sorted(set(told)), "each is newer than the one before"
        await quick.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)
    count = status.count
    await asyncio.sleep(0.05)
    assert status.count == count, "for the slow one alone it is not worked out that often"
    slow_waits.cancel()


async def test_a_status_that_was_begun_earlier_does_not_replace_a_later_one(ended: asyncio.Future[object]) -> None:
    begun: asyncio.Queue[asyncio.Future[bytes]] = asyncio.Queue()

    async def encoded() -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        begun.put_nowait(answer)
        return await answer

    feed = StatusFeed(encoded)
    async with asyncio.timeout(PATIENCE_S):
        early = watched(feed, ended)
        first = asyncio.ensure_future(anext(early))
        (await begun.get()).set_result(b"1")
        assert await first == b"1"
        second = asyncio.ensure_future(anext(early))
        of_worker = await begun.get()
        late = watched(feed, ended)
        joined = asyncio.ensure_future(anext(late))
        (await begun.get()).set_result(b"3")
        assert await joined == b"3"
        of_worker.set_result(b"2")
        assert await second == b"3"
        third = asyncio.ensure_future(anext(late))
        (await begun.get()).set_result(b"4")
        assert await third == b"4"
