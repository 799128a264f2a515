"""Who holds what of which GPU and node: placements as values, and whether one fits. Standard library only.

A placement is what a job is given: shares of GPUs, on one node or several. With each share the job takes its cores and
its memory from that GPU's node, and its GPU memory from that of the GPU. That is the one meaning of "it fits" in ADLRO:
`shortage` says what is missing. Its twin for arrays, plain and compiled, is adlro/state/room.py; a test holds both to
the same answers.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

SHARED = 0.5
"""The share that a job has of a GPU which it may share with another one, whether that is there yet or not: so a GPU has
two such jobs at most. All other jobs have whole GPUs. Alone a job runs at full speed all the same."""

_ROUNDING = 1e-9
"""Shares of a GPU add up to 1 within this, whatever the sums of floats say."""


class Demand(Protocol):
    """What a job asks for with each of its GPUs: a `JobSpec`, or a job of a list."""

    @property
    def cpu_cores(self) -> int:
        """Cores of the GPU's node."""

    @property
    def memory_mib(self) -> int:
        """Memory of the GPU's node."""

    @property
    def gpu_memory_mib(self) -> int:
        """Memory of the GPU."""


class Claim(Demand, Protocol):
    """What a job asks for with its placement."""

    @property
    def exclusive(self) -> bool:
        """Whether no other job may be on its nodes."""


class Resource(enum.Enum):
    """What can be too little, in the order in which it is looked at."""

    GPU_SHARE = "of the GPU"
    WHOLE_NODE = "parts of GPUs of other jobs on the node"
    GPU_MEMORY = "MiB of GPU memory"
    CPU_CORES = "CPU cores"
    MEMORY = "MiB of memory"


class Shortage(NamedTuple):
    """Why a placement does not fit: at `place` (a GPU's or a node's id) there is less than what is needed."""

    resource: Resource
    place: str
    needed: float
    left: float


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A share of a GPU, above 0; 1: all of it."""

    gpu_id: str
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Shares of different GPUs, in the order of the job's ranks. Empty: no GPU yet, or none any more.

    Raises:
        ValueError: a GPU is named twice, or a share is not above 0 and at most 1.
    """

    gpus: tuple[GpuShare, ...] = ()

    def __post_init__(self) -> None:
        if len({each.gpu_id for each in self.gpus}) < len(self.gpus):
            raise ValueError(f"a placement names a GPU twice: {', '.join(self.gpu_ids)}")
        if any(not 0.0 < each.share <= 1.0 for each in self.gpus):
            raise ValueError(f"a share of a GPU is above 0 and at most 1: {self.gpus}")

    @classmethod
    def on(cls, *gpu_ids: str) -> Placement:
        """All of each of these GPUs."""
        return cls(tuple(GpuShare(gpu_id) for gpu_id in gpu_ids))

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        """The GPUs."""
        return tuple(each.gpu_id for each in self.gpus)

    @property
    def gpu_id(self) -> str:
        """The first GPU; empty where there is none."""
        return self.gpus[0].gpu_id if self.gpus else ""

    @property
    def whole(self) -> bool:
        """Whether it has all of each of its GPUs."""
        return all(each.share == 1.0 for each in self.gpus)

    def __str__(self) -> str:
        """Its GPUs, for people."""
        return ", ".join(each.gpu_id if each.share == 1.0 else f"{each.share:g} of {each.gpu_id}" for each in self.gpus)

    def fits(self, free: Free, demand: Claim) -> Shortage | None:
        """What is exhausted where a job can't have this placement; None: it can.

        Raises:
            KeyError: a GPU that is not there.
        """
        taken = dict.fromkeys((free.gpus[each.gpu_id].node_id for each in self.gpus), 0)
        for each in self.gpus:
            gpu = free.gpus[each.gpu_id]
            node = free.nodes[gpu.node_id]
            before = taken[gpu.node_id]
            if not gpu.has(each.share):
                return Shortage(Resource.GPU_SHARE, each.gpu_id, each.share, gpu.share)
            if node.alone or (demand.exclusive and node.parts):
                return Shortage(Resource.WHOLE_NODE, gpu.node_id, 0, node.parts)
            missing = shortage(
                demand,
                gpu.memory_mib,
                node.cpu_cores - before * demand.cpu_cores,
                node.memory_mib - before * demand.memory_mib,
                (each.gpu_id, gpu.node_id),
            )
            if missing is not None:
                return missing
            taken[gpu.node_id] += 1
        return None

    def take(self, free: Free, demand: Claim, *, overdrawn: bool = False) -> None:
        """Gives the job its shares, GPU memory, cores and memory.

        Args:
            free: is changed.
            demand: of the job.
            overdrawn: the job has them already, on a node that may have shrunk since: less than nothing may be left.

        Raises:
            ValueError: it does not fit; nothing has changed.
            KeyError: a GPU that is not there.
        """
        missing = None if overdrawn else self.fits(free, demand)
        if missing is not None:
            raise ValueError(
                f"{missing.place}: {missing.needed:g} {missing.resource.value} needed, {missing.left:g} left"
            )
        self._change(free, demand, -1)

    def give_back(self, free: Free, demand: Claim) -> None:
        """Takes from the job what `take` gave it.

        Raises:
            KeyError: a GPU that is not there.
        """
        self._change(free, demand, 1)

    def _change(self, free: Free, demand: Claim, sign: int) -> None:
        for each in self.gpus:
            gpu = free.gpus[each.gpu_id]
            gpu.share += sign * each.share
            gpu.memory_mib += sign * demand.gpu_memory_mib
            free.nodes[gpu.node_id].cpu_cores += sign * demand.cpu_cores
            free.nodes[gpu.node_id].memory_mib += sign * demand.memory_mib
            free.nodes[gpu.node_id].parts -= sign
            free.nodes[gpu.node_id].alone -= sign * demand.exclusive


