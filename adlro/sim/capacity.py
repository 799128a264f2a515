"""How much a cluster can carry: capacity by a linear program, the offered load of a job list, jobs that fit nowhere.

The program: jobs of each class (application, demands, share of the mix, mean work) are spread over the kinds of nodes
so that the rate of the whole mix is greatest while GPU time, CPU-core time and memory time of every kind suffice. It
knows no packing: a schedule carries less, never more. Capacities of the scenarios that ship stand in their files, so
only this module needs scipy, and only while it solves (extra `evaluate`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.cluster import Cluster
from adlro.errors import InvalidInput, Unsupported
from adlro.jobs import JobType
from adlro.sim.scenario import Group, Scenario
from adlro.sim.speeds import SHIPPED, SpeedTable
from adlro.sim.workload import WorkloadJob


@dataclass(frozen=True, slots=True)
class JobClass:
    """Jobs that are alike: their share of all jobs, and their mean work in seconds on the reference GPU."""

    application: str
    job_type: JobType
    gpu_memory_mib: int
    cpu_cores: int
    memory_mib: int
    share: float
    mean_work_s: float


class NodeKind(NamedTuple):
    """Nodes that are alike; a node has GPUs of one model and memory."""

    gpu_model: str
    gpu_memory_mib: int
    gpus: int
    cpu_cores: int
    memory_mib: int

    def holds(self, job: JobClass | WorkloadJob) -> bool:
        """Whether an empty node of this kind can run such a job."""
        return (
            job.gpu_memory_mib <= self.gpu_memory_mib
            and job.cpu_cores <= self.cpu_cores
            and job.memory_mib <= self.memory_mib
        )


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Jobs of a list that no GPU of a cluster can ever hold.

    Attributes:
        jobs: of the list.
        count: of them.
        first: number of the first in the list, from 0.
        first_line: its line in the file, where it is from one.
        demand: what it asks for in vain: field and figures.
    """

    jobs: int
    count: int
    first: int
    first_line: int | None
    demand: str

    @property
    def sentence(self) -> str:
        """For people."""
        where = f"line {self.first_line}" if self.first_line is not None else f"job {self.first + 1} of the list"
        return (
            f"{self.count} of {self.jobs} jobs can never run, for no GPU of the cluster can hold them; the first is "
            f"{where}: {self.demand}"
        )


def scenario_classes(scenario: Scenario, groups: Sequence[Group] | None = None) -> list[JobClass]:
    """The classes of a scenario's mix, with the exact expectation of their work.

    Args:
        scenario: its rules.
        groups: the population; the scenario's own where left out.
    """
    means: dict[str, list[float]] = {}
    for group in scenario.groups if groups is None else groups:
        means.setdefault(group.application, []).append(scenario.work.expected_s(group.mean_work_s))
    classes = []
    for job_type, share_of_type in scenario.mix.items():
        applications = scenario.applications(job_type)
        sizes = scenario.gpu_memory_mib[job_type]
        for application in applications if share_of_type > 0 else ():
            for gpu_memory_mib in sizes:
                for cpu_cores, share_of_cores in scenario.cpu_cores[job_type]:
                    classes.append(
                        JobClass(
                            application=application,
                            job_type=job_type,
                            gpu_memory_mib=gpu_memory_mib,
                            cpu_cores=cpu_cores,
                            memory_mib=cpu_cores * scenario.memory_mib_per_core,
                            share=share_of_type / len(applications) / len(sizes) * share_of_cores,
                            mean_work_s=float(np.mean(means[application])),
                        )
                    )
    return classes


def list_classes(jobs: Sequence[WorkloadJob], cluster: Cluster) -> list[JobClass]:
    """The classes of a job list. GPU memory is told apart only where the cluster's GPUs tell it apart.

    Raises:
        InvalidInput: the list is empty.
    """
    if not jobs:
        raise InvalidInput("the job list is empty")
    sizes = sorted({gpu.memory_mib for _, gpu in cluster.gpus()})
    found: dict[tuple[str, JobType, int, int, int], list[float]] = {}
    for job in jobs:
        size = next((size for size in sizes if job.gpu_memory_mib <= size), job.gpu_memory_mib)
        key = (job.application, job.job_type, size, job.cpu_cores, job.memory_mib)
        found.setdefault(key, []).append(job.work_s)
    return [
        JobClass(*key, share=len(works_s) / len(jobs), mean_work_s=float(np.mean(works_s)))
        for key, works_s in found.items()
    ]


