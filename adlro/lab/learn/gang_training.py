"""Trains the network for decisions where jobs of several GPUs count. torch.

    python -m adlro.lab.learn.gang_training FOLDER [--onto MODEL.onnx] [--worlds N] [--further N] [--seed N]
                                            [--epochs N]

1. N worlds under `hold_gang` (adlro/lab/learn/gang_states.py), a file each; a run continues after the last file.
2. A network is trained on them, and decides in the further worlds.
3. The network is trained again, on all. FOLDER/gangs.onnx is the model with it: MODEL, by default the shipped one,
   keeps what it has for jobs of one GPU.

A gain weighs by its certainty, and counts as GAIN_AT_MOST at most: few states with a great gain would rule the rest.
One in ten worlds is held out, for the curve. Margins come from adlro/lab/learn/gang_margins.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from adlro.decide.gang_actions import BASE, GangActions
from adlro.decide.gang_network import INPUTS, KEY, MOST_DEVIATIONS, GangNetwork
from adlro.decide.policies.dqn import SHIPPED
from adlro.errors import InvalidInput
from adlro.lab.learn.export import write_whole
from adlro.lab.learn.gang_states import ActGangs, GangSampling, GangStates, collect_gang_world, load_gang_states

GAIN_AT_MOST = 4.0
SPREAD = 2.0
"""Of gains that the figures do not tell apart, in units of the decision's typical duration: a weight is the inverse of
its square plus that of the gain's own standard error."""
HIDDEN, HIDDEN2 = 96, 64
BATCH = 4096
MARGINS = (0.0, 0.3, 0.3, 0.3, 0.3)
HELD_OUT_EVERY = 10
FIRST_OF_FURTHER = 10_000

_Float32s = NDArray[np.float32]


def inputs_of(states: GangStates) -> _Float32s:
    """(A, INPUTS) of all actions."""
    of_state = np.repeat(np.arange(len(states.count)), states.count)
    first = np.cumsum(states.count) - states.count
    base = states.figures[first][of_state]
    found: _Float32s = np.concatenate([states.cluster[of_state], states.figures, base], axis=1)
    return found


def train(states: Sequence[GangStates], *, seed: int, epochs: int, threads: int = 2) -> GangNetwork:
    """A network trained on states.

    Args:
        states: of several worlds.
        seed: of the weights and the order.
        epochs: passes over all actions.
        threads: of torch.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    inputs = np.concatenate([inputs_of(each) for each in states])
    gain = np.concatenate([each.gain for each in states])
    error = np.concatenate([each.error for each in states])
    others = np.flatnonzero(np.concatenate([each.kind for each in states]) != BASE)
    mean, scale = inputs.mean(axis=0, dtype=np.float64), inputs.std(axis=0, dtype=np.float64) + 1e-3
    x = torch.from_numpy(((inputs - mean) / scale).clip(-MOST_DEVIATIONS, MOST_DEVIATIONS).astype(np.float32))
    y = torch.from_numpy(gain.clip(-GAIN_AT_MOST, GAIN_AT_MOST).astype(np.float32))
    squares = np.square(error.astype(np.float64))
    weight = torch.from_numpy((1.0 / (SPREAD * SPREAD + squares)).astype(np.float32))
    layers = torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN2), torch.nn.Linear(HIDDEN2, 1)
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-3)
    steps = epochs * (-(-len(others) // BATCH))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=max(steps, 2))
    for _ in range(epochs):
        order = rng.permutation(others)
        for begin in range(0, len(order), BATCH):
            at = torch.from_numpy(order[begin : begin + BATCH])
            off = network(x[at])[:, 0] - y[at]
            loss = (weight[at] * off * off).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    cluster = np.concatenate([each.cluster for each in states]).astype(np.float64)
    numbers = [np.ascontiguousarray(each.detach().numpy().T, dtype=np.float64) for each in network.parameters()]
    return GangNetwork(
        mean=mean.astype(np.float32).astype(np.float64),
        scale=scale.astype(np.float32).astype(np.float64),
        first=numbers[0],
        first_bias=numbers[1],
        second=numbers[2],
        second_bias=numbers[3],
        last=np.concatenate([numbers[4][:, 0], numbers[5]]),
        lowest=cluster.min(axis=0),
        highest=cluster.max(axis=0),
        margins=MARGINS,
        training={"seed": seed, "epochs": epochs, "states": int(sum(len(each.count) for each in states))},
    )


def mean_gain(network: GangNetwork, states: Sequence[GangStates]) -> tuple[float, float]:
    """The mean measured gain, cut as in the training, of the actions chosen, and the share that are not the base's."""
    total, others, count = 0.0, 0, 0
    for each in states:
        begin = 0
        for s, size in enumerate(each.count):
            rows = slice(begin, begin + int(size))
            actions = GangActions(
                kind=each.kind[rows],
                row=np.zeros(size, dtype=np.int64),
                reserve=np.zeros(size, dtype=np.int64),
                cluster=each.cluster[s].astype(np.float64),
                figures=each.figures[rows].astype(np.float64),
                scale_s=1.0,
            )
            chosen = network.choose(actions, network.gains(actions))
            total += float(np.clip(each.gain[begin + chosen], -GAIN_AT_MOST, GAIN_AT_MOST))
            others += chosen > 0
            begin, count = begin + int(size), count + 1
    return total / max(count, 1), others / max(count, 1)


