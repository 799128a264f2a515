"""ADLRO's environments for Gymnasium; importing this module registers them. Needs the extra `train` without torch.

    import gymnasium
    import adlro.envs

    env = gymnasium.make("adlro/Placement-v0", scenario="paper", load=0.9, jobs=64, seed=1)
    observation, info = env.reset(seed=0)
    action = info["action_mask"].argmax()  # a possible one

`gymnasium.make("adlro.envs:adlro/Placement-v0")` imports the module by itself. `gymnasium.make_vec` of the same name
makes many clusters in one step, on the batched simulator. What is observed, what actions and rewards are, is said in
adlro/lab/learn/env.py.
"""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium

from adlro.decide.planes.fill import WINDOW
from adlro.errors import InvalidInput
from adlro.lab.learn.env import PlacementEnv, PlacementVectorEnv, RewardWeights, draw_lists
from adlro.records.cluster import Cluster
from adlro.state.job_arrays import JobArrays
from adlro.workload.scenario import ONE_GPU_SCENARIO_NAMES, load_cluster, load_scenario

PLACEMENT = "adlro/Placement-v0"


def make_placement(**options: Any) -> PlacementEnv:
    """One cluster; its options are those of `make_placements` but `num_envs`."""
    cluster, jobs, rest = _made(options)
    return PlacementEnv(cluster, jobs, **rest)


def make_placements(num_envs: int, **options: Any) -> PlacementVectorEnv:
    """Many clusters in one step.

    Args:
        num_envs: number of clusters.
        options: scenario: a scenario of jobs of one GPU each, such as paper, paper_roomy, surge or gavel (paper).
            load: arrival rate as a share of the cluster's capacity (0.9).
            jobs: jobs in a list, which is an episode (256).
            lists: number of lists that episodes are drawn from (64).
            seed: of the lists (0); the seed of `reset` draws among them.
            cluster: another cluster: the name of a scenario, or a TOML file.
            window: jobs that are observed, from the head of the queue on (32).
            idle: lambda, the cost of an idle GPU's second beside a job's second in the system (0.1).
            feasible_idle_only: only GPUs count as idle on which a waiting job fits (True).
            by_priority: each job's second counts with its priority (False).
            start_cost_s: seconds that each start takes (0).

    Raises:
        InvalidInput: an unknown or impossible option; the message names it.
    """
    cluster, jobs, rest = _made(options)
    return PlacementVectorEnv(num_envs, cluster, jobs, **rest)


def _made(options: dict[str, Any]) -> tuple[Cluster, JobArrays, dict[str, Any]]:
    known = list(inspect.signature(_drawn).parameters)
    for name in options:
        if name not in known:
            raise InvalidInput(f"{name}: no such option; there are {', '.join(known)}", field=name)
    return _drawn(**options)


def _drawn(
    scenario: str = "paper",
    load: float = 0.9,
    jobs: int = 256,
    lists: int = 64,
    seed: int = 0,
    cluster: str | None = None,
    window: int = WINDOW,
    idle: float = 0.1,
    feasible_idle_only: bool = True,
    by_priority: bool = False,
    start_cost_s: float = 0.0,
) -> tuple[Cluster, JobArrays, dict[str, Any]]:
    if scenario not in ONE_GPU_SCENARIO_NAMES:
        raise InvalidInput(
            f"scenario: '{scenario}' is not one of {', '.join(ONE_GPU_SCENARIO_NAMES)}: an action gives a job one GPU",
            field="scenario",
        )
    if not load > 0:
        raise InvalidInput(f"load: must be a number above 0, not {load}", field="load")
    for name, number in (("jobs", jobs), ("lists", lists), ("window", window)):
        if number < 1:
            raise InvalidInput(f"{name}: must be at least 1, not {number}", field=name)
    if seed < 0:
        raise InvalidInput(f"seed: must be a whole number from 0, not {seed}", field="seed")
    if not 0 < idle < 1:
        raise InvalidInput(f"idle: must be above 0 and below 1, not {idle}", field="idle")
    there = load_scenario(scenario).cluster if cluster is None else load_cluster(cluster)
    drawn = draw_lists(seed, lists, scenario=scenario, load=load, jobs=jobs, cluster=there)
    weights = RewardWeights(idle, feasible_idle_only, by_priority)
    return there, drawn, {"window": window, "weights": weights, "start_cost_s": start_cost_s}


if PLACEMENT not in gymnasium.registry:
    gymnasium.register(
        PLACEMENT, entry_point="adlro.envs:make_placement", vector_entry_point="adlro.envs:make_placements"
    )
