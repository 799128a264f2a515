"""Trains the network for decisions where jobs of several GPUs count. torch.

    python -m adlro.lab.learn.gang_training FOLDER [--onto MODEL.onnx] [--worlds N] [--further N] [--seed N]
                                            [--network-seed N] [--epochs N] [--wait-prices KNOWN,UNKNOWN]
                                            [--keep SHARE] [--doubt D] [--processes N]

1. N worlds under `hold_gang` (adlro/lab/learn/gang_states.py), a file each; a run continues after the last file. With
   `--doubt` that is a rule which reserves later where durations are uncertain.
2. A network is trained on them. If further worlds are asked for, it decides in them, and is trained again, on all.
3. FOLDER/gangs.onnx is the model with it: MODEL, by default the shipped one, keeps what it has for jobs of one GPU.

With `--keep` the training begins with the weights of MODEL's network, and the result is the mean of the weights before
and after it: that forgets less where the new worlds have little to say (Wortsman et al. 2022, robust fine-tuning).

A gain weighs by its certainty, and counts as GAIN_AT_MOST at most: few states with a great gain would rule the rest.
Each decision has another price of waits in each epoch, which is an input: the network learns all of them.
One in ten worlds is held out: for the curve, and, where a training begins with weights and keeps no share of them, to
choose epoch and margin.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from adlro.decide.gang_actions import BASE, CLUSTER_FIGURES, DOUBT, GangActions
from adlro.decide.gang_network import INPUTS, KEY, MOST_DEVIATIONS, PRICE_SCALE, GangNetwork
from adlro.decide.planes.model import OnnxModel
from adlro.decide.policies.dqn import SHIPPED
from adlro.errors import InvalidInput
from adlro.lab.learn.export import write_whole
from adlro.lab.learn.gang_states import (
    HIGHEST_PRICE,
    ActGangs,
    GangSampling,
    GangStates,
    collect_gang_world,
    draw_prices,
    load_gang_states,
)
from adlro.lab.learn.gang_worlds import draw_gang_world
from adlro.lab.learn.worlds import DrawWorld
from adlro.numeric.exact import exp, log_array
from adlro.state.observation import Floats

GAIN_AT_MOST = 4.0
SPREAD = 2.0
"""Of gains that the figures do not tell apart, in units of the decision's typical duration: a weight is the inverse of
its square plus that of the gain's own standard error."""
HIDDEN, HIDDEN2 = 96, 64
MARGIN_CHOICES = (0.15, 0.3, 0.6, 1.2)
"""Margins of a network that is trained further, of which held-out worlds choose."""
RATE, RATE_FROM_WEIGHTS = 2e-3, 5e-4
"""Highest learning rate, and that of a training with initial weights."""
BATCH = 4096
MARGINS = (0.0, 0.15, 0.15, 0.15, 0.15)
WAIT_PRICES = (0.05, 1.0)
"""Where runtimes are known, and where nothing is: chosen on validation lists (docs/model_card.md)."""
DEAREST = 10.0
"""The highest price that can be set; above those of the training the network extrapolates."""
HELD_OUT_EVERY = 10
FIRST_OF_FURTHER = 10_000

PRICE = CLUSTER_FIGURES
"""Place of the price of waits among the inputs."""

_Float32s = NDArray[np.float32]


def inputs_of(states: GangStates) -> _Float32s:
    """(A, INPUTS) of all actions, with a price of 0."""
    of_state = states.state_of
    first = np.cumsum(states.count) - states.count
    base = states.figures[first][of_state]
    price = np.zeros((len(of_state), 1), dtype=np.float32)
    found: _Float32s = np.concatenate([states.cluster[of_state], price, states.figures, base], axis=1)
    return found


def price_figures(prices: Floats) -> Floats:
    """The input of each: `price_figure` for arrays."""
    return log_array(1.0 + PRICE_SCALE * prices)


def price_of_figure(figure: float) -> float:
    """The price of an input: the reverse of `price_figure`."""
    return (exp(figure) - 1.0) / PRICE_SCALE


def joined(states: Sequence[GangStates]) -> GangStates:
    """All decisions of several worlds."""
    names = [field.name for field in dataclasses.fields(GangStates)]
    return GangStates(**{name: np.concatenate([getattr(each, name) for each in states]) for name in names})


