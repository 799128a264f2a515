"""Gymnasium environments on the batched simulator: one cluster (`PlacementEnv`) and N of them (`PlacementVectorEnv`).

An episode is one job list. An action is (job of the window, GPU), numbered job x GPUs + GPU, or to hold, the last
number; `info["action_mask"]`, and `"mask"` of the observation, say which are possible. A masked action counts as a
hold, or, where that is masked too, as the first possible one, and is told in `info["masked_actions"]`: some agents
explore without looking at the mask.

The reward is that of the paper, `-(job completion time + lambda x idle GPU time)`, spread over time: the integral of
the number of jobs in the system sums to the sum of all completion times. Decisions are not equally spaced: discount by
exp(-beta x `info["dt_s"]`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from adlro.cluster import Cluster
from adlro.sim.job_arrays import JobArrays, pack_jobs
from adlro.sim.observe import Window
from adlro.sim.scenario import load_scenario
from adlro.sim.windows import REWARD_PARTS, Step, WindowSimulator
from adlro.sim.workload import draw_jobs

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """What a second costs.

    Attributes:
        idle: lambda of the paper, above 0 and below 1: of an idle GPU's second against a waiting or running job's.
        feasible_idle_only: count a GPU as idle only while a waiting job fits on it; the paper's text counts every idle
            GPU, which punishes an empty queue.
        by_priority: count each job by its priority instead of as one.
    """

    idle: float = 0.1
    feasible_idle_only: bool = True
    by_priority: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError where lambda is not between 0 and 1."""
        if not 0.0 < self.idle < 1.0:
            raise ValueError(f"idle (lambda) must be above 0 and below 1, not {self.idle}")

    @property
    def of_parts(self) -> NDArray[np.float64]:
        """(REWARD_PARTS,) the weight of each integral."""
        weights = dict.fromkeys(REWARD_PARTS, 0.0)
        weights["priority_s" if self.by_priority else "jobs_s"] = -1.0
        weights["feasible_idle_s" if self.feasible_idle_only else "idle_s"] = -self.idle
        return np.array([weights[part] for part in REWARD_PARTS])


def draw_lists(
    seed: int,
    lists: int,
    *,
    scenario: str = "paper",
    load: float = 0.9,
    jobs: int = 256,
    cluster: Cluster | None = None,
) -> JobArrays:
    """Job lists of a scenario, for the environments, with their durations on the scenario's cluster or another."""
    drawn = load_scenario(scenario)
    seeds = np.random.SeedSequence(seed).spawn(lists)
    return pack_jobs(
        [draw_jobs(drawn, load=load, rng=np.random.default_rng(each), count=jobs) for each in seeds],
        drawn.cluster if cluster is None else cluster,
    )


def observation_space(window: Window) -> spaces.Space[Any]:
    """The space of one cluster's observation."""

    def box(array: NDArray[np.float32]) -> spaces.Box:
        return spaces.Box(0.0, np.inf, array.shape[1:], np.float32)

    return spaces.Dict(
        {
            "gpus": box(window.gpus),
            "jobs": box(window.jobs),
            "pairs": box(window.pairs),
            "cluster": box(window.cluster),
            "mask": spaces.Box(0, 1, window.mask.shape[1:], np.int8),
        }
    )


def _check_actions(actions: NDArray[np.int64], last: int) -> None:
    wrong = actions[(actions < 0) | (actions > last)]
    if len(wrong):
        raise ValueError(f"actions are 0 to {last}, not {wrong[0]}")