def capacity_jobs_per_h(cluster: Cluster, classes: Sequence[JobClass], speeds: SpeedTable = SHIPPED) -> float:
    """The most jobs/h of a mix that GPUs, CPU cores and memory of a cluster carry.

    Raises:
        InvalidInput: a class that no GPU of the cluster can hold, or a GPU model without speeds.
        Unsupported: scipy is not installed.
    """
    try:
        from scipy.optimize import linprog
        from scipy.sparse import coo_array
    except ImportError:
        raise Unsupported(
            "the capacity of a cluster for a job list needs scipy; install it with: pip install 'adlro[evaluate]'"
        ) from None
    kinds = node_kinds(cluster)
    pairs = [(c, k) for c, each in enumerate(classes) for k, kind in enumerate(kinds) if kind.holds(each)]
    _refuse_homeless(classes, {c for c, _ in pairs})
    c, k = np.array(pairs).T
    models = [kind.gpu_model for kind in kinds]
    speed = speeds.speeds([each.application for each in classes], [each.job_type for each in classes], models)
    work_s = np.array([each.mean_work_s for each in classes])
    share = np.array([each.share for each in classes])
    duration_s = work_s[c] / speed[c, k]
    # Variables: the rate of jobs of class c that go to kind k, in units of 1 / the mean work (so that all are near 1),
    # and last the rate of the whole mix. GPUs, cores and memory as shares of what a kind of nodes has.
    unit_s = float(share @ work_s)
    count = np.array(list(kinds.values()), dtype=float)
    usage = []
    for asked, held in (
        (np.ones(len(classes)), np.array([kind.gpus for kind in kinds])),
        (np.array([each.cpu_cores for each in classes]), np.array([kind.cpu_cores for kind in kinds])),
        (np.array([each.memory_mib for each in classes]), np.array([kind.memory_mib for kind in kinds])),
    ):
        usage.append(duration_s / unit_s * asked[c] / (held * count)[k])
    last = len(pairs)
    column = np.arange(last)
    at_most = coo_array(
        (np.concatenate(usage), (np.concatenate([k + row * len(kinds) for row in range(3)]), np.tile(column, 3))),
        shape=(3 * len(kinds), last + 1),
    )
    balance = coo_array(
        (
            np.concatenate([np.ones(last), -share]),
            (np.concatenate([c, np.arange(len(classes))]), _columns(column, last, len(classes))),
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
    return float(answer.x[-1]) / unit_s * 3600.0


def scenario_capacity_jobs_per_h(scenario: Scenario, groups: Sequence[Group] | None = None) -> float:
    """`capacity_jobs_per_h` of a scenario's own cluster and mix at ordinary times.

    Raises:
        Unsupported: scipy is not installed.
    """
    return capacity_jobs_per_h(scenario.cluster, scenario_classes(scenario, groups))


def offered_load(cluster: Cluster, jobs: Sequence[WorkloadJob], speeds: SpeedTable = SHIPPED) -> float:
    """Rate of submissions from the first to the last as a share of the capacity for these jobs; inf for a batch.

    Raises:
        InvalidInput: fewer than two jobs, jobs that fit nowhere, or a GPU model without speeds.
        Unsupported: scipy is not installed.
    """
    if len(jobs) < 2:
        raise InvalidInput(f"a load needs two jobs, not {len(jobs)}")
    span_s = jobs[-1].submit_s - jobs[0].submit_s
    capacity = capacity_jobs_per_h(cluster, list_classes(jobs, cluster), speeds)
    return float("inf") if span_s <= 0 else (len(jobs) - 1) / span_s * 3600.0 / capacity


def scale_to_load(jobs: Sequence[WorkloadJob], offered: float, load: float) -> list[WorkloadJob]:
    """The list with its submissions stretched or squeezed, counted from the first, so that it offers `load`.

    Args:
        jobs: in the order of submission.
        offered: what it offers as it is (`offered_load`).
        load: what it shall offer.

    Raises:
        InvalidInput: the load is not above 0, or all jobs come at once, so that there is nothing to stretch.
    """
    if not 0 < load < float("inf"):
        raise InvalidInput(f"load must be above 0 and finite, not {load}", field="load")
    if not 0 < offered < float("inf"):
        raise InvalidInput("all jobs are submitted at once: there is no rate to bring to a load", field="load")
    first_s = jobs[0].submit_s
    return [replace(job, submit_s=round((job.submit_s - first_s) * (offered / load), 3)) for job in jobs]


def find_unplaceable(cluster: Cluster, jobs: Sequence[WorkloadJob]) -> Unplaceable | None:
    """The jobs that no GPU of a cluster can ever hold; None where there are none."""
    kinds = node_kinds(cluster)
    lost = [number for number, job in enumerate(jobs) if not any(kind.holds(job) for kind in kinds)]
    if not lost:
        return None
    job = jobs[lost[0]]
    return Unplaceable(len(jobs), len(lost), lost[0], job.source_line, _demand(job, kinds))


def split_placeable(cluster: Cluster, jobs: Sequence[WorkloadJob]) -> list[WorkloadJob]:
    """The jobs that some GPU of a cluster can hold."""
    kinds = node_kinds(cluster)
    return [job for job in jobs if any(kind.holds(job) for kind in kinds)]


def demand_warnings(unplaceable: Unplaceable | None, offered: float) -> tuple[str, ...]:
    """What to tell before a list runs: jobs that fit nowhere, and a load that no schedule can carry.

    Args:
        unplaceable: of the list (`find_unplaceable`).
        offered: load of those that fit (`offered_load`), or that to which the list is brought.
    """
    said = [unplaceable.sentence] if unplaceable is not None else []
    if offered > 1:
        figure = "all jobs come at once" if offered == float("inf") else f"a load of {offered:.4g}"
        said.append(
            f"the list offers more than the cluster can carry ({figure}; 1 is its capacity by the linear program): the "
            "queue grows for as long as jobs come"
        )
    return tuple(said)


def node_kinds(cluster: Cluster) -> Counter[NodeKind]:
    """How many nodes of each kind a cluster has. A node with GPUs of several models counts as a kind for each."""
    kinds: Counter[NodeKind] = Counter()
    for node in cluster.nodes:
        on_node = Counter((gpu.gpu_model, gpu.memory_mib) for gpu in node.gpus)
        for (gpu_model, memory_mib), gpus in on_node.items():
            kinds[NodeKind(gpu_model, memory_mib, gpus, node.cpu_cores, node.memory_mib)] += 1
    return kinds


def _columns(column: NDArray[np.int64], last: int, classes: int) -> NDArray[np.int64]:
    return np.concatenate([column, np.full(classes, last)])


def _refuse_homeless(classes: Sequence[JobClass], placed: set[int]) -> None:
    for number, each in enumerate(classes):
        if number not in placed:
            raise InvalidInput(
                f"jobs of {each.application or each.job_type.label} with {each.gpu_memory_mib} MiB of GPU memory, "
                f"{each.cpu_cores} CPU cores and {each.memory_mib} MiB of memory fit on no GPU of the cluster"
            )


def _demand(job: WorkloadJob, kinds: Iterable[NodeKind]) -> str:
    """The demand that no node meets, or all of them where no single one is to blame."""
    for name, unit, asked, most in (
        ("gpu_memory_mib", "MiB on a GPU", job.gpu_memory_mib, max(kind.gpu_memory_mib for kind in kinds)),
        ("cpu_cores", "cores on a node", job.cpu_cores, max(kind.cpu_cores for kind in kinds)),
        ("memory_mib", "MiB on a node", job.memory_mib, max(kind.memory_mib for kind in kinds)),
    ):
        if asked > most:
            return f"{name}: asks for {asked}, where the most is {most} {unit}"
    return (
        f"gpu_memory_mib: no node has at once a GPU with {job.gpu_memory_mib} MiB, {job.cpu_cores} CPU cores and "
        f"{job.memory_mib} MiB of memory"
    )
