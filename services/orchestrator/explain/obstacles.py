"""What keeps a waiting job from each GPU, and what its user could change so that it fits now. Plain data and arrays."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from adlro.placement import fewest_nodes
from adlro.records.jobs import JobSpec
from adlro.records.waiting import GpuObstacle, WaitingChange, WaitingChangeKind
from adlro.services.orchestrator.deciding.sets import in_nodes
from adlro.services.orchestrator.ledger.occupancy import Occupancy
from adlro.state.gangs import NEVER
from adlro.state.observation import Bools, Ints

_MEMORY_STEP_MIB = 256
"""Free memory is offered in whole multiples of this, if there is as much."""


def gpus_for_one(spec: JobSpec, occupancy: Occupancy) -> Bools:
    """(G,) free GPUs that can hold one GPU of a job now."""
    layout = occupancy.layout
    node = layout.gpu_node
    able: Bools = (
        layout.can_ever_hold(spec)
        & _accepted(spec, occupancy)
        & occupancy.usable
        & occupancy.idle
        & (occupancy.cores_free[node] >= spec.cpu_cores)
        & (occupancy.memory_free_mib[node] >= spec.memory_mib)
    )
    if spec.exclusive:
        able &= ~occupancy.node_busy[node]
    return able


def fitting_count(spec: JobSpec, occupancy: Occupancy, kept: Bools) -> int:
    """Number of GPUs on which a job fits now; of a job of several GPUs, those that could be part of a set.

    Args:
        spec: the job's demand.
        occupancy: the cluster now.
        kept: (G,) GPUs that are kept free for another job: they don't count.
    """
    able = gpus_for_one(spec, occupancy) & ~kept
    if spec.gpu_count == 1:
        return int(np.count_nonzero(able))
    count, layout = 0, occupancy.layout
    for model in np.unique(layout.gpu_model[able]).tolist():
        given = _given(spec, occupancy, able & (layout.gpu_model == model))
        nodes = fewest_nodes(given.tolist(), spec.gpu_count)
        if nodes is not None and (not spec.max_node_count or nodes <= spec.max_node_count):
            count += int(given.sum())
    return count


def _given(spec: JobSpec, occupancy: Occupancy, able: Bools) -> Ints:
    """(N,) how many of these GPUs each node can give a job at once: `given_by_nodes` for all nodes in one step."""
    layout = occupancy.layout
    counts: Ints = np.bincount(layout.gpu_node[able], minlength=len(layout.node_ids))
    if spec.cpu_cores > 0:
        counts = np.minimum(counts, occupancy.cores_free // spec.cpu_cores)
    if spec.memory_mib > 0:
        counts = np.minimum(counts, occupancy.memory_free_mib // spec.memory_mib)
    return np.maximum(counts, 0)


def shortage(spec: JobSpec, occupancy: Occupancy) -> str:
    """What nodes of idle GPUs lack for a job, in words such as `cores`; empty: GPUs are what is short, or it fits."""
    layout = occupancy.layout
    idle = layout.can_ever_hold(spec) & _accepted(spec, occupancy) & occupancy.usable & occupancy.idle
    # Of the others none is short of cores or memory: a job has all of the node, so that nobody else runs there.
    idle &= ~(occupancy.node_busy if spec.exclusive else occupancy.node_whole)[layout.gpu_node]
    if spec.gpu_count > 1:
        idle &= layout.possible_nodes(spec)[layout.gpu_model] != NEVER
    if np.count_nonzero(idle) < spec.gpu_count:
        return ""
    without_memory, without_cores = dataclasses.replace(spec, memory_mib=0), dataclasses.replace(spec, cpu_cores=0)
    gpus_alone = dataclasses.replace(without_memory, cpu_cores=0)
    if _is_set(spec, occupancy, idle) or not _is_set(gpus_alone, occupancy, idle):
        return ""
    demands = {"cores": without_memory, "memory": without_cores}
    lacks = [name for name, demand in demands.items() if not _is_set(demand, occupancy, idle)]
    return " and ".join(lacks) or "cores or memory"


def _is_set(spec: JobSpec, occupancy: Occupancy, gpus: Bools) -> bool:
    """Whether a job's GPUs can be of these, which are large enough, with what is free of their nodes now."""
    layout = occupancy.layout
    for model in np.unique(layout.gpu_model[gpus]).tolist():
        given = _given(spec, occupancy, gpus & (layout.gpu_model == model))
        nodes = fewest_nodes(given.tolist(), spec.gpu_count)
        if nodes is not None and (not spec.max_node_count or nodes <= spec.max_node_count):
            return True
    return False


