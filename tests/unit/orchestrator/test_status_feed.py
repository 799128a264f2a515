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
