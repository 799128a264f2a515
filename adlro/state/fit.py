"""The refusals of clusters: why a job may not start on a GPU. Plain records; adlro.placement decides what fits."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from adlro.errors import Conflict, InvalidInput, NotFound
from adlro.placement import SHARED, Free, Placement, Resource, Shortage
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobSpec


def check_placement(
    job_id: str,
    spec: JobSpec,
    placement: Placement,
    place_of: Mapping[str, tuple[Node, Gpu]],
    free: Free,
    *,
    lost: Container[str],
    jobs_on: Callable[[str], Sequence[str]],
) -> None:
    """Refuses an impossible start: the whole of it, whichever of its GPUs or nodes can't.

    Args:
        job_id: id of the job.
        spec: the job's requirements with each GPU.
        placement: the GPUs to start on, all of which the cluster has.
        place_of: by GPU its node and what it is.
        free: what is free.
        lost: ids of lost GPUs.
        jobs_on: gives the ids of the jobs on a busy GPU.

    Raises:
        Conflict: NODE_NOT_ACCEPTED, GPU_LOST, GPU_BUSY, NODE_EXCLUSIVE, NODE_NOT_EMPTY, GPU_MEMORY_TOO_SMALL,
            NODE_CORES_EXHAUSTED or NODE_MEMORY_EXHAUSTED; the message names the GPU or node and has the figures.
    """
    for each in placement.gpus:
        gpu_id = each.gpu_id
        node_id = place_of[gpu_id][0].node_id
        if not spec.accepts_node(node_id):
            why = "excludes this node" if node_id in spec.excluded_node_ids else "may only run on others"
            raise Conflict(f"GPU {gpu_id} is on {node_id}, and {job_id} {why}", reason="NODE_NOT_ACCEPTED")
        if gpu_id in lost:
            raise Conflict(f"GPU {gpu_id} is lost", reason="GPU_LOST", metadata={"gpu_id": gpu_id})
        gpu = free.gpus[gpu_id]
        if not gpu.has(each.share):
            there = f"GPU {gpu_id} runs {' and '.join(jobs_on(gpu_id))}"
            part = f"; {gpu.share:g} of it is free, and {job_id} is to have all of it" if gpu.share > 0.0 else ""
            raise Conflict(there + part, reason="GPU_BUSY", metadata={"gpu_id": gpu_id})
    missing = placement.fits(free, spec)
    if missing is None:
        return
    if missing.resource is Resource.WHOLE_NODE:
        if free.nodes[missing.place].alone:
            raise Conflict(f"node {missing.place} runs an exclusive job", reason="NODE_EXCLUSIVE")
        raise Conflict(f"node {missing.place} runs another job, and {job_id} is exclusive", reason="NODE_NOT_EMPTY")
    if missing.resource is Resource.GPU_MEMORY:
        node, place = place_of[missing.place]
        beside = jobs_on(missing.place) if missing.left < place.memory_mib else ()
        raise _refusal(job_id, missing, node, 1, f" left beside {' and '.join(beside)}" if beside else "")
    members = [place_of[gpu_id][0] for gpu_id in placement.gpu_ids]
    count = sum(node.node_id == missing.place for node in members)
    node = next(node for node in members if node.node_id == missing.place)
    # Before any of the job's GPUs there has taken its part.
    left = free.nodes[missing.place]
    is_cores = missing.resource is Resource.CPU_CORES
    whole = missing._replace(needed=count * missing.needed, left=left.cpu_cores if is_cores else left.memory_mib)
    raise _refusal(job_id, whole, node, count)


def _refusal(job_id: str, missing: Shortage, node: Node, gpu_count: int, beside: str = "") -> Conflict:
    """The error for a job that needs, for so many GPUs on a node, more than is left."""
    if missing.resource is Resource.GPU_MEMORY:
        reason, unit = "GPU_MEMORY_TOO_SMALL", " MiB"
        has = f"GPU {missing.place} has {missing.left} MiB{beside}"
    elif missing.resource is Resource.CPU_CORES:
        reason, unit = "NODE_CORES_EXHAUSTED", ""
        has = f"node {node.node_id} has {missing.left} of {node.cpu_cores} CPU cores free"
    else:
        reason, unit = "NODE_MEMORY_EXHAUSTED", " MiB"
        has = f"node {node.node_id} has {missing.left} of {node.memory_mib} MiB free"
    what = f" for its {gpu_count} GPUs there" if gpu_count > 1 else ""
    return Conflict(f"{has}, {job_id} needs {missing.needed}{unit}{what}", reason=reason)


def check_set(job_id: str, spec: JobSpec, placement: Placement, cluster: Cluster) -> None:
    """Refuses a placement that can't be one of the job's, whatever is free.

    Raises:
        InvalidInput: it has another number of GPUs than the job asks for, or parts of GPUs that the job can't have: a
            job of one GPU that is shareable may have `SHARED` of it, every other job has whole GPUs.
        Conflict: MIXED_GPU_MODELS, TOO_MANY_NODES.
    """
    if len(placement.gpus) != spec.gpu_count:
        raise InvalidInput(
            f"{job_id} asks for {spec.gpu_count} GPUs, and the placement has {len(placement.gpus)}: "
            f"{', '.join(placement.gpu_ids)}",
            field="placement",
        )
    if not placement.whole and (spec.gpu_count > 1 or not spec.shareable):
        why = "only a job of one GPU may share it" if spec.gpu_count > 1 else "it is not shareable"
        raise InvalidInput(
            f"placement: {job_id} needs whole GPUs, since {why}, and has parts: {placement}", field="placement"
        )
    if any(each.share not in (SHARED, 1.0) for each in placement.gpus):
        raise InvalidInput(
            f"placement: a shareable job has {SHARED:g} of a GPU, or all of it, and {job_id} has {placement}",
            field="placement",
        )
    if spec.gpu_count == 1:
        return
    place = {gpu.gpu_id: (node.node_id, gpu.gpu_model) for node, gpu in cluster.gpus()}
    models = sorted({place[gpu_id][1] for gpu_id in placement.gpu_ids})
    if len(models) > 1:
        raise Conflict(
            f"the GPUs of {job_id} are of models {', '.join(models)}; a job runs on GPUs of one model",
            reason="MIXED_GPU_MODELS",
        )
    nodes = len({place[gpu_id][0] for gpu_id in placement.gpu_ids})
    if 0 < spec.max_node_count < nodes:
        raise Conflict(
            f"the placement of {job_id} is on {nodes} nodes, the job accepts {spec.max_node_count}",
            reason="TOO_MANY_NODES",
        )


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


def job_runs(job_id: str, placement: Placement, attempt: int) -> Conflict:
    """The error for a job that already has a running attempt."""
    return Conflict(f"{job_id} runs on {placement} already, attempt {attempt}", reason="JOB_RUNNING")
