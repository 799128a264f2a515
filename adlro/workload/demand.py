"""Jobs that no GPU of a cluster can ever hold, and warnings about a list before it runs. Plain records only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Jobs of a list that no GPU of a cluster can ever hold.

    Attributes:
        jobs: number of jobs of the list.
        count: number of these jobs.
        first: index of the first in the list, from 0.
        first_line: its line in the file, for a list from a file.
        demand: its demand that no node meets: field and figures.
    """

    jobs: int
    count: int
    first: int
    first_line: int | None
    demand: str

    @property
    def sentence(self) -> str:
        """The warning, for people."""
        where = f"line {self.first_line}" if self.first_line is not None else f"job {self.first + 1} of the list"
        return (
            f"{self.count} of {self.jobs} jobs can never run, for no GPU of the cluster can hold them; the first is "
            f"{where}: {self.demand}"
        )


def find_unplaceable(cluster: Cluster, jobs: Sequence[WorkloadJob]) -> Unplaceable | None:
    """The jobs that no GPU of a cluster can ever hold; None without any."""
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


def _demand(job: WorkloadJob, kinds: Iterable[NodeKind]) -> str:
    """The demand that no node meets; all demands if each single one is met by some node."""
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
