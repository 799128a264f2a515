"""Gymnasium environments on the batched simulator: one cluster (`PlacementEnv`) and N of them (`PlacementVectorEnv`).

An agent observes the planes of the included policy in service (adlro/decide/planes/), computed from the same
observations by the same code. An episode is one job list. An action is (job of the window, GPU), numbered job x GPUs +
GPU, or a hold, the last number; `info["action_mask"]`, and `"mask"` of the observation, mark the possible ones. Of
identical GPUs of a node only the lowest-numbered is possible, and no hold if the queue is too long for one. A masked
action counts as a hold, or, if that is masked too, as the first possible one, and is counted in
`info["masked_actions"]`: some agents explore without the mask.

The reward is that of the paper, `-(job completion time + lambda x idle GPU time)`, distributed over time: the integral
of the number of jobs in the system sums to the sum of all completion times. Decisions are not equally spaced: discount
by exp(-beta x `info["dt_s"]`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from adlro.decide.planes.fill import WINDOW, PlaneFiller
from adlro.decide.planes.table import CLUSTER_PLANES, GPU_PLANES, JOB_PLANES, PAIR_PLANES, Plane
from adlro.decide.policies.hold_greedy import FIXED
from adlro.records.cluster import Cluster
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import HOLD
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario

REWARD_PARTS = (
    "jobs_s",  # integral of the number of jobs in the system: over an episode the sum of all completion times
    "priority_s",  # integral of their priorities: the priority-weighted sum
    "idle_s",  # idle GPU time
    "feasible_idle_s",  # the part that a hold causes though some waiting job, in the window or not, fits there
)
"""Integrals over the time of a step, as in `BatchSimulator.totals`."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """The costs of a second.

    Attributes:
        idle: lambda of the paper, above 0 and below 1: an idle GPU's second relative to a waiting or running job's.
        feasible_idle_only: counts a GPU as idle only while a waiting job fits on it; the paper's text counts every idle
            GPU, which also punishes an empty queue.
        by_priority: weights each job by its priority instead of by one.
    """

    idle: float = 0.1
    feasible_idle_only: bool = True
    by_priority: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError if lambda is not between 0 and 1."""
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


class Step(NamedTuple):
    """The results of a step, for N clusters.

    Attributes:
        parts: (N, REWARD_PARTS) integrals over the step.
        dt_s: (N,) elapsed cluster time.
        done: (N,) whether the list has ended.
        stuck: (N,) with `done`: whether jobs remained that can never start.
        possible: (N,) whether the action was possible by the mask.
    """

    parts: NDArray[np.float64]
    dt_s: NDArray[np.float64]
    done: NDArray[np.bool_]
    stuck: NDArray[np.bool_]
    possible: NDArray[np.bool_]


