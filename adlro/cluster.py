"""Clusters as plain data: nodes, GPUs, the figures of GPU models. Knows no gRPC and no Redis."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Figures of a GPU model by which telemetry is normalised."""

    memory_bandwidth_gb_per_s: float
    power_limit_w: float
    max_temperature_c: float


def _read_gpu_specs() -> Mapping[str, GpuSpec]:
    # A path below `adlro`, not a package of its own: reading figures must not import the simulator (and numpy).
    text = (resources.files("adlro") / "sim" / "data" / "gpu_specs.csv").read_text(encoding="utf-8")
    return MappingProxyType(
        {
            row["gpu_model"]: GpuSpec(
                memory_bandwidth_gb_per_s=float(row["memory_bandwidth_gb_per_s"]),
                power_limit_w=float(row["power_limit_w"]),
                max_temperature_c=float(row["max_temperature_c"]),
            )
            for row in csv.DictReader(text.splitlines())
        }
    )


GPU_SPECS: Mapping[str, GpuSpec] = _read_gpu_specs()
"""The GPU models that ADLRO knows; the file says where each figure is from."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `spec` is needed only for models that `GPU_SPECS` does not list."""

    gpu_id: str
    gpu_model: str
    memory_mib: int
    interconnect_bandwidth_gb_per_s: float = 0.0
    interconnect: str = ""
    spec: GpuSpec | None = None

    @property
    def known_spec(self) -> GpuSpec | None:
        """Its own figures, else those of its model; None for an unknown model without figures."""
        return self.spec or GPU_SPECS.get(self.gpu_model)


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

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The models of the cluster, each once, in order of appearance."""
        return tuple(dict.fromkeys(gpu.gpu_model for _, gpu in self.gpus()))