def obstacles(spec: JobSpec, occupancy: Occupancy, fits: bool, kept: Bools) -> dict[GpuObstacle, int]:
    """Number of GPUs by what keeps a waiting job from them, the first that applies; those of none left out.

    Args:
        fits: whether the job could start somewhere if nothing were kept free.
        kept: (G,) GPUs that are kept free for another job.
    """
    layout, node = occupancy.layout, occupancy.layout.gpu_node
    big = layout.can_ever_hold(spec)
    if spec.gpu_count > 1:
        big &= layout.possible_nodes(spec)[layout.gpu_model] != NEVER
    free = gpus_for_one(spec, occupancy)
    found = {
        GpuObstacle.MODEL: ~_accepted(spec, occupancy),
        GpuObstacle.NODE: ~layout.allowed_nodes(spec)[node],
        GpuObstacle.TOO_SMALL: ~big,
        GpuObstacle.LOST: occupancy.lost,
        GpuObstacle.DRAINED: occupancy.drained[node],
        GpuObstacle.BUSY: ~occupancy.idle,
        GpuObstacle.NODE_SHARED: occupancy.node_busy[node] & spec.exclusive,
        GpuObstacle.NODE_FULL: ~free,
        GpuObstacle.TOO_FEW: np.full(len(free), not fits),
        GpuObstacle.RESERVED: kept,
        GpuObstacle.POLICY: np.ones(len(free), dtype=np.bool_),
    }
    left, counts = np.ones(len(free), dtype=np.bool_), {}
    for obstacle, applies in found.items():
        count = int(np.count_nonzero(left & applies))
        if count:
            counts[obstacle] = count
        left &= ~applies
    return counts


def changes(spec: JobSpec, occupancy: Occupancy, kept: Bools) -> tuple[WaitingChange, ...]:
    """Changes of one figure of a job's demand with which it fits now, each the least of its kind; none if it fits.

    Each has been tried on the occupancy; whether the policy then starts the job is its own choice. Anybody may ask for
    this at any time, so the number of tries is bounded: by the logarithm of the figures of a kind, and 2 where the kind
    helps nothing.

    Args:
        kept: (G,) GPUs that are kept free for another job.
    """
    if fitting_count(spec, occupancy, kept):
        return ()

    def tried_count(kind: WaitingChangeKind, value: int) -> int:
        return fitting_count(with_change(spec, kind, value), occupancy, kept)

    def fits(kind: WaitingChangeKind, value: int) -> bool:
        return tried_count(kind, value) > 0

    found = []
    for kind, tries in (
        (WaitingChangeKind.CPU_CORES, _fewer_cores(spec, occupancy)),
        (WaitingChangeKind.MEMORY_MIB, _less_memory(spec, occupancy)),
        (WaitingChangeKind.GPU_MEMORY_MIB, _less_gpu_memory(spec, occupancy)),
        (WaitingChangeKind.GPU_COUNT, range(spec.gpu_count - 1, 0, -1)),
        (WaitingChangeKind.MAX_NODE_COUNT, _more_nodes(spec)),
    ):
        value = _first_fitting(tries, partial(fits, kind))
        if value is not None:
            count = tried_count(kind, value)
            found.append(WaitingChange(kind, value, (), count, _sentence(spec, kind, value, count)))
    if others := _other_models(spec, occupancy, kept):
        count = fitting_count(dataclasses.replace(spec, gpu_models=(*spec.gpu_models, *others)), occupancy, kept)
        fit = _fit(spec, count)
        sentence = f"accept {' and '.join(others)} as well: {fit}"
        found.append(WaitingChange(WaitingChangeKind.GPU_MODELS, 0, others, count, sentence))
    return tuple(found)