NOWHERE = Placement()
"""No GPU."""


@dataclass(slots=True)
class FreeGpu:
    """What is free of a GPU: its memory, and its `share` from 0 to 1."""

    node_id: str
    memory_mib: int
    share: float = 1.0

    def has(self, share: float) -> bool:
        """Whether so large a share is free."""
        return share <= self.share + _ROUNDING


@dataclass(slots=True)
class FreeNode:
    """What is free of a node.

    Attributes:
        parts: parts of its GPUs that jobs have, whole ones included.
        alone: those of them that an exclusive job has: no other job may be there.
    """

    cpu_cores: int
    memory_mib: int
    parts: int = 0
    alone: int = 0


@dataclass(slots=True)
class Free:
    """What is free of a cluster, by ids of GPUs and of nodes; placements change it."""

    gpus: dict[str, FreeGpu]
    nodes: dict[str, FreeNode]


def gpus_that_fit(demand: Demand, gpu_memories_mib: Iterable[int], cpu_cores: int, memory_mib: int) -> int:
    """How many GPUs of a node a job can have at once.

    Args:
        demand: of the job, with each GPU.
        gpu_memories_mib: memory of the GPUs of the node that it could have.
        cpu_cores, memory_mib: that the node has left; of an empty node: all that it has.
    """
    count = sum(memory >= demand.gpu_memory_mib for memory in gpu_memories_mib)
    if demand.cpu_cores > 0:
        count = min(count, cpu_cores // demand.cpu_cores)
    if demand.memory_mib > 0:
        count = min(count, memory_mib // demand.memory_mib)
    return max(count, 0)


def fewest_nodes(gpus_of_nodes: Iterable[int], gpu_count: int) -> int | None:
    """The fewest nodes that hold so many GPUs together; None: all of them don't.

    Args:
        gpus_of_nodes: by node how many GPUs it can give the job.
        gpu_count: GPUs of the job.
    """
    held = 0
    for number, count in enumerate(sorted(gpus_of_nodes, reverse=True), 1):
        held += count
        if held >= gpu_count:
            return number
    return None


def shortage(
    demand: Demand,
    gpu_memory_mib: int,
    cpu_cores: int,
    memory_mib: int,
    places: tuple[str, str] = ("", ""),
) -> Shortage | None:
    """What a GPU, or its node, has too little of for a job; None: the job fits.

    Args:
        demand: of the job.
        gpu_memory_mib: that the GPU has left; of an idle GPU: all that it has.
        cpu_cores, memory_mib: that its node has left; of an empty node: all that it has.
        places: the GPU's id and the node's, for what is told.
    """
    gpu_id, node_id = places
    if demand.gpu_memory_mib > gpu_memory_mib:
        return Shortage(Resource.GPU_MEMORY, gpu_id, demand.gpu_memory_mib, gpu_memory_mib)
    if demand.cpu_cores > cpu_cores:
        return Shortage(Resource.CPU_CORES, node_id, demand.cpu_cores, cpu_cores)
    if demand.memory_mib > memory_mib:
        return Shortage(Resource.MEMORY, node_id, demand.memory_mib, memory_mib)
    return None
