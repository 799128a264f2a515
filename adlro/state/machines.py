"""The physics of GPUs: running jobs, their ends and their resources. Arrays over N clusters; numpy and numba only.

simcluster's one cluster (adlro/sim/simulator.py) and the thousands of a training (adlro/sim/kernel.py) both run on
these functions. A GPU holds one job. A gang is one job number on several GPUs with one start and one end; it is as
slow as its slowest GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adlro.errors import InvalidInput
from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.records.cluster import Cluster
from adlro.state.observation import Floats, Ints
from adlro.state.room import give_back, take

IDLE = -1
"""Stands for a job's number on an idle GPU."""

OVERRUN_SHARE = 0.5
"""If runtimes have a lognormal distribution with sigma s and the estimate m as median, jobs that exceed m continue for
(exp(s^2 / 2) Phi(s) / Phi(0) - 1) m on average: 0.42 m at s = 0.4, as the jobs of one user and application have in the
scenario `paper`, 0.57 m at s = 0.5."""

_ROUNDING_S = 1e-6
"""A job that ends at its expected end has not exceeded it, whatever the rounding of sums of floats."""


class Hardware(NamedTuple):
    """The fixed figures of N clusters with up to G GPUs and M nodes. Padding: memory -1, node 0.

    Attributes:
        gpu_count: (N,) number of GPUs.
        gpu_model: (N, G) the model's number in `models` of the batch.
        gpu_memory_mib: (N, G).
        gpu_node: (N, G) the node's number.
        node_cores: (N, M).
        node_memory_mib: (N, M).
        node_first_gpu: (N, M + 1) number of each node's first GPU; a node's GPUs have consecutive numbers.
        shape_count: (N,) different kinds of (model, GPU memory, node's cores, node's memory).
        shape: (N, S, 4) these.
    """

    gpu_count: Ints
    gpu_model: Ints
    gpu_memory_mib: Ints
    gpu_node: Ints
    node_cores: Ints
    node_memory_mib: Ints
    node_first_gpu: Ints
    shape_count: Ints
    shape: Ints


class Machines(NamedTuple):
    """The state of N clusters' machines.

    Attributes:
        time_s: (N,) cluster time.
        gpu_job: (N, G) number of the job that holds the GPU, or IDLE.
        gpu_start_s, gpu_end_s: (N, G) of that job; the end is inf where the GPU is idle.
        gpu_expected_end_s: (N, G) the end that a scheduler expects; inf where idle.
        gpu_gang: (N, G) number of GPUs that the job holds; 0 where idle.
        gpu_launch: (N, G) number of the cluster's launches before that job's.
        gpu_cores, gpu_memory_mib: (N, G) cores and main memory that the job holds on the node.
        gpu_speed: (N, G) speed relative to the model: 1 normal, 0 lost.
        idle_count: (N,) present and idle GPUs.
        running_count: (N,) running jobs.
        launch_count: (N,) launches so far.
        cores_free, memory_free_mib: (N, M) free cores and memory of nodes.
    """

    time_s: Floats
    gpu_job: Ints
    gpu_start_s: Floats
    gpu_end_s: Floats
    gpu_expected_end_s: Floats
    gpu_gang: Ints
    gpu_launch: Ints
    gpu_cores: Ints
    gpu_memory_mib: Ints
    gpu_speed: Floats
    idle_count: Ints
    running_count: Ints
    launch_count: Ints
    cores_free: Ints
    memory_free_mib: Ints