def _instead(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(N,) what a masked action counts as: to hold, or where that is not possible the first possible start."""
    instead: NDArray[np.int64] = np.where(mask[:, -1], mask.shape[1] - 1, mask.argmax(axis=1))
    return instead


class PlacementEnv(gymnasium.Env[Arrays, np.int64]):
    """One cluster.

    Observations are those of `adlro.sim.observe.Window`: `gpus` (GPU planes, nodes x slots), `jobs` (window, job
    planes), `pairs` (pair planes, window, GPUs), `cluster` and `mask`.

    Args:
        cluster: the paper's where left out.
        jobs: the lists; 64 lists of the scenario `paper` at load 0.9 where left out. An episode runs one of them,
            drawn by the seed of `reset`.
        window: jobs in the window.
        weights: of the reward.
        start_cost_s: time that each start takes.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as gymnasium.Env declares it

    def __init__(
        self,
        cluster: Cluster | None = None,
        jobs: JobArrays | None = None,
        *,
        window: int = 32,
        weights: RewardWeights | None = None,
        start_cost_s: float = 0.0,
    ) -> None:
        self._weights = (weights or RewardWeights()).of_parts
        self._chosen = 0
        self._simulator = WindowSimulator(
            cluster or load_scenario("paper").cluster,
            draw_lists(0, 64, cluster=cluster) if jobs is None else jobs,
            clusters=1,
            size=window,
            start_cost_s=start_cost_s,
            next_list=lambda _: self._chosen,
            restart=False,
        )
        self.observation_space = observation_space(self._simulator.window)
        self.action_space = spaces.Discrete(self._simulator.hold_action + 1)
        self._masked_actions = 0
        self._actions = self._simulator.hold_action + 1
        self._action = np.zeros(1, dtype=np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Arrays, dict[str, Any]]:
        """Begins a list: that of `options["list"]`, or one drawn."""
        super().reset(seed=seed)
        lists = len(self._simulator.jobs.job_count)
        asked = (options or {}).get("list")
        self._chosen = int(self.np_random.integers(lists)) if asked is None else int(asked)
        if not 0 <= self._chosen < lists:
            raise ValueError(f"options['list'] must be below {lists}, not {self._chosen}")
        self._masked_actions = 0
        self._simulator.reset()
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """One action; `truncated` where jobs are left that nothing can start."""
        simulator = self._simulator
        if not 0 <= action < self._actions:
            raise ValueError(f"actions are 0 to {self._actions - 1}, not {action}")
        self._action[0] = action
        if not simulator.window.mask[0, action]:
            self._masked_actions += 1
            self._action[0] = _instead(simulator.window.mask)[0]
        step = simulator.step(self._action)
        parts = step.parts[0]
        reward = float((parts * self._weights).sum())
        done, stuck = bool(step.done[0]), bool(step.stuck[0])
        return self._observation(), reward, done and not stuck, stuck, self._info(step)

    def action_masks(self) -> NDArray[np.bool_]:
        """(actions,) which are possible, under the name that masked agents ask for."""
        mask: NDArray[np.bool_] = self._simulator.window.mask[0].copy()
        return mask

    def _observation(self) -> Arrays:
        window = self._simulator.window
        return {
            "gpus": window.gpus[0].copy(),
            "jobs": window.jobs[0].copy(),
            "pairs": window.pairs[0].copy(),
            "cluster": window.cluster[0].copy(),
            "mask": window.mask[0].view(np.int8).copy(),
        }

    def _info(self, step: Step | None = None) -> dict[str, Any]:
        return {
            "action_mask": self._simulator.window.mask[0].view(np.int8).copy(),
            "dt_s": 0.0 if step is None else float(step.dt_s[0]),
            "reward_parts": np.zeros(len(REWARD_PARTS)) if step is None else step.parts[0].copy(),
            "masked_actions": self._masked_actions,
        }


class PlacementVectorEnv(VectorEnv[Arrays, NDArray[np.int64], NDArray[Any]]):
    """N clusters in one compiled step; a cluster whose list ends begins its next one in the same step.

    The reward and `terminated` of that step are of the list that ended, the observation of the one that begins.

    Args:
        num_envs: N.
        copy: observations are copies; else views, overwritten by the next step.

    The rest as for `PlacementEnv`.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - as declared above it

    def __init__(
        self,
        num_envs: int,
        cluster: Cluster | None = None,
        jobs: JobArrays | None = None,
        *,
        window: int = 32,
        weights: RewardWeights | None = None,
        start_cost_s: float = 0.0,
        copy: bool = True,
    ) -> None:
        self.num_envs = num_envs
        self._weights = (weights or RewardWeights()).of_parts
        self._copy = copy
        self._draws: Callable[[], int] = lambda: 0
        self._simulator = WindowSimulator(
            cluster or load_scenario("paper").cluster,
            draw_lists(0, 64, cluster=cluster) if jobs is None else jobs,
            clusters=num_envs,
            size=window,
            start_cost_s=start_cost_s,
            next_list=lambda _: self._draws(),
        )
        self.single_observation_space = observation_space(self._simulator.window)
        self.single_action_space = spaces.Discrete(self._simulator.hold_action + 1)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Every cluster begins a list drawn by the seed."""
        if isinstance(seed, list):
            raise ValueError("one seed is for all environments: their lists are drawn from one generator")
        super().reset(seed=seed, options=options)
        lists = len(self._simulator.jobs.job_count)
        self._draws = lambda: int(self.np_random.integers(lists))
        self._simulator.reset()
        return self._observation(), {"action_mask": self._simulator.window.mask.view(np.int8).copy()}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Arrays, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One action for each cluster."""
        simulator = self._simulator
        asked = np.asarray(actions, dtype=np.int64)
        _check_actions(asked, simulator.hold_action)
        possible = np.take_along_axis(simulator.window.mask, asked[:, None], axis=1)[:, 0]
        step = simulator.step(np.where(possible, asked, _instead(simulator.window.mask)))
        info = {
            "action_mask": simulator.window.mask.view(np.int8).copy(),
            "dt_s": step.dt_s.copy(),
            "reward_parts": step.parts.copy(),
            "masked_actions": ~possible,
        }
        return (
            self._observation(),
            (step.parts * self._weights).sum(axis=1),
            step.done & ~step.stuck,
            step.stuck.copy(),
            info,
        )

    def _observation(self) -> Arrays:
        window = self._simulator.window
        views: Arrays = {
            "gpus": window.gpus,
            "jobs": window.jobs,
            "pairs": window.pairs,
            "cluster": window.cluster,
            "mask": window.mask.view(np.int8),
        }
        return {name: view.copy() for name, view in views.items()} if self._copy else views
