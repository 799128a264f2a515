"""Clusters and the state of their machines as arrays over N clusters. numpy only.

adlro/state/machines.py has the physics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.state.observation import Floats, Ints

IDLE = -1
"""Stands for a job's number on an idle GPU."""


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
        node_model: (N, M) the model of a node's GPUs; -1: it has none, or they differ in model or memory.
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
    node_model: Ints
    shape_count: Ints
    shape: Ints


class Machines(NamedTuple):
    """The state of N clusters' machines.

    Attributes:
        time_s: (N,) cluster time.
        gpu_job: (N, G) number of the job that holds the GPU, or IDLE.
        gpu_start_s, gpu_end_s: (N, G) of that job; the end is inf where the GPU is idle.
        gpu_expected_end_s: (N, G) the end that a scheduler expects; inf where idle.
        gpu_work_from_s: (N, G) when the work of that job goes on: it starts, or restores, before; any value where idle.
        gpu_gang: (N, G) number of GPUs that the job holds; 0 where idle.
        gpu_launch: (N, G) number of the cluster's launches before that job's.
        gpu_cores, gpu_memory_mib: (N, G) cores and main memory that the job holds on the node.
        gpu_speed: (N, G) speed relative to the model: 1 normal, 0 lost.
        idle_count: (N,) present and idle GPUs.
        running_count: (N,) running jobs.
        launch_count: (N,) launches so far.
        cores_free, memory_free_mib: (N, M) free cores and memory of nodes.
        node_idle: (N, M) present and idle GPUs.
        node_end_s: (N, M) the next end of a job on the node; inf: none runs.
        gang_count: (N,) running jobs of several GPUs.
        lost_count: (N,) lost GPUs.
        gpu_kept: (N, G) the share of its speed that the job on the GPU keeps, 1 alone; of this and all that follow G is
            0 where no GPU is ever shared.
        gpu_told: (N, G) the same, as a scheduler expects it.
        mate_job: (N, G) number of the second job on the GPU, or IDLE.
        mate_start_s, mate_end_s, mate_expected_end_s, mate_work_from_s, mate_launch, mate_cores, mate_memory_mib,
            mate_kept, mate_told: (N, G) of that job, as those of the first; mate_end_s is inf without one.

    The four from node_idle on follow from the others (`count_nodes`), and spare passes over all GPUs.
    """

    time_s: Floats
    gpu_job: Ints
    gpu_start_s: Floats
    gpu_end_s: Floats
    gpu_expected_end_s: Floats
    gpu_work_from_s: Floats
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
    node_idle: Ints
    node_end_s: Floats
    gang_count: Ints
    lost_count: Ints
    gpu_kept: Floats
    gpu_told: Floats
    mate_job: Ints
    mate_start_s: Floats
    mate_end_s: Floats
    mate_expected_end_s: Floats
    mate_work_from_s: Floats
    mate_launch: Ints
    mate_cores: Ints
    mate_memory_mib: Ints
    mate_kept: Floats
    mate_told: Floats


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
        node_model=np.full((batch, nodes), -1, dtype=np.int64),
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
            if len({(item.gpu_model, item.memory_mib) for item in node.gpus}) == 1:
                hardware.node_model[n, number] = numbers[node.gpus[0].gpu_model]
        hardware.gpu_count[n] = gpu
        hardware.shape_count[n] = len(shapes)
        hardware.shape[n, : len(shapes)] = list(shapes)
    return hardware


def empty_machines(hardware: Hardware, *, shares: bool = False) -> Machines:
    """Machines without jobs, at time 0; `shares`: two jobs may share a GPU."""
    batch, gpus = hardware.gpu_model.shape
    mates = batch, gpus if shares else 0
    return Machines(
        time_s=np.zeros(batch),
        gpu_job=np.full((batch, gpus), IDLE, dtype=np.int64),
        gpu_start_s=np.zeros((batch, gpus)),
        gpu_end_s=np.full((batch, gpus), np.inf),
        gpu_expected_end_s=np.full((batch, gpus), np.inf),
        gpu_work_from_s=np.zeros((batch, gpus)),
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
        node_idle=np.diff(hardware.node_first_gpu, axis=1),
        node_end_s=np.full(hardware.node_cores.shape, np.inf),
        gang_count=np.zeros(batch, dtype=np.int64),
        lost_count=np.zeros(batch, dtype=np.int64),
        gpu_kept=np.ones(mates),
        gpu_told=np.ones(mates),
        mate_job=np.full(mates, IDLE, dtype=np.int64),
        mate_start_s=np.zeros(mates),
        mate_end_s=np.full(mates, np.inf),
        mate_expected_end_s=np.full(mates, np.inf),
        mate_work_from_s=np.zeros(mates),
        mate_launch=np.zeros(mates, dtype=np.int64),
        mate_cores=np.zeros(mates, dtype=np.int64),
        mate_memory_mib=np.zeros(mates, dtype=np.int64),
        mate_kept=np.ones(mates),
        mate_told=np.ones(mates),
    )
