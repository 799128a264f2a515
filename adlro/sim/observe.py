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
from adlro.sim.machines import IDLE, Hardware, remaining_s
from adlro.sim.observation import Bools, Floats, Ints, Observation


class Scene(NamedTuple):
    """What of A clusters at one moment a scheduler knows: occupancy as it keeps it, ends as it expects them.

    Attributes:
        time_s: (A,) cluster time.
        list_of: (A,) which row of the job arrays is the cluster's.
        gpu_speed: (A, G) 0: lost, or on a node that takes no jobs; only that is looked at.
        gpu_job: (A, G) IDLE, or something else where a job holds the GPU.
        gpu_start_s, gpu_expected_end_s: (A, G) of what runs.
        known_speed: (A, G) the GPU's speed against its model's own, as the scheduler believes it.
        cores_free, memory_free_mib: (A, M) on each node.
        gpu_cores, gpu_memory_mib: (A, G) what the job on the GPU holds of the node; whatever where it is idle.
    """

    time_s: Floats
    list_of: Ints
    gpu_speed: Floats
    gpu_job: Ints
    gpu_start_s: Floats
    gpu_expected_end_s: Floats
    known_speed: Floats
    cores_free: Ints
    memory_free_mib: Ints
    gpu_cores: Ints
    gpu_memory_mib: Ints


