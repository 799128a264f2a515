"""Clusters as plain data: nodes, GPUs, the figures of GPU models. Knows no gRPC and no Redis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from adlro.placement import Free, FreeGpu, FreeNode


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Figures of a GPU model by which telemetry is normalised."""

    memory_bandwidth_gb_per_s: float
    power_limit_w: float
    max_temperature_c: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `spec` is needed only for models that ADLRO has no figures of (adlro/hardware/specs.py)."""

    gpu_id: str
    gpu_model: str
    memory_mib: int
    interconnect_bandwidth_gb_per_s: float = 0.0
    interconnect: str = ""
    spec: GpuSpec | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A host with its cores, memory and GPUs."""

    node_id: str
    cpu_cores: int
    memory_mib: int
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A named cluster. GPUs are numbered 0, 1, ... in the order of nodes, then of GPUs in a node."""

    name: str
    nodes: tuple[Node, ...]

    def gpus(self) -> Iterator[tuple[Node, Gpu]]:
        """All GPUs with their node, in the order of their numbers."""
        for node in self.nodes:
            for gpu in node.gpus:
                yield node, gpu

    def free(self) -> Free:
        """All that it has, while nothing runs."""
        return Free(
            {gpu.gpu_id: FreeGpu(node.node_id, gpu.memory_mib) for node, gpu in self.gpus()},
            {node.node_id: FreeNode(node.cpu_cores, node.memory_mib) for node in self.nodes},
        )

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The models of the cluster, each once, in order of appearance."""
        return tuple(dict.fromkeys(gpu.gpu_model for _, gpu in self.gpus()))
