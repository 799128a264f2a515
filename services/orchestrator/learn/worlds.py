"""Worlds to train in: what scenario, cluster, load and knowledge of runtimes, drawn at random. numpy only.

A policy that has seen one cluster at one load is tuned to it; what it learns here must hold for the clusters, mixes and
loads of people nobody knows. Shares are this project's choice: half of all worlds are the scenarios of the comparison,
each at a random load, the others differ from them in one or more ways.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adlro.cluster import Cluster, Gpu, Node
from adlro.errors import InvalidInput
from adlro.sim.capacity import scenario_on
from adlro.sim.estimates import claimed_spread, expected_s
from adlro.sim.job_arrays import JobArrays, pack_jobs
from adlro.sim.scenario import Group, Scenario, load_scenario
from adlro.sim.workload import draw_groups, draw_jobs

LOWEST_LOAD, HIGHEST_LOAD = 0.5, 1.3
_TRIES = 20


@dataclass(frozen=True)
class World:
    """Lists of jobs for clusters that are all alike.

    Attributes:
        text: for logs.
        cluster: each list has one of its own.
        jobs: L lists.
        mean_gap_s: between submissions at ordinary times.
        load: share of what the cluster can carry.
        runtime: what is known of runtimes (`adlro.sim.estimates`).
    """

    text: str
    cluster: Cluster
    jobs: JobArrays
    mean_gap_s: float
    load: float
    runtime: str


def draw_world(rng: np.random.Generator, *, lists: int, jobs: int) -> World:
    """Draws a world, and `lists` lists of `jobs` jobs for it."""
    for _ in range(_TRIES):
        try:
            return _draw(rng, lists, jobs)
        except InvalidInput:
            continue  # the cluster drawn has no GPU for some of the scenario's jobs
    raise InvalidInput(f"none of {_TRIES} clusters drawn could hold all of the jobs drawn for it")


def _draw(rng: np.random.Generator, lists: int, jobs: int) -> World:
    load = LOWEST_LOAD + (HIGHEST_LOAD - LOWEST_LOAD) * rng.random()
    name = str(rng.choice(["paper", "paper_roomy", "diurnal", "surge", "heavy_tails", "gavel"], p=_SCENARIOS))
    scenario = load_scenario(name)
    groups: tuple[Group, ...] | None = None
    if name != "gavel" and rng.random() < 0.4:
        groups = draw_groups(scenario, rng)
    cluster = scenario.cluster
    if rng.random() < 0.35:
        cluster = _draw_cluster(rng, scenario.cluster)
        if rng.random() < 0.4:
            scenario, cluster = _with_more_memory(scenario, cluster, float(rng.choice([1.5, 2.5, 5.0])), rng)
    if cluster is not scenario.cluster or groups is not None:
        scenario = scenario_on(scenario, cluster, groups=groups)
    runtime = _draw_runtime(rng)
    return world_of(scenario, load, runtime, rng, lists=lists, jobs=jobs)


def world_of(
    scenario: Scenario, load: float, runtime: str, rng: np.random.Generator, *, lists: int, jobs: int
) -> World:
    """Lists of a scenario at a load."""
    drawn = [draw_jobs(scenario, load=load, rng=rng, count=jobs) for _ in range(lists)]
    models = scenario.cluster.gpu_models
    true = pack_jobs(drawn, models)
    packed = true
    if runtime != "true":
        believed = [
            expected_s(each, models, runtime, scenario, seed=int(rng.integers(2**31)), groups=scenario.groups)
            for each in drawn
        ]
        spread = [claimed_spread(each, true.duration_s[number], believed[number]) for number, each in enumerate(drawn)]
        packed = pack_jobs(drawn, models, believed, expected_spread=spread)
    gpus = sum(1 for _ in scenario.cluster.gpus())
    return World(
        text=f"{scenario.name} load {load:.2f} {runtime} {gpus} GPUs",
        cluster=scenario.cluster,
        jobs=packed,
        mean_gap_s=3600.0 / (load * scenario.capacity_jobs_per_h),
        load=load,
        runtime=runtime,
    )


_SCENARIOS = (0.50, 0.26, 0.06, 0.05, 0.06, 0.07)


def _with_more_memory(
    scenario: Scenario, cluster: Cluster, factor: float, rng: np.random.Generator
) -> tuple[Scenario, Cluster]:
    """GPUs with so much more memory, in half of the worlds for jobs that ask for as much more."""
    nodes = tuple(
        dataclasses.replace(
            node,
            gpus=tuple(dataclasses.replace(gpu, memory_mib=int(gpu.memory_mib * factor)) for gpu in node.gpus),
        )
        for node in cluster.nodes
    )
    if rng.random() < 0.5:
        asked = {key: tuple(int(size * factor) for size in sizes) for key, sizes in scenario.gpu_memory_mib.items()}
        scenario = dataclasses.replace(scenario, gpu_memory_mib=asked)
    return scenario, dataclasses.replace(cluster, nodes=nodes)


def _draw_runtime(rng: np.random.Generator) -> str:
    kind = str(rng.choice(["true", "noise", "group", "type", "none"], p=(0.5, 0.2, 0.14, 0.13, 0.03)))
    return f"noise:{0.1 + 0.9 * rng.random():.2f}" if kind == "noise" else kind


def _draw_cluster(rng: np.random.Generator, like: Cluster) -> Cluster:
    """Nodes of another cluster's kinds in other numbers, with other cores; sometimes one model is missing."""
    kinds = list({node.gpus[0].gpu_model: node for node in like.nodes}.values())
    if len(kinds) > 1 and rng.random() < 0.3:
        kinds.pop(int(rng.integers(len(kinds))))
    nodes = int(rng.choice([2, 3, 4, 5, 6, 8, 12, 16], p=(0.12, 0.14, 0.2, 0.16, 0.14, 0.12, 0.07, 0.05)))
    share = rng.dirichlet(np.full(len(kinds), 2.0))
    chosen: Sequence[Node] = [kinds[int(number)] for number in np.sort(rng.choice(len(kinds), size=nodes, p=share))]
    slots = int(rng.choice([2, 4, 8], p=(0.15, 0.7, 0.15)))
    if slots == 8:
        chosen = chosen[: max(1, len(chosen) // 2)]
    cores = int(rng.choice([4, 5, 6, 8])) * slots
    return Cluster(
        "drawn",
        tuple(
            dataclasses.replace(
                node,
                node_id=f"node-{number}",
                cpu_cores=max(cores, 16),
                gpus=tuple(
                    Gpu(f"node-{number}-{slot}", node.gpus[0].gpu_model, node.gpus[0].memory_mib)
                    for slot in range(slots)
                ),
            )
            for number, node in enumerate(chosen)
        ),
    )
