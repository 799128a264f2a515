"""Whether one simulated cluster has room for a launch, how spread it is there, and who can't run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from adlro.errors import Conflict
from adlro.hardware.gang_speeds import spread_speeds
from adlro.placement import Free, FreeGpu, FreeNode, Placement
from adlro.records.cluster import Cluster, Gpu
from adlro.records.jobs import JobSpec
from adlro.sim.runs import Run, SimulatedGpu
from adlro.state.cluster_arrays import Hardware, Machines
from adlro.state.fit import check_placement
from adlro.state.gangs import fill_packed_nodes


def check_room(
    job_id: str,
    spec: JobSpec,
    placement: Placement,
    cluster: Cluster,
    machines: Machines,
    states: Sequence[SimulatedGpu],
    staying: Mapping[str, Sequence[Run]],
    gone: Sequence[Run],
    on_nodes: Mapping[int, Sequence[Run]],
) -> None:
    """Refuses a launch that does not fit when some attempts are gone.

    Args:
        job_id: id of the job.
        spec: the job's requirements.
        placement: its GPUs.
        cluster: nodes and GPUs.
        machines: of this cluster alone.
        states: of the placement's GPUs.
        staying: by GPU the attempts there that are not gone.
        gone: these hold cores and memory of nodes still.
        on_nodes: by node of the placement the attempts there that are not gone.

    Raises:
        Conflict: as `adlro.state.fit.check_placement`.
    """
    check_placement(
        job_id,
        spec,
        placement,
        {each.gpu.gpu_id: (cluster.nodes[each.node], each.gpu) for each in states},
        _free_of(cluster, machines, states, staying, gone, on_nodes),
        lost={each.gpu.gpu_id for each in states if each.lost},
        jobs_on=lambda gpu_id: [run.job.job_id for run in staying[gpu_id]],
    )


def _free_of(
    cluster: Cluster,
    machines: Machines,
    states: Sequence[SimulatedGpu],
    staying: Mapping[str, Sequence[Run]],
    gone: Sequence[Run],
    on_nodes: Mapping[int, Sequence[Run]],
) -> Free:
    """What is free of some GPUs and their nodes when some attempts are gone."""
    nodes = cluster.nodes
    free = Free(
        {each.gpu.gpu_id: FreeGpu(nodes[each.node].node_id, each.gpu.memory_mib) for each in states},
        {
            nodes[each.node].node_id: FreeNode(
                int(machines.cores_free[0, each.node]),
                int(machines.memory_free_mib[0, each.node]),
                parts=len(on_nodes[each.node]),
                alone=int(any(run.spec.exclusive for run in on_nodes[each.node])),
            )
            for each in states
        },
    )
    size_of = {node.node_id: node for node in nodes} if gone else {}
    for gpu_id, runs in staying.items():
        for run in runs:
            free.gpus[gpu_id].share -= run.share_of_gpu
            free.gpus[gpu_id].memory_mib -= run.spec.gpu_memory_mib
    node_of = {gpu.gpu_id: node.node_id for node, gpu in cluster.gpus()} if gone else {}
    for run in gone:
        for gpu_id in run.job.placement.gpu_ids:
            node = free.nodes.get(node_of[gpu_id])
            if node is not None and run.spec.exclusive:  # it held all of it
                whole = size_of[node_of[gpu_id]]
                node.cpu_cores, node.memory_mib = whole.cpu_cores, whole.memory_mib
            elif node is not None:
                node.cpu_cores += run.spec.cpu_cores
                node.memory_mib += run.spec.memory_mib
    return free


def spread_speed(hardware: Hardware, spec: JobSpec, gpus: Sequence[int], gpu_model: str) -> float:
    """A job's speed on GPUs of a model relative to a packed placement."""
    nodes = len({int(hardware.gpu_node[0, gpu]) for gpu in gpus})
    if nodes == 1 or nodes <= packed_nodes(hardware, spec, gpus[0]):
        return 1.0
    return float(spread_speeds([spec.application], [spec.job_type], [len(gpus)], [gpu_model])[0, 0])


def packed_nodes(hardware: Hardware, spec: JobSpec, gpu: int) -> int:
    """The nodes that a job needs at least on GPUs of the model of this one; 0: they can never hold it."""
    nodes = np.zeros(int(hardware.gpu_model.max()) + 1, dtype=np.int64)
    fill_packed_nodes(
        hardware,
        0,
        spec.gpu_count,
        0,
        spec.cpu_cores,
        spec.memory_mib,
        spec.gpu_memory_mib,
        np.zeros(hardware.node_cores.shape[1], dtype=np.int64),
        nodes,
    )
    return int(nodes[hardware.gpu_model[0, gpu]])


def cannot_share(job_id: str, spec: JobSpec, other: Run, gpu: Gpu) -> Conflict:
    """The error for a job that can't run beside another one; its user must not learn what that one runs."""
    return Conflict(
        f"{job_id} can't run beside {other.job.job_id} on {gpu.gpu_id}: {spec.application} could not run together with "
        f"its application on a {gpu.gpu_model}",
        reason="CANNOT_SHARE",
        metadata={"gpu_id": gpu.gpu_id, "job_id": other.job.job_id},
    )
