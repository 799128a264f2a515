"""A learning from the past to the verdict: which network learns, what stays, how it goes on after an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from adlro.decide.planes.model import OnnxModel
from adlro.decide.policies.dqn import SHIPPED, Dqn
from adlro.errors import Conflict
from adlro.lab.candidates import making
from adlro.lab.candidates.judging import LEAST_JOBS
from adlro.lab.candidates.learning import Plan, clear, learn, publish
from adlro.lab.candidates.making import Making, make_candidate
from adlro.lab.learn import advantages, pair_refit
from adlro.lab.learn.gang_states import GangSampling
from tests.unit.lab.candidates.pasts import past

pytestmark = pytest.mark.slow

SMALL = Making(worlds=2, epochs=1)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_sampling", lambda _: GangSampling(lists=2, jobs=40, share=0.4, futures=2, ahead=4))
    monkeypatch.setattr(
        pair_refit, "Sampling", lambda: advantages.Sampling(lists=4, jobs=40, share=0.5, futures=2, ahead=4)
    )


def weights(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Of the network for jobs of one GPU (as its answers), and of that for several."""
    model = OnnxModel(content)
    assert model.gangs is not None
    return np.frombuffer(model.metadata.to_json().encode(), dtype=np.uint8), model.gangs.first


def test_with_jobs_of_several_gpus_their_network_learns_and_the_other_stays(tmp_path: Path) -> None:
    shipped = SHIPPED.read_bytes()
    made = make_candidate(past(200), shipped, SMALL, tmp_path, lambda _: None)
    assert (tmp_path / "gangs").is_dir()
    assert not (tmp_path / "one_gpu").exists()
    (one, several), (one_before, several_before) = weights(made), weights(shipped)
    np.testing.assert_array_equal(one, one_before)
    assert not np.array_equal(several, several_before)
    np.testing.assert_allclose(several, several_before, atol=0.2)  # it begins with those weights
    begun, ended = OnnxModel(shipped).gangs, OnnxModel(made).gangs
    assert begun is not None
    assert ended is not None
    assert (ended.lowest <= begun.lowest + 1e-6).all()
    assert (ended.highest >= begun.highest - 1e-6).all()


def test_with_jobs_of_one_gpu_only_the_network_for_these_learns(tmp_path: Path) -> None:
    shipped = SHIPPED.read_bytes()
    made = make_candidate(past(200, "paper"), shipped, SMALL, tmp_path, lambda _: None)
    assert not (tmp_path / "gangs").exists()
    (one, several), (one_before, several_before) = weights(made), weights(shipped)
    assert not np.array_equal(one, one_before)
    np.testing.assert_array_equal(several, several_before)
    (tmp_path / "made.onnx").write_bytes(made)
    assert Dqn(tmp_path / "made.onnx").load().version


def test_a_learning_repeats_goes_on_and_refuses_another_in_its_folder(tmp_path: Path) -> None:
    jobs, plan = past(2 * LEAST_JOBS), Plan(SMALL, judged_share=0.5)
    said: list[str] = []
    _, document = learn(jobs, SHIPPED, plan, tmp_path / "a", said.append)
    assert document["version"] == Dqn(tmp_path / "a" / "candidate.onnx").load().version
    assert json.loads((tmp_path / "a" / "verdict.json").read_text()) == json.loads(json.dumps(document))
    (tmp_path / "a" / "gangs" / "00001.npz").unlink()  # as if it had been stopped there
    worlds = len(said)
    _, again = learn(jobs, SHIPPED, plan, tmp_path / "a", said.append)
    assert again["version"] == document["version"]
    assert [line[:2] for line in said[worlds:] if "decisions" in line][:1] == ["1:"]
    with pytest.raises(Conflict, match="--again"):
        learn(jobs, SHIPPED, Plan(Making(worlds=2, epochs=1, seed=2), 0.5), tmp_path / "a", said.append)
    clear(tmp_path / "a")
    assert list((tmp_path / "a").iterdir()) == []
    _, other = learn(jobs, SHIPPED, Plan(Making(worlds=2, epochs=1, seed=2), 0.5), tmp_path / "a", said.append)
    assert other["version"] != document["version"]
    publish(tmp_path / "a", tmp_path)
    assert (tmp_path / "candidate.onnx").read_bytes() == (tmp_path / "a" / "candidate.onnx").read_bytes()


def test_states_of_something_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "00000.npz").touch()
    with pytest.raises(Conflict, match="something else"):
        learn(past(2 * LEAST_JOBS), SHIPPED, Plan(SMALL, judged_share=0.5), tmp_path)
