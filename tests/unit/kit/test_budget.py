"""Memory for requests: what one caller takes keeps no other from his part, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adlro.errors import LimitExceeded
from adlro.kit import budget
from adlro.kit.budget import LeasedStream, MemoryLease, RequestBudget
from tests.unit.kit.conditions import until

PATIENCE_S = 0.05
HANGS_S = 60.0


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(budget, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(budget, "_WAIT_S", 10 * HANGS_S)


def made(total_bytes: int = 8) -> RequestBudget:
    return RequestBudget(total_bytes, PATIENCE_S)


async def takes(made: RequestBudget, caller: str, size_bytes: int = 1) -> asyncio.Task[MemoryLease]:
    """A call that waits for memory."""
    task = asyncio.create_task(made.take(caller, size_bytes))
    await asyncio.sleep(0)
    return task


async def test_a_caller_gets_half_and_what_he_gives_back_goes_to_who_waits():
    memory = made()
    held = [await memory.take("ann", 1) for _ in range(4)]
    assert memory.take_now("ann", 1) is None
    second, third = await takes(memory, "ann"), await takes(memory, "ann")
    assert memory.used_bytes == 4
    held[0].release()
    await until(second.done)
    assert not third.done()
    held[1].release()
    held[1].release()  # once counts
    assert (await third).size_bytes == 1
    assert memory.used_bytes == 4
    assert memory.waiting_count == 0


async def test_one_whose_part_is_used_up_holds_up_no_other():
    memory = made()
    for _ in range(4):
        await memory.take("ann", 1)
    waiting = [await takes(memory, "ann") for _ in range(10)]
    assert (await asyncio.wait_for(memory.take("bob", 4), HANGS_S)).size_bytes == 4
    assert not any(each.done() for each in waiting)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    assert memory.waiting_count == 0


async def test_callers_are_served_in_turn_where_all_of_it_is_used():
    memory = made()
    held = [await memory.take(caller, 1) for caller in ("ann", "ann", "ann", "ann", "bob", "bob", "bob", "bob")]
    anns = [await takes(memory, "ann") for _ in range(3)]
    cey = await takes(memory, "cey", 2)
    held[0].release()  # ann's part has room, and she came first
    await until(anns[0].done)
    held[4].release()
    held[5].release()  # cey's turn; he needs both
    assert (await asyncio.wait_for(cey, HANGS_S)).size_bytes == 2
    assert not anns[1].done()
    held[1].release()
    await asyncio.wait_for(anns[1], HANGS_S)
    anns[2].cancel()


async def test_nobody_passes_one_who_waits_for_more():
    memory = made()
    held = [await memory.take(caller, 2) for caller in ("ann", "bob", "cey", "dan")]
    eve = await takes(memory, "eve", 4)
    held[0].release()
    assert memory.take_now("fay", 1) is None
    held[1].release()
    assert (await asyncio.wait_for(eve, HANGS_S)).size_bytes == 4
    for each in held[2:]:
        each.release()


async def test_who_waits_too_long_is_told_when_to_come_back(monkeypatch):
    monkeypatch.setattr(budget, "_WAIT_S", 0.02)
    memory = made()
    held = await memory.take("ann", 4)
    with pytest.raises(LimitExceeded) as told:
        await memory.take("ann", 1)
    assert (told.value.reason, told.value.retry_after_s) == ("TOO_MANY_REQUESTS", 1.0)
    assert memory.waiting_count == 0
    held.release()
    assert memory.take_now("ann", 4) is not None


async def test_more_than_may_wait_are_refused_at_once(monkeypatch):
    monkeypatch.setattr(budget, "_WAITING_OF_CALLER", 2)
    memory = made()
    held = await memory.take("ann", 4)
    waiting = [await takes(memory, "ann") for _ in range(2)]
    with pytest.raises(LimitExceeded):
        await memory.take("ann", 1)
    held.release()
    await asyncio.wait_for(asyncio.gather(*waiting), HANGS_S)


async def test_a_silent_client_gives_way_only_where_others_wait():
    memory = made()

    async def silent(caller: str) -> None:
        lease = await memory.take(caller, 4)
        try:
            await lease.read(asyncio.Event().wait())
        finally:
            lease.release()

    ann = asyncio.create_task(silent("ann"))
    await asyncio.sleep(3 * PATIENCE_S)
    assert not ann.done()
    # bob has a part of his own; only ann's second call waits for ann's first.
    assert memory.take_now("bob", 4) is not None
    lease = await asyncio.wait_for(memory.take("ann", 4), HANGS_S)
    with pytest.raises(LimitExceeded) as told:
        await ann
    assert told.value.reason == "TOO_SLOW"
    assert ann.cancelling() == 0
    lease.release()


async def test_a_call_that_works_is_not_given_up():
    memory = made()
    lease = await memory.take("ann", 4)
    await lease.read(asyncio.sleep(0))
    waiting = await takes(memory, "ann")
    await asyncio.sleep(3 * PATIENCE_S)
    assert not waiting.done()
    lease.resize(3)
    await asyncio.wait_for(waiting, HANGS_S)


async def test_a_stream_waits_for_each_message_and_ends_where_it_is_silent():
    memory = made()

    async def messages() -> Any:
        yield 1
        yield 2
        await asyncio.Event().wait()

    seen: list[int] = []

    async def read_all(lease: MemoryLease) -> None:
        async for each in LeasedStream(messages(), lease):
            seen.append(each)

    lease = await memory.take("ann", 4)
    waiting = await takes(memory, "ann")
    with pytest.raises(LimitExceeded):
        await read_all(lease)
    assert seen == [1, 2]
    lease.release()
    await asyncio.wait_for(waiting, HANGS_S)


async def test_a_cancelled_call_leaves_nothing_behind():
    memory = made()
    held = await memory.take("ann", 4)
    waiting = await takes(memory, "ann")
    waiting.cancel()
    granted = await takes(memory, "ann")
    held.release()
    granted.cancel()  # in the turn of the loop in which it was granted
    await asyncio.wait([waiting, granted])
    assert (memory.used_bytes, memory.waiting_count) == (0, 0)


async def test_who_waits_behind_a_cancelled_call_waits_no_longer(monkeypatch):
    monkeypatch.setattr(budget, "_LOOK_EVERY_S", 10 * HANGS_S)
    memory = made()
    _, _, gone = [await memory.take(caller, size) for caller, size in (("ann", 3), ("bob", 3), ("eve", 1))]
    large = await takes(memory, "cas", 4)
    gone.release()
    small = await takes(memory, "dan")
    assert not small.done()
    large.cancel()
    assert (await asyncio.wait_for(small, HANGS_S)).size_bytes == 1
    assert memory.take_now("cas", 1) is not None
    assert memory.waiting_count == 0
