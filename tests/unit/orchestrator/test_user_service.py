"""What users have had of GPU time, over lost attempts and restarts of the orchestrator."""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict

import numpy as np
import pytest

from adlro.records.attained import AttainedService
from adlro.records.events import Clock, ClockMode
from adlro.records.fair_share import FairShare
from adlro.services.orchestrator.ledger.fair_shares import FairShares
from adlro.services.orchestrator.ledger.user_service import UserService
from adlro.state.observation import Ints
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
    assert {user: had.gpu_s for user, had in (await house.store.user_service()).items()} == had_s


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


def test_gpu_time_counts_half_after_the_half_life() -> None:
    users = UserService({"ann": AttainedService(80.0, 20.0), "bob": AttainedService(8.0)}, half_life_s=10.0)
    assert [users.number_of(user) for user in ("ann", "bob", "cid")] == [0, 1, 2]
    none: Ints = np.zeros(0, dtype=np.int64)
    np.testing.assert_allclose(users.at(40.0, none, np.zeros(0))[:3], [20.0, 8.0, 0.0])
    # Two GPUs for 10 s that have just ended count as the integral of what counts: 10 s / ln 2 * (1 - 1/2) each.
    its_s = 2 * 10.0 / math.log(2.0) * 0.5
    assert users.add("cid", 10.0, 2, 40.0) == pytest.approx((its_s, 40.0))
    assert users.add("cid", 10.0, 2, 50.0) == pytest.approx((its_s * 1.5, 50.0))
    assert users.add("cid", 10.0, 2, 40.0) == pytest.approx((its_s * 2.0, 50.0)), "its end is told late"
    running, since_s = np.array([2, 2]), np.array([45.0, 45.0])
    ran_s = 2 * 10.0 / math.log(2.0) * (1.0 - 2.0**-0.5)
    np.testing.assert_allclose(users.at(50.0, running, since_s)[2], its_s * 2.0 + ran_s)


def test_without_a_half_life_nothing_is_forgotten_and_sums_are_exact() -> None:
    users = UserService({"ann": AttainedService(0.1)})
    assert users.add("ann", 0.1, 2, 1e9) == AttainedService(0.1 + 0.2, 1e9)
    assert users.at(2e9, np.array([0]), np.array([2e9 - 0.3])).tolist()[0] == 0.1 + 0.2 + (2e9 - (2e9 - 0.3))


def test_a_group_counts_as_one_and_shares_divide() -> None:
    before = {"ann": AttainedService(30.0), "bob": AttainedService(10.0), "gone": AttainedService(50.0)}
    shares = FairShares({"ann": FairShare("ann", 2.0), "bob": FairShare("bob", 5.0, "vision")})
    users = UserService(before, shares=shares)
    for user in ("ann", "bob", "cid"):
        users.number_of(user)

    def now() -> dict[str, float]:
        had_s = users.at(0.0, np.zeros(0, dtype=np.int64), np.zeros(0))
        return dict(zip(users.names, users.per_share(had_s).tolist(), strict=False))

    assert (now()["ann"], now()["bob"], now()["cid"]) == (15.0, 10.0, 0.0), "bob's own shares don't matter in a group"
    in_vision = {user: FairShare(user, group="vision") for user in ("bob", "gone", "cid")}
    users.set_shares(FairShares({**in_vision, "@vision": FairShare("@vision", 4.0)}))
    assert (now()["ann"], now()["bob"], now()["cid"]) == (30.0, 15.0, 15.0), "of members without a job too"
    had_s = users.at(0.0, np.zeros(0, dtype=np.int64), np.zeros(0))
    assert users.of_accounts(had_s) == {"@vision": 60.0, "ann": 30.0}
    users.set_shares(FairShares())
    assert now() == {"bob": 10.0, "ann": 30.0, "cid": 0.0, "gone": 50.0}
