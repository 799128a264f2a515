"""A learning from the past to the verdict: which network learns, what stays, how it goes on after an interruption."""

from __future__ import annotations

import dataclasses
import json
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from adlro.decide.planes.model import OnnxModel
from adlro.decide.policies.dqn import SHIPPED, Dqn
from adlro.errors import Conflict, InvalidInput
from adlro.lab.candidates import learning, making
from adlro.lab.candidates.judging import LEAST_JOBS
from adlro.lab.candidates.learning import Plan, clear, learn
from adlro.lab.candidates.making import Making, make_candidate
from adlro.lab.candidates.past import Past
from adlro.lab.candidates.worlds import PastWorlds
from adlro.lab.learn import advantages, pair_refit
from adlro.lab.learn.export import network_of
from adlro.lab.learn.gang_states import GangSampling, collect_gang_world
from adlro.lab.learn.gang_training import MARGIN_CHOICES, mean_gain, train
from tests.unit.lab.candidates.pasts import past

pytestmark = pytest.mark.slow

SMALL = Making(worlds=2, epochs=1)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "_sampling", lambda _: GangSampling(lists=2, jobs=40, share=0.4, futures=2, ahead=4))
    monkeypatch.setattr(
        pair_refit, "Sampling", lambda: advantages.Sampling(lists=4, jobs=40, share=0.5, futures=2, ahead=4)
    )


def weights(content: bytes) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Of the network for jobs of one GPU, and of the first layer of that for several."""
    model = OnnxModel(content)
    assert model.gangs is not None
    one = {name: value.numpy() for name, value in network_of(content)[0].state_dict().items()}
    return one, model.gangs.first


def same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_with_jobs_of_several_gpus_their_network_learns_and_the_other_stays(tmp_path: Path) -> None:
    shipped = SHIPPED.read_bytes()
    made = make_candidate(past(200), shipped, SMALL, tmp_path, lambda _: None)
    assert (tmp_path / "gangs").is_dir()
    assert not (tmp_path / "one_gpu").exists()
    (one, several), (one_before, several_before) = weights(made), weights(shipped)
    assert same(one, one_before)
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
    assert not same(one, one_before)
    np.testing.assert_array_equal(several, several_before)
    (tmp_path / "made.onnx").write_bytes(made)
    assert Dqn(tmp_path / "made.onnx").load().version


def test_a_learning_that_was_interrupted_goes_on_and_gives_the_same(tmp_path: Path) -> None:
    whole, plan = past(2 * LEAST_JOBS + 10), Plan(SMALL, judged_share=0.5)
    jobs = whole.part(0, 2 * LEAST_JOBS)
    said: list[str] = []
    _, document = learn(jobs, SHIPPED, plan, tmp_path / "a", said.append)
    assert document["version"] == Dqn(tmp_path / "a" / "candidate.onnx").load().version
    assert json.loads((tmp_path / "a" / "verdict.json").read_text()) == json.loads(json.dumps(document))
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    # As if it had been killed after the first world; since then ten more jobs have ended, which judge too.
    (tmp_path / "a" / "gangs" / "00001.npz").unlink()
    (tmp_path / "a" / "verdict.json").unlink()
    worlds = len(said)
    _, again = learn(whole, SHIPPED, plan, tmp_path / "a", said.append)
    assert again["version"] == document["version"]
    assert [line[:2] for line in said[worlds:] if "decisions" in line][:1] == ["1:"]
    assert (again["learned_from"]["jobs"], again["judged_by"]["jobs"]) == (LEAST_JOBS, LEAST_JOBS + 10)


def test_the_jobs_that_teach_choose_the_single_rule_and_the_later_ones_judge_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = past(2 * LEAST_JOBS)
    asked: list[tuple[float, str]] = []

    def best_rule(before: Past, corrected: str, progress: Callable[[str], None]) -> str:
        asked.append((float(before.submit_s[-1]), corrected))
        return "sjf"

    monkeypatch.setattr(learning, "best_rule", best_rule)
    _, document = learn(jobs, SHIPPED, Plan(SMALL, judged_share=0.5), tmp_path / "a")
    assert asked == [(jobs.submit_s[LEAST_JOBS - 1], "hold_gang")]
    assert [each["name"] for each in document["policies"]] == ["candidate", "in use", "hold_gang", "sjf"]
    assert [each["against"] for each in document["changes"]] == ["in use", "hold_gang", "sjf"]


def test_another_learning_waits_until_the_interrupted_one_is_given_up(tmp_path: Path) -> None:
    jobs, other = past(2 * LEAST_JOBS), Plan(Making(worlds=2, epochs=1, seed=2), 0.5)
    _, document = learn(jobs, SHIPPED, Plan(SMALL, judged_share=0.5), tmp_path / "a")
    (tmp_path / "a" / "verdict.json").unlink()
    with pytest.raises(Conflict, match="--again"):
        learn(jobs, SHIPPED, other, tmp_path / "a")
    with pytest.raises(InvalidInput, match="400 are needed"):
        learn(jobs.part(0, 100), SHIPPED, other, tmp_path / "a", again=True)
    assert (tmp_path / "a" / "candidate.onnx").exists()  # nothing is removed for what can't begin
    _, second = learn(jobs, SHIPPED, other, tmp_path / "a", again=True)
    assert second["version"] != document["version"]
    _, third = learn(jobs, SHIPPED, Plan(SMALL, judged_share=0.5), tmp_path / "a")  # after a verdict anew
    assert third["version"] == document["version"]


def test_what_is_no_learning_is_left_alone(tmp_path: Path) -> None:
    for name in ("settings.json", "best.onnx"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "gangs").mkdir()
    clear(tmp_path)
    with pytest.raises(Conflict, match="something else"):
        learn(past(2 * LEAST_JOBS), SHIPPED, Plan(SMALL, judged_share=0.5), tmp_path, again=True)
    assert {each.name for each in tmp_path.iterdir()} == {"settings.json", "best.onnx", "gangs"}


def test_held_out_worlds_choose_the_network_and_never_one_that_gains_less_than_the_start(tmp_path: Path) -> None:
    start = OnnxModel(SHIPPED.read_bytes()).gangs
    assert start is not None
    draw, states = PastWorlds(past(300)), []
    sampling = GangSampling(lists=2, jobs=40, share=1.0, futures=2, ahead=4)
    for number in range(3):
        states.append(collect_gang_world(tmp_path / f"{number}.npz", 1, number, sampling, draw=draw)[1])
    found = train(states[:2], seed=1, epochs=3, start=start, held_out=states[2:])
    assert mean_gain(found, states[2:])[0] >= mean_gain(start, states[2:])[0]
    assert found.margins[1] in MARGIN_CHOICES
    loses = [dataclasses.replace(each, gain=-np.abs(each.gain)) for each in states[2:]]  # every action
    held = train(states[:2], seed=1, epochs=1, start=start, held_out=loses)
    assert mean_gain(held, loses)[0] >= mean_gain(start, loses)[0]
