"""Builds what policies see, in the simulator and in service alike. numpy and numba only.

`whole_queue` gives the `Observation` of the heuristics; `fill_window` (of one cluster) the arrays of a network: the
GPU matrix, the window's jobs, the (job, GPU) planes and the mask. Their figures are raw, in seconds, GiB and counts:
a network's first layer brings them to its own range.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.jobs import JobType
from adlro.sim.compiled import compiled, compiled_part
from adlro.sim.job_arrays import JobArrays
from adlro.sim.machines import IDLE, Hardware
from adlro.sim.observation import Bools, Floats, Ints, Observation


class Scene(NamedTuple):
    """What of A clusters at one moment a scheduler knows: occupancy as it keeps it, ends as it expects them.

    Attributes:
        time_s: (A,) cluster time.
        list_of: (A,) which row of the job arrays is the cluster's.
        gpu_speed: (A, G) 0: lost, or on a node that takes no jobs; only that is looked at.
        gpu_job: (A, G) IDLE, or something else where a job holds the GPU.
        gpu_expected_end_s: (A, G) of what runs.
        known_speed: (A, G) the GPU's speed against its model's own, as the scheduler believes it.
        cores_free, memory_free_mib: (A, M) on each node.
    """

    time_s: Floats
    list_of: Ints
    gpu_speed: Floats
    gpu_job: Ints
    gpu_expected_end_s: Floats
    known_speed: Floats
    cores_free: Ints
    memory_free_mib: Ints


def whole_queue(
    hardware: Hardware,
    scene: Scene,
    jobs: JobArrays,
    rows: Ints,
    row_count: Ints,
    *,
    user_service_s: Floats,
    hold_allowed: Bools,
    gpu_models: tuple[str, ...],
) -> Observation:
    """The decision points of A clusters.

    Args:
        hardware: of the A clusters.
        scene: their state.
        jobs: columns of the jobs.
        rows: (A, Q) numbers of the waiting jobs in the columns, in the order of submission.
        row_count: (A,) how many.
        user_service_s: (A, U) GPU time that each user has had.
        hold_allowed: (A,).
        gpu_models: names of the models.
    """
    batch, gpus = hardware.gpu_model.shape
    longest = int(row_count.max(initial=0))
    there = np.arange(longest) < row_count[:, None]
    taken = np.where(there, rows[:, :longest], 0)
    lists = scene.list_of[:, None]
    duration_s = np.empty((batch, longest, gpus))
    fits = np.empty((batch, longest, gpus), dtype=np.bool_)
    _fill_pairs(hardware, scene, jobs, taken, row_count, duration_s, fits)
    usable, idle = scene.gpu_speed > 0.0, scene.gpu_job == IDLE
    remaining_s = np.where(idle, 0.0, np.maximum(scene.gpu_expected_end_s - scene.time_s[:, None], 0.0))
    users = jobs.user[lists, taken]
    return Observation(
        time_s=scene.time_s,
        gpu_model=hardware.gpu_model,
        gpu_memory_mib=hardware.gpu_memory_mib,
        gpu_node=hardware.gpu_node,
        gpu_idle=usable & idle,
        gpu_remaining_s=np.where(usable, remaining_s, np.inf),
        node_cores_free=scene.cores_free,
        node_memory_free_mib=scene.memory_free_mib,
        # A job that no GPU can ever hold waits for no policy: it must not block a queue.
        job_waiting=there & np.isfinite(duration_s).any(axis=2),
        job_type=jobs.job_type[lists, taken],
        job_priority=jobs.priority[lists, taken],
        job_user_service_s=np.take_along_axis(user_service_s, users, axis=1),
        job_submit_s=jobs.submit_s[lists, taken],
        job_cores=jobs.cores[lists, taken],
        job_memory_mib=jobs.memory_mib[lists, taken],
        job_gpu_memory_mib=jobs.gpu_memory_mib[lists, taken],
        duration_s=duration_s,
        fits_now=fits,
        hold_allowed=hold_allowed,
        gpu_models=gpu_models,
    )


@compiled
def _fill_pairs(
    hardware: Hardware,
    scene: Scene,
    jobs: JobArrays,
    rows: Ints,
    row_count: Ints,
    duration_s: Floats,
    fits: Bools,
) -> None:
    """Fills (A, Q, G): expected duration, inf where the GPU or its empty node is too small; may it start now."""
    for a in range(rows.shape[0]):
        number = scene.list_of[a]
        for i in range(rows.shape[1]):
            for gpu in range(hardware.gpu_model.shape[1]):
                duration_s[a, i, gpu] = np.inf
                fits[a, i, gpu] = False
            if i >= row_count[a]:
                continue
            job = rows[a, i]
            cores, memory_mib = jobs.cores[number, job], jobs.memory_mib[number, job]
            gpu_memory_mib = jobs.gpu_memory_mib[number, job]
            for gpu in range(hardware.gpu_count[a]):
                node = hardware.gpu_node[a, gpu]
                if (
                    gpu_memory_mib > hardware.gpu_memory_mib[a, gpu]
                    or cores > hardware.node_cores[a, node]
                    or memory_mib > hardware.node_memory_mib[a, node]
                ):
                    continue
                expected_s = jobs.expected_s[number, job, hardware.gpu_model[a, gpu]] / scene.known_speed[a, gpu]
                duration_s[a, i, gpu] = expected_s
                fits[a, i, gpu] = (
                    scene.gpu_speed[a, gpu] > 0.0
                    and scene.gpu_job[a, gpu] == IDLE
                    and cores <= scene.cores_free[a, node]
                    and memory_mib <= scene.memory_free_mib[a, node]
                    and expected_s < np.inf
                )


GPU_PLANES = (
    "present",  # 1: there, and its node takes jobs; 0 in padding too
    "busy",
    "remaining_s",  # expected time until it is idle
    "memory_gib",
    "node_cores_free",
    "node_memory_free_gib",
    "known_speed",
    "gpu_model",  # its number
)
"""Planes of the GPU matrix."""

JOB_PLANES = (
    "present",  # 0 in padding
    "best_expected_s",  # on the fastest GPU that can hold it
    "waited_s",
    "priority",
    "simulation",
    "machine_learning",
    "data_processing",
    "cores",
    "memory_gib",
    "gpu_memory_gib",
)
"""Planes of the window's jobs. The job types are one-hot."""

