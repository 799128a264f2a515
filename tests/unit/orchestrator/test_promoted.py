"""Promoted checkpoints and candidates in the orchestrator: which weights decide, and what runs in the shadow alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from adlro.decide.policies.dqn import Dqn
from adlro.decide.policies.dqn_candidate import DqnCandidate
from adlro.errors import InvalidInput
from adlro.kit.promotion import promote, withdraw
from adlro.services.orchestrator.deciding.checkpoint import Checkpoint
from adlro.services.orchestrator.deciding.policy_selection import Choices, PolicySelection
from adlro.services.orchestrator.deciding.trial import Trial
from adlro.services.orchestrator.metrics import OrchestratorMetrics
from tests.networks import SHORTEST, network, put


@pytest.fixture(autouse=True)
def no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that tries a file out takes a second; test_trial.py is about it."""
    monkeypatch.setattr(Trial, "run", lambda self, content, source: None)


class Names:
    """A Redis that holds nothing."""

    async def get(self, key: str) -> bytes | None:
        return None

    async def set(self, key: str, value: str) -> None:
        pass


@pytest.fixture
def selection(tmp_path: Path) -> Iterator[PolicySelection]:
    choices = Choices("dqn", "", put(tmp_path / "set.onnx", network(SHORTEST)), candidate=tmp_path / "candidate.onnx")
    metrics = OrchestratorMetrics(CollectorRegistry())
    made = PolicySelection(Names(), choices, 10, metrics, structlog.get_logger())
    yield made
    made.close()


async def test_a_promoted_checkpoint_goes_before_the_one_that_is_set_until_it_is_withdrawn(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    path = put(tmp_path / "set.onnx", network(SHORTEST))
    checkpoint = Checkpoint(path, structlog.get_logger(), promoted=folder)
    assert await checkpoint.look()
    of_path = checkpoint.policy.version
    versions = []
    folder.mkdir()
    for hold in (1.0, 2.0):
        promote(folder, network(SHORTEST, hold=hold), "aa")
        assert await checkpoint.look()
        versions.append(checkpoint.policy.version)
    assert len({of_path, *versions}) == 3
    put(path, network(SHORTEST, hold=3.0))  # newer than both
    assert not await checkpoint.look()
    assert (checkpoint.policy.version, checkpoint.problem) == (versions[1], "")
    withdraw(folder)
    assert await checkpoint.look()
    assert checkpoint.policy.version == versions[0]
    withdraw(folder)
    assert await checkpoint.look()
    assert checkpoint.policy.version not in versions
    checkpoint.close()


async def test_a_promoted_file_that_is_no_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    promote(folder, network(SHORTEST), "aa")
    checkpoint = Checkpoint(None, structlog.get_logger(), promoted=folder)
    assert await checkpoint.look()
    before = checkpoint.policy.version
    promote(folder, b"junk", "bb")
    assert not await checkpoint.look()
    assert (checkpoint.policy.version, checkpoint.refused) == (before, 1)
    assert "0002-bb.onnx" in checkpoint.problem
    checkpoint.close()


async def test_the_last_number_counts_and_not_the_time_of_the_file(tmp_path: Path) -> None:
    first = promote(tmp_path, network(SHORTEST), "aa")
    checkpoint = Checkpoint(None, structlog.get_logger(), promoted=tmp_path)
    assert await checkpoint.look()
    before = checkpoint.policy.version
    second = promote(tmp_path, network(SHORTEST, hold=1.0), "bb")
    os.utime(second.path, ns=(0, first.path.stat().st_mtime_ns - 10**12))  # the clock was set back
    put(tmp_path / "best.onnx", network(SHORTEST, hold=2.0))  # nobody promoted this
    assert await checkpoint.look()
    assert checkpoint.policy.version not in (before, Dqn(tmp_path / "best.onnx").load().version)
    assert not await checkpoint.look()
    checkpoint.close()


async def test_a_folder_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where a folder should be")
    checkpoint = Checkpoint(None, structlog.get_logger(), promoted=tmp_path / "checkpoints")
    assert await checkpoint.look()
    assert checkpoint.problem == ""
    checkpoint.close()


async def test_a_candidate_decides_in_the_shadow_and_changes_with_its_file(
    selection: PolicySelection, tmp_path: Path
) -> None:
    await selection.look_for_checkpoint()
    assert DqnCandidate.name not in [each.name for each in selection.offered]
    assert await selection.set_shadow(DqnCandidate.name) == ""
    shadow = selection.acting.shadow.policy
    assert shadow is not None
    assert shadow.version == ""
    put(tmp_path / "candidate.onnx", network(SHORTEST, hold=1.0))
    await selection.look_for_checkpoint()
    shadow = selection.acting.shadow.policy
    assert isinstance(shadow, DqnCandidate)
    assert shadow.version not in ("", selection.acting.policy.version)
    offered = {each.name: each for each in selection.offered}
    assert (offered["dqn_candidate"].version, offered["dqn_candidate"].shadow) == (shadow.version, True)
    assert offered["dqn"].version == selection.acting.policy.version


async def test_a_candidate_never_acts(selection: PolicySelection) -> None:
    with pytest.raises(InvalidInput, match=r"shadow only.*adlro policy promote"):
        await selection.set_policy(DqnCandidate.name)
    assert selection.acting.policy.name == "dqn"
    with pytest.raises(InvalidInput, match="shadow only"):
        PolicySelection(
            Names(), Choices("dqn_candidate"), 10, OrchestratorMetrics(CollectorRegistry()), structlog.get_logger()
        )
