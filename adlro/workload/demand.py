"""Jobs that a cluster can never hold, and warnings about a list before it runs. Plain records only."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from adlro.placement import Demand, shortage
from adlro.records.cluster import Cluster
from adlro.workload.job_lists import WorkloadJob


class NodeKind(NamedTuple):
    """Nodes with the same figures; a node has GPUs of one model and memory."""

    gpu_model: str
    gpu_memory_mib: int
    gpus: int
    cpu_cores: int
    memory_mib: int

    def holds(self, job: Demand) -> bool:
        """Whether an empty node of this kind can run such a job."""
        return shortage(job, self.gpu_memory_mib, self.cpu_cores, self.memory_mib) is None

    def room(self, job: Demand) -> int:
        """The GPUs of an empty node of this kind that can be those of one such job."""
        if not self.holds(job):
            return 0
        by_cores = self.cpu_cores // job.cpu_cores if job.cpu_cores else self.gpus
        by_memory = self.memory_mib // job.memory_mib if job.memory_mib else self.gpus
        return min(self.gpus, by_cores, by_memory)


class GangDemand(Demand, Protocol):
    """What a job of several GPUs asks for: a `WorkloadJob`, or a class of them (adlro.workload.capacity)."""

    @property
    def gpu_count(self) -> int:
        """Its GPUs, of one model."""

    @property
    def max_node_count(self) -> int:
        """Most nodes that it may be on; 0: any number."""

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The models that it accepts; empty: any."""


