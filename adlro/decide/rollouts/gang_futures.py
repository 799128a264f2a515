"""Futures of a cluster whose jobs may have several GPUs: the known jobs, drawn arrivals, and `hold_gang` to the end.

An imagined list has, in this order, the running jobs, the waiting ones, and the arrivals. Nothing is stopped in it, and
no GPU is shared. numpy and numba only.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.rollouts.futures import Imagination, copy_job, set_decision
from adlro.decide.rollouts.gang_base import GangBase
from adlro.decide.rollouts.gang_rule import hold_gang
from adlro.numeric.compiled import compiled_call, compiled_part
from adlro.sim import fork
from adlro.sim.course import (
    DECISION,
    DONE,
    JOBS_S,
    RUNNING,
    WAITING,
    Course,
    GpuChanges,
    restart_s,
    share_left,
)
from adlro.sim.kernel import advance, hold
from adlro.sim.starts import start_gang
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.job_arrays import JobArrays, empty_job_arrays
from adlro.state.machines import left_of
from adlro.state.observation import HOLD, Floats, Ints


def room_for_gangs(hardware: Hardware, longest: int, models: int, width: int, ahead: int) -> Imagination:
    """Room for the futures of clusters with the hardware of cluster 0.

    Args:
        hardware: the clusters' hardware.
        longest: greatest number of jobs that wait or run at a time, apart from one a GPU.
        models: number of GPU models.
        width: greatest number of GPUs of a job.
        ahead: arrivals of one future.
    """
    jobs = empty_job_arrays(1, hardware.gpu_model.shape[1] + longest + ahead, models)
    jobs.gpu_count[0, 0] = width  # so that the course has room for so many
    changes = GpuChanges(np.zeros((1, 0)), np.zeros((1, 0), dtype=np.int64), np.zeros((1, 0)))
    return Imagination(jobs, changes, *fork.scratch(hardware, jobs, changes, 2))


@compiled_part
def copy_gang(jobs: JobArrays, number: int, job: int, duration_s: Floats, list_: JobArrays, place: int) -> None:
    """`copy_job`, with what counts of a job of several GPUs."""
    copy_job(jobs, number, job, duration_s, list_, place)
    list_.gpu_count[0, place] = jobs.gpu_count[number, job]
    list_.max_nodes[0, place] = jobs.max_nodes[number, job]
    list_.expected_spread[0, place] = jobs.expected_spread[number, job]
    for model in range(duration_s.shape[2]):
        list_.expected_spread_speed[0, place, model] = jobs.expected_spread_speed[number, job, model]
        list_.spread_speed[0, place, model] = jobs.spread_speed[number, job, model]


@compiled_part
def copy_gangs_now(
    machines: Machines, jobs: JobArrays, course: Course, n: int, duration_s: Floats, room: Imagination
) -> None:
    """Copies the state of cluster n to row 0, without the later jobs of its list; `duration_s` as in `copy_job`."""
    number = course.list_of[n]
    target, state, list_ = room.course, room.machines, room.jobs
    fork.copy_machines(machines, n, state, 0)
    known = 0
    for gpu in range(machines.gpu_job.shape[1]):
        target.known_speed[0, gpu] = course.known_speed[n, gpu]
        job = machines.gpu_job[n, gpu]
        if job == IDLE:
            continue
        first = gpu
        if machines.gpu_gang[n, gpu] > 1:
            for other in range(gpu):
                if machines.gpu_job[n, other] == job:
                    first = other
                    break
        if first < gpu:
            state.gpu_job[0, gpu] = state.gpu_job[0, first]
            continue
        state.gpu_job[0, gpu] = known
        list_.priority[0, known] = jobs.priority[number, job]
        list_.gpu_count[0, known] = machines.gpu_gang[n, gpu]
        for i in range(target.job_gpus.shape[2]):
            target.job_gpus[0, known, i] = course.job_gpus[n, job, i] if i < course.job_gpus.shape[2] else -1
        target.job_state[0, known] = RUNNING
        known += 1
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        copy_gang(jobs, number, job, duration_s, list_, known)
        restart, share = restart_s(jobs, course, n, job), share_left(course, n, job)
        for model in range(duration_s.shape[2]):
            list_.duration_s[0, known, model] = left_of(restart, share, list_.duration_s[0, known, model])
            list_.expected_s[0, known, model] = left_of(restart, share, list_.expected_s[0, known, model])
            target.job_nodes[0, known, model] = course.job_nodes[n, job, model]
        list_.submit_s[0, known] = jobs.submit_s[number, job]
        target.job_state[0, known] = WAITING
        target.waiting[0, i] = known
        known += 1
    set_decision(course, n, known, room)
    target.reserved_job[0] = -1


@compiled_part
def half_squares_of_waits(room: Imagination, first: int, row: int) -> float:
    """Half of the sum of the waits' squares in a future, in square seconds.

    Times a price it is what waits cost beside the completion times: a second of waiting then costs the price more for
    each second that the job has waited. A sum of completion times alone does not tell a long wait of one job from short
    ones of many.

    Args:
        room: with a future that was simulated to its end.
        first: the jobs before this number ran already.
        row: of the room, the simulated one.
    """
    squares = 0.0
    for each in range(first, room.jobs.job_count[0]):
        wait_s = room.course.job_start_s[row, each] - room.jobs.submit_s[0, each]
        squares += wait_s * wait_s
    return 0.5 * squares


@compiled_call
def gang_cost(
    room: Imagination,
    job: int,
    gpus: Ints,
    reserve: int,
    base: GangBase,
    first: int,
    now: int,
    played_on: int,
) -> tuple[float, float]:
    """Simulates an action at the decision in row `now` of the room, then `hold_gang` to the end of its list.

    Not split in two: numba compiles the inlined rule again for each compiled function between it and the caller, which
    takes half a minute each.

    Args:
        room: with the decision.
        job: number of the job that starts, or HOLD.
        gpus: (W,) its GPUs in ascending order, then -1.
        reserve: number of the job that GPUs are kept free for from now on; -1: none.
        base: the rule.
        first: the jobs before this number run already.
        now, played_on: rows of the room: of the decision, which stays, and the simulated one.

    Returns:
        The integral of jobs in the system, from the cluster's totals at the start, and `half_squares_of_waits`.
        (inf, 0): jobs are never placed. (nan, 0): the job can't start there.
    """
    fork.copy_machines(room.machines, now, room.machines, played_on)
    fork.copy_course(room.jobs, room.course, now, room.course, played_on)
    hardware, machines, jobs, course = room.hardware, room.machines, room.jobs, room.course
    course.reserved_job[played_on] = reserve
    for i in range(base.gpus.shape[0]):
        base.gpus[i] = gpus[i] if i < gpus.shape[0] else HOLD
    while course.status[played_on] == DECISION:
        if job < 0:
            hold(hardware, machines, jobs, course, played_on)
        elif not start_gang(hardware, machines, jobs, course, played_on, job, base.gpus):
            return np.nan, 0.0
        advance(hardware, machines, jobs, room.changes, course, played_on)
        if course.status[played_on] == DECISION:
            job = hold_gang(hardware, machines, jobs, course, played_on, base)
    if course.status[played_on] != DONE:
        return np.inf, 0.0
    return float(course.totals[played_on, JOBS_S]), half_squares_of_waits(room, first, played_on)