class _Clusters:
    """N clusters, each with lists of a pool, one after another, and their observations.

    Args:
        cluster: the hardware of each.
        jobs: the pool of lists.
        count: N.
        window: number of jobs in the window.
        weights: weights of the reward.
        start_cost_s: seconds that each start takes.
    """

    def __init__(
        self, cluster: Cluster, jobs: JobArrays, count: int, window: int, weights: RewardWeights, start_cost_s: float
    ) -> None:
        self.simulator = BatchSimulator(cluster, jobs, start_cost_s=start_cost_s, begin_with=[0] * count)
        self.lists = len(jobs.job_count)
        self.weights = weights.of_parts
        self._filler = PlaneFiller(FIXED.rule(), window)
        self._gpus = sum(len(node.gpus) for node in cluster.nodes)
        self.actions = window * self._gpus + 1
        slots = max(len(node.gpus) for node in cluster.nodes)
        self._shapes = {
            "gpus": (len(GPU_PLANES), len(cluster.nodes), slots),
            "jobs": (window, len(JOB_PLANES)),
            "pairs": (len(PAIR_PLANES), window, self._gpus),
            "cluster": (len(CLUSTER_PLANES),),
        }
        self._rows = np.zeros((count, window), dtype=np.int64)
        self.seen: Arrays = {}
        self.mask = np.zeros((count, self.actions), dtype=np.bool_)

    @property
    def space(self) -> spaces.Space[Any]:
        """The space of one cluster's observation: each plane's own range."""
        planes = {"gpus": GPU_PLANES, "jobs": JOB_PLANES, "pairs": PAIR_PLANES, "cluster": CLUSTER_PLANES}
        other_axes = {"gpus": (1, 2), "jobs": (0,), "pairs": (1, 2), "cluster": ()}
        boxes: dict[str, spaces.Space[Any]] = {
            name: _box(table, self._shapes[name], other_axes[name]) for name, table in planes.items()
        }
        return spaces.Dict({**boxes, "mask": spaces.Box(0, 1, (self.actions,), np.int8)})

    def look(self) -> None:
        """Fills `seen` and `mask` in new arrays: zeros for clusters without a decision."""
        count, active = len(self._rows), self.simulator.active
        self.seen = {name: np.zeros((count, *shape), dtype=np.float32) for name, shape in self._shapes.items()}
        self.mask = np.zeros((count, self.actions), dtype=np.bool_)
        if len(active):
            planes = self._filler.fill(self.simulator.observe())
            for name in ("gpus", "jobs", "cluster"):
                self.seen[name][active] = getattr(planes, name)
            n, window = active[planes.pair_cluster], planes.pair_job % planes.jobs.shape[1]
            self.seen["pairs"][n, :, window, planes.pair_gpu] = planes.pairs
            self.mask[n, window * self._gpus + planes.pair_gpu] = True
            self.mask[active, -1] = planes.hold_allowed
            self._rows[active] = planes.rows
        self.seen["mask"] = self.mask.view(np.int8)

    def step(self, actions: NDArray[np.int64]) -> Step:
        """Carries out one action for each cluster at a decision; call `look` afterwards.

        Raises:
            ValueError: an invalid action; then none is carried out.
        """
        last = self.actions - 1
        if actions.shape != (len(self.mask),):
            raise ValueError(f"{len(self.mask)} actions are wanted, not an array of shape {actions.shape}")
        wrong = actions[(actions < 0) | (actions > last)]
        if len(wrong):
            raise ValueError(f"actions are 0 to {last}, not {wrong[0]}")
        simulator, active = self.simulator, self.simulator.active
        possible = np.take_along_axis(self.mask, actions[:, None], axis=1)[:, 0]
        instead = np.where(self.mask[:, -1], last, self.mask.argmax(axis=1))
        chosen = np.where(possible, actions, instead)
        job, gpu = np.divmod(chosen, self._gpus)
        starts = (chosen != last)[:, None]
        of_queue = self._rows[np.arange(len(chosen)), np.where(chosen != last, job, 0)]
        pairs = np.where(starts, np.stack([of_queue, gpu], axis=1), HOLD)
        before, time_s = simulator.totals.copy(), simulator.time_s.copy()
        simulator.act(pairs[active])
        done = np.ones(len(chosen), dtype=np.bool_)
        done[simulator.active] = False
        return Step(simulator.totals - before, simulator.time_s - time_s, done, done & simulator.stuck, possible)


def _box(planes: tuple[Plane, ...], shape: tuple[int, ...], others: tuple[int, ...]) -> spaces.Box:
    low, high = (
        np.broadcast_to(np.expand_dims(np.array(values, dtype=np.float32), others), shape)
        for values in ([plane.low for plane in planes], [plane.high for plane in planes])
    )
    # Padding, and places without a pair, are 0 in all planes.
    return spaces.Box(np.minimum(low, 0.0), np.maximum(high, 0.0), shape, np.float32)


