"""The runner of all recipes: killed or not, the same result; one form of folder and curve; what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from adlro.decide.planes.choice import Margins
from adlro.decide.planes.model import ModelMetadata, OnnxModel
from adlro.decide.planes.ranges import TABLES, ranges_from_json
from adlro.decide.policies.hold_greedy import FIXED
from adlro.errors import InvalidInput
from adlro.lab.learn import margins
from adlro.lab.learn.export import load_network, save_network
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.policy_iteration import PolicyIteration, ranges_of
from adlro.lab.learn.recipes import RECIPES, Recipe, recipe_named
from adlro.lab.learn.training import CHECKPOINT, CURVE, CURVE_KEYS, SETTINGS, Training
from adlro.lab.learn.validation import Validation

pytestmark = pytest.mark.slow

Q_LEARNING = {"lists": 6, "jobs": 16, "replay": 400, "batch": 32, "target_every": 3, "validate_every": 2}
ITERATION = {"worlds": 2, "further": 1, "trainings": 1, "epochs": 2, "lists": 4, "jobs": 40, "futures": 2, "ahead": 4}
EPISODES = {"policy_iteration": float("inf"), "dqn": 30.0, "paper": 30.0}


def small(name: str, **changes: object) -> Recipe:
    settings = ITERATION if name == "policy_iteration" else Q_LEARNING | {"epsilon_first": 0.5}
    return recipe_named(name, **{**settings, **changes})


@pytest.fixture(autouse=True)
def few_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(margins, "MARGINS", (Margins(0.0, 0.05),))
    monkeypatch.setattr(margins, "IDLE", (0.0, 4.0))


def begin(folder: Path, recipe: Recipe, **more: Any) -> Training:
    more = {"seed": 3, "checkpoint_s": 1e9, **more}
    return Training(folder, recipe, validation=Validation(2, cells=(("paper", 0.9, "true"),)), **more)


def curve(folder: Path) -> list[dict[str, Any]]:
    """Without what depends on the machine's speed."""
    lines = [json.loads(line) for line in (folder / CURVE).read_text().splitlines()]
    assert all(tuple(line) == CURVE_KEYS for line in lines)
    elapsed_s = [line.pop("elapsed_s") for line in lines]
    assert elapsed_s == sorted(elapsed_s)
    return lines


def assert_same_networks(one: Path, other: Path) -> None:
    names = {path.name for path in one.glob("*.pt")} - {CHECKPOINT}
    assert names == {path.name for path in other.glob("*.pt")} - {CHECKPOINT}
    for name in names:
        (first, said), (second, also_said) = load_network(one / name), load_network(other / name)
        assert said == also_said
        for key, value in first.state_dict().items():
            assert torch.equal(value, second.state_dict()[key]), (name, key)


@pytest.mark.parametrize("name", RECIPES)
def test_killed_after_any_step_a_training_comes_to_the_same(name: str, tmp_path: Path) -> None:
    recipe, whole, killed = small(name), tmp_path / "whole", tmp_path / "killed"
    training = begin(whole, recipe, threads=2)
    for _ in training.run(episodes=EPISODES[name]):
        pass
    training.finish()
    told = curve(whole)
    assert len(told) == 2
    assert {"best.pt", "best.onnx", "last.pt", "last.onnx", SETTINGS} <= {path.name for path in whole.iterdir()}
    assert OnnxModel(whole / "best.onnx").metadata.recipe == name
    assert OnnxModel(whole / "best.onnx").metadata.training["validation"]["gain"] == told[-1]["best_percent"] / 100.0
    counted = (training.learning.steps, training.learning.episodes, training.learning.decisions)

    for number in range(100):  # every other one is killed before its checkpoint
        training = begin(killed, recipe, threads=1, checkpoint_s=1e9 if number % 2 else 0.0)
        assert training.resumed == (number > 0)
        steps = training.run(episodes=EPISODES[name])
        if next(steps, None) is None:
            break
        steps.close()
    training.finish()
    assert (training.learning.steps, training.learning.episodes, training.learning.decisions) == counted
    assert curve(killed) == told
    assert_same_networks(whole, killed)


@pytest.mark.parametrize("name", RECIPES)
def test_a_training_begins_with_what_it_is_given(name: str, tmp_path: Path) -> None:
    seen = {name: {plane.name: [-3.5, -3.5] for plane in table} for name, table in TABLES.items()}
    metadata = ModelMetadata(FIXED.rule(), 32, Margins(0.125, 0.25), training={"ranges": seen})
    torch.manual_seed(9)
    given = PairNetwork()
    save_network(given, metadata, tmp_path / "given.pt")
    training = begin(tmp_path / "run", small(name), start=tmp_path / "given.pt")
    next(training.run())  # no recipe has learned anything after its first step
    training.save()
    training.finish()
    network, said = load_network(tmp_path / "run" / "last.pt")
    assert said.margins == metadata.margins
    for key, value in given.state_dict().items():
        assert torch.equal(network.state_dict()[key], value), key
    if name != "policy_iteration":
        # What the network saw before counts on, as well as what it saw now.
        low, high = said.training["ranges"]["cluster"]["queue_length"]
        assert low == pytest.approx(-3.5)
        assert high > -3.5
    with pytest.raises(InvalidInput, match="other weights to begin with"):
        begin(tmp_path / "run", small(name))
    with pytest.raises(InvalidInput, match="No such file"):
        begin(tmp_path / "run", small(name), start=tmp_path / "none.pt")