def hardware_of(clusters: Sequence[Cluster], gpu_models: Sequence[str]) -> Hardware:
    """The arrays of N clusters; `gpu_models` gives the numbers of the models.

    Raises:
        InvalidInput: no cluster, one without GPUs, or one with a model that is not in `gpu_models`.
    """
    batch = len(clusters)
    if not clusters:
        raise InvalidInput("at least one cluster, with one job list, is needed", field="cluster")
    for cluster in clusters:
        if not any(node.gpus for node in cluster.nodes):
            raise InvalidInput(f"cluster '{cluster.name}' has no GPU", field="cluster")
        missing = [model for model in cluster.gpu_models if model not in gpu_models]
        if missing:
            raise InvalidInput(
                f"cluster '{cluster.name}' has GPU model '{missing[0]}', and the jobs' durations are for "
                f"{', '.join(gpu_models)}: pack the jobs for the models of all clusters, and name them in gpu_models",
                field="gpu_models",
            )
    gpus = max(sum(1 for _ in cluster.gpus()) for cluster in clusters)
    nodes = max(len(cluster.nodes) for cluster in clusters)
    hardware = Hardware(
        gpu_count=np.zeros(batch, dtype=np.int64),
        gpu_model=np.zeros((batch, gpus), dtype=np.int64),
        gpu_memory_mib=np.full((batch, gpus), -1, dtype=np.int64),
        gpu_node=np.zeros((batch, gpus), dtype=np.int64),
        node_cores=np.zeros((batch, nodes), dtype=np.int64),
        node_memory_mib=np.zeros((batch, nodes), dtype=np.int64),
        node_first_gpu=np.zeros((batch, nodes + 1), dtype=np.int64),
        shape_count=np.zeros(batch, dtype=np.int64),
        shape=np.zeros((batch, gpus, 4), dtype=np.int64),
    )
    numbers = {model: number for number, model in enumerate(gpu_models)}
    first: dict[int, int] = {}
    for n, cluster in enumerate(clusters):
        same = first.setdefault(id(cluster), n)
        if same != n:
            for column in hardware:
                column[n] = column[same]
            continue
        gpu = 0
        shapes: dict[tuple[int, int, int, int], None] = {}
        for number, node in enumerate(cluster.nodes):
            hardware.node_cores[n, number] = node.cpu_cores
            hardware.node_memory_mib[n, number] = node.memory_mib
            for item in node.gpus:
                hardware.gpu_model[n, gpu] = numbers[item.gpu_model]
                hardware.gpu_memory_mib[n, gpu] = item.memory_mib
                hardware.gpu_node[n, gpu] = number
                shapes[numbers[item.gpu_model], item.memory_mib, node.cpu_cores, node.memory_mib] = None
                gpu += 1
            hardware.node_first_gpu[n, number + 1 :] = gpu
        hardware.gpu_count[n] = gpu
        hardware.shape_count[n] = len(shapes)
        hardware.shape[n, : len(shapes)] = list(shapes)
    return hardware


def empty_machines(hardware: Hardware) -> Machines:
    """Machines without jobs, at time 0."""
    batch, gpus = hardware.gpu_model.shape
    return Machines(
        time_s=np.zeros(batch),
        gpu_job=np.full((batch, gpus), IDLE, dtype=np.int64),
        gpu_start_s=np.zeros((batch, gpus)),
        gpu_end_s=np.full((batch, gpus), np.inf),
        gpu_expected_end_s=np.full((batch, gpus), np.inf),
        gpu_gang=np.zeros((batch, gpus), dtype=np.int64),
        gpu_launch=np.zeros((batch, gpus), dtype=np.int64),
        gpu_cores=np.zeros((batch, gpus), dtype=np.int64),
        gpu_memory_mib=np.zeros((batch, gpus), dtype=np.int64),
        gpu_speed=(hardware.gpu_memory_mib >= 0).astype(np.float64),
        idle_count=hardware.gpu_count.copy(),
        running_count=np.zeros(batch, dtype=np.int64),
        launch_count=np.zeros(batch, dtype=np.int64),
        cores_free=hardware.node_cores.copy(),
        memory_free_mib=hardware.node_memory_mib.copy(),
    )


@compiled
def occupy(
    hardware: Hardware,
    machines: Machines,
    n: int,
    gpu: int,
    job: int,
    duration_s: float,
    start_cost_s: float,
    expected_s: float,
    cores: int,
    memory_mib: int,
) -> None:
    """Starts a job now on an idle GPU of cluster n.

    The job ends after `start_cost_s`, then `duration_s` at the model's own speed; a scheduler expects `expected_s` in
    all.
    """
    end_s = machines.time_s[n] + (start_cost_s + duration_s / machines.gpu_speed[n, gpu])
    _hold_gpu(hardware, machines, n, gpu, job, 1, end_s, expected_s, cores, memory_mib)
    machines.launch_count[n] += 1
    machines.running_count[n] += 1


@compiled
def occupy_gang(
    hardware: Hardware,
    machines: Machines,
    n: int,
    gpus: Ints,
    job: int,
    duration_s: float,
    start_cost_s: float,
    expected_s: float,
    cores: int,
    memory_mib: int,
) -> None:
    """Starts a job now on several idle GPUs of cluster n: `occupy` on each, with one end, that of the slowest.

    Args:
        gpus: (W,) their numbers, then -1.
        cores, memory_mib: taken with each GPU from its node.
    """
    size, speed = 0, np.inf
    while size < gpus.shape[0] and gpus[size] >= 0:
        speed = min(speed, machines.gpu_speed[n, gpus[size]])
        size += 1
    end_s = machines.time_s[n] + (start_cost_s + duration_s / speed)
    for i in range(size):
        _hold_gpu(hardware, machines, n, gpus[i], job, size, end_s, expected_s, cores, memory_mib)
    machines.launch_count[n] += 1
    machines.running_count[n] += 1