class PlacementEnv(gymnasium.Env[Arrays, np.int64]):
    """One cluster.

    Observations are planes, in the ranges of their table (adlro/decide/planes/table.py): `gpus` (GPU planes,
    nodes, slots), `jobs` (window, job planes), `pairs` (pair planes, window, GPUs; 0 where the mask is), `cluster` and
    `mask`.

    Args:
        cluster: the paper's if left out.
        jobs: the lists; 64 lists of the scenario `paper` at load 0.9 if left out. An episode runs one of them, drawn by
            the seed of `reset`.
        window: number of jobs in the window.
        weights: weights of the reward.
        start_cost_s: seconds that each start takes.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as gymnasium.Env declares it

    def __init__(
        self,
        cluster: Cluster | None = None,
        jobs: JobArrays | None = None,
        *,
        window: int = WINDOW,
        weights: RewardWeights | None = None,
        start_cost_s: float = 0.0,
    ) -> None:
        self._clusters = _Clusters(
            cluster or load_scenario("paper").cluster,
            draw_lists(0, 64, cluster=cluster) if jobs is None else jobs,
            1,
            window,
            weights or RewardWeights(),
            start_cost_s,
        )
        self.observation_space = self._clusters.space
        self.action_space = spaces.Discrete(self._clusters.actions)
        self._masked_actions = 0

    @property
    def simulator(self) -> BatchSimulator:
        """The cluster, and its list's outcome."""
        return self._clusters.simulator

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Arrays, dict[str, Any]]:
        """Begins a list: that of `options["list"]`, or a random one."""
        super().reset(seed=seed)
        asked = (options or {}).get("list")
        chosen = int(self.np_random.integers(self._clusters.lists)) if asked is None else int(asked)
        if not 0 <= chosen < self._clusters.lists:
            raise ValueError(f"options['list'] must be below {self._clusters.lists}, not {chosen}")
        self._masked_actions = 0
        self.simulator.begin(np.zeros(1, dtype=np.int64), np.array([chosen]))
        self._clusters.look()
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """Carries out one action; `truncated` if jobs remain that can never start."""
        step = self._clusters.step(np.array([action], dtype=np.int64))
        self._clusters.look()
        self._masked_actions += not step.possible[0]
        reward = float((step.parts[0] * self._clusters.weights).sum())
        done, stuck = bool(step.done[0]), bool(step.stuck[0])
        return self._observation(), reward, done and not stuck, stuck, self._info(step)

    def action_masks(self) -> NDArray[np.bool_]:
        """(actions,) the possible ones, under the name that masked agents call."""
        mask: NDArray[np.bool_] = self._clusters.mask[0].copy()
        return mask

    def _observation(self) -> Arrays:
        return {name: array[0] for name, array in self._clusters.seen.items()}

    def _info(self, step: Step | None = None) -> dict[str, Any]:
        return {
            "action_mask": self._clusters.mask[0].view(np.int8).copy(),
            "dt_s": 0.0 if step is None else float(step.dt_s[0]),
            "reward_parts": np.zeros(len(REWARD_PARTS)) if step is None else step.parts[0],
            "masked_actions": self._masked_actions,
        }


class PlacementVectorEnv(VectorEnv[Arrays, NDArray[np.int64], NDArray[Any]]):
    """N clusters in one step; a cluster whose list ends begins its next one in the same step.

    The reward and `terminated` of that step belong to the ended list, the observation to the new one.

    Args:
        num_envs: N.

    The rest as for `PlacementEnv`.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - as declared above it

    def __init__(
        self,
        num_envs: int,
        cluster: Cluster | None = None,
        jobs: JobArrays | None = None,
        *,
        window: int = WINDOW,
        weights: RewardWeights | None = None,
        start_cost_s: float = 0.0,
    ) -> None:
        self.num_envs = num_envs
        self._clusters = _Clusters(
            cluster or load_scenario("paper").cluster,
            draw_lists(0, 64, cluster=cluster) if jobs is None else jobs,
            num_envs,
            window,
            weights or RewardWeights(),
            start_cost_s,
        )
        self.lists_begun: NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self.single_observation_space = self._clusters.space
        self.single_action_space = spaces.Discrete(self._clusters.actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    @property
    def simulator(self) -> BatchSimulator:
        """The clusters, and the outcomes of their lists."""
        return self._clusters.simulator

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begins a list on every cluster, drawn by the seed."""
        if isinstance(seed, list):
            raise ValueError("one seed is for all environments: their lists are drawn from one generator")
        super().reset(seed=seed, options=options)
        self._begin(np.arange(self.num_envs))
        return dict(self._clusters.seen), {"action_mask": self._clusters.mask.view(np.int8).copy()}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Arrays, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Carries out one action for each cluster."""
        step = self._clusters.step(np.asarray(actions, dtype=np.int64))
        self._begin(np.flatnonzero(step.done))
        info = {
            "action_mask": self._clusters.mask.view(np.int8).copy(),
            "dt_s": step.dt_s,
            "reward_parts": step.parts,
            "masked_actions": ~step.possible,
        }
        rewards = (step.parts * self._clusters.weights).sum(axis=1)
        return dict(self._clusters.seen), rewards, step.done & ~step.stuck, step.stuck, info

    def _begin(self, clusters: NDArray[np.int64]) -> None:
        """Begins random lists on some clusters, and observes all."""
        if len(clusters):
            self.lists_begun[clusters] = self.np_random.integers(self._clusters.lists, size=len(clusters))
            self.simulator.begin(clusters, self.lists_begun[clusters])
        self._clusters.look()
