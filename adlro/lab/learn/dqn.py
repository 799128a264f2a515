"""Deep Q-learning: the update from batches of decisions. torch.

Mnih et al. 2015, "Human-level control through deep reinforcement learning", with double Q (van Hasselt, Guez and Silver
2016), for a semi-Markov process (Bradtke and Duff 1994): the value after a decision that lasted dt is discounted by
exp(-b dt). Only allowed actions count: in the behaviour, in greedy choices, and in the maximum over the next actions.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import huber_loss, mse_loss

from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.recipes import QRecipe
from adlro.lab.learn.replay import Decisions, Inputs, Replay, taken
from adlro.state.observation import Bools, Ints

MOST_GRADIENT = 10.0


class DqnLearner:
    """An online network, its target, and the optimizer.

    Args:
        network: the network to train, in place.
        recipe: settings.
        device: device of the networks.

    Attributes:
        updates: number of updates so far.
    """

    def __init__(self, network: PairNetwork, recipe: QRecipe, device: torch.device) -> None:
        self.online = network.to(device)
        self.target = copy.deepcopy(self.online).requires_grad_(requires_grad=False)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=recipe.learning_rate, fused=True)
        self.updates = 0
        self._recipe = recipe
        self._device = device

    def learn(self, replay: Replay, rng: np.random.Generator, updates: int) -> float:
        """Makes updates from batches of a replay.

        Returns:
            Their mean loss; 0 without updates.
        """
        total = torch.zeros((), device=self._device)
        for _ in range(updates):
            total += self.update(*replay.draw(rng, self._recipe.batch))
        return float(total) / max(updates, 1)

    def update(self, decisions: Decisions, rows: Ints) -> Tensor:
        """Makes one update; returns the loss."""
        wanted = self.targets(decisions, rows)
        action = decisions.action[rows]
        q = self.q_of(taken(decisions, rows), action)
        loss = huber_loss(q, wanted) if self._recipe.huber else mse_loss(q, wanted)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.online.parameters(), MOST_GRADIENT)
        self.optimizer.step()
        self.updates += 1
        if self.updates % self._recipe.target_every == 0:
            self.target.load_state_dict(self.online.state_dict())
        return loss.detach()

    def q_of(self, inputs: Inputs, action: NDArray[np.int32]) -> Tensor:
        """(B,) Q of the chosen actions, in each decision's unit.

        Args:
            inputs: B decisions.
            action: (B,) the pair of the decision that was started; -1: a hold.
        """
        q_pairs, q_hold = self._run(self.online, inputs)
        if not len(q_pairs):
            return q_hold
        pair = np.where(action < 0, 0, inputs.first_pair[:-1] + action)
        started = q_pairs[torch.from_numpy(np.minimum(pair, len(q_pairs) - 1)).to(self._device)]
        return torch.where(torch.from_numpy(action < 0).to(self._device), q_hold, started)

    def targets(self, decisions: Decisions, rows: Ints) -> Tensor:
        """(B,) the targets of the chosen actions, in each decision's unit."""
        after = decisions.following[rows]
        inputs = taken(decisions, after)
        with torch.no_grad():
            judged = self._run(self.target, inputs)
            chosen = self._run(self.online, inputs) if self._recipe.double else judged
            best = best_allowed(chosen, judged, inputs, decisions.hold_allowed[after])
        scale_s = decisions.scale_s[rows]
        reward = torch.from_numpy((decisions.reward_s[rows] / scale_s).astype(np.float32)).to(self._device)
        factor = decisions.discount[rows] * decisions.scale_s[after] / scale_s
        return reward + torch.from_numpy(factor.astype(np.float32)).to(self._device) * best

    def _run(self, network: PairNetwork, inputs: Inputs) -> tuple[Tensor, Tensor]:
        q: tuple[Tensor, Tensor] = network(*(torch.from_numpy(each).to(self._device) for each in inputs[:-1]))
        return q

    def state(self) -> dict[str, object]:
        """The state to resume from."""
        return {
            "online": self.online.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load(self, state: dict[str, object]) -> None:
        """Resumes from `state`."""
        self.online.load_state_dict(state["online"])  # type: ignore[arg-type]
        self.target.load_state_dict(state["target"])  # type: ignore[arg-type]
        self.optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]
        self.updates = int(state["updates"])  # type: ignore[call-overload]


def best_allowed(
    chosen: tuple[Tensor, Tensor], judged: tuple[Tensor, Tensor], inputs: Inputs, hold_allowed: Bools
) -> Tensor:
    """(B,) one network's Q of the allowed action that another network prefers.

    Args:
        chosen, judged: (P,) Q of the pairs and (B,) of holding, by the two networks.
        inputs: of both.
        hold_allowed: (B,); if False and no job fits, a hold is the only action.
    """
    q_pairs, q_hold = chosen
    device, count = q_hold.device, len(q_hold)
    cluster = torch.from_numpy(inputs.pair_cluster).to(device)
    any_pair = np.diff(inputs.first_pair) > 0
    may_hold = torch.from_numpy(hold_allowed | ~any_pair).to(device)
    best_pair = torch.full((count,), -torch.inf, device=device).scatter_reduce(0, cluster, q_pairs, "amax")
    hold = may_hold & (q_hold >= best_pair)
    # Among equally good pairs the choice does not matter: networks give identical pairs the same Q.
    is_best = q_pairs == best_pair[cluster]
    judged_best = torch.full((count,), -torch.inf, device=device).scatter_reduce(
        0, cluster, torch.where(is_best, judged[0], -torch.inf), "amax"
    )
    return torch.where(hold, judged[1], judged_best)
