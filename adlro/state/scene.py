"""Builds what policies see, in the simulator and in service alike. numpy and numba only.

Networks see planes that are made of it (adlro/decide/planes/).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.numeric.compiled import compiled
from adlro.state.candidate_table import candidate_table, gpu_kinds
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import IDLE, Hardware, remaining_s
from adlro.state.observation import Bools, Floats, Ints, Observation
from adlro.state.room import has_room


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
    can_start = usable & idle
    gpu_kind, kind_gpu = gpu_kinds(hardware, scene.known_speed)
    kind_duration_s = np.empty((batch, longest, kind_gpu.shape[1]))
    possible = np.empty((batch, longest), dtype=np.bool_)
    _fill_durations(hardware, scene.known_speed, kind_gpu, jobs, scene.list_of, taken, there, kind_duration_s, possible)
    remaining, elapsed = np.empty((batch, gpus)), np.empty((batch, gpus))
    _fill_runs(scene, remaining, elapsed)
    job_cores, job_memory_mib = jobs.cores[lists, taken], jobs.memory_mib[lists, taken]
    table = candidate_table(
        gpu_kind,
        hardware.gpu_node,
        can_start,
        scene.cores_free,
        scene.memory_free_mib,
        possible,
        job_cores,
        job_memory_mib,
        kind_duration_s,
    )
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
        gpu_kind=gpu_kind,
        node_cores_free=scene.cores_free,
        node_memory_free_mib=scene.memory_free_mib,
        # A job that no GPU can ever hold waits for no policy: it must not block a queue.
        job_waiting=possible,
        job_type=jobs.job_type[lists, taken],
        job_priority=jobs.priority[lists, taken],
        job_user_service_s=np.take_along_axis(user_service_s, users, axis=1),
        job_submit_s=jobs.submit_s[lists, taken],
        job_cores=job_cores,
        job_memory_mib=job_memory_mib,
        job_gpu_memory_mib=jobs.gpu_memory_mib[lists, taken],
        job_spread=jobs.expected_spread[lists, taken],
        kind_duration_s=kind_duration_s,
        table=table,
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
def _fill_durations(
    hardware: Hardware,
    known_speed: Floats,
    kind_gpu: Ints,
    jobs: JobArrays,
    list_of: Ints,
    rows: Ints,
    there: Bools,
    duration_s: Floats,
    possible: Bools,
) -> None:
    """Fills (A, Q, S): expected duration, inf where a GPU of the kind or its empty node is too small.

    Args:
        kind_gpu: (A, S) a GPU of each kind; -1: there is none.
        rows: (A, Q) numbers of the jobs.
        there: (A, Q) a job stands here.
        possible: (A, Q) filled: some GPU can hold the job when its node is empty.
    """
    for a in range(rows.shape[0]):
        number = list_of[a]
        for i in range(rows.shape[1]):
            job, durations_s, shortest_s = rows[a, i], duration_s[a, i], np.inf
            cores, memory_mib = jobs.cores[number, job], jobs.memory_mib[number, job]
            gpu_memory_mib, expected_s = jobs.gpu_memory_mib[number, job], jobs.expected_s[number, job]
            for kind in range(durations_s.shape[0]):
                durations_s[kind] = np.inf
                gpu = kind_gpu[a, kind]
                if gpu < 0 or not there[a, i]:
                    continue
                node = hardware.gpu_node[a, gpu]
                node_cores, node_memory_mib = hardware.node_cores[a, node], hardware.node_memory_mib[a, node]
                memory_of_gpu_mib = hardware.gpu_memory_mib[a, gpu]
                if has_room(cores, memory_mib, gpu_memory_mib, node_cores, node_memory_mib, memory_of_gpu_mib):
                    durations_s[kind] = expected_s[hardware.gpu_model[a, gpu]] / known_speed[a, gpu]
                    shortest_s = min(shortest_s, durations_s[kind])
            possible[a, i] = shortest_s < np.inf
