"""The DQN recipe of CleanRL, written for the same environment and network: what `benchmarks/training.py` runs beside.

One environment; a uniform replay of single transitions; from the beginning on, after every ten steps one update of 128
transitions; a hard copy to the target network every 500 steps; Adam 2.5e-4, discount 0.99, squared error (Huang et al.,
"CleanRL: High-quality single-file implementations of deep reinforcement learning algorithms", JMLR 23, 2022; the
defaults of its dqn.py, but for a smaller replay, which costs no time). Masks are as in ADLRO's training: a DQN that may
choose what cannot be done would spend its time on nothing.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from adlro.decide.planes.choice import Margins, actions_of, best_of
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.layout import Planes
from adlro.decide.planes.session import INPUTS
from adlro.lab.learn.dqn import best_allowed
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.replay import Inputs
from adlro.lab.learn.worlds import World
from adlro.sim.batch import BatchSimulator
from adlro.sim.course import IDLE_S, JOBS_S

TRAIN_FREQUENCY, BATCH, TARGET_FREQUENCY, LEARNING_RATE, GAMMA, BUFFER = 10, 128, 500, 2.5e-4, 0.99, 10_000
IDLE = 0.1


class Transition(NamedTuple):
    """One step: N = 1 before and behind it."""

    before: Planes
    action: int
    reward: float
    behind: Planes | None


class Reference:
    """One environment that runs one list of a world after the other, and its DQN.

    Args:
        world: lists; after the last the first comes again.
        filler: of planes.
        epsilon: share of random actions.
        seed: of everything.
        margins: by which the base's choice is left.
    """

    def __init__(
        self, world: World, filler: PlaneFiller, epsilon: float, seed: int, margins: Margins | None = None
    ) -> None:
        torch.manual_seed(seed)
        self.network = PairNetwork()
        self._target = copy.deepcopy(self.network)
        self._optimizer = torch.optim.Adam(self.network.parameters(), lr=LEARNING_RATE)
        self._world, self._filler, self._epsilon = world, filler, epsilon
        self._margins = margins or Margins()
        self._rng = np.random.default_rng(seed)
        self._buffer: deque[Transition] = deque(maxlen=BUFFER)
        self._list = -1
        self.steps = 0
        self._begin()

    def _begin(self) -> None:
        jobs = self._world.jobs
        self._list = (self._list + 1) % len(jobs.job_count)
        one = jobs._replace(**{name: each[self._list : self._list + 1] for name, each in jobs._asdict().items()})
        self._simulator = BatchSimulator(self._world.cluster, one)
        self._planes = self._filler.fill(self._simulator.observe())

    def step(self) -> None:
        """One environment step, and an update where one is due."""
        simulator, planes = self._simulator, self._planes
        jobs_s, idle_s = simulator.totals[0, JOBS_S], simulator.totals[0, IDLE_S]
        index = self._choose(planes)
        simulator.act(actions_of(planes, index))
        passed = simulator.totals[0]
        reward = -(passed[JOBS_S] - jobs_s + IDLE * (passed[IDLE_S] - idle_s)) / planes.scale_s[0]
        behind = self._filler.fill(simulator.observe()) if len(simulator.active) else None
        self._buffer.append(Transition(planes, int(index[0]), float(reward), behind))
        if behind is None:
            self._begin()
        else:
            self._planes = behind
        self.steps += 1
        if self.steps % TRAIN_FREQUENCY == 0 and len(self._buffer) >= BATCH:
            self._update([self._buffer[int(i)] for i in self._rng.integers(len(self._buffer), size=BATCH)])
        if self.steps % TARGET_FREQUENCY == 0:
            self._target.load_state_dict(self.network.state_dict())

    def _choose(self, planes: Planes) -> np.ndarray:
        pairs = len(planes.pairs)
        if self._rng.random() < self._epsilon:
            allowed = pairs + int(planes.hold_allowed[0] or not pairs)
            drawn = int(self._rng.integers(allowed))
            return np.array([drawn if drawn < pairs else -1])
        with torch.no_grad():
            q_pairs, q_hold = self.network(*(torch.from_numpy(getattr(planes, name)) for name in INPUTS))
        return best_of(planes, q_pairs.numpy(), q_hold.numpy(), self._margins)

    def _update(self, batch: Sequence[Transition]) -> None:
        before = collated([each.before for each in batch])
        going_on = [i for i, each in enumerate(batch) if each.behind is not None]
        after = [each.behind for each in batch if each.behind is not None]
        wanted = torch.tensor([each.reward for each in batch])
        if after:
            inputs = collated(after)
            with torch.no_grad():
                q = self._target(*map(torch.from_numpy, inputs[:-1]))
                allowed = np.concatenate([planes.hold_allowed for planes in after])
                best = best_allowed(q, q, inputs, allowed)
            scale = torch.tensor([after[i].scale_s[0] / batch[k].before.scale_s[0] for i, k in enumerate(going_on)])
            wanted[going_on] += (GAMMA * scale * best).float()
        action = np.array([each.action for each in batch])
        q_pairs, q_hold = self.network(*map(torch.from_numpy, before[:-1]))
        pair = np.where(action < 0, 0, before.first_pair[:-1] + action)
        q_done: Tensor = torch.where(torch.from_numpy(action < 0), q_hold, q_pairs[torch.from_numpy(pair)])
        loss = mse_loss(q_done, wanted)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def collated(each: Sequence[Planes]) -> Inputs:
    """Decisions of one shape as a batch."""
    counts = np.array([len(planes.pairs) for planes in each])
    cluster = np.repeat(np.arange(len(each)), counts)
    window, places = each[0].jobs.shape[1], each[0].gpus.shape[2] * each[0].gpus.shape[3]
    return Inputs(
        gpus=np.concatenate([planes.gpus for planes in each]),
        jobs=np.concatenate([planes.jobs for planes in each]),
        cluster=np.concatenate([planes.cluster for planes in each]),
        pairs=np.concatenate([planes.pairs for planes in each]),
        pair_cluster=cluster,
        pair_job=cluster * window + np.concatenate([planes.pair_job for planes in each]),
        pair_place=cluster * places + np.concatenate([planes.pair_place for planes in each]),
        first_pair=np.concatenate([[0], np.cumsum(counts)]),
    )