@compiled_part
def _hold_gpu(
    hardware: Hardware,
    machines: Machines,
    n: int,
    gpu: int,
    job: int,
    size: int,
    end_s: float,
    expected_s: float,
    cores: int,
    memory_mib: int,
) -> None:
    """Gives a GPU of cluster n to a job of `size` GPUs."""
    machines.gpu_job[n, gpu] = job
    machines.gpu_start_s[n, gpu] = machines.time_s[n]
    machines.gpu_end_s[n, gpu] = end_s
    machines.gpu_expected_end_s[n, gpu] = machines.time_s[n] + expected_s
    machines.gpu_gang[n, gpu] = size
    machines.gpu_launch[n, gpu] = machines.launch_count[n]
    machines.gpu_cores[n, gpu] = cores
    machines.gpu_memory_mib[n, gpu] = memory_mib
    take(machines.cores_free, machines.memory_free_mib, n, hardware.gpu_node[n, gpu], cores, memory_mib)
    machines.idle_count[n] -= 1


@compiled
def vacate(hardware: Hardware, machines: Machines, n: int, gpu: int) -> None:
    """Removes the job on a GPU of cluster n, now, from all its GPUs; the GPUs stay."""
    if machines.gpu_gang[n, gpu] > 1:
        _free_others(hardware, machines, n, gpu)
    _free_gpu(hardware, machines, n, gpu)
    machines.running_count[n] -= 1


@compiled_call
def _free_others(hardware: Hardware, machines: Machines, n: int, gpu: int) -> None:
    """Takes the other GPUs of the job on a GPU of cluster n from it."""
    launch = machines.gpu_launch[n, gpu]
    for member in range(hardware.gpu_count[n]):
        if member != gpu and machines.gpu_gang[n, member] > 0 and machines.gpu_launch[n, member] == launch:
            _free_gpu(hardware, machines, n, member)


@compiled_part
def _free_gpu(hardware: Hardware, machines: Machines, n: int, gpu: int) -> None:
    """Takes a GPU of cluster n from its job."""
    node = hardware.gpu_node[n, gpu]
    cores, memory_mib = machines.gpu_cores[n, gpu], machines.gpu_memory_mib[n, gpu]
    give_back(machines.cores_free, machines.memory_free_mib, n, node, cores, memory_mib)
    machines.gpu_job[n, gpu] = IDLE
    machines.gpu_end_s[n, gpu] = np.inf
    machines.gpu_expected_end_s[n, gpu] = np.inf
    machines.gpu_gang[n, gpu] = 0
    machines.idle_count[n] += 1


@compiled
def set_speed(machines: Machines, n: int, gpu: int, speed: float) -> None:
    """Changes a GPU's speed now, and with it the end of its running job (the GPU is not lost, before or after).

    A GPU that is lost (0) must be idle.
    """
    before = machines.gpu_speed[n, gpu]
    if before == speed:
        return  # a rounding error must not move an end
    if machines.gpu_gang[n, gpu] > 1:
        _set_gang_speed(machines, n, gpu, speed)
        return
    machines.gpu_speed[n, gpu] = speed
    if machines.gpu_job[n, gpu] != IDLE:
        time_s = machines.time_s[n]
        machines.gpu_end_s[n, gpu] = time_s + (machines.gpu_end_s[n, gpu] - time_s) * (before / speed)
    elif before == 0.0 and speed > 0.0:
        machines.idle_count[n] += 1
    elif before > 0.0 and speed == 0.0:
        machines.idle_count[n] -= 1


@compiled_call
def _set_gang_speed(machines: Machines, n: int, gpu: int, speed: float) -> None:
    """Changes the speed of a GPU of a gang: the gang's end moves only if its slowest GPU is another speed now."""
    before, after, launch = np.inf, np.inf, machines.gpu_launch[n, gpu]
    for member in range(machines.gpu_job.shape[1]):
        if machines.gpu_gang[n, member] > 0 and machines.gpu_launch[n, member] == launch:
            before = min(before, machines.gpu_speed[n, member])
            after = min(after, speed if member == gpu else machines.gpu_speed[n, member])
    machines.gpu_speed[n, gpu] = speed
    if before == after:
        return
    time_s = machines.time_s[n]
    end_s = time_s + (machines.gpu_end_s[n, gpu] - time_s) * (before / after)
    for member in range(machines.gpu_job.shape[1]):
        if machines.gpu_gang[n, member] > 0 and machines.gpu_launch[n, member] == launch:
            machines.gpu_end_s[n, member] = end_s


@compiled_part
def remaining_s(time_s: float, start_s: float, expected_end_s: float) -> float:
    """The expected remaining time of a running job on its GPU, in seconds.

    A job that exceeds its expected duration is expected to continue for OVERRUN_SHARE of its run so far.
    """
    left_s = expected_end_s - time_s
    if left_s >= -_ROUNDING_S:
        return max(left_s, 0.0)
    return OVERRUN_SHARE * (time_s - start_s)


@compiled
def next_end_s(machines: Machines, n: int) -> float:
    """The next end of a job of cluster n, cluster time; inf if none runs."""
    end_s = np.inf
    if machines.running_count[n] > 0:
        ends = machines.gpu_end_s[n]
        for gpu in range(ends.shape[0]):
            end_s = min(end_s, ends[gpu])
    return end_s
