"""Which policy acts is what was set last, by the checkpoint that serves then, whatever came while it was set."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import structlog
from prometheus_client import CollectorRegistry

from adlro.decide.policies.dqn import Dqn
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.decide.rollouts.policy import DqnLookahead
from adlro.errors import InvalidInput, Unsupported
from adlro.records.decisions import DecisionBasis
from adlro.services.orchestrator.deciding.guard import Guard
from adlro.services.orchestrator.deciding.policy_selection import Choices, PolicySelection
from adlro.services.orchestrator.metrics import OrchestratorMetrics
from tests.networks import SHORTEST, network, put
from tests.unit.decide.decision_points import drawn

POINT = drawn(np.random.default_rng(2), 6)


class Slow:
    """A Redis that answers a write once it may."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def get(self, key: str) -> bytes | None:
        return None

    async def set(self, key: str, value: str) -> None:
        await self.open.wait()


class Made:
    """Choosings that end with the test."""

    def __init__(self) -> None:
        self.redis = Slow()
        self.all: list[PolicySelection] = []

    def __call__(self, policy: str, checkpoint: Path, shadow: str = "") -> PolicySelection:
        choices = Choices(policy, shadow, checkpoint)
        self.all.append(
            PolicySelection(self.redis, choices, 10, OrchestratorMetrics(CollectorRegistry()), structlog.get_logger())
        )
        return self.all[-1]


@pytest.fixture
def make() -> Iterator[Made]:
    made = Made()
    yield made
    for each in made.all:
        each.close()


@pytest.mark.parametrize("name", ["dqn", "dqn_lookahead"])
async def test_a_checkpoint_that_comes_while_the_policy_is_set_is_the_acting_ones(
    make: Made, tmp_path: Path, name: str
) -> None:
    choosing = make("fcfs", put(tmp_path / "net.onnx", network(SHORTEST)))
    make.redis.open.clear()
    setting = asyncio.gather(choosing.set_policy(name), choosing.set_shadow(name))
    await asyncio.sleep(0)
    await choosing.look_for_checkpoint()
    make.redis.open.set()
    assert list(await setting) == ["fcfs", ""]
    version = choosing.checkpoint.policy.version
    assert version
    shadow = choosing.acting.shadow.policy
    assert shadow is not None
    assert (choosing.acting.policy.name, shadow.name) == (name, name)
    assert (choosing.acting.policy.version, shadow.version) == (version, version)


async def test_an_unknown_policy_is_refused_before_anything_is_written(make: Made, tmp_path: Path) -> None:
    choosing = make("fcfs", tmp_path / "none.onnx")
    make.redis.open.clear()
    for setting in (choosing.set_policy("magic"), choosing.set_shadow("magic")):
        with pytest.raises(InvalidInput, match=r"no policy 'magic'.*dqn_lookahead"):
            await asyncio.wait_for(setting, 60.0)


@pytest.mark.parametrize("name", ["dqn", "dqn_lookahead"])
async def test_without_the_checkpoint_that_is_set_no_other_weights_decide(
    make: Made, tmp_path: Path, name: str
) -> None:
    choosing = make(name, tmp_path / "none.onnx")
    await choosing.look_for_checkpoint()
    policy = choosing.acting.policy
    assert isinstance(policy, Dqn)
    assert (policy.name, policy.version, policy.checkpoint) == (name, "", tmp_path / "none.onnx")
    assert "none.onnx" in choosing.problem
    with pytest.raises(Unsupported, match=r"none\.onnx"):
        policy.load()
    judgement = await choosing.acting.guard.judge(policy, POINT, virtual=True)
    assert judgement.basis_of(0) is DecisionBasis.MISSING
    np.testing.assert_array_equal(judgement.scores, HoldGreedyFixed().scores(POINT))


async def test_looking_ahead_goes_by_the_checkpoint_that_serves_and_remembers_beyond_it(
    make: Made, tmp_path: Path
) -> None:
    path = put(tmp_path / "net.onnx", network(SHORTEST, hold=-1e6))
    choosing = make("dqn_lookahead", path)
    await choosing.look_for_checkpoint()
    first = choosing.acting.policy
    assert isinstance(first, DqnLookahead)
    assert first.version == choosing.checkpoint.policy.version != ""
    assert {each.version for each in choosing.offered if each.name.startswith("dqn")} == {first.version}
    # What lies there meanwhile is not read behind the back of what tries checkpoints out.
    put(path, b"nonsense")
    guard: Guard = choosing.acting.guard
    assert not (await guard.judge(first, POINT, virtual=True)).basis_of(0).fallback
    put(path, network({"duration": 1.0}, hold=-1e6))
    await choosing.look_for_checkpoint()
    second = choosing.acting.policy
    assert isinstance(second, DqnLookahead)
    assert second.version == choosing.checkpoint.policy.version != first.version
    assert second.lookahead is first.lookahead
    assert second.lookahead.seen is not None
    assert second.lookahead.seen.count > 0


# ---- a place that cannot be looked at


async def test_a_place_that_cannot_be_looked_at_is_told_and_what_serves_goes_on(make: Made, tmp_path: Path) -> None:
    choosing = make("dqn", put(tmp_path / "net.onnx", network(SHORTEST)))
    await choosing.look_for_checkpoint()
    version = choosing.acting.policy.version
    # As under a folder that may not be entered; who runs as root may enter every one.
    choosing.checkpoint.path = tmp_path / ("long" * 100)
    await choosing.look_for_checkpoint()
    assert choosing.acting.policy.version == version
    assert "File name too long" in choosing.checkpoint.problem
    choosing.checkpoint.path = tmp_path / "net.onnx"
    await choosing.look_for_checkpoint()
    assert choosing.checkpoint.problem == ""
