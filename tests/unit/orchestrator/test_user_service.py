"""What users have had of GPU time, over lost attempts and restarts of the orchestrator."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from adlro.records.events import Clock, ClockMode
from tests.unit.orchestrator.house import House

USERS = ("ann", "bob", "eve")


@pytest.mark.parametrize("seed", range(3))
async def test_every_ended_attempt_counts_once_whoever_is_killed(house: House, seed: int) -> None:
    draw = random.Random(seed)
    await house.pause()
    house.start("fcfs")
    for number in range(40):  # times on eighths of a second: their sums are exact in any order
        await house.submit(draw.randrange(4, 80) / 8, begin_time_s=draw.randrange(80) / 8, user=USERS[number % 3])
    await house.until_taken_up()
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    for number in range(6):
        await asyncio.sleep(draw.uniform(0.0, 0.05))
        if number % 2:
            house.cluster.lose(f"volta-0/{number // 3}")
        else:
            await house.kill()
            house.start("fcfs")
    had_s: dict[str, float] = defaultdict(float)
    for job in await house.until_final(40):
        for attempt in job.attempts:
            assert attempt.end_s is not None
            had_s[job.spec.user] += attempt.end_s - (attempt.start_s if attempt.start_s is not None else attempt.end_s)
    assert await house.store.user_service_s() == had_s


async def test_a_new_orchestrator_knows_what_users_have_had(house: House) -> None:
    house.start("fcfs")
    await house.submit(5.0, user="ann")
    await house.submit(3.0, user="bob")
    await house.until_final(2)
    await house.kill()
    await house.pause()
    house.start("fcfs")
    for user in ("bob", "ann", "cid"):
        await house.submit(1.0, user=user, gpu_memory_mib=99999)
    await house.until_taken_up()
    session = house.orchestrator.life.session
    assert session is not None
    assert session.ledger.observe(session.now_s).job_user_service_s[0].tolist() == [3.0, 5.0, 0.0]
