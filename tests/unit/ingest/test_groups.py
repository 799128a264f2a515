from __future__ import annotations

import asyncio

import pytest

from adlro.services.ingest.groups import GroupedWrites


class _Store:
    """Answers each round trip when told to."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.may_answer = asyncio.Semaphore(0)
        self.fails: Exception | None = None

    async def write(self, items: list[int]) -> list[int | Exception]:
        self.groups.append(items)
        await self.may_answer.acquire()
        if self.fails is not None:
            raise self.fails
        return [ValueError(str(item)) if item < 0 else 10 * item for item in items]


async def test_what_arrives_during_a_write_goes_with_the_next_and_in_order():
    store = _Store()
    writes = GroupedWrites(store.write, max_items=3)
    first = writes.add(0)
    await asyncio.sleep(0)
    assert store.groups == [[0]]
    rest = [writes.add(n) for n in range(1, 6)]
    for _ in range(3):
        store.may_answer.release()
    assert await asyncio.gather(first, *rest) == [0, 10, 20, 30, 40, 50]
    assert store.groups == [[0], [1, 2, 3], [4, 5]]


async def test_one_item_can_be_refused_alone():
    store = _Store()
    store.may_answer.release()
    writes = GroupedWrites(store.write, max_items=9)
    good, bad = writes.add(1), writes.add(-2)
    assert await good == 10
    with pytest.raises(ValueError, match="-2"):
        await bad


async def test_a_failed_write_fails_its_group_and_the_next_one_is_tried():
    store = _Store()
    store.fails = OSError("gone")
    store.may_answer.release()
    writes = GroupedWrites(store.write, max_items=9)
    for future in (writes.add(1), writes.add(2)):
        with pytest.raises(OSError, match="gone"):
            await future
    store.fails = None
    store.may_answer.release()
    assert await writes.add(3) == 30


async def test_a_caller_that_goes_away_does_not_undo_the_write_of_others():
    store = _Store()
    writes = GroupedWrites(store.write, max_items=9)
    gone, stays = writes.add(1), writes.add(2)
    await asyncio.sleep(0)
    gone.cancel()
    store.may_answer.release()
    assert await stays == 20
    assert store.groups == [[1, 2]]
