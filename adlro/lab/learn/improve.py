"""Approximate policy iteration: a network learns the gains of candidates over the base's choice. torch.

The network's advantages are regressed on gains measured by rollouts (adlro/lab/learn/advantages.py): the difference of
its Q between a candidate and the base's choice should be the gain, in units of the state's scale. States with less
certain gains have less weight.

The quality of the fit says little: near ties decide. So the score is the policy's gain at states of worlds outside its
training: the measured gain of its action there, with noise that the training has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adlro.decide.planes.choice import Margins
from adlro.lab.learn.dataset import CHUNK, Chunk, Dataset, StateBatch, batches
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.sizes import NetworkSettings

MARGINS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, float("inf"))
"""Candidate margins for each kind of action, in units of the state's scale."""


@dataclass(frozen=True, slots=True)
class NetworkFit:
    """Settings of the regression.

    Attributes:
        epochs: passes over all states.
        batch: number of states.
        rate: highest learning rate; it rises over the first twentieth, and falls to 0 as a cosine.
        misfit: the part of a gain that no network would explain, in addition to its standard error: weights are 1 /
            (both squared).
        worst: gains below minus this count as this: the exact loss of a bad candidate does not matter, and the few very
            bad ones would otherwise be most of the loss. It is some standard errors from the deciding ties.
        weight_decay: weight decay of AdamW.
        seed: seed of the weights and of the order of the states.
        sizes: sizes of the network.
    """

    epochs: int = 6
    batch: int = 512
    rate: float = 2e-3
    misfit: float = 0.7
    worst: float = 2.0
    weight_decay: float = 1e-4
    seed: int = 1
    sizes: NetworkSettings = field(default_factory=NetworkSettings)


def predicted_gain(network: PairNetwork, batch: StateBatch) -> torch.Tensor:
    """(C,) predicted gain of each candidate over the base's choice."""
    q_pairs, q_hold, _ = network.parts(*batch.inputs)
    of_all = torch.cat([q_pairs, q_hold]).flatten()

    def q(pair: torch.Tensor) -> torch.Tensor:
        return of_all[torch.where(pair >= 0, pair, len(q_pairs) + batch.state)]

    return q(batch.pair) - q(batch.base_pair)


class Fitting:
    """A network's training, epoch by epoch.

    Args:
        data: states.
        settings: settings of the regression.
        network: the initial network; a new one if left out.
        device: device of the training.

    Attributes:
        network: the present network.
        log: figures of each epoch.
    """

    def __init__(
        self,
        data: Dataset,
        settings: NetworkFit,
        network: PairNetwork | None = None,
        device: torch.device | None = None,
    ) -> None:
        torch.manual_seed(settings.seed)
        self._data, self._settings, self._device = data, settings, device or torch.device("cpu")
        self._rng = np.random.default_rng(settings.seed)
        self.network = (PairNetwork(settings.sizes) if network is None else network).to(self._device)
        self._optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=settings.rate, weight_decay=settings.weight_decay
        )
        updates = max(1, -(-len(data.train) // max(1, settings.batch // CHUNK)))
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer,
            max_lr=settings.rate,
            total_steps=settings.epochs * updates,
            pct_start=0.05,
            final_div_factor=100.0,
        )
        self.log: list[dict[str, float]] = []

    def run_epoch(self) -> None:
        """Trains on all states once more."""
        settings, total, weights = self._settings, 0.0, 0.0
        self.network.train()
        for on_cpu in batches(self._data.train, settings.batch, self._rng):
            batch = on_cpu.to(self._device)
            weight = 1.0 / (settings.misfit**2 + batch.error[batch.state] ** 2)
            gain = batch.gain.clamp(-settings.worst, 2.0 * settings.worst)
            loss = (weight * (predicted_gain(self.network, batch) - gain) ** 2).sum() / len(batch.error)
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
            self._optimizer.step()
            self._schedule.step()
            total, weights = total + float(loss.detach()) * len(batch.error), weights + len(batch.error)
        score, margins = best_margins(self.network, self._data.test)
        figures = {"loss": total / max(weights, 1.0), "gain": score, "start": margins.start, "hold": margins.hold}
        self.log.append({"epoch": len(self.log) + 1, **figures})

    @property
    def ended(self) -> bool:
        """Whether all epochs are done."""
        return len(self.log) == self._settings.epochs

    def state(self) -> dict[str, Any]:
        """The state to resume from."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "log": self.log,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resumes from `state`."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        self.log = state["log"]
        for _ in self.log:
            self._rng.permutation(len(self._data.train))  # repeats the random orders of the finished epochs


def fit(data: Dataset, settings: NetworkFit) -> tuple[PairNetwork, list[dict[str, float]]]:
    """Trains a network, and returns the figures of each epoch."""
    fitting = Fitting(data, settings)
    while not fitting.ended:
        fitting.run_epoch()
    return fitting.network.eval(), fitting.log


def best_margins(network: PairNetwork, test: Sequence[Chunk]) -> tuple[float, Margins]:
    """The margins with the highest mean gain per state, and that gain, in units of the states' scales."""
    scores = gains_by_margin(network, test)
    start, hold = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return float(scores[start, hold]), Margins(MARGINS[int(start)], MARGINS[int(hold)])


def gains_by_margin(network: PairNetwork, test: Sequence[Chunk]) -> NDArray[np.float64]:
    """(MARGINS, MARGINS) mean measured gain of the chosen action, by the margins of starts and of holds."""
    total = np.zeros((len(MARGINS), len(MARGINS)))
    states = 0
    network.eval()
    device = next(network.parameters()).device
    with torch.no_grad():
        for batch in batches(test, 2048, None):
            predicted, gain = predicted_gain(network, batch.to(device)).cpu().numpy(), batch.gain.numpy()
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
    """(count,) for each state the highest prediction among some candidates, and its measured gain."""
    best, its_gain = np.full(count, -np.inf), np.zeros(count)
    at = np.flatnonzero(of)
    at = at[np.argsort(predicted[at], kind="stable")]
    best[state[at]] = predicted[at]  # the last, which is the highest, stays
    its_gain[state[at]] = gain[at]
    return best, its_gain
