"""Worlds for training: scenario, cluster, load and knowledge of runtimes, drawn at random. numpy only.

A policy trained on one cluster at one load is tuned to it; a trained policy must work for unknown clusters, mixes and
loads. Shares are this project's choice. A world differs from the scenarios of the comparison in one or more ways: load,
population, a single application, size and shape of the cluster, GPU models up to ten times apart and unlike for each
kind of work, initially waiting jobs, error of the expected runtimes, jobs that end early.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adlro.errors import InvalidInput
from adlro.lab.learn.wrong_guesses import WRONG_GUESSES, with_stated_spread, with_wrong_guesses
from adlro.numeric.exact import exp_array, log
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import KINDS_OF_WORK
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import Floats
from adlro.workload.capacity import scenario_on
from adlro.workload.estimates import expected_s
from adlro.workload.job_lists import WorkloadJob, draw_groups, draw_jobs
from adlro.workload.scenario import Group, Scenario, load_scenario

LOWEST_LOAD, HIGHEST_LOAD = 0.2, 1.6
WIDEST_SPEEDUP = 10.0
WIDEST_SPEEDUP_OF_TYPE = 2.5
_TRIES = 20


@dataclass(frozen=True)
class World:
    """Lists of jobs for clusters of one hardware.

    Attributes:
        text: description for logs.
        cluster: the hardware of each list's cluster.
        jobs: L lists.
        mean_gap_s: mean time between submissions at ordinary times.
        load: load as a share of the capacity.
        runtime: the knowledge of runtimes (`adlro.workload.estimates`).
    """

    text: str
    cluster: Cluster
    jobs: JobArrays
    mean_gap_s: float
    load: float
    runtime: str


class DrawWorld(Protocol):
    """Draws a world, and lists of jobs for it: `draw_world` and its like."""

    def __call__(self, rng: np.random.Generator, *, lists: int, jobs: int) -> World:
        """Draws a world with so many lists, of so many jobs each."""


def draw_world(rng: np.random.Generator, *, lists: int, jobs: int) -> World:
    """Draws a world, and `lists` lists of `jobs` jobs for it."""
    for _ in range(_TRIES):
        try:
            return _draw(rng, lists, jobs)
        except InvalidInput:
            continue  # the drawn cluster has no GPU for some of the scenario's jobs
    raise InvalidInput(f"none of {_TRIES} clusters drawn could hold all of the jobs drawn for it")


def _draw(rng: np.random.Generator, lists: int, jobs: int) -> World:
    load = LOWEST_LOAD + (HIGHEST_LOAD - LOWEST_LOAD) * rng.random()
    name = str(rng.choice(["paper", "paper_roomy", "diurnal", "surge", "heavy_tails", "gavel"], p=_SCENARIOS))
    scenario = load_scenario(name)
    groups: tuple[Group, ...] | None = None
    if rng.random() < 0.15:
        scenario, groups = of_one_application(scenario, rng)
    elif name != "gavel" and rng.random() < 0.4:
        groups = draw_groups(scenario, rng)
    cluster = scenario.cluster
    if rng.random() < 0.35:
        cluster = _draw_cluster(rng, scenario.cluster)
        if rng.random() < 0.4:
            scenario, cluster = _with_more_memory(scenario, cluster, float(rng.choice([1.5, 2.5, 5.0])), rng)
    if cluster is not scenario.cluster or groups is not None:
        scenario = scenario_on(scenario, cluster, groups=groups)
    backlog = int(jobs * 0.75 * rng.random()) if rng.random() < 0.2 else 0
    return world_of(
        scenario,
        load,
        _draw_runtime(rng),
        rng,
        lists=lists,
        jobs=jobs,
        speedup=draw_speedup(len(cluster.gpu_models), rng),
        backlog=backlog,
        early_share=0.4 * rng.random() if rng.random() < 0.08 else 0.0,
        wrong=draw_wrong(rng),
    )


def draw_speedup(models: int, rng: np.random.Generator) -> Floats:
    """(T, K) factors of the speeds of each job type on each of K GPU models; mostly 1."""
    speedup = np.ones((len(KINDS_OF_WORK) + 1, models))
    if rng.random() < 0.3:
        speedup *= exp_array(log(WIDEST_SPEEDUP) * rng.random(models))
    if rng.random() < 0.3:
        speedup *= exp_array(log(WIDEST_SPEEDUP_OF_TYPE) * (2.0 * rng.random(speedup.shape) - 1.0))
    return speedup


def draw_wrong(rng: np.random.Generator) -> str:
    """A kind of wrong expectations; mostly none."""
    return str(rng.choice(WRONG_GUESSES)) if rng.random() < 0.2 else ""


def draw_stated(rng: np.random.Generator) -> float:
    """A multiple of the true uncertainty of expectations: 1, any other, or 0."""
    chance = rng.random()
    return 1.0 if chance < 0.4 else 3.0 * rng.random() if chance < 0.6 else 0.0


def of_one_application(scenario: Scenario, rng: np.random.Generator) -> tuple[Scenario, tuple[Group, ...]]:
    """A scenario with one of its applications, with a population of its own."""
    names = list(scenario.job_types)
    name = names[int(rng.integers(len(names)))]
    job_types = {name: scenario.job_types[name]}
    mix = {job_type: float(job_type is job_types[name]) for job_type in KINDS_OF_WORK}
    alone = dataclasses.replace(scenario, job_types=job_types, mix=mix, groups=())
    return alone, draw_groups(alone, rng)


def world_of(
    scenario: Scenario,
    load: float,
    runtime: str,
    rng: np.random.Generator,
    *,
    lists: int,
    jobs: int,
    speedup: Floats | None = None,
    backlog: int = 0,
    early_share: float = 0.0,
    wrong: str = "",
    stated: float = 0.0,
) -> World:
    """Lists of a scenario at a load.

    Args:
        scenario: its rules.
        load: load as a share of the capacity.
        runtime: the knowledge of runtimes.
        rng: generator of all random choices.
        lists, jobs: number of lists, and of jobs per list.
        speedup: (T, K) factors of the GPU models' speeds for each job type, by its number, relative to the scenario;
            the load is scaled roughly to the cluster's new capacity: as if each GPU did the same share of the work.
        backlog: number of each list's jobs that wait at its beginning.
        early_share: share of the jobs that end after 2 to 30 % of their time, unexpectedly.
        wrong: a kind of wrong expectations (wrong_guesses.py); empty: none.
        stated: the uncertainty that comes with the expectations, as a multiple of the true one.
    """
    models = scenario.cluster.gpu_models
    speedup = np.ones((len(KINDS_OF_WORK) + 1, len(models))) if speedup is None else speedup
    there = [models.index(gpu.gpu_model) for _, gpu in scenario.cluster.gpus()]
    types = sorted({int(each) for each in scenario.job_types.values()})
    faster = float(speedup[types][:, there].mean())
    drawn = [draw_jobs(scenario, load=load * faster, rng=rng, count=jobs) for _ in range(lists)]
    if backlog:
        drawn = [_with_backlog(each, backlog) for each in drawn]
    packed = pack_jobs(drawn, models)
    if runtime != "true":
        believed = [expected_s(each, models, runtime, scenario, seed=int(rng.integers(2**31))) for each in drawn]
        packed = pack_jobs(drawn, models, believed)
    factor = speedup[packed.job_type]
    packed = packed._replace(duration_s=packed.duration_s / factor, expected_s=packed.expected_s / factor)
    if wrong:
        packed = with_wrong_guesses(wrong, packed, rng)
    if early_share:
        ends = rng.random((lists, jobs)) < early_share
        share = np.where(ends, 0.02 + 0.28 * rng.random((lists, jobs)), 1.0)
        packed = packed._replace(duration_s=packed.duration_s * share[:, :, None])
    if stated:
        packed = with_stated_spread(packed, stated)
    gpus = sum(1 for _ in scenario.cluster.gpus())
    apart = float(speedup.max() / speedup.min())
    more = f" {wrong}" * bool(wrong) + f" models sped up by factors {apart:.1f} apart" * (apart > 1.0)
    return World(
        text=f"{scenario.name} load {load:.2f} {runtime} {gpus} GPUs{more} backlog {backlog} early {early_share:.2f}",
        cluster=scenario.cluster,
        jobs=packed,
        mean_gap_s=3600.0 / (load * faster * scenario.capacity_jobs_per_h),
        load=load,
        runtime=runtime,
    )


def _with_backlog(jobs: list[WorkloadJob], count: int) -> list[WorkloadJob]:
    """The list with so many jobs waiting at its beginning."""
    begin_s = jobs[count - 1].submit_s
    return [dataclasses.replace(job, submit_s=max(round(job.submit_s - begin_s, 3), 0.0)) for job in jobs]


_SCENARIOS = (0.46, 0.22, 0.06, 0.05, 0.09, 0.12)


def _with_more_memory(
    scenario: Scenario, cluster: Cluster, factor: float, rng: np.random.Generator
) -> tuple[Scenario, Cluster]:
    """GPUs with more memory by a factor, in half of the worlds with jobs that request more by the same factor."""
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
    """Nodes of another cluster's kinds in other numbers, with other cores; sometimes without one model."""
    kinds = list({node.gpus[0].gpu_model: node for node in like.nodes}.values())
    if len(kinds) > 1 and rng.random() < 0.3:
        kinds.pop(int(rng.integers(len(kinds))))
    sizes, chances = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32), (0.05, 0.12, 0.14, 0.19, 0.14, 0.12, 0.11, 0.06, 0.05, 0.02)
    nodes = int(rng.choice(sizes, p=chances))
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