def act_of(network: GangNetwork) -> ActGangs:
    """A network's choices."""
    return lambda actions: network.choose(actions, network.gains(actions))


def with_gangs(model: bytes, network: GangNetwork) -> bytes:
    """A policy's ONNX file with this network for jobs of several GPUs."""
    found = onnx.load_model_from_string(model)
    said = {each.key: each.value for each in found.metadata_props}
    onnx.helper.set_model_props(found, {**said, KEY: network.to_text()})
    content: bytes = found.SerializeToString()
    return content


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--onto", type=Path, default=SHIPPED)
    parser.add_argument("--worlds", type=int, default=120)
    parser.add_argument("--further", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=24)
    asked = parser.parse_args(arguments)
    for name, least in (("worlds", 1), ("further", 0), ("seed", 0), ("epochs", 1)):
        if getattr(asked, name) < least:
            raise InvalidInput(f"--{name} must be at least {least}, not {getattr(asked, name)}", field=name)
    if not asked.onto.is_file():
        raise InvalidInput(f"--onto: {asked.onto}: no such file; leave it out for the shipped model", field="onto")

    def collect(first: int, count: int, seed: int, act: ActGangs | None) -> list[Path]:
        found = []
        for number in range(first, first + count):
            path = asked.folder / "states" / f"{number:05d}.npz"
            if not path.exists():
                world, states = collect_gang_world(path, seed, number, GangSampling(), act)
                sys.stdout.write(f"{number}: {world.text}: {len(states.count)} decisions\n")
                sys.stdout.flush()
            found.append(path)
        return found

    def learn(paths: Sequence[Path]) -> GangNetwork:
        held = [path for place, path in enumerate(paths) if place % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
        states = [load_gang_states(path) for path in paths if path not in held]
        if not any(len(each.count) for each in states):
            raise InvalidInput("no decision of these worlds was sampled; more --worlds have some", field="worlds")
        network = train(states, seed=asked.seed, epochs=asked.epochs)
        gain, others = mean_gain(network, [load_gang_states(path) for path in held])
        decisions = sum(len(each.count) for each in states)
        sys.stdout.write(f"{decisions} decisions: gain {gain:.4f} a decision held out, {100 * others:.1f} % differ\n")
        sys.stdout.flush()
        return network

    paths = collect(0, asked.worlds, asked.seed, None)
    network = learn(paths)
    if asked.further:
        paths += collect(FIRST_OF_FURTHER, asked.further, asked.seed, act_of(network))
        network = learn(paths)
    out = asked.folder / "gangs.onnx"
    write_whole(out, with_gangs(asked.onto.read_bytes(), network))
    sys.stdout.write(f"{out}\n")


if __name__ == "__main__":
    try:
        main()
    except InvalidInput as error:
        sys.exit(f"error: {error}")