def with_change(spec: JobSpec, kind: WaitingChangeKind, value: int) -> JobSpec:
    """A demand with another figure; not for GPU_MODELS."""
    match kind:
        case WaitingChangeKind.CPU_CORES:
            return dataclasses.replace(spec, cpu_cores=value)
        case WaitingChangeKind.MEMORY_MIB:
            return dataclasses.replace(spec, memory_mib=value)
        case WaitingChangeKind.GPU_MEMORY_MIB:
            return dataclasses.replace(spec, gpu_memory_mib=value)
        case WaitingChangeKind.GPU_COUNT:
            nodes = min(spec.max_node_count, value)
            return dataclasses.replace(spec, gpu_count=value, max_node_count=nodes)
        case _:
            return dataclasses.replace(spec, max_node_count=value)


def _accepted(spec: JobSpec, occupancy: Occupancy) -> Bools:
    layout = occupancy.layout
    accepts = np.array([spec.accepts(model) for model in layout.gpu_models], dtype=np.bool_)
    of_gpu: Bools = accepts[layout.gpu_model]
    return of_gpu


def _first_fitting(tries: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The first figure with which a job fits: it fits with each one after that, too; None: with none."""
    if not tries or not fits(tries[-1]):
        return None
    return tries[bisect.bisect_left(tries, True, key=fits)]


def _fewer_cores(spec: JobSpec, occupancy: Occupancy) -> list[int]:
    return _shares(spec, occupancy, occupancy.cores_free, spec.cpu_cores)


def _less_memory(spec: JobSpec, occupancy: Occupancy) -> list[int]:
    return _shares(spec, occupancy, occupancy.memory_free_mib, spec.memory_mib, _MEMORY_STEP_MIB)


def _shares(spec: JobSpec, occupancy: Occupancy, free: Ints, asked: int, step: int = 1) -> list[int]:
    """What nodes can give each of one or several GPUs of the job, below what it asks for; the most first.

    A node gives a job no more GPUs than it has idle.
    """
    idle = np.bincount(occupancy.layout.gpu_node[occupancy.idle], minlength=1)
    most = min(spec.gpu_count, max(int(idle.max()), 1))
    found = np.unique(np.unique(free)[:, None] // np.arange(1, most + 1))
    found = np.unique(np.where(found >= step, found - found % step, found))
    return [int(each) for each in found[(found > 0) & (found < asked)][::-1]]


def _less_gpu_memory(spec: JobSpec, occupancy: Occupancy) -> list[int]:
    found = set(occupancy.layout.gpu_memory_mib.tolist())
    return sorted((each for each in found if 0 < each < spec.gpu_memory_mib), reverse=True)


def _more_nodes(spec: JobSpec) -> list[int]:
    if spec.gpu_count > 1 and spec.max_node_count:
        return [*range(spec.max_node_count + 1, spec.gpu_count), 0]
    return []


def _other_models(spec: JobSpec, occupancy: Occupancy, kept: Bools) -> tuple[str, ...]:
    """Models that the job does not accept, and on which it would fit now."""
    return tuple(
        model
        for model in occupancy.layout.gpu_models
        if not spec.accepts(model) and fitting_count(dataclasses.replace(spec, gpu_models=(model,)), occupancy, kept)
    )


def _fit(spec: JobSpec, count: int) -> str:
    if spec.gpu_count > 1:
        return f"it fits now, on sets of {count} free GPUs"
    return "1 GPU fits now" if count == 1 else f"{count} GPUs fit now"


def _sentence(spec: JobSpec, kind: WaitingChangeKind, value: int, count: int) -> str:
    each = " with each GPU" if spec.gpu_count > 1 else ""
    fit = _fit(with_change(spec, kind, value), count)
    match kind:
        case WaitingChangeKind.CPU_CORES:
            return f"ask for {'1 core' if value == 1 else f'{value} cores'}{each}: {fit}"
        case WaitingChangeKind.MEMORY_MIB:
            return f"ask for {value} MiB of main memory{each}: {fit}"
        case WaitingChangeKind.GPU_MEMORY_MIB:
            return f"ask for {value} MiB of GPU memory: {fit}"
        case WaitingChangeKind.GPU_COUNT:
            return f"ask for {'1 GPU' if value == 1 else f'{value} GPUs'}: {fit}"
        case _:
            return f"accept {in_nodes(value) if value else 'any number of nodes'}: {fit}"
