"""Whether a job fits, on arrays: the twin of adlro/placement.py. numpy and numba only.

The plain functions take arrays that broadcast; `gpu_has_memory`, `node_has_room` and `has_room` are the same, compiled,
for one pair of a job and a GPU. `take` and `give_back` change what a node has left.
"""

from __future__ import annotations

from typing import Any

from adlro.numeric.compiled import compiled_part
from adlro.state.observation import Ints


def gpu_memory_room(gpu_memory_mib: Any, memory_of_gpu_mib: Any) -> Any:
    """Whether a GPU has the memory that a job requests. Padding has -1: no job fits there."""
    return gpu_memory_mib <= memory_of_gpu_mib


def node_room(cores: Any, memory_mib: Any, cores_left: Any, memory_left_mib: Any) -> Any:
    """Whether a node has the cores and the memory for a job.

    Args:
        cores, memory_mib: the job's requests.
        cores_left, memory_left_mib: free on the node; of an empty node, its totals.
    """
    return (cores <= cores_left) & (memory_mib <= memory_left_mib)


def room(
    cores: Any,
    memory_mib: Any,
    gpu_memory_mib: Any,
    cores_left: Any,
    memory_left_mib: Any,
    memory_of_gpu_mib: Any,
) -> Any:
    """Whether a GPU and its node have the resources for a job. Padding has GPU memory -1: no job fits there.

    Args:
        cores, memory_mib, gpu_memory_mib: the job's requests.
        cores_left, memory_left_mib: free on the GPU's node; of an empty node, its totals.
        memory_of_gpu_mib: the GPU's memory.
    """
    # Without branches, so that the compiler can vectorize over GPUs.
    return (gpu_memory_mib <= memory_of_gpu_mib) & (cores <= cores_left) & (memory_mib <= memory_left_mib)


gpu_has_memory = compiled_part(gpu_memory_room)
node_has_room = compiled_part(node_room)
has_room = compiled_part(room)


@compiled_part
def take(cores_free: Ints, memory_free_mib: Ints, n: int, node: int, cores: int, memory_mib: int) -> None:
    """Subtracts a job's cores and memory from a node of cluster n."""
    cores_free[n, node] -= cores
    memory_free_mib[n, node] -= memory_mib


@compiled_part
def give_back(cores_free: Ints, memory_free_mib: Ints, n: int, node: int, cores: int, memory_mib: int) -> None:
    """Adds a job's cores and memory back."""
    cores_free[n, node] += cores
    memory_free_mib[n, node] += memory_mib
