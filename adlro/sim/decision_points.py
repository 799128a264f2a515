"""Observations of simulated clusters, and whether a policy may hold. numpy and numba only."""

from __future__ import annotations

from typing import Any

import numpy as np

from adlro.numeric.compiled import compiled_part
from adlro.sim.course import Course
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import IDLE, Hardware, Machines
from adlro.state.observation import Floats, Ints, Observation
from adlro.state.scene import Scene, submit_of_running_s, whole_queue


def hold_allowed(running_count: Any, arrived_count: Any, job_count: Any) -> Any:
    """Whether a job runs or will be submitted: its event ends a hold.

    Args:
        running_count: number of running jobs.
        arrived_count: number of jobs submitted so far.
        job_count: number of all jobs of the list.
    """
    return (running_count > 0) | (arrived_count < job_count)


may_hold = compiled_part(hold_allowed)


def decision_points(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: Ints, gpu_models: tuple[str, ...]
) -> Observation:
    """The decision points of some clusters, one row each.

    Args:
        hardware, machines, jobs, course: of all clusters of a simulation.
        n: (A,) numbers of the clusters.
        gpu_models: names of the models.
    """
    list_of = course.list_of[n]
    gangs_there = course.job_nodes.shape[2] > 0 or bool((course.reserved_job[n] >= 0).any())
    scene = Scene(
        time_s=machines.time_s[n],
        list_of=list_of,
        gpu_speed=machines.gpu_speed[n],
        gpu_job=machines.gpu_job[n],
        gpu_start_s=machines.gpu_start_s[n],
        gpu_expected_end_s=machines.gpu_expected_end_s[n],
        known_speed=course.known_speed[n],
        cores_free=machines.cores_free[n],
        memory_free_mib=machines.memory_free_mib[n],
        gpu_cores=machines.gpu_cores[n],
        gpu_memory_mib=machines.gpu_memory_mib[n],
    )
    return whole_queue(
        hardware if len(n) == len(course.list_of) else Hardware(*(column[n] for column in hardware)),
        scene,
        jobs,
        course.waiting[n].astype(np.int64),
        course.waiting_count[n],
        gpu_submit_s=submit_of_running_s(jobs, list_of, scene.gpu_job),
        user_service_s=_user_service_s(scene, jobs, course.user_service_s[n]),
        hold_allowed=hold_allowed(machines.running_count[n], course.arrived_count[n], jobs.job_count[list_of]),
        gpu_models=gpu_models,
        gpu_gang=machines.gpu_gang[n] if gangs_there else None,
        reserved=_reserved(course, n) if gangs_there else None,
    )


def _reserved(course: Course, n: Ints) -> Ints:
    """(A,) place in the queue of the job that GPUs are kept free for; -1: none."""
    places = np.full(len(n), -1, dtype=np.int64)
    for a, cluster in enumerate(n.tolist()):
        job = course.reserved_job[cluster]
        if job >= 0:
            places[a] = np.searchsorted(course.waiting[cluster, : course.waiting_count[cluster]], job)
    return places


def _user_service_s(scene: Scene, jobs: JobArrays, ended_s: Floats) -> Floats:
    """(A, U) GPU seconds that each user has received: of ended attempts, plus of the running ones."""
    row, gpu = np.nonzero(scene.gpu_job != IDLE)
    user = jobs.user[scene.list_of[row], scene.gpu_job[row, gpu]]
    np.add.at(ended_s, (row, user), scene.time_s[row] - scene.gpu_start_s[row, gpu])
    return ended_s