PAIR_PLANES = (
    "duration_s",  # expected; 0 where the GPU, or its empty node, is too small
    "completion_s",  # the GPU's remaining time and the duration; 0 likewise
    "fits_now",
)
"""Planes of (job of the window, GPU)."""

CLUSTER_PLANES = ("queue_length", "running_count")
"""Figures of the whole cluster."""


class Window(NamedTuple):
    """What a network sees of N clusters: M nodes x S slots, a window of W jobs, G GPUs.

    Attributes:
        gpus: (N, M x S, GPU_PLANES) the GPU matrix; `reshape(N, M, S, -1)` for a CNN.
        jobs: (N, W, JOB_PLANES) in the order of expected duration; the longest waiting job is always among them.
        pairs: (N, W, G, PAIR_PLANES).
        cluster: (N, CLUSTER_PLANES).
        mask: (N, W x G + 1) the actions that can be carried out: job w on GPU g is w x G + g, the last is to hold.
    """

    gpus: NDArray[np.float32]
    jobs: NDArray[np.float32]
    pairs: NDArray[np.float32]
    cluster: NDArray[np.float32]
    mask: Bools


def empty_window(hardware: Hardware, window: int) -> Window:
    """Arrays to be filled by `fill_window`."""
    batch, gpus = hardware.gpu_model.shape
    slots = int(hardware.gpu_slot.max(initial=0)) + 1
    nodes = hardware.node_cores.shape[1]
    slots = -(-slots // nodes) * nodes
    return Window(
        gpus=np.zeros((batch, slots, len(GPU_PLANES)), dtype=np.float32),
        jobs=np.zeros((batch, window, len(JOB_PLANES)), dtype=np.float32),
        pairs=np.zeros((batch, window, gpus, len(PAIR_PLANES)), dtype=np.float32),
        cluster=np.zeros((batch, len(CLUSTER_PLANES)), dtype=np.float32),
        mask=np.zeros((batch, window * gpus + 1), dtype=np.bool_),
    )


_SIMULATION, _MACHINE_LEARNING, _DATA_PROCESSING = (
    int(JobType.SIMULATION),
    int(JobType.MACHINE_LEARNING),
    int(JobType.DATA_PROCESSING),
)
_GIB = 1.0 / 1024.0


@compiled_part
def fill_window(
    hardware: Hardware,
    scene: Scene,
    jobs: JobArrays,
    best_expected_s: Floats,
    rows: NDArray[np.int32],
    row_count: int,
    queue_length: int,
    running_count: int,
    hold_allowed: bool,
    n: int,
    out: Window,
) -> None:
    """Fills cluster n's part of `out`.

    Args:
        best_expected_s: (J,) of the cluster's jobs.
        rows: (W,) numbers of the window's jobs, `row_count` of them.
    """
    number, time_s = scene.list_of[n], scene.time_s[n]
    gpu_count, window, gpus = hardware.gpu_count[n], out.jobs.shape[1], out.pairs.shape[2]
    for gpu in range(gpu_count):
        plane = out.gpus[n, hardware.gpu_slot[n, gpu]]
        node, busy = hardware.gpu_node[n, gpu], scene.gpu_job[n, gpu] != IDLE
        plane[0] = scene.gpu_speed[n, gpu] > 0.0
        plane[1] = busy
        plane[2] = max(scene.gpu_expected_end_s[n, gpu] - time_s, 0.0) if busy else 0.0
        plane[3] = hardware.gpu_memory_mib[n, gpu] * _GIB
        plane[4] = scene.cores_free[n, node]
        plane[5] = scene.memory_free_mib[n, node] * _GIB
        plane[6] = scene.known_speed[n, gpu]
        plane[7] = hardware.gpu_model[n, gpu]
    for w in range(row_count):
        job = rows[w]
        cores, memory_mib = jobs.cores[number, job], jobs.memory_mib[number, job]
        gpu_memory_mib, job_type = jobs.gpu_memory_mib[number, job], jobs.job_type[number, job]
        plane = out.jobs[n, w]
        plane[0] = 1.0
        plane[1] = best_expected_s[job]
        plane[2] = time_s - jobs.submit_s[number, job]
        plane[3] = jobs.priority[number, job]
        plane[4] = job_type == _SIMULATION
        plane[5] = job_type == _MACHINE_LEARNING
        plane[6] = job_type == _DATA_PROCESSING
        plane[7] = cores
        plane[8] = memory_mib * _GIB
        plane[9] = gpu_memory_mib * _GIB
        pairs, mask = out.pairs[n, w], out.mask[n, w * gpus : (w + 1) * gpus]
        for gpu in range(gpu_count):
            node = hardware.gpu_node[n, gpu]
            duration_s = jobs.expected_s[number, job, hardware.gpu_model[n, gpu]] / scene.known_speed[n, gpu]
            able = (
                gpu_memory_mib <= hardware.gpu_memory_mib[n, gpu]
                and cores <= hardware.node_cores[n, node]
                and memory_mib <= hardware.node_memory_mib[n, node]
                and duration_s < np.inf
            )
            idle = scene.gpu_job[n, gpu] == IDLE
            fits = (
                able
                and idle
                and scene.gpu_speed[n, gpu] > 0.0
                and cores <= scene.cores_free[n, node]
                and memory_mib <= scene.memory_free_mib[n, node]
            )
            remaining_s = 0.0 if idle else max(scene.gpu_expected_end_s[n, gpu] - time_s, 0.0)
            pairs[gpu, 0] = duration_s if able else 0.0
            pairs[gpu, 1] = remaining_s + duration_s if able else 0.0
            pairs[gpu, 2] = fits
            mask[gpu] = fits
    for w in range(row_count, window):
        out.jobs[n, w] = 0.0
        out.pairs[n, w] = 0.0
        out.mask[n, w * gpus : (w + 1) * gpus] = False
    out.cluster[n, 0] = queue_length
    out.cluster[n, 1] = running_count
    out.mask[n, window * gpus] = hold_allowed
