"""Approximate policy iteration: a network learns what candidates gain against the base's choice. torch.

The network's advantages are regressed on gains measured by rollouts (adlro/lab/learn/advantages.py): the
difference of its Q between a candidate and the base's choice shall be the gain, in units of the state's scale. States
whose gains are known less certainly count less.

How good the fit is says little: near ties decide. So the score is what the policy would gain at the states of worlds
that it was not trained on: the measured gain of the action that it takes there, whose noise the training has not seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from adlro.decide.planes.choice import Margins
from adlro.lab.learn.dataset import CHUNK, Batch, Chunk, Dataset, batches
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.sizes import NetworkSettings

MARGINS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, float("inf"))
"""Tried for each kind of action, in units of the state's scale."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How the regression is done.

    Attributes:
        epochs: over all states.
        batch: states.
        rate: highest learning rate; it rises over the first part of a twentieth, and falls to nothing as a cosine.
        misfit: what no network would explain of a gain, beside its standard error: weights are 1 / (both squared).
        worst: gains below minus this count as this: that a candidate is bad is enough to know, and the few very bad
            ones would else be most of the loss. It is some standard errors from the ties that decide.
        weight_decay: of AdamW.
        seed: of the weights and of the order of the states.
        sizes: of the network.
    """

    epochs: int = 6
    batch: int = 512
    rate: float = 2e-3
    misfit: float = 0.7
    worst: float = 2.0
    weight_decay: float = 1e-4
    seed: int = 1
    sizes: NetworkSettings = field(default_factory=NetworkSettings)


def predicted_gain(network: PairNetwork, batch: Batch) -> torch.Tensor:
    """(C,) of each candidate against the base's choice."""
    q_pairs, q_hold, _ = network.parts(*batch.inputs)
    of_all = torch.cat([q_pairs, q_hold]).flatten()

    def q(pair: torch.Tensor) -> torch.Tensor:
        return of_all[torch.where(pair >= 0, pair, len(q_pairs) + batch.state)]

    return q(batch.pair) - q(batch.base_pair)


def fit(
    data: Dataset,
    settings: Fit,
    *,
    network: PairNetwork | None = None,
    tell: Callable[[str], None] | None = None,
) -> tuple[PairNetwork, list[dict[str, float]]]:
    """Trains a network, and says how it went, epoch by epoch.

    Args:
        data: states.
        settings: how.
        network: to go on from; a new one where left out.
        tell: is told how each epoch went, as JSON.
    """
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    network = PairNetwork(settings.sizes) if network is None else network
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.rate, weight_decay=settings.weight_decay)
    steps = settings.epochs * max(1, -(-len(data.train) // max(1, settings.batch // CHUNK)))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=settings.rate, total_steps=steps, pct_start=0.05, final_div_factor=100.0
    )
    log: list[dict[str, float]] = []
    begin_s = time.monotonic()
    for epoch in range(settings.epochs):
        network.train()
        total, weights = 0.0, 0.0
        for batch in batches(data.train, settings.batch, rng):
            weight = 1.0 / (settings.misfit**2 + batch.error[batch.state] ** 2)
            gain = batch.gain.clamp(-settings.worst, 2.0 * settings.worst)
            loss = (weight * (predicted_gain(network, batch) - gain) ** 2).sum() / len(batch.error)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            schedule.step()
            total, weights = total + float(loss.detach()) * len(batch.error), weights + len(batch.error)
        score, margins = best_margins(network, data.test)
        log.append(
            {
                "epoch": epoch + 1,
                "loss": total / max(weights, 1.0),
                "gain": score,
                "start": margins.start,
                "hold": margins.hold,
                "seconds": time.monotonic() - begin_s,
            }
        )
        if tell is not None:
            tell(json.dumps(log[-1]))
    return network.eval(), log


def best_margins(network: PairNetwork, test: Sequence[Chunk]) -> tuple[float, Margins]:
    """The margins with the highest mean gain a state, and that gain, in units of the states' scales."""
    scores = gains_by_margin(network, test)
    start, hold = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return float(scores[start, hold]), Margins(MARGINS[int(start)], MARGINS[int(hold)])


def gains_by_margin(network: PairNetwork, test: Sequence[Chunk]) -> NDArray[np.float64]:
    """(MARGINS, MARGINS) mean measured gain of the action taken, by the margins of starts and of holds."""
    total = np.zeros((len(MARGINS), len(MARGINS)))
    states = 0
    network.eval()
    with torch.no_grad():
        for batch in batches(test, 2048, None):
            predicted, gain = predicted_gain(network, batch).numpy(), batch.gain.numpy()
            state, holds = batch.state.numpy(), batch.pair.numpy() < 0
            count = len(batch.error)
            states += count
            of_start, start_gain = _highest(predicted, gain, state, ~holds, count)
            of_hold, hold_gain = _highest(predicted, gain, state, holds, count)
            for i, start in enumerate(MARGINS):
                for j, hold in enumerate(MARGINS):
                    by_start, by_hold = of_start > start, of_hold > hold
                    holds_on = by_hold & (~by_start | (of_hold > of_start))
                    total[i, j] += np.where(holds_on, hold_gain, np.where(by_start, start_gain, 0.0)).sum()
    return total / max(states, 1)


def _highest(
    predicted: NDArray[np.float32],
    gain: NDArray[np.float32],
    state: NDArray[np.int64],
    of: NDArray[np.bool_],
    count: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(count,) of each state the highest prediction among some candidates, and its measured gain."""
    best, its_gain = np.full(count, -np.inf), np.zeros(count)
    at = np.flatnonzero(of)
    at = at[np.argsort(predicted[at], kind="stable")]
    best[state[at]] = predicted[at]  # the last, which is the highest, stays
    its_gain[state[at]] = gain[at]
    return best, its_gain