def train(
    states: Sequence[GangStates],
    *,
    seed: int,
    epochs: int,
    threads: int = 2,
    start: GangNetwork | None = None,
    held_out: Sequence[GangStates] = (),
) -> GangNetwork:
    """A network trained on states.

    Args:
        states: of several worlds.
        seed: of the weights and the order.
        epochs: passes over all actions.
        threads: of torch.
        start: whose weights the training begins with, at a lower learning rate; what is in its range stays in range.
        held_out: with a start, states of other worlds: of the start and the network after each epoch, each with several
            margins, the one that gains most there is the result. None: the network after the last epoch.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    every = joined(states)
    inputs, of_state, gains = inputs_of(every), every.state_of, every.gains
    others = np.flatnonzero(every.kind != BASE)
    if start is None:
        mean, scale = inputs.mean(axis=0, dtype=np.float64), inputs.std(axis=0, dtype=np.float64) + 1e-3
        prices = price_figures(draw_prices(rng, 10_000))
        mean[PRICE], scale[PRICE] = prices.mean(), prices.std()
    else:
        mean, scale = start.mean, start.scale
    x = torch.from_numpy(((inputs - mean) / scale).clip(-MOST_DEVIATIONS, MOST_DEVIATIONS).astype(np.float32))
    hidden, hidden2 = (HIDDEN, HIDDEN2) if start is None else (len(start.first_bias), len(start.second_bias))
    layers = torch.nn.Linear(INPUTS, hidden), torch.nn.Linear(hidden, hidden2), torch.nn.Linear(hidden2, 1)
    network = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    if start is not None:
        _take_weights(network, start)
    rate = RATE if start is None else RATE_FROM_WEIGHTS
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=1e-3)
    steps = epochs * (-(-len(others) // BATCH))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=max(steps, 2))
    cluster = every.cluster.astype(np.float64)
    facts = {"seed": seed, "epochs": epochs, "states": len(every.count)}
    best, most = start, -np.inf if start is None or not held_out else mean_gain(start, held_out)[0]
    for epoch in range(epochs):
        price = draw_prices(rng, len(every.count))[of_state]
        y = torch.from_numpy(gains.gain_at(price).clip(-GAIN_AT_MOST, GAIN_AT_MOST).astype(np.float32))
        weight = torch.from_numpy((1.0 / (SPREAD * SPREAD + gains.variance_at(price))).astype(np.float32))
        x[:, PRICE] = torch.from_numpy(((price_figures(price) - mean[PRICE]) / scale[PRICE]).astype(np.float32))
        order = rng.permutation(others)
        for begin in range(0, len(order), BATCH):
            at = torch.from_numpy(order[begin : begin + BATCH])
            off = network(x[at])[:, 0] - y[at]
            loss = (weight[at] * off * off).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if start is None or not held_out:
            continue
        now = _network_of(network, mean, scale, cluster, start, facts | {"epochs": epoch + 1})
        for margin in MARGIN_CHOICES:
            tried = dataclasses.replace(now, margins=(0.0, *(margin,) * (len(MARGINS) - 1)))
            gain_held = mean_gain(tried, held_out)[0]
            if gain_held > most:
                best, most = tried, gain_held
    if start is None or not held_out:
        return _network_of(network, mean, scale, cluster, start, facts)
    assert best is not None
    return best


def mean_of(before: GangNetwork, after: GangNetwork, keep: float) -> GangNetwork:
    """The mean of the weights of a network before and after a training; all else is as before it.

    Args:
        keep: the share of the weights before.
    """

    def mean(name: str) -> Floats:
        found: Floats = keep * getattr(before, name) + (1.0 - keep) * getattr(after, name)
        return found

    return dataclasses.replace(
        before,
        first=mean("first"),
        first_bias=mean("first_bias"),
        second=mean("second"),
        second_bias=mean("second_bias"),
        last=mean("last"),
        training=after.training | {"kept": keep},
    )


def _network_of(
    network: torch.nn.Sequential,
    mean: Floats,
    scale: Floats,
    cluster: Floats,
    start: GangNetwork | None,
    facts: dict[str, int],
) -> GangNetwork:
    """The layers for service.

    Args:
        network: the layers.
        mean, scale: of the inputs.
        cluster: (S, CLUSTER_FIGURES) the cluster's figures in the training.
        start: whose range and margins stay; None: the training's alone.
        facts: about the training.
    """
    lowest, highest = cluster.min(axis=0), cluster.max(axis=0)
    if start is not None:
        lowest, highest = np.minimum(lowest, start.lowest), np.maximum(highest, start.highest)
    numbers = [np.ascontiguousarray(each.detach().numpy().T, dtype=np.float64) for each in network.parameters()]
    return GangNetwork(
        mean=mean.astype(np.float32).astype(np.float64),
        scale=scale.astype(np.float32).astype(np.float64),
        first=numbers[0],
        first_bias=numbers[1],
        second=numbers[2],
        second_bias=numbers[3],
        last=np.concatenate([numbers[4][:, 0], numbers[5]]),
        lowest=lowest,
        highest=highest,
        margins=MARGINS if start is None else start.margins,
        wait_prices=WAIT_PRICES if start is None else start.wait_prices,
        training=facts,
    )


def _take_weights(network: torch.nn.Sequential, start: GangNetwork) -> None:
    """Sets the layers' weights to those of another network of the same sizes."""
    arrays = (start.first, start.first_bias, start.second, start.second_bias, start.last[:-1, None], start.last[-1:])
    with torch.no_grad():
        for weight, array in zip(network.parameters(), arrays, strict=True):
            weight.copy_(torch.from_numpy(np.ascontiguousarray(array.T)))


