"""What is free on a cluster, without names of jobs or users. Plain data; no gRPC."""

from __future__ import annotations

from dataclasses import dataclass

from adlro.records.events import Clock


@dataclass(frozen=True, slots=True)
class GpuModelCapacity:
    """The GPUs of one model.

    Attributes:
        gpu_count: all of them.
        usable_gpu_count: those that are neither lost nor on a drained node.
        free_gpu_count: of the usable ones, those that no job holds.
        largest_free_cpu_cores, largest_free_memory_mib: the largest of the nodes with a free GPU of the model, perhaps
            not of the same node; 0: no GPU is free.
    """

    gpu_model: str
    gpu_count: int
    usable_gpu_count: int
    free_gpu_count: int
    largest_free_cpu_cores: int
    largest_free_memory_mib: int


@dataclass(frozen=True, slots=True)
class ClusterCapacity:
    """What is free now, by GPU model, in the order of the cluster's description.

    Attributes:
        clock: the cluster's; None: it has not told its time yet.
    """

    cluster: str
    gpu_models: tuple[GpuModelCapacity, ...]
    clock: Clock | None = None
