"""Worlds for training with jobs of several GPUs, drawn at random. numpy only.

As adlro/lab/learn/worlds.py draws those of jobs of one GPU: cluster, population, mix of sizes, load, its course, speeds
of the GPU models, and knowledge of runtimes. Shares are this project's choice.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from adlro.errors import InvalidInput
from adlro.lab.learn.worlds import World, draw_speedup, draw_stated, draw_wrong, of_one_application, world_of
from adlro.numeric.draws import standard_exponentials
from adlro.numeric.exact import power
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import KINDS_OF_WORK
from adlro.workload.arrivals import Diurnal, Surges
from adlro.workload.capacity import scenario_on
from adlro.workload.job_lists import draw_groups
from adlro.workload.scenario import GangSize, Group, Scenario, load_scenario

LOWEST_LOAD, HIGHEST_LOAD = 0.2, 1.5
MOST_GPUS = 256
_TRIES = 50
_SCENARIOS = ("gangs", "gangs_philly", "gangs_heavy", "gangs_64", "gangs_philly_64")
_SHARES = (0.5, 0.22, 0.12, 0.1, 0.06)


def draw_gang_world(rng: np.random.Generator, *, lists: int, jobs: int) -> World:
    """Draws a world, and lists of `jobs` jobs for it, fewer and longer ones on larger clusters.

    Args:
        rng: generator of all random choices.
        lists, jobs: number of lists, and of jobs a list, for 16 GPUs.
    """
    for _ in range(_TRIES):
        try:
            return _draw(rng, lists, jobs)
        except InvalidInput:
            continue  # the drawn cluster can't hold some of the sizes
    raise InvalidInput(f"none of {_TRIES} clusters drawn could hold all of the jobs drawn for it")


def sized(lists: int, jobs: int, gpus: int) -> tuple[int, int]:
    """Numbers of lists, and of jobs a list, for a cluster: fewer and longer ones above 16 GPUs."""
    longer = math.sqrt(max(gpus / 16.0, 1.0))
    return max(round(lists / (longer * longer * longer)), 2), round(jobs * longer)


def _draw(rng: np.random.Generator, lists: int, jobs: int) -> World:
    load = LOWEST_LOAD + (HIGHEST_LOAD - LOWEST_LOAD) * rng.random()
    scenario = load_scenario(str(rng.choice(_SCENARIOS, p=_SHARES)))
    cluster = scenario.cluster
    groups: tuple[Group, ...] | None = None
    changed = False
    if rng.random() < 0.1:
        scenario, groups = of_one_application(scenario, rng)
    elif rng.random() < 0.45:
        scenario = dataclasses.replace(scenario, sigma_group=scenario.sigma_group * (0.5 + rng.random()))
        if rng.random() < 0.6:
            scenario = _with_a_mix(rng, scenario)
        groups = draw_groups(scenario, rng)
    if rng.random() < 0.45:
        cluster, changed = _draw_cluster(rng, scenario.cluster), True
    if rng.random() < 0.45:
        scenario, changed = _with_sizes(rng, scenario, sum(1 for _ in cluster.gpus())), True
    if changed or groups is not None:
        scenario = scenario_on(scenario, cluster, groups=groups)
    gpus = sum(1 for _ in cluster.gpus())
    its_lists, its_jobs = sized(lists, jobs, gpus)
    if rng.random() < 0.25:
        scenario = _with_a_course(rng, scenario, its_jobs * 3600.0 / (load * scenario.capacity_jobs_per_h))
    return world_of(
        scenario,
        load,
        _draw_runtime(rng),
        rng,
        lists=its_lists,
        jobs=its_jobs,
        speedup=draw_speedup(len(cluster.gpu_models), rng),
        backlog=int(its_jobs * 0.75 * rng.random()) if rng.random() < 0.15 else 0,
        early_share=0.4 * rng.random() if rng.random() < 0.08 else 0.0,
        wrong=draw_wrong(rng),
        stated=draw_stated(rng),
    )


def _with_a_course(rng: np.random.Generator, scenario: Scenario, length_s: float) -> Scenario:
    """Days, or bursts of one job type, in lists of so many seconds."""
    if rng.random() < 0.5:
        return dataclasses.replace(
            scenario, arrivals=Diurnal(length_s * (0.2 + 0.6 * rng.random()), 0.3 + 0.6 * rng.random())
        )
    kind, factor = KINDS_OF_WORK[int(rng.integers(len(KINDS_OF_WORK)))], 2.0 + 4.0 * rng.random()
    every_s = length_s * (0.2 + 0.3 * rng.random())
    return dataclasses.replace(scenario, arrivals=Surges(kind, factor, 0.5 * every_s, 0.2 * every_s, every_s))


def _with_a_mix(rng: np.random.Generator, scenario: Scenario) -> Scenario:
    """Other shares of the job types."""
    weights = standard_exponentials(rng, len(scenario.mix))
    shares = weights / weights.sum()  # a Dirichlet distribution whose parameters are 1
    mix = {job_type: float(share) for job_type, share in zip(scenario.mix, shares, strict=True)}
    return dataclasses.replace(scenario, mix=mix, groups=())


def _draw_runtime(rng: np.random.Generator) -> str:
    kind = str(rng.choice(["true", "noise", "group", "type", "none"], p=(0.4, 0.18, 0.17, 0.15, 0.1)))
    return f"noise:{0.1 + 0.9 * rng.random():.2f}" if kind == "noise" else kind


def _with_sizes(rng: np.random.Generator, scenario: Scenario, gpus: int) -> Scenario:
    """Other shares of the sizes, of which some are missing; the larger ones may have more work."""
    sizes = [1, *(size for size in (2, 3, 4, 6, 8, 16) if size <= gpus // 2 and rng.random() < 0.6)]
    share = rng.dirichlet(np.full(len(sizes), 0.7))
    grows = float(rng.choice([0.0, 0.0, 0.5, 1.0]))
    found = tuple(
        GangSize(size, float(each), power(size, grows)) for size, each in zip(sizes, share, strict=True) if each > 1e-3
    )
    total = float(np.array([each.share for each in found]).sum())
    return dataclasses.replace(
        scenario, gang_sizes=tuple(dataclasses.replace(each, share=each.share / total) for each in found)
    )


def _draw_cluster(rng: np.random.Generator, like: Cluster) -> Cluster:
    """Nodes of another cluster's kinds in other numbers, with 2 to 8 GPUs each; sometimes of one model only."""
    kinds = list({node.gpus[0].gpu_model: node for node in like.nodes}.values())
    if rng.random() < 0.2:
        kinds = [kinds[int(rng.integers(len(kinds)))]]
    slots = int(rng.choice([2, 4, 8], p=(0.1, 0.6, 0.3)))
    sizes, chances = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64), (0.05, 0.09, 0.13, 0.18, 0.16, 0.13, 0.1, 0.07, 0.05, 0.04)
    nodes = min(int(rng.choice(sizes, p=chances)), MOST_GPUS // slots)
    chosen = np.sort(rng.choice(len(kinds), size=nodes, p=rng.dirichlet(np.full(len(kinds), 2.0))))
    return Cluster("drawn", tuple(_node(kinds[int(kind)], number, slots) for number, kind in enumerate(chosen)))


def _node(like: Node, number: int, slots: int) -> Node:
    gpu, name = like.gpus[0], f"node-{number}"
    gpus = tuple(Gpu(f"{name}-{slot}", gpu.gpu_model, gpu.memory_mib) for slot in range(slots))
    times = slots / len(like.gpus)
    cores, memory_mib = int(like.cpu_cores * times), int(like.memory_mib * times)
    return dataclasses.replace(like, node_id=name, cpu_cores=cores, memory_mib=memory_mib, gpus=gpus)