def mean_gain(network: GangNetwork, states: Sequence[GangStates]) -> tuple[float, float]:
    """The mean measured gain, cut as in the training, of the actions chosen, and the share that are not the base's.

    Waits count at the network's own price, or the highest of the training.
    """
    total, others, count = 0.0, 0, 0
    for each in states:
        begin = 0
        prices = np.array([price_of_figure(network.figure_at(float(doubt))) for doubt in each.cluster[:, DOUBT]])
        measured = each.gains.gain_at(np.minimum(prices, HIGHEST_PRICE)[each.state_of]).clip(
            -GAIN_AT_MOST, GAIN_AT_MOST
        )
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
            total += float(measured[begin + chosen])
            others += chosen > 0
            begin, count = begin + int(size), count + 1
    return total / max(count, 1), others / max(count, 1)


def act_of(network: GangNetwork) -> ActGangs:
    """A network's choices; can be sent to another process."""
    return functools.partial(_choose, network)


def _choose(network: GangNetwork, actions: GangActions) -> int:
    return network.choose(actions, network.gains(actions))


def with_gangs(model: bytes, network: GangNetwork) -> bytes:
    """A policy's ONNX file with this network for jobs of several GPUs."""
    found = onnx.load_model_from_string(model)
    said = {each.key: each.value for each in found.metadata_props}
    onnx.helper.set_model_props(found, {**said, KEY: network.to_text()})
    content: bytes = found.SerializeToString()
    return content


class GangTraining:
    """The states of worlds in files, and networks of them.

    Args:
        folder: of the files; what is there is not made again.
        seed: of worlds, and of networks unless these have one of their own.
        epochs: of a training.
        say: called with a line of progress.
        draw: draws the worlds.
        start: whose weights each training begins with; None: new ones.
        sampling: the size of the sampling; None: the usual one.
        network_seed: of the networks.
        processes: that run worlds; the files are the same whatever their number.
        keep: with a start, the share of its weights in the result, which is the network after the last epoch otherwise;
            None: of the networks after each epoch and the start, held-out worlds choose.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        epochs: int,
        say: Callable[[str], None],
        draw: DrawWorld = draw_gang_world,
        start: GangNetwork | None = None,
        sampling: GangSampling | None = None,
        network_seed: int | None = None,
        processes: int = 1,
        keep: float | None = None,
    ) -> None:
        self._folder, self._seed, self._epochs = folder, seed, epochs
        self._network_seed = seed if network_seed is None else network_seed
        self._say, self._draw, self._start = say, draw, start
        self._sampling = GangSampling() if sampling is None else sampling
        self._processes, self._keep = processes, keep

    def collect(self, first: int, count: int, act: ActGangs | None) -> list[Path]:
        """The files of `count` worlds from number `first` on, in which `act` decides; None: `hold_gang`."""
        paths = {number: _file_of(self._folder, number) for number in range(first, first + count)}
        missing = [number for number, path in paths.items() if not path.exists()]
        make = functools.partial(_collect, self._folder, self._seed, self._sampling, act, self._draw)
        if self._processes == 1 or len(missing) < 2:
            self._tell(map(make, missing))
        else:
            # Not by a fork: torch has threads of its own once a network was trained.
            with ProcessPoolExecutor(self._processes, multiprocessing.get_context("spawn")) as pool:
                self._tell(pool.map(make, missing))
        return list(paths.values())

    def _tell(self, made: Iterable[str]) -> None:
        for said in made:
            self._say(said)

    def learn(self, paths: Sequence[Path]) -> GangNetwork:
        """A network of some worlds; one in ten is held out.

        Raises:
            InvalidInput: no decision was sampled in them.
        """
        held = [path for place, path in enumerate(paths) if place % HELD_OUT_EVERY == HELD_OUT_EVERY - 1]
        states = [load_gang_states(path) for path in paths if path not in held]
        if not any(len(each.count) for each in states):
            raise InvalidInput("worlds: no decision of these worlds was sampled; more worlds have some", field="worlds")
        of_others = [load_gang_states(path) for path in held]
        choose_by = of_others if self._keep is None else ()
        network = train(states, seed=self._network_seed, epochs=self._epochs, start=self._start, held_out=choose_by)
        if self._start is not None and self._keep is not None:
            network = mean_of(self._start, network, self._keep)
        gain, others = mean_gain(network, of_others)
        decisions = sum(len(each.count) for each in states)
        self._say(f"{decisions} decisions: gain {gain:.4f} a decision held out, {100 * others:.1f} % differ")
        return network


def _collect(
    folder: Path, seed: int, sampling: GangSampling, act: ActGangs | None, draw: DrawWorld, number: int
) -> str:
    """Makes a world's file; returns what it is."""
    world, states = collect_gang_world(_file_of(folder, number), seed, number, sampling, act, draw)
    return f"{number}: {world.text}: {len(states.count)} decisions"


