"""A policy of one's own in a session: it decides, and whatever it does wrong, hold_gang decides and every job ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
import structlog

from adlro.decide.catalog import of_files
from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.records.decisions import DecisionBasis
from adlro.records.jobs import JobState
from adlro.services.orchestrator.deciding import guard as guard_module
from adlro.services.orchestrator.deciding.guard import Guard
from adlro.services.orchestrator.deciding.policy_selection import Choices
from adlro.store.keys import POLICY
from tests.unit.decide.decision_points import Waiting, decision
from tests.unit.orchestrator.house import House

MINE = """
import sys, time
import numpy as np
from adlro.decide.policies import Policy

class Mine(Policy):
    name = "mine"
    description = "the first that fits"

    def preferences(self, observation):
        {body}
"""


@pytest.fixture
async def house(redis_url: str, cluster: Cluster) -> AsyncIterator[House]:
    made = House(redis_url, cluster)
    yield made
    await made.close()


def own(tmp_path: Path, body: str, *, policy: str = "mine", shadow: str = "", **more: object) -> Choices:
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(body=body))
    return Choices(policy, shadow, files=(f"{path}:Mine",), **more)  # type: ignore[arg-type]


async def decided(house: House) -> DecisionBasis:
    """The basis of a job's decision."""
    await house.until_acting()
    await house.submit(5.0)
    (job,) = await house.until_final(1)
    assert job.state is JobState.SUCCEEDED
    basis = (await house.orchestrator.answers.job(job.job_id)).basis
    assert basis is not None
    return basis


async def test_it_decides_and_is_listed_with_where_it_comes_from(house: House, tmp_path: Path) -> None:
    house.start(choices=own(tmp_path, "return -observation.table.job.astype(float)"))
    assert await decided(house) is DecisionBasis.POLICY
    status = await house.orchestrator.status()
    assert (status.policy, status.deciding_policy, status.policy_problem) == ("mine", "mine", "")
    offered = {each.name: each for each in house.orchestrator.choosing.offered}
    assert offered["mine"].acting
    assert offered["mine"].source == f"{tmp_path}/mine.py:Mine"
    assert offered["mine"].version == status.policy_version != ""
    assert offered["fcfs"].source == "ADLRO"


@pytest.mark.parametrize(
    ("body", "basis", "says"),
    [
        ("return 1 / 0", DecisionBasis.FAILED, "mine.py, line 11: mine raised ZeroDivisionError"),
        ("sys.exit(1)", DecisionBasis.FAILED, "mine.py, line 11: mine raised SystemExit: 1"),
        ("return np.full(len(observation.table.job), np.nan)", DecisionBasis.FAILED, "a preference is no number"),
        ("return np.zeros(99)", DecisionBasis.FAILED, "preferences must be a new array"),
    ],
)
async def test_whatever_it_does_wrong_the_fallback_decides(
    house: House, tmp_path: Path, body: str, basis: DecisionBasis, says: str
) -> None:
    house.start(choices=own(tmp_path, body), lease_s=5.0)
    assert await decided(house) is basis
    status = await house.orchestrator.status()
    assert (status.policy, status.deciding_policy, status.deciding_basis) == ("mine", "hold_gang", basis)
    assert says in status.policy_problem
    assert status.fallbacks[basis] >= 1


async def test_a_late_one_is_not_waited_for(tmp_path: Path) -> None:
    (kind,) = of_files(own(tmp_path, "time.sleep(0.5)").files).values()
    guard = Guard(0.05, structlog.get_logger())
    point = decision([Waiting((5, 3)), Waiting((2, 9))], [0, 0])
    began = time.monotonic()
    judgement = await guard.judge(kind(), point, virtual=False)
    assert time.monotonic() - began < 0.4
    assert judgement.basis_of(0) is DecisionBasis.LATE
    assert guard.problem == "mine is not used: no decision within 0.05 s"
    guard.close()


async def test_in_virtual_time_one_that_was_quick_and_hangs_blocks_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "HANGS_S", 0.2)
    body = (
        "Mine.asked = getattr(Mine, 'asked', 0) + 1\n        time.sleep(2.0 if Mine.asked > 3 else 0.0)\n"
        "        return np.zeros(len(observation.table.job))"
    )
    (kind,) = of_files(own(tmp_path, body).files).values()
    guard, policy = Guard(0.05, structlog.get_logger()), kind()
    point = decision([Waiting((5, 3)), Waiting((2, 9))], [0, 0])
    for _ in range(3):
        assert (await guard.judge(policy, point, virtual=True)).basis_of(0) is DecisionBasis.POLICY
    began, ticks = time.monotonic(), 0
    asked = asyncio.create_task(guard.judge(policy, point, virtual=True))
    while not asked.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert (await asked).basis_of(0) is DecisionBasis.LATE
    assert time.monotonic() - began < 1.5
    assert ticks > 3, "the loop went on"
    guard.close()


async def test_a_file_that_broke_since_it_was_selected_leaves_the_suite_deciding(
    house: House, tmp_path: Path, redis_url: str
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set(POLICY, "mine")
    house.start(choices=own(tmp_path, "retrun 1", policy=""))
    await house.until_acting()
    status = await house.orchestrator.status()
    assert (status.policy, status.deciding_policy, status.deciding_basis) == (
        "mine",
        "hold_gang",
        DecisionBasis.MISSING,
    )
    assert "mine is not used" in status.policy_problem
    assert "mine.py, line 11: SyntaxError" in status.policy_problem
    assert await decided(house) is DecisionBasis.MISSING
    broken = house.orchestrator.choosing.offered[-1]
    assert broken.name == f"{tmp_path}/mine.py:Mine"
    assert "SyntaxError" in broken.problem
    assert await house.orchestrator.choosing.set_policy("fcfs") == "mine"
    with pytest.raises(InvalidInput, match=r"there is no policy 'mine'.*SyntaxError"):
        await house.orchestrator.choosing.set_policy("mine")


async def test_a_setting_that_names_it_stands_though_its_file_is_broken(house: House, tmp_path: Path) -> None:
    house.start(choices=own(tmp_path, "retrun 1", shadow="mine"))
    assert await decided(house) is DecisionBasis.MISSING
    assert house.orchestrator.choosing.shadow == "mine"


async def test_in_the_shadow_it_places_nothing_and_its_failures_are_counted(house: House, tmp_path: Path) -> None:
    house.start(choices=own(tmp_path, "return 1 / 0", policy="fcfs", shadow="mine"))
    assert await decided(house) is DecisionBasis.POLICY
    await house.orchestrator.acting.shadow.settled()
    shadow = (await house.orchestrator.status()).shadow
    assert shadow is not None
    assert (shadow.policy, shadow.agreed_count, shadow.differed_count) == ("mine", 0, 0)
    assert shadow.failed_count >= 1


def test_an_unknown_name_without_files_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no policy 'nobody'; there are fcfs"):
        House("redis://127.0.0.1:1/0", None).start(choices=Choices("nobody"))  # type: ignore[arg-type]
