"""Observations of simulated clusters, and whether a policy may hold. numpy and numba only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adlro.numeric.compiled import compiled_part
from adlro.numeric.half_life import counted_seconds
from adlro.sim.course import Course
from adlro.sim.recent_service import RecentService
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Bools, Floats, Ints, Observation
from adlro.state.scene import Scene, Shares, Stops, submit_of_running_s, whole_queue


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
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: Ints,
    gpu_models: tuple[str, ...],
    recent: RecentService | None = None,
) -> Observation:
    """The decision points of some clusters, one row each.

    Args:
        hardware, machines, jobs, course: of all clusters of a simulation.
        n: (A,) numbers of the clusters.
        gpu_models: names of the models.
        recent: the GPU time of users by a half-life; None: it is never forgotten.
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
        user_service_s=_user_service_s(machines, scene, jobs, course, n, recent),
        hold_allowed=hold_allowed(machines.running_count[n], course.arrived_count[n], jobs.job_count[list_of]),
        gpu_models=gpu_models,
        gpu_gang=machines.gpu_gang[n] if gangs_there else None,
        reserved=_reserved(course, n) if gangs_there else None,
        stops=_stops(machines, jobs, course, n, scene) if course.job_share.shape[1] else None,
        shares=_shares(hardware, machines, jobs, course, n) if machines.mate_job.shape[1] else None,
    )


def _reserved(course: Course, n: Ints) -> Ints:
    """(A,) place in the queue of the job that GPUs are kept free for; -1: none."""
    places = np.full(len(n), -1, dtype=np.int64)
    for a, cluster in enumerate(n.tolist()):
        job = course.reserved_job[cluster]
        if job >= 0:
            places[a] = np.searchsorted(course.waiting[cluster, : course.waiting_count[cluster]], job)
    return places


def _stops(machines: Machines, jobs: JobArrays, course: Course, n: Ints, scene: Scene) -> Stops | None:
    """What concerns jobs that may be stopped; None: no such job runs, and no stopped one waits."""
    a, number = n[:, None], scene.list_of[:, None]
    places = int(course.waiting_count[n].max(initial=0))
    row = course.waiting[n][:, :places]
    stopped = (course.job_stops[a, row] > 0) & (np.arange(places) < course.waiting_count[a])
    run = scene.gpu_job, scene.gpu_start_s, machines.gpu_work_from_s[n], machines.gpu_gang[n]
    gpu = _stops_on(jobs, course, a, scene, *run)
    runs = gpu.preemptible
    if machines.mate_job.shape[1]:
        mate_job = machines.mate_job[n]
        run = mate_job, machines.mate_start_s[n], machines.mate_work_from_s[n], (mate_job != IDLE).astype(np.int64)
        mate = _stops_on(jobs, course, a, scene, *run)
        runs = runs | mate.preemptible
        gpu = gpu._replace(
            stoppable=gpu.stoppable & (mate.stoppable | (mate_job == IDLE)),
            restart_s=gpu.restart_s + mate.restart_s,
            attained_s=gpu.attained_s + mate.attained_s,
        )
    if not (runs.any() or stopped.any()):
        return None
    return Stops(
        row_share=course.job_share[a, row],
        row_restart_s=np.where(stopped, jobs.restart_s[number, row], 0.0),
        row_attained_s=course.job_attained_s[a, row],
        gpu_stoppable=gpu.stoppable,
        gpu_restart_s=gpu.restart_s,
        gpu_attained_s=gpu.attained_s,
    )


class _OnGpus(NamedTuple):
    """Of (A, G) jobs on GPUs: whether they can be stopped at all, and now; their restarts, and GPU time had."""

    preemptible: Bools
    stoppable: Bools
    restart_s: Floats
    attained_s: Floats


def _stops_on(
    jobs: JobArrays,
    course: Course,
    a: Ints,
    scene: Scene,
    gpu_job: Ints,
    start_s: Floats,
    work_from_s: Floats,
    gang: Ints,
) -> _OnGpus:
    number, busy, run = scene.list_of[:, None], gpu_job != IDLE, np.maximum(gpu_job, 0)
    preemptible, time_s = busy & jobs.preemptible[number, run], scene.time_s[:, None]
    may = (time_s >= work_from_s) & (time_s - start_s >= course.min_run_s[a])
    return _OnGpus(
        preemptible,
        preemptible & may,
        np.where(preemptible, jobs.restart_s[number, run], 0.0),
        np.where(busy, course.job_attained_s[a, run] + gang * (time_s - start_s), 0.0),
    )


def _shares(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: Ints) -> Shares | None:
    """What concerns shared GPUs; None: no job that may share waits or runs."""
    a, number = n[:, None], course.list_of[n][:, None]
    places = int(course.waiting_count[n].max(initial=0))
    row, gpu_job, mate_job = course.waiting[n][:, :places], machines.gpu_job[n], machines.mate_job[n]
    shareable = jobs.shareable[number, row] & (np.arange(places) < course.waiting_count[a])
    there, mate_there = gpu_job != IDLE, mate_job != IDLE
    run, mate = np.maximum(gpu_job, 0), np.maximum(mate_job, 0)
    may = there & jobs.shareable[number, run]
    if not (may.any() or shareable.any()):
        return None
    asked_mib = np.where(there, jobs.gpu_memory_mib[number, run], 0)
    asked_mib += np.where(mate_there, jobs.gpu_memory_mib[number, mate], 0)
    return Shares(
        row_shareable=shareable,
        row_family=jobs.family[number, row],
        gpu_open=may & ~mate_there,
        gpu_family=jobs.family[number, run],
        gpu_memory_left_mib=hardware.gpu_memory_mib[n] - asked_mib,
        kept=course.told,
        mate_there=mate_there,
        mate_start_s=machines.mate_start_s[n],
        mate_expected_end_s=machines.mate_expected_end_s[n],
        mate_cores=machines.mate_cores[n],
        mate_memory_mib=machines.mate_memory_mib[n],
    )


def _user_service_s(
    machines: Machines, scene: Scene, jobs: JobArrays, course: Course, n: Ints, recent: RecentService | None
) -> Floats:
    """(A, U) GPU seconds that each user has received: of ended attempts, plus of the running ones."""
    ended_s = course.user_service_s[n] if recent is None else recent.ended_s(jobs, course, n, scene.time_s)
    slots = [(scene.gpu_job, scene.gpu_start_s)]
    if machines.mate_job.shape[1]:
        slots.append((machines.mate_job[n], machines.mate_start_s[n]))
    for job, start_s in slots:
        row, gpu = np.nonzero(job != IDLE)
        user = jobs.user[scene.list_of[row], job[row, gpu]]
        ran_s = scene.time_s[row] - start_s[row, gpu]
        np.add.at(ended_s, (row, user), ran_s if recent is None else counted_seconds(recent.half_life_s, ran_s))
    return ended_s