def _file_of(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.npz"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--onto", type=Path, default=SHIPPED)
    parser.add_argument("--worlds", type=int, default=120)
    parser.add_argument("--further", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--network-seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--wait-prices", default=",".join(map(str, WAIT_PRICES)))
    parser.add_argument("--keep", type=float, metavar="SHARE")
    parser.add_argument("--doubt", type=float, default=0.0)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args(arguments)
    from_zero = ("further", "seed", "network_seed")
    for name, least in (*((each, 0) for each in from_zero), ("worlds", 1), ("epochs", 1), ("processes", 1)):
        if getattr(asked, name) < least:
            option = name.replace("_", "-")
            raise InvalidInput(f"--{option} must be at least {least}, not {getattr(asked, name)}", field=name)
    if not asked.onto.is_file():
        raise InvalidInput(f"--onto: {asked.onto}: no such file; leave it out for the shipped model", field="onto")
    if not 0.0 <= asked.doubt < np.inf:
        raise InvalidInput(f"--doubt must be a number from 0, not {asked.doubt:g}", field="doubt")
    if asked.keep is not None and not 0.0 <= asked.keep < 1.0:
        raise InvalidInput(f"--keep must be from 0 to below 1, not {asked.keep:g}", field="keep")
    start = None if asked.keep is None else OnnxModel(asked.onto).gangs
    if start is None and asked.keep is not None:
        raise InvalidInput(
            f"--keep: {asked.onto} has no network for jobs of several GPUs; leave --keep out", field="keep"
        )

    try:
        known, unknown = map(float, asked.wait_prices.split(","))
    except ValueError:
        raise InvalidInput(
            f"--wait-prices must be two numbers, as in 0.05,0.3, not '{asked.wait_prices}'", field="wait_prices"
        ) from None
    prices = known, unknown
    if not all(0.0 <= price <= DEAREST for price in prices):
        raise InvalidInput(f"--wait-prices must be from 0 to {DEAREST:g}", field="wait_prices")
    training = GangTraining(
        asked.folder / "states",
        asked.seed,
        asked.epochs,
        _say,
        network_seed=asked.network_seed,
        sampling=GangSampling(doubt=asked.doubt),
        processes=asked.processes,
        start=start,
        keep=asked.keep,
    )
    paths = training.collect(0, asked.worlds, None)
    network = dataclasses.replace(training.learn(paths), wait_prices=prices)
    if asked.further:
        paths += training.collect(FIRST_OF_FURTHER, asked.further, act_of(network))
        network = dataclasses.replace(training.learn(paths), wait_prices=prices)
    out = asked.folder / "gangs.onnx"
    write_whole(out, with_gangs(asked.onto.read_bytes(), network))
    sys.stdout.write(f"{out}\n")


if __name__ == "__main__":
    try:
        main()
    except InvalidInput as error:
        sys.exit(f"error: {error}")
