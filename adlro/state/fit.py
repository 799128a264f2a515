"""The refusals of clusters: why a job may not start on a GPU. Plain records; adlro.placement decides what fits."""

from __future__ import annotations

from adlro.errors import Conflict, NotFound
from adlro.placement import Resource, shortage
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobSpec


def check_fit(
    job_id: str,
    spec: JobSpec,
    node: Node,
    gpu: Gpu,
    *,
    lost: bool,
    runs_here: str,
    cores_free: int,
    memory_free_mib: int,
) -> None:
    """Refuses an impossible start.

    Args:
        job_id: id of the job.
        spec: the job's requirements.
        node: the GPU's node.
        gpu: the GPU to start on.
        lost: whether the GPU is lost.
        runs_here: id of the job that holds the GPU; empty: none.
        cores_free: free cores of the node.
        memory_free_mib: free memory of the node.

    Raises:
        Conflict: GPU_LOST, GPU_BUSY, GPU_MEMORY_TOO_SMALL, NODE_CORES_EXHAUSTED or NODE_MEMORY_EXHAUSTED; the message
            has the figures.
    """
    if lost:
        raise Conflict(f"GPU {gpu.gpu_id} is lost", reason="GPU_LOST")
    if runs_here:
        raise Conflict(f"GPU {gpu.gpu_id} runs {runs_here}", reason="GPU_BUSY")
    missing = shortage(spec, gpu.memory_mib, cores_free, memory_free_mib)
    if missing is None:
        return
    if missing.resource is Resource.GPU_MEMORY:
        reason, has, unit = "GPU_MEMORY_TOO_SMALL", f"GPU {gpu.gpu_id} has {missing.left} MiB", " MiB"
    elif missing.resource is Resource.CPU_CORES:
        reason, unit = "NODE_CORES_EXHAUSTED", ""
        has = f"node {node.node_id} has {missing.left} of {node.cpu_cores} CPU cores free"
    else:
        reason, unit = "NODE_MEMORY_EXHAUSTED", " MiB"
        has = f"node {node.node_id} has {missing.left} of {node.memory_mib} MiB free"
    raise Conflict(f"{has}, {job_id} needs {missing.needed}{unit}", reason=reason)


def unknown_gpu(cluster: Cluster, gpu_id: str) -> NotFound:
    """The error for a GPU that the cluster does not have."""
    gpu_ids = [gpu.gpu_id for _, gpu in cluster.gpus()]
    return NotFound(
        f"cluster '{cluster.name}' has no GPU '{gpu_id}'; DescribeCluster (or `adlro gpus`) lists its {len(gpu_ids)} "
        f"GPUs, such as '{gpu_ids[0]}'",
        field="gpu_id",
        reason="UNKNOWN_GPU",
        metadata={"gpu_id": gpu_id},
    )


def job_runs(job_id: str, gpu_id: str, attempt: int) -> Conflict:
    """The error for a job that already has a running attempt."""
    return Conflict(f"{job_id} runs on {gpu_id} already, attempt {attempt}", reason="JOB_RUNNING")
