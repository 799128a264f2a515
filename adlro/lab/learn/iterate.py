"""Approximate policy iteration from nothing to a model file: the recipe of the policy that ships. torch.

    python -m adlro.lab.learn.iterate FOLDER [--worlds 200] [--further 160] [--trainings 3]
        [--start NETWORK] [--by-priority]

1. States of `--worlds` worlds under the base policy, with what their candidates gain (advantages.py).
2. A network is trained on them (improve.py), and is the behaviour policy of `--further` worlds: the states that it
   comes to are not those that the base comes to.
3. Networks with `--trainings` different seeds are trained on all states. Each gets the margins with which it does best
   on lists of validation seeds (margins.py). The best of those that keep its limits becomes FOLDER/dqn.onnx; all are
   kept.

With --start all trainings begin with the weights of a network, as for another rule or for wider worlds than it has
seen; what it had seen counts as seen. Their learning rate is lower, not to lose what the weights know.

Whatever a folder holds already is not made again, so that an interrupted run goes on. It takes some hours of one core.
With --by-priority a job counts by its priority, in gains and in the scores of margins.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adlro.decide.planes.choice import Margins
from adlro.decide.planes.fill import WINDOW, PlaneFiller
from adlro.decide.planes.model import ModelMetadata, OnnxModel
from adlro.decide.planes.ranges import Ranges, ranges_from_json
from adlro.decide.policies.hold_greedy import FIXED
from adlro.errors import InvalidInput
from adlro.lab.learn import playing
from adlro.lab.learn.advantages import Act, Sampling, States, collect_worlds
from adlro.lab.learn.dataset import load
from adlro.lab.learn.export import load_network, save_network, to_onnx, write_whole
from adlro.lab.learn.improve import Fit, fit
from adlro.lab.learn.margins import say, validate

BEHAVIOUR = Margins(0.05, 0.1)
"""Of the network that behaves in the second round."""

RATE_FROM_WEIGHTS = 5e-4
"""Highest learning rate of a training that begins with weights."""


def train(
    folders: Sequence[Path], settings: Fit, out: Path, *, start: Path | None = None, by_priority: bool = False
) -> None:
    """Trains a network on all states of some folders; `out` has its weights, and how it went.

    Args:
        folders: of states.
        settings: how; the rate is `RATE_FROM_WEIGHTS` at most where it begins with weights.
        out: file.
        start: a network to begin with.
        by_priority: the states' gains count jobs by their priority.
    """
    begin_s = time.monotonic()
    network, ranges = None, ranges_of(folders)
    if start is not None:
        network, before = load_network(start)
        settings = dataclasses.replace(settings, rate=min(settings.rate, RATE_FROM_WEIGHTS))
        ranges.include(ranges_from_json(before.training.get("ranges")))
    data = load(folders, PlaneFiller(FIXED.rule()))
    say(f"{data.states} states in {len(data.train)} chunks, read in {time.monotonic() - begin_s:.0f} s")
    network, log = fit(data, settings, network=network, tell=say)
    training: dict[str, Any] = {"states": data.states, "log": log, "ranges": ranges.to_json()}
    training["by_priority"] = by_priority
    metadata = ModelMetadata(
        FIXED.rule(), WINDOW, BEHAVIOUR, recipe="adlro", seed=settings.seed, commit=_commit(), training=training
    )
    save_network(network, metadata, out)


def ranges_of(folders: Sequence[Path]) -> Ranges:
    """Which values planes have in the states of some folders."""
    ranges, filler = Ranges(), PlaneFiller(FIXED.rule())
    files = sorted(file for folder in folders for file in folder.glob("world-*.npz") if ".part." not in file.name)
    for file in files:
        states = States.load(file)
        # The longest queues, and every third state.
        longest = np.argsort(-states.waiting_count)[:128]
        rows = np.unique(np.concatenate([longest, states.numbers[::3]]))
        for first in range(0, len(rows), 256):
            ranges.see(filler.fill(states.observation_of(rows[first : first + 256])))
    return ranges


def _keep_settings(folder: Path, by_priority: bool, start: Path | None) -> None:
    """Gains of both kinds in one folder would be learned as if they were one, and so would networks with other weights.

    Raises:
        InvalidInput: the folder is for the other kind, or for other weights to begin with; or those are no network's.
    """
    begun_with = ""
    if start is not None:
        load_network(start)
        begun_with = hashlib.sha256(start.read_bytes()).hexdigest()
    path, wanted = folder / "settings.json", {"by_priority": by_priority, "start": begun_with}
    if not path.exists():
        write_whole(path, json.dumps(wanted).encode())
        return
    found = {"start": "", **json.loads(path.read_text())}
    if found["start"] != begun_with:
        raise InvalidInput(
            f"{folder} began with other weights: take another folder, or the same --start", field="start"
        )
    if found["by_priority"] != by_priority:
        raise InvalidInput(
            f"{folder} has gains {'of all jobs alike' if by_priority else 'by priority'}: take another folder, or go "
            f"on {'without' if by_priority else 'with'} --by-priority",
            field="by_priority",
        )


def _commit() -> str:
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def collect_all(folder: Path, seed: int, worlds: int, sampling: Sampling, act: Act | None = None) -> None:
    """Makes the worlds that a folder lacks."""
    for path, world, states in collect_worlds(folder, seed, range(worlds), sampling, act):
        say(f"{path.name}: {world.text}: {len(states)} states")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--further", type=int, default=160)
    parser.add_argument("--trainings", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--start", type=Path, help="a network (.pt, .onnx) whose weights all trainings begin with")
    parser.add_argument("--by-priority", action="store_true", help="jobs count by their priority")
    asked = parser.parse_args(arguments)
    if min(asked.worlds, asked.trainings, asked.epochs) < 1:
        raise InvalidInput("at least one world, one training and one epoch are needed", field="worlds")
    torch.set_num_threads(asked.threads)
    folder: Path = asked.folder
    first, further = folder / "first", folder / "further"
    by_priority: bool = asked.by_priority
    sampling = Sampling(by_priority=by_priority)
    _keep_settings(folder, by_priority, asked.start)
    collect_all(first, 1, asked.worlds, sampling)
    if asked.further:
        behaviour = folder / "behaviour.pt"
        if not behaviour.exists():
            train([first], Fit(epochs=asked.epochs), behaviour, start=asked.start, by_priority=by_priority)
        network, metadata = load_network(behaviour)
        act = playing.with_margins(OnnxModel(to_onnx(network, metadata)), BEHAVIOUR)
        collect_all(further, 2, asked.further, sampling, act)
    ratios: dict[Path, tuple[bool, float]] = {}
    for seed in range(1, asked.trainings + 1):
        trained, model = folder / f"seed-{seed}.pt", folder / f"seed-{seed}.onnx"
        if not trained.exists():
            folders = [first, further] if asked.further else [first]
            settings = Fit(epochs=asked.epochs, seed=seed)
            train(folders, settings, trained, start=asked.start, by_priority=by_priority)
        if not model.exists():
            validate(trained, model)
        said = OnnxModel(model).metadata.training
        ratios[model] = bool(said["breaks_limits"]), float(said["validation_mean"])
    best = min(ratios, key=lambda path: ratios[path])
    (folder / "dqn.onnx").write_bytes(best.read_bytes())
    say(json.dumps({path.name: round(ratio, 5) for path, (_, ratio) in ratios.items()}) + f"; the best: {best.name}")


if __name__ == "__main__":
    try:
        main()
    except InvalidInput as error:
        sys.exit(f"error: {error}")
