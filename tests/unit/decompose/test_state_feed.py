"""A state as a stream: made and encoded once for all watchers, whole where a watcher has missed a change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from adlro.errors import NotFound
from adlro.services.decompose.state_feed import StateFeed

PATIENCE_S = 30.0


class Number:
    """A state that is a number; counts what is encoded."""

    def __init__(self) -> None:
        self.value: list[int] = [0]  # a new object for each state
        self.gone = False
        self.whole_count = self.difference_count = 0
        self._news = asyncio.Event()

    def set(self, value: int) -> None:
        self.value = [value]
        self._tell()

    def go(self) -> None:
        self.gone = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def read(self) -> list[int]:
        if self.gone:
            raise NotFound("it is gone")
        return self.value

    async def changed(self, state: list[int]) -> None:
        while self.value is state and not self.gone:
            await self._news.wait()

    def whole(self, state: list[int]) -> bytes:
        self.whole_count += 1
        return f"={state[0]}".encode()

    def difference(self, before: list[int], now: list[int]) -> bytes:
        self.difference_count += 1
        return f"+{now[0] - before[0]}".encode()

    def feed(self, interval_s: float = 0.01, *, differences: bool = True) -> StateFeed[list[int]]:
        return StateFeed(self.read, self.changed, self.whole, self.difference if differences else None, interval_s)


@pytest.fixture
async def open_end() -> asyncio.Future[object]:
    return asyncio.get_running_loop().create_future()


async def of(watch: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(watch)


async def test_fifty_watchers_cost_one_encoding(open_end: asyncio.Future[object]) -> None:
    number = Number()
    feed = number.feed()
    watches = [feed.watch(open_end) for _ in range(50)]
    assert {await of(each) for each in watches} == {b"=0"}
    waiting = [asyncio.ensure_future(of(each)) for each in watches]
    await asyncio.sleep(0)
    number.set(7)
    told = await asyncio.gather(*waiting)
    assert set(told) == {b"+7"}
    assert len({id(each) for each in told}) == 1
    assert (number.whole_count, number.difference_count) == (1, 1)
    for each in watches:
        await each.aclose()  # type: ignore[attr-defined]
    assert feed.is_idle
    assert feed._working is None


async def test_who_comes_later_begins_with_the_newest_and_what_follows_fits(open_end: asyncio.Future[object]) -> None:
    number = Number()
    feed = number.feed(interval_s=0.2)
    first = feed.watch(open_end)
    assert await of(first) == b"=0"
    number.set(1)  # within the interval: not told yet
    late, later = feed.watch(open_end), feed.watch(open_end)
    assert [await of(late), await of(later)] == [b"=1", b"=1"]
    assert number.whole_count == 2, "once for both"
    assert await of(first) == b"+1"
    assert await of(late) == b"=1", "no difference from a state that no message told"
    number.set(4)
    assert [await of(first), await of(late)] == [b"+3", b"+3"]


async def test_a_slow_watcher_gets_the_whole_of_the_newest_state(open_end: asyncio.Future[object]) -> None:
    number = Number()
    feed = number.feed()
    quick, slow = feed.watch(open_end), feed.watch(open_end)
    assert [await of(quick), await of(slow)] == [b"=0", b"=0"]
    for value in (1, 2, 3):
        number.set(value)
        assert await of(quick) == b"+1"
    assert await of(slow) == b"=3"
    number.set(9)
    assert [await of(quick), await of(slow)] == [b"+6", b"+6"]


async def test_whole_states_are_told_whole(open_end: asyncio.Future[object]) -> None:
    number = Number()
    watch = number.feed(differences=False).watch(open_end)
    assert await of(watch) == b"=0"
    number.set(2)
    assert await of(watch) == b"=2"


async def test_streams_end_with_the_state_and_at_the_drain(open_end: asyncio.Future[object]) -> None:
    number = Number()
    watch = number.feed().watch(open_end)
    await of(watch)
    number.go()
    with pytest.raises(NotFound):
        await of(watch)
    number.gone = False
    again = number.feed().watch(open_end)
    await of(again)
    waiting = asyncio.ensure_future(anext(again, b"the end"))
    await asyncio.sleep(0.02)
    open_end.set_result(None)
    async with asyncio.timeout(PATIENCE_S):
        assert await waiting == b"the end"