def packed_node_counts(kinds: Mapping[NodeKind, int], job: GangDemand) -> dict[str, int]:
    """The fewest nodes on which a job fits in an empty cluster, by GPU model; without the models that never hold it.

    Args:
        kinds: number of nodes of each kind (`node_kinds`).
        job: its demand.
    """
    rooms: dict[str, Counter[int]] = {}
    for kind, nodes in kinds.items():
        room = kind.room(job)
        if room and (not job.gpu_models or kind.gpu_model in job.gpu_models):
            rooms.setdefault(kind.gpu_model, Counter())[room] += nodes
    found = {}
    for gpu_model, of_model in rooms.items():
        needed, packed = job.gpu_count, 0
        for room, nodes in sorted(of_model.items(), reverse=True):
            taken = min(nodes, -(-needed // room))
            needed, packed = needed - taken * room, packed + taken
            if needed <= 0:
                break
        if needed <= 0 and not 0 < job.max_node_count < packed:
            found[gpu_model] = packed
    return found


def holding_models(kinds: Mapping[NodeKind, int], job: GangDemand) -> frozenset[str]:
    """The GPU models that can hold a job in an empty cluster."""
    return frozenset(packed_node_counts(kinds, job))


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Jobs of a list that a cluster can never hold.

    Attributes:
        jobs: number of jobs of the list.
        count: number of these jobs.
        first: index of the first in the list, from 0.
        first_line: its line in the file, for a list from a file.
        demand: its demand that no node meets: field and figures.
        gangs: whether some of these jobs ask for several GPUs.
    """

    jobs: int
    count: int
    first: int
    first_line: int | None
    demand: str
    gangs: bool = False

    @property
    def sentence(self) -> str:
        """The warning, for people."""
        where = f"line {self.first_line}" if self.first_line is not None else f"job {self.first + 1} of the list"
        return (
            f"{self.count} of {self.jobs} jobs can never run, for no {'set of GPUs' if self.gangs else 'GPU'} of the "
            f"cluster can hold them; the first is {where}: {self.demand}"
        )


def find_unplaceable(cluster: Cluster, jobs: Sequence[WorkloadJob]) -> Unplaceable | None:
    """The jobs that a cluster can never hold; None without any."""
    kinds = node_kinds(cluster)
    lost = [number for number, job in enumerate(jobs) if not holding_models(_kinds_for(cluster, kinds, job), job)]
    if not lost:
        return None
    job, gangs = jobs[lost[0]], any(jobs[number].gpu_count > 1 for number in lost)
    demand = _demand(job, _kinds_for(cluster, kinds, job))
    return Unplaceable(len(jobs), len(lost), lost[0], job.source_line, demand, gangs)


def split_placeable(cluster: Cluster, jobs: Sequence[WorkloadJob]) -> list[WorkloadJob]:
    """The jobs that a cluster can hold."""
    kinds = node_kinds(cluster)
    return [job for job in jobs if holding_models(_kinds_for(cluster, kinds, job), job)]


def demand_warnings(unplaceable: Unplaceable | None, offered: float) -> tuple[str, ...]:
    """Warnings before a list runs: jobs that fit on no GPU, and a load that no schedule can carry.

    Args:
        unplaceable: the list's jobs that fit on no GPU (`find_unplaceable`).
        offered: load of the other jobs (`offered_load`), or the load to which the list is scaled.
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
    """Number of nodes of each kind in a cluster. A node with GPUs of several models counts as a kind for each."""
    kinds: Counter[NodeKind] = Counter()
    for node in cluster.nodes:
        on_node = Counter((gpu.gpu_model, gpu.memory_mib) for gpu in node.gpus)
        for (gpu_model, memory_mib), gpus in on_node.items():
            kinds[NodeKind(gpu_model, memory_mib, gpus, node.cpu_cores, node.memory_mib)] += 1
    return kinds


def _kinds_for(cluster: Cluster, kinds: Mapping[NodeKind, int], job: WorkloadJob) -> Mapping[NodeKind, int]:
    """Of the `kinds` of a cluster those of the nodes that a job may run on."""
    if not (job.node_ids or job.excluded_node_ids):
        return kinds
    nodes = tuple(node for node in cluster.nodes if job.accepts_node(node.node_id))
    return node_kinds(dataclasses.replace(cluster, nodes=nodes))


def _demand(job: WorkloadJob, kinds: Mapping[NodeKind, int]) -> str:
    """The demand that no node meets; all demands if each single one is met by some node."""
    if not kinds:
        return "node_ids: the cluster has no node with GPUs on which it may run"
    for name, unit, asked, most in (
        ("gpu_memory_mib", "MiB on a GPU", job.gpu_memory_mib, max(kind.gpu_memory_mib for kind in kinds)),
        ("cpu_cores", "cores on a node", job.cpu_cores, max(kind.cpu_cores for kind in kinds)),
        ("memory_mib", "MiB on a node", job.memory_mib, max(kind.memory_mib for kind in kinds)),
    ):
        if asked > most:
            return f"{name}: asks for {asked}, where the most is {most} {unit}"
    if (why := _gang_shortage(job, kinds)) is not None:
        return why
    return (
        f"gpu_memory_mib: no node has at once a GPU with {job.gpu_memory_mib} MiB, {job.cpu_cores} CPU cores and "
        f"{job.memory_mib} MiB of memory"
    )


def _gang_shortage(job: WorkloadJob, kinds: Mapping[NodeKind, int]) -> str | None:
    """What a job of several GPUs, or of certain models, lacks; None: a single GPU of them couldn't hold it either."""
    one = packed_node_counts(kinds, dataclasses.replace(job, gpu_count=1, max_node_count=0))
    if not one:
        if job.gpu_models and packed_node_counts(kinds, dataclasses.replace(job, gpu_count=1, gpu_models=())):
            return f"gpu_models: accepts {', '.join(job.gpu_models)}, and no node with one of them can hold it"
        return None
    on_nodes = packed_node_counts(kinds, dataclasses.replace(job, max_node_count=0))
    if on_nodes:
        return (
            f"max_node_count: {job.gpu_count} GPUs need {min(on_nodes.values())} nodes, where at most "
            f"{job.max_node_count} is accepted"
        )
    most = max(
        sum(kind.room(job) * nodes for kind, nodes in kinds.items() if kind.gpu_model == gpu_model) for gpu_model in one
    )
    return f"gpu_count: asks for {job.gpu_count} GPUs of one model, where the most that can be its own is {most}"
