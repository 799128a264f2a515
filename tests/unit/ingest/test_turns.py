from __future__ import annotations

import asyncio

from adlro.services.ingest.turns import Turns


async def turns_taken(turns: Turns, takers: int, times: int) -> list[list[int]]:
    """Who had a turn in each round of the loop, until each of the takers had so many."""
    rounds: list[list[int]] = [[]]

    async def taker(name: int) -> None:
        for _ in range(times):
            if not turns.take_now():
                await turns.take()
            rounds[-1].append(name)

    tasks = [asyncio.create_task(taker(name)) for name in range(takers)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        rounds.append([])
    return rounds


async def test_a_round_has_so_many_turns_and_everybody_gets_his() -> None:
    turns = Turns(3)
    rounds = await turns_taken(turns, 20, 5)
    # Turns begin anew at one place in a round, and this counts at another.
    assert max(map(len, rounds)) <= 2 * 3
    assert len(rounds) >= 20 * 5 / 3
    taken = [name for each in rounds for name in each]
    assert sorted(taken) == sorted(list(range(20)) * 5)
    assert turns.waiting_count == 0


async def test_who_came_first_has_his_turn_first() -> None:
    turns = Turns(1)
    assert turns.take_now()
    order: list[int] = []

    async def taker(name: int) -> None:
        await turns.take()
        order.append(name)

    await asyncio.gather(*(taker(name) for name in range(10)))
    assert order == list(range(10))


async def test_who_goes_away_while_he_waits_holds_up_nobody() -> None:
    turns = Turns(1)
    assert turns.take_now()
    gone, there = asyncio.create_task(turns.take()), asyncio.create_task(turns.take())
    gone.cancel()
    async with asyncio.timeout(60):
        await there
    assert gone.cancelled()
    assert turns.waiting_count == 0


async def test_turns_are_there_again_after_a_pause() -> None:
    turns = Turns(2)
    for _ in range(3):
        assert [turns.take_now() for _ in range(3)] == [True, True, False]
        for _ in range(3):
            await asyncio.sleep(0)
