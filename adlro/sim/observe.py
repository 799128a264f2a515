"""Builds what policies see, in the simulator and in service alike. numpy and numba only.

`whole_queue` gives the `Observation` of the heuristics; `fill_window` the arrays of a network: the GPU matrix, the
window's jobs, the (job, GPU) planes and the mask, raw in SI-like units (a network's input layer brings them to its
own range).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.sim.compiled import compiled
from adlro.sim.job_arrays import JobArrays
from adlro.sim.machines import Hardware
from adlro.sim.observation import Bools, Floats, Ints, Observation


class Scene(NamedTuple):
    """What of A clusters at one moment a scheduler knows: occupancy as it keeps it, ends as it expects them.

    Attributes:
        time_s: (A,) cluster time.
        list_of: (A,) which row of the job arrays is the cluster's.
        usable: (A, G) there, and its node takes jobs.
        idle: (A, G) nothing runs on it.
        expected_end_s: (A, G) of what runs.
        known_speed: (A, G) against the model's own.
        cores_free, memory_free_mib: (A, M) on each node.
    """

    time_s: Floats
    list_of: Ints
    usable: Bools
    idle: Bools
    expected_end_s: Floats
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
    remaining_s = np.where(scene.idle, 0.0, np.maximum(scene.expected_end_s - scene.time_s[:, None], 0.0))
    users = jobs.user[lists, taken]
    return Observation(
        time_s=scene.time_s,
        gpu_model=hardware.gpu_model,
        gpu_memory_mib=hardware.gpu_memory_mib,
        gpu_node=hardware.gpu_node,
        gpu_idle=scene.usable & scene.idle,
        gpu_remaining_s=np.where(scene.usable, remaining_s, np.inf),
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
                    scene.usable[a, gpu]
                    and scene.idle[a, gpu]
                    and cores <= scene.cores_free[a, node]
                    and memory_mib <= scene.memory_free_mib[a, node]
                    and expected_s < np.inf
                )