def whole_queue(
    hardware: Hardware,
    scene: Scene,
    jobs: JobArrays,
    rows: Ints,
    row_count: Ints,
    *,
    gpu_submit_s: Floats,
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
        gpu_submit_s: (A, G) when the job on each GPU was submitted; whatever where it is idle.
        user_service_s: (A, U) GPU time that each user has had.
        hold_allowed: (A,).
        gpu_models: names of the models.
    """
    batch, gpus = hardware.gpu_model.shape
    longest = int(row_count.max(initial=0))
    there = np.arange(longest) < row_count[:, None]
    taken = np.where(there, rows[:, :longest], 0)
    lists = scene.list_of[:, None]
    usable, idle = scene.gpu_speed > 0.0, scene.gpu_job == IDLE
    can_start, node_of = usable & idle, (np.arange(batch)[:, None], hardware.gpu_node)
    duration_s = np.empty((batch, longest, gpus))
    fits = np.empty((batch, longest, gpus), dtype=np.bool_)
    possible = np.zeros((batch, longest), dtype=np.bool_)
    _fill_pairs(
        hardware,
        hardware.node_cores[node_of],
        hardware.node_memory_mib[node_of],
        np.where(can_start, scene.cores_free[node_of], -1),
        np.where(can_start, scene.memory_free_mib[node_of], -1),
        scene.known_speed,
        jobs,
        scene.list_of,
        taken,
        row_count,
        duration_s,
        fits,
        possible,
    )
    remaining, elapsed = np.empty((batch, gpus)), np.empty((batch, gpus))
    _fill_runs(scene, remaining, elapsed)
    users = jobs.user[lists, taken]
    return Observation(
        time_s=scene.time_s,
        gpu_model=hardware.gpu_model,
        gpu_memory_mib=hardware.gpu_memory_mib,
        gpu_node=hardware.gpu_node,
        gpu_idle=can_start,
        gpu_remaining_s=np.where(usable, remaining, np.inf),
        gpu_elapsed_s=elapsed,
        gpu_submit_s=np.where(idle, np.inf, gpu_submit_s),
        gpu_cores_held=np.where(idle, 0, scene.gpu_cores),
        gpu_memory_held_mib=np.where(idle, 0, scene.gpu_memory_mib),
        node_cores_free=scene.cores_free,
        node_memory_free_mib=scene.memory_free_mib,
        # A job that no GPU can ever hold waits for no policy: it must not block a queue.
        job_waiting=possible,
        job_type=jobs.job_type[lists, taken],
        job_priority=jobs.priority[lists, taken],
        job_user_service_s=np.take_along_axis(user_service_s, users, axis=1),
        job_submit_s=jobs.submit_s[lists, taken],
        job_cores=jobs.cores[lists, taken],
        job_memory_mib=jobs.memory_mib[lists, taken],
        job_gpu_memory_mib=jobs.gpu_memory_mib[lists, taken],
        job_spread=jobs.expected_spread[lists, taken],
        duration_s=duration_s,
        fits_now=fits,
        hold_allowed=hold_allowed,
        gpu_models=gpu_models,
    )


def submit_of_running_s(jobs: JobArrays, list_of: Ints, gpu_job: Ints) -> Floats:
    """(A, G) when the job on each GPU of A clusters was submitted; whatever where none runs.

    Args:
        jobs: columns of the jobs.
        list_of: (A,) which row of them is the cluster's.
        gpu_job: (A, G) the job's number there; negative: none.
    """
    submit_s: Floats = jobs.submit_s[list_of[:, None], np.maximum(gpu_job, 0)]
    return submit_s


@compiled
def _fill_runs(scene: Scene, remaining: Floats, elapsed: Floats) -> None:
    """Fills (A, G): how much longer what runs on a GPU is expected to, and for how long it has; 0 where it is idle."""
    for a in range(remaining.shape[0]):
        for gpu in range(remaining.shape[1]):
            remaining[a, gpu] = elapsed[a, gpu] = 0.0
            if scene.gpu_job[a, gpu] != IDLE:
                start_s, end_s = scene.gpu_start_s[a, gpu], scene.gpu_expected_end_s[a, gpu]
                remaining[a, gpu] = remaining_s(scene.time_s[a], start_s, end_s)
                elapsed[a, gpu] = max(scene.time_s[a] - start_s, 0.0)


@compiled
def _fill_pairs(
    hardware: Hardware,
    node_cores: Ints,
    node_memory_mib: Ints,
    cores_left: Ints,
    memory_left_mib: Ints,
    known_speed: Floats,
    jobs: JobArrays,
    list_of: Ints,
    rows: Ints,
    row_count: Ints,
    duration_s: Floats,
    fits: Bools,
    possible: Bools,
) -> None:
    """Fills (A, Q, G): expected duration, inf where the GPU or its empty node is too small; may it start now.

    Args:
        node_cores, node_memory_mib: (A, G) what the GPU's node has.
        cores_left, memory_left_mib: (A, G) what it has left; -1 where nothing can start.
        possible: (A, Q) filled: some GPU can hold the job when its node is empty.
    """
    for a in range(rows.shape[0]):
        number, model, speed = list_of[a], hardware.gpu_model[a], known_speed[a]
        gpu_memory, cores_of, memory_of = hardware.gpu_memory_mib[a], node_cores[a], node_memory_mib[a]
        cores_free, memory_free = cores_left[a], memory_left_mib[a]
        for i in range(rows.shape[1]):
            durations, starts = duration_s[a, i], fits[a, i]
            if i >= row_count[a]:
                durations[:] = np.inf
                starts[:] = False
                continue
            job = rows[a, i]
            cores, memory_mib = jobs.cores[number, job], jobs.memory_mib[number, job]
            gpu_memory_mib, expected_s = jobs.gpu_memory_mib[number, job], jobs.expected_s[number, job]
            shortest_s = np.inf
            # Without branches, so that the compiler takes several GPUs at once. Padding has no memory.
            for gpu in range(model.shape[0]):
                able = (gpu_memory_mib <= gpu_memory[gpu]) & (cores <= cores_of[gpu]) & (memory_mib <= memory_of[gpu])
                expected = expected_s[model[gpu]] / speed[gpu]
                durations[gpu] = expected if able else np.inf
            for gpu in range(model.shape[0]):
                able = durations[gpu] < np.inf
                starts[gpu] = able & (cores <= cores_free[gpu]) & (memory_mib <= memory_free[gpu])
                shortest_s = min(shortest_s, durations[gpu])
            possible[a, i] = shortest_s < np.inf


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
        gpus: (N, GPU_PLANES, M x S) the GPU matrix, node by node.
        jobs: (N, W, JOB_PLANES) in the order of expected duration; the longest waiting job is always among them.
        pairs: (N, PAIR_PLANES, W, G).
        cluster: (N, CLUSTER_PLANES).
        mask: (N, W x G + 1) the actions that can be carried out: job w on GPU g is w x G + g, the last is to hold.
        scratch: (N, 7, G) of the making, by CORES_LEFT and so on.
    """

    gpus: NDArray[np.float32]
    jobs: NDArray[np.float32]
    pairs: NDArray[np.float32]
    cluster: NDArray[np.float32]
    mask: Bools
    scratch: NDArray[np.float32]


CORES_LEFT, MEMORY_LEFT, REMAINING, NODE_CORES, NODE_MEMORY, GPU_MEMORY, INVERSE_SPEED = range(7)


def empty_window(hardware: Hardware, window: int) -> Window:
    """Arrays to be filled by `fill_fixed` and `fill_window`."""
    batch, gpus = hardware.gpu_model.shape
    places = hardware.node_cores.shape[1] * (int(hardware.gpu_slot.max(initial=0)) + 1)
    return Window(
        gpus=np.zeros((batch, len(GPU_PLANES), places), dtype=np.float32),
        jobs=np.zeros((batch, window, len(JOB_PLANES)), dtype=np.float32),
        pairs=np.zeros((batch, len(PAIR_PLANES), window, gpus), dtype=np.float32),
        cluster=np.zeros((batch, len(CLUSTER_PLANES)), dtype=np.float32),
        mask=np.zeros((batch, window * gpus + 1), dtype=np.bool_),
        scratch=np.zeros((batch, 7, gpus), dtype=np.float32),
    )


def job_planes(jobs: JobArrays) -> NDArray[np.float32]:
    """(L, J, JOB_PLANES) what does not change while a job waits; the rest is 0."""
    planes = np.zeros((*jobs.submit_s.shape, len(JOB_PLANES)), dtype=np.float32)
    planes[:, :, 0] = 1.0
    planes[:, :, 3] = jobs.priority
    for plane, job_type in zip((4, 5, 6), JobType, strict=True):
        planes[:, :, plane] = jobs.job_type == int(job_type)
    planes[:, :, 7] = jobs.cores
    planes[:, :, 8] = jobs.memory_mib / 1024.0
    planes[:, :, 9] = jobs.gpu_memory_mib / 1024.0
    return planes


def fill_fixed(hardware: Hardware, known_speed: Floats, out: Window) -> None:
    """Fills what changes only when the hardware, or what is known of its speed, does."""
    slots = out.gpus.shape[2] // hardware.node_cores.shape[1]
    cluster, gpu = np.nonzero(hardware.gpu_memory_mib >= 0)
    node = hardware.gpu_node[cluster, gpu]
    place = node * slots + hardware.gpu_slot[cluster, gpu]
    out.gpus[cluster, 3, place] = hardware.gpu_memory_mib[cluster, gpu] / 1024.0
    out.gpus[cluster, 6, place] = known_speed[cluster, gpu]
    out.gpus[cluster, 7, place] = hardware.gpu_model[cluster, gpu]
    out.scratch[cluster, NODE_CORES, gpu] = hardware.node_cores[cluster, node]
    out.scratch[cluster, NODE_MEMORY, gpu] = hardware.node_memory_mib[cluster, node]
    out.scratch[cluster, GPU_MEMORY, gpu] = hardware.gpu_memory_mib[cluster, gpu]
    out.scratch[cluster, INVERSE_SPEED, gpu] = 1.0 / known_speed[cluster, gpu]


@compiled_part
def fill_window(
    hardware: Hardware,
    scene: Scene,
    jobs: JobArrays,
    planes: NDArray[np.float32],
    best_expected_s: Floats,
    rows: NDArray[np.int32],
    row_count: int,
    queue_length: int,
    running_count: int,
    hold_allowed: bool,
    n: int,
    out: Window,
) -> None:
    """Fills cluster n's part of `out`, but for what `fill_fixed` has filled.

    Args:
        planes: of `job_planes`.
        best_expected_s: (J,) of the cluster's jobs.
        rows: (W,) numbers of the window's jobs, `row_count` of them.
    """
    number, time_s = scene.list_of[n], scene.time_s[n]
    gpu_count, window, gpus = hardware.gpu_count[n], out.jobs.shape[1], out.pairs.shape[3]
    _fill_gpus(hardware, scene, n, out)
    model, scratch = hardware.gpu_model[n], out.scratch[n]
    cores_left, memory_left, remaining_s = scratch[CORES_LEFT], scratch[MEMORY_LEFT], scratch[REMAINING]
    node_cores, node_memory, gpu_memory = scratch[NODE_CORES], scratch[NODE_MEMORY], scratch[GPU_MEMORY]
    inverse_speed = scratch[INVERSE_SPEED]
    for w in range(row_count):
        job = np.uint64(rows[w])
        cores, memory_mib = np.float32(jobs.cores[number, job]), np.float32(jobs.memory_mib[number, job])
        gpu_memory_mib, expected_s = np.float32(jobs.gpu_memory_mib[number, job]), jobs.expected_s[number, job]
        fixed, plane = planes[number, job], out.jobs[n, w]
        for i in range(plane.shape[0]):
            plane[i] = fixed[i]
        plane[1] = best_expected_s[job]
        plane[2] = time_s - jobs.submit_s[number, job]
        durations, completions, fits_now = out.pairs[n, 0, w], out.pairs[n, 1, w], out.pairs[n, 2, w]
        mask = out.mask[n, w * gpus : (w + 1) * gpus]
        # One loop for each figure, without branches: so the compiler takes several GPUs at once.
        for gpu in range(gpu_count):
            durations[gpu] = expected_s[np.uint64(model[gpu])] * inverse_speed[gpu]
        for gpu in range(gpu_count):
            able = (cores <= node_cores[gpu]) & (memory_mib <= node_memory[gpu]) & (gpu_memory_mib <= gpu_memory[gpu])
            durations[gpu] = durations[gpu] if able & (durations[gpu] < np.inf) else np.float32(0.0)
        for gpu in range(gpu_count):
            duration_s = durations[gpu]
            completions[gpu] = remaining_s[gpu] + duration_s if duration_s > 0.0 else np.float32(0.0)
        for gpu in range(gpu_count):
            fits = (cores <= cores_left[gpu]) & (memory_mib <= memory_left[gpu]) & (durations[gpu] > 0.0)
            fits_now[gpu] = np.float32(1.0) if fits else np.float32(0.0)
        for gpu in range(gpu_count):
            mask[gpu] = fits_now[gpu] > 0.0
    out.jobs[n, row_count:] = 0.0
    for plane_number in range(out.pairs.shape[1]):
        out.pairs[n, plane_number, row_count:] = 0.0
    out.mask[n, row_count * gpus :] = False
    out.cluster[n, 0] = queue_length
    out.cluster[n, 1] = running_count
    out.mask[n, window * gpus] = hold_allowed


@compiled_part
def _fill_gpus(hardware: Hardware, scene: Scene, n: int, out: Window) -> None:
    """The GPU matrix, and for the pairs what an idle GPU's node has left: -1 where nothing can start."""
    time_s, slots = scene.time_s[n], out.gpus.shape[2] // hardware.node_cores.shape[1]
    speed, jobs, starts, ends = scene.gpu_speed[n], scene.gpu_job[n], scene.gpu_start_s[n], scene.gpu_expected_end_s[n]
    node_of, slot_of = hardware.gpu_node[n], hardware.gpu_slot[n]
    cores_free, memory_free = scene.cores_free[n], scene.memory_free_mib[n]
    present, busy, remaining = out.gpus[n, 0], out.gpus[n, 1], out.gpus[n, 2]
    cores_plane, memory_plane = out.gpus[n, 4], out.gpus[n, 5]
    cores_left, memory_left, left = out.scratch[n, 0], out.scratch[n, 1], out.scratch[n, 2]
    for gpu in range(hardware.gpu_count[n]):
        node = np.uint64(node_of[gpu])
        place = node * np.uint64(slots) + np.uint64(slot_of[gpu])
        there, works = speed[gpu] > 0.0, jobs[gpu] != IDLE
        left_s = np.float32(remaining_s(time_s, starts[gpu], ends[gpu])) if works else np.float32(0.0)
        cores, memory_mib = np.float32(cores_free[node]), np.float32(memory_free[node])
        present[place] = there
        busy[place] = works
        remaining[place] = left_s
        cores_plane[place] = cores
        memory_plane[place] = memory_mib * _GIB
        free = there and not works
        cores_left[gpu] = cores if free else np.float32(-1.0)
        memory_left[gpu] = memory_mib if free else np.float32(-1.0)
        left[gpu] = left_s


_GIB = np.float32(1.0 / 1024.0)
