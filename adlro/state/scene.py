"""Builds what policies see, in the simulator and in service alike. numpy and numba only.

Networks see planes that are made of it (adlro/decide/planes/).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.numeric.compiled import compiled
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import IDLE, Hardware, remaining_s
from adlro.state.observation import Bools, Floats, Ints, Observation
from adlro.state.room import has_room, node_has_room


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
            for gpu in range(model.shape[0]):
                able = has_room(cores, memory_mib, gpu_memory_mib, cores_of[gpu], memory_of[gpu], gpu_memory[gpu])
                expected = expected_s[model[gpu]] / speed[gpu]
                durations[gpu] = expected if able else np.inf
            for gpu in range(model.shape[0]):
                able = durations[gpu] < np.inf
                starts[gpu] = able & node_has_room(cores, memory_mib, cores_free[gpu], memory_free[gpu])
                shortest_s = min(shortest_s, durations[gpu])
            possible[a, i] = shortest_s < np.inf
