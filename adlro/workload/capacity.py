"""The capacity of a cluster by a linear program, and the load that a job list offers.

The program distributes jobs of each class (application, demands, share of the mix, mean work) over the kinds of nodes
so that the rate of the whole mix is greatest while GPU time, CPU-core time and memory time of every kind suffice. It
ignores packing: a schedule carries less, never more. A job of n GPUs uses n times the GPU time of a packed one, may be
divided between kinds of nodes of one model, and is kept off models that can't hold it even in an empty cluster; jobs do
not share GPUs, nor are they stopped. The files of the included scenarios have their capacities, so only
this module needs scipy, and only while it solves (extra `evaluate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adlro.errors import InvalidInput, Unsupported, with_extra
from adlro.hardware.speeds import SHIPPED, SpeedTable
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobType
from adlro.workload.demand import holding_models, node_kinds
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.scenario import GangSize, Group, Scenario

CAPACITY_DIGITS = 10
"""Significant digits of a capacity: the solver is no more exact, and its last bits, which may depend on its
compilation, must not affect the times of a list that the capacity scales."""


@dataclass(frozen=True, slots=True)
class JobClass:
    """Jobs of one class: their share of all jobs, and their mean work in seconds on the reference GPU.

    The other fields are as in `WorkloadJob`.
    """

    application: str
    job_type: JobType
    gpu_memory_mib: int
    cpu_cores: int
    memory_mib: int
    share: float
    mean_work_s: float
    gpu_count: int = 1
    max_node_count: int = 0
    gpu_models: tuple[str, ...] = ()


def scenario_classes(scenario: Scenario, groups: Sequence[Group] | None = None) -> list[JobClass]:
    """The classes of a scenario's mix, with the exact expectation of their work.

    Args:
        scenario: the rules.
        groups: the population; the scenario's own where left out.
    """
    means: dict[str, list[float]] = {}
    for group in scenario.groups if groups is None else groups:
        means.setdefault(group.application, []).append(scenario.work.expected_s(group.mean_work_s))
    gang_sizes = scenario.gang_sizes or (GangSize(1, 1.0),)
    classes = []
    for job_type, share_of_type in scenario.mix.items():
        applications = scenario.applications(job_type)
        sizes = scenario.gpu_memory_mib[job_type]
        for application in applications if share_of_type > 0 else ():
            for gpu_memory_mib in sizes:
                for cpu_cores, share_of_cores in scenario.cpu_cores[job_type]:
                    share = share_of_type / len(applications) / len(sizes) * share_of_cores
                    classes += [
                        JobClass(
                            application=application,
                            job_type=job_type,
                            gpu_memory_mib=gpu_memory_mib,
                            cpu_cores=cpu_cores,
                            memory_mib=cpu_cores * scenario.memory_mib_per_core,
                            share=share * gang.share,
                            mean_work_s=float(np.mean(means[application])) * gang.work_factor,
                            gpu_count=gang.gpu_count,
                        )
                        for gang in gang_sizes
                    ]
    return classes


def list_classes(jobs: Sequence[WorkloadJob], cluster: Cluster) -> list[JobClass]:
    """The classes of a job list. GPU memory distinguishes classes only if it distinguishes the cluster's GPUs.

    Raises:
        InvalidInput: the list is empty.
    """
    if not jobs:
        raise InvalidInput("the job list is empty")
    sizes = sorted({gpu.memory_mib for _, gpu in cluster.gpus()})
    found: dict[tuple[str, JobType, int, int, int, int, int, tuple[str, ...]], list[float]] = {}
    for job in jobs:
        size = next((size for size in sizes if job.gpu_memory_mib <= size), job.gpu_memory_mib)
        gang = (job.gpu_count, job.max_node_count, job.gpu_models)
        key = (job.application, job.job_type, size, job.cpu_cores, job.memory_mib, *gang)
        found.setdefault(key, []).append(job.work_s)
    return [
        JobClass(*key[:5], len(works_s) / len(jobs), float(np.mean(works_s)), *key[5:])
        for key, works_s in found.items()
    ]


def capacity_jobs_per_h(cluster: Cluster, classes: Sequence[JobClass], speeds: SpeedTable = SHIPPED) -> float:
    """The highest rate of a mix, in jobs/h, for which a cluster's GPUs, CPU cores and memory suffice.

    Raises:
        InvalidInput: no GPU of the cluster can hold a class, or a GPU model has no speeds.
        Unsupported: scipy is not installed.
    """
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_array
    except ImportError:
        raise Unsupported(
            f"the capacity of a cluster for a job list needs scipy; install it {with_extra('evaluate')}"
        ) from None
    kinds = node_kinds(cluster)
    pairs = [
        (c, k)
        for c, each in enumerate(classes)
        for models in [holding_models(kinds, each)]
        for k, kind in enumerate(kinds)
        if kind.gpu_model in models and kind.holds(each)
    ]
    _refuse_homeless(classes, {c for c, _ in pairs})
    c, k = np.array(pairs).T
    models = [kind.gpu_model for kind in kinds]
    speed = speeds.speeds([each.application for each in classes], [each.job_type for each in classes], models)
    work_s = np.array([each.mean_work_s for each in classes])
    share = np.array([each.share for each in classes])
    # Of all its GPUs together: with each it uses cores and memory for as long.
    gpu_time_s = work_s[c] / speed[c, k] * np.array([each.gpu_count for each in classes])[c]
    # Variables: the rate of jobs of class c on kind k, in units of 1 / the mean work (so that all are near 1), and last
    # the rate of the whole mix. GPUs, cores and memory are shares of a kind's totals.
    unit_s = float((share * work_s).sum())
    count = np.array(list(kinds.values()), dtype=float)
    usage = []
    for asked, held in (
        (np.ones(len(classes)), np.array([kind.gpus for kind in kinds])),
        (np.array([each.cpu_cores for each in classes]), np.array([kind.cpu_cores for kind in kinds])),
        (np.array([each.memory_mib for each in classes]), np.array([kind.memory_mib for kind in kinds])),
    ):
        usage.append(gpu_time_s / unit_s * asked[c] / (held * count)[k])
    last = len(pairs)
    column = np.arange(last)
    at_most = coo_array(
        (np.concatenate(usage), (np.concatenate([k + row * len(kinds) for row in range(3)]), np.tile(column, 3))),
        shape=(3 * len(kinds), last + 1),
    )
    balance = coo_array(
        (
            np.concatenate([np.ones(last), -share]),
            (np.concatenate([c, np.arange(len(classes))]), np.concatenate([column, np.full(len(classes), last)])),
        ),
        shape=(len(classes), last + 1),
    )
    goal = np.zeros(last + 1)
    goal[-1] = -1.0
    answer = linprog(
        goal,
        A_ub=at_most.tocsr(),
        b_ub=np.ones(3 * len(kinds)),
        A_eq=balance.tocsr(),
        b_eq=np.zeros(len(classes)),
        bounds=(0, None),
        method="highs",
    )
    if answer.status != 0:
        raise InvalidInput(f"the linear program of the capacity has no answer: {answer.message}")
    return float(f"{float(answer.x[-1]) / unit_s * 3600.0:.{CAPACITY_DIGITS}g}")


def scenario_capacity_jobs_per_h(scenario: Scenario, groups: Sequence[Group] | None = None) -> float:
    """`capacity_jobs_per_h` of a scenario's own cluster and mix at ordinary times.

    Raises:
        Unsupported: scipy is not installed.
    """
    return capacity_jobs_per_h(scenario.cluster, scenario_classes(scenario, groups))


def scenario_on(
    scenario: Scenario,
    cluster: Cluster,
    speeds: SpeedTable = SHIPPED,
    groups: Sequence[Group] | None = None,
) -> Scenario:
    """A scenario's jobs on another cluster, or of another population, with the matching capacity.

    Args:
        scenario: has the mix.
        cluster: the cluster to run on.
        speeds: speeds of the cluster's GPU models.
        groups: the population; the scenario's own where left out.

    Raises:
        InvalidInput: some of the scenario's jobs fit on no GPU of the cluster, or a GPU model has no speeds.
        Unsupported: scipy is not installed.
    """
    groups = scenario.groups if groups is None else tuple(groups)
    capacity = capacity_jobs_per_h(cluster, scenario_classes(scenario, groups), speeds)
    return replace(scenario, cluster=cluster, groups=groups, capacity_jobs_per_h=capacity)


def offered_load(cluster: Cluster, jobs: Sequence[WorkloadJob], speeds: SpeedTable = SHIPPED) -> float:
    """Rate of submissions from the first to the last as a share of the capacity for these jobs; inf for a batch.

    Raises:
        InvalidInput: fewer than two jobs, jobs that fit on no GPU, or a GPU model without speeds.
        Unsupported: scipy is not installed.
    """
    if len(jobs) < 2:
        raise InvalidInput(f"a load needs two jobs, not {len(jobs)}")
    span_s = jobs[-1].submit_s - jobs[0].submit_s
    capacity = capacity_jobs_per_h(cluster, list_classes(jobs, cluster), speeds)
    return float("inf") if span_s <= 0 else (len(jobs) - 1) / span_s * 3600.0 / capacity


def scale_to_load(jobs: Sequence[WorkloadJob], offered: float, load: float) -> list[WorkloadJob]:
    """The list with its submissions, counted from the first, scaled so that it offers `load`.

    Args:
        jobs: in the order of submission.
        offered: its present load (`offered_load`).
        load: the wanted load.

    Raises:
        InvalidInput: the load is not above 0, or all jobs have one submission time, so that scaling has no effect.
    """
    if not 0 < load < float("inf"):
        raise InvalidInput(f"load must be above 0 and finite, not {load}", field="load")
    if not 0 < offered < float("inf"):
        raise InvalidInput("load: all jobs are submitted at once: there is no rate to bring to a load", field="load")
    return stretched(jobs, offered / load)


def stretched(jobs: Sequence[WorkloadJob], factor: float) -> list[WorkloadJob]:
    """The list with its submission times, counted from the first, multiplied by a factor; to a millisecond."""
    first_s = jobs[0].submit_s
    return [replace(job, submit_s=round((job.submit_s - first_s) * factor, 3)) for job in jobs]


def _refuse_homeless(classes: Sequence[JobClass], placed: set[int]) -> None:
    for number, each in enumerate(classes):
        if number not in placed:
            gang = f" with each of {each.gpu_count} GPUs" if each.gpu_count > 1 else ""
            raise InvalidInput(
                f"jobs of {each.application or each.job_type.label} with {each.gpu_memory_mib} MiB of GPU memory, "
                f"{each.cpu_cores} CPU cores and {each.memory_mib} MiB of memory{gang} fit on no "
                f"{'set of GPUs' if gang else 'GPU'} of the cluster"
            )