def test_an_iteration_that_begins_with_weights_has_seen_what_they_had_seen(tmp_path: Path) -> None:
    recipe = small("policy_iteration", worlds=1, further=0, epochs=1)
    for folder, seed, start in (("before", 1, None), ("after", 2, tmp_path / "before" / "last.pt")):
        training = begin(tmp_path / folder, recipe, seed=seed, start=start)
        assert len([step for step in training.run() if step.loss is not None]) == 1
        training.finish()
    (_, seen), (_, seen_by_both) = (load_network(tmp_path / folder / "last.pt") for folder in ("before", "after"))
    ranges = ranges_from_json(seen.training["ranges"])
    ranges.include(ranges_of([tmp_path / "after" / "first"]))
    assert seen_by_both.training["ranges"] == ranges.to_json()


def test_seed_1_makes_the_worlds_that_what_ships_was_made_from(tmp_path: Path) -> None:
    training = begin(tmp_path, small("policy_iteration"), seed=1)
    for _ in training.run():
        pass
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("world-*"))
    assert found == ["first/world-1-00000.npz", "first/world-1-00001.npz", "further/world-2-00000.npz"]
    assert isinstance(training.learning, PolicyIteration)
    assert training.learning.steps == training.learning.all_steps


def test_another_training_in_the_same_folder_is_refused_by_name(tmp_path: Path) -> None:
    training = begin(tmp_path, small("dqn"))
    for _ in training.run(decisions=100):
        pass
    for other in ("paper", "policy_iteration"):
        with pytest.raises(InvalidInput, match=f"recipe dqn, not {other}: go on with the same --recipe, or take"):
            begin(tmp_path, small(other))
    with pytest.raises(InvalidInput, match="batch 32, not 64"):
        begin(tmp_path, small("dqn", batch=64))
    with pytest.raises(InvalidInput, match="seed 3, not 4"):
        begin(tmp_path, small("dqn"), seed=4)
    (tmp_path / CHECKPOINT).write_bytes(b"torn")
    with pytest.raises(InvalidInput, match="not a checkpoint"):
        begin(tmp_path, small("dqn"))
    (tmp_path / SETTINGS).write_text('{"name": "adlro", "seed": 1}')
    with pytest.raises(InvalidInput, match="an earlier version"):
        begin(tmp_path, small("dqn"))


def test_a_training_ends_after_so_many_episodes_or_minutes_and_goes_on_from_there(tmp_path: Path) -> None:
    """Episodes are job lists: a generation of this recipe runs six."""
    training = begin(tmp_path, small("paper"))
    assert list(training.run(minutes=0.0)) == []
    assert len(list(training.run(episodes=13))) == 3
    again = begin(tmp_path, small("paper"))
    assert again.learning.episodes == 18
    assert list(again.run(episodes=18)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_training_with_its_step_and_a_checkpoint(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    training = begin(tmp_path, small("paper"))
    steps = training.run()
    next(steps)
    os.kill(os.getpid(), number)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    assert signal.getsignal(number) is before
    assert begin(tmp_path, small("paper")).learning.steps == 1


@pytest.mark.timeout(900)  # four processes, of which each reads torch and compiled code
def test_a_killed_process_goes_on_to_the_same_curve(tmp_path: Path) -> None:
    settings = ["lists=8", "jobs=24", "replay=800", "validate_every=1", "batch=64", "validation_lists=2"]

    def command(folder: Path) -> list[str]:
        asked = [part for each in settings for part in ("--set", each)]
        asked += ["--recipe", "adlro", "--decisions", "800", "--checkpoint-s", "0"]
        return [sys.executable, "-m", "adlro.lab.learn", str(folder), *asked]

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole), check=True, capture_output=True, timeout=800)
    assert len(curve(whole)) >= 4
    for lines, number, code in ((1, signal.SIGKILL, -signal.SIGKILL), (2, signal.SIGTERM, 130)):
        process = subprocess.Popen(command(killed), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        end_s = time.monotonic() + 600
        while time.monotonic() < end_s and process.poll() is None:
            if (killed / CURVE).exists() and len(curve(killed)) >= lines:
                break
            time.sleep(0.01)
        process.send_signal(number)
        _, told = process.communicate(timeout=100)
        assert process.returncode == code
        assert ("interrupted; the same command goes on" in told) == (number == signal.SIGTERM)
        assert lines <= len(curve(killed)) < len(curve(whole))
    subprocess.run(command(killed), check=True, capture_output=True, timeout=800)
    assert curve(killed) == curve(whole)
    assert_same_networks(whole, killed)
    assert OnnxModel(killed / "last.onnx").metadata.recipe == "dqn"
    assert list((killed / "tensorboard").glob("events*"))
