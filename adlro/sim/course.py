"""The progress of job lists on N clusters: the state of jobs and queues. numpy and numba only.

adlro/sim/kernel.py changes it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.numeric.compiled import compiled_part
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import Hardware
from adlro.state.observation import Bools, Floats, Ints

FUTURE, WAITING, RUNNING, FINISHED, IMPOSSIBLE = range(5)
"""States of a job; IMPOSSIBLE: no GPU of the cluster can ever hold it."""

DECISION, DONE, STUCK = range(3)
"""The status of a cluster: at a decision, at the end of its list, or stuck with jobs that can never start."""

NOT_HOLDING = -np.inf

JOBS_S, PRIORITY_S, IDLE_S, FEASIBLE_IDLE_S = range(4)
"""Integrals over time: jobs in the system, their priorities, idle GPUs, and GPUs that a hold leaves idle though some
waiting job fits on them."""


class GpuChanges(NamedTuple):
    """Changes of GPUs, L lists of up to C changes; padding has time inf.

    Attributes:
        time_s: (L, C) ascending.
        gpu: (L, C).
        speed: (L, C) relative to the model; 0: the GPU is lost.
    """

    time_s: Floats
    gpu: Ints
    speed: Floats


class Course(NamedTuple):
    """The progress of the lists of N clusters.

    Attributes:
        list_of: (N,) number of the cluster's job list and changes.
        start_cost_s: (N,) seconds that each start takes before the work begins.
        status: (N,) DECISION, DONE or STUCK.
        job_state: (N, J).
        job_start_s, job_end_s: (N, J) of the last attempt; nan before.
        job_gpus: (N, J, W) GPUs of the last attempt, then -1; W is the greatest number of GPUs of a job.
        job_nodes: (N, J, K) nodes of a packed set of GPUs of each model (`adlro.state.gangs`), for jobs of several GPUs
            that have arrived; K is 0 where all jobs have one GPU.
        job_attempts: (N, J) number of starts.
        waiting: (N, J) numbers of the waiting jobs, in the order of submission.
        waiting_count, arrived_count, finished_count, impossible_count: (N,).
        reserved_job: (N,) the waiting job that GPUs are kept free for; -1: none.
        next_change: (N,) number of the next change.
        hold_until_s: (N,) NOT_HOLDING, or the end of the hold.
        last_event_s: (N,) time of the last arrival or end of a job, or loss or return of a GPU.
        feasible_idle: (N,) while a hold lasts: idle GPUs that some waiting job fits on.
        priority_sum: (N,) sum of the priorities of the jobs in the system.
        known_speed: (N, G) the scheduler's estimate of the GPU's speed: 1 until a caller sets another.
        user_service_s: (N, U) GPU time of ended attempts.
        run_job, run_start_s, run_end_s, run_completed: (N, J + C) ended attempts, in the order of their ends.
        run_gpus: (N, J + C, W) their GPUs, then -1.
        run_count: (N,).
        totals: (N, 4) integrals over time since the begin, by JOBS_S and so on.
        node, gives, taken: (N, M) room to look for sets of GPUs.
    """

    list_of: Ints
    start_cost_s: Floats
    status: Ints
    job_state: NDArray[np.int8]
    job_start_s: Floats
    job_end_s: Floats
    job_gpus: NDArray[np.int32]
    job_nodes: Ints
    job_attempts: NDArray[np.int32]
    waiting: NDArray[np.int32]
    waiting_count: Ints
    arrived_count: Ints
    finished_count: Ints
    impossible_count: Ints
    reserved_job: Ints
    next_change: Ints
    hold_until_s: Floats
    last_event_s: Floats
    feasible_idle: Ints
    priority_sum: Floats
    known_speed: Floats
    user_service_s: Floats
    run_job: NDArray[np.int32]
    run_gpus: NDArray[np.int32]
    run_start_s: Floats
    run_end_s: Floats
    run_completed: Bools
    run_count: Ints
    totals: Floats
    node: Ints
    gives: Ints
    taken: Ints


def new_course(
    hardware: Hardware,
    jobs: JobArrays,
    changes: GpuChanges,
    list_of: Ints,
    *,
    start_cost_s: Floats,
) -> Course:
    """Courses at their start; `begin` advances each cluster to its first decision."""
    batch, gpus = hardware.gpu_model.shape
    size = jobs.submit_s.shape[1]
    runs = size + changes.time_s.shape[1]
    users = int(jobs.user.max(initial=0)) + 1
    nodes, width = hardware.node_cores.shape[1], jobs.widest
    return Course(
        list_of=list_of.astype(np.int64),
        start_cost_s=start_cost_s.astype(np.float64),
        status=np.full(batch, DONE, dtype=np.int64),
        job_state=np.zeros((batch, size), dtype=np.int8),
        job_start_s=np.full((batch, size), np.nan),
        job_end_s=np.full((batch, size), np.nan),
        job_gpus=np.full((batch, size, width), -1, dtype=np.int32),
        job_nodes=np.zeros((batch, size, jobs.duration_s.shape[2] if width > 1 else 0), dtype=np.int64),
        job_attempts=np.zeros((batch, size), dtype=np.int32),
        waiting=np.zeros((batch, size), dtype=np.int32),
        waiting_count=np.zeros(batch, dtype=np.int64),
        arrived_count=np.zeros(batch, dtype=np.int64),
        finished_count=np.zeros(batch, dtype=np.int64),
        impossible_count=np.zeros(batch, dtype=np.int64),
        reserved_job=np.full(batch, -1, dtype=np.int64),
        next_change=np.zeros(batch, dtype=np.int64),
        hold_until_s=np.full(batch, NOT_HOLDING),
        last_event_s=np.zeros(batch),
        feasible_idle=np.zeros(batch, dtype=np.int64),
        priority_sum=np.zeros(batch),
        known_speed=np.ones((batch, gpus)),
        user_service_s=np.zeros((batch, users)),
        run_job=np.zeros((batch, runs), dtype=np.int32),
        run_gpus=np.full((batch, runs, width), -1, dtype=np.int32),
        run_start_s=np.zeros((batch, runs)),
        run_end_s=np.zeros((batch, runs)),
        run_completed=np.zeros((batch, runs), dtype=np.bool_),
        run_count=np.zeros(batch, dtype=np.int64),
        totals=np.zeros((batch, 4)),
        node=np.zeros((batch, nodes), dtype=np.int64),
        gives=np.zeros((batch, nodes), dtype=np.int64),
        taken=np.zeros((batch, nodes), dtype=np.int64),
    )


# ---- the queue


@compiled_part
def place_in_order(queue: NDArray[np.int32], length: int, job: int) -> int:
    """A job's place, present or future, in a queue in the order of submission."""
    low, high = 0, length
    while low < high:
        middle = (low + high) >> 1
        if queue[middle] < job:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_part
def join_queue(course: Course, n: int, job: int) -> None:
    """Adds a job to cluster n's queue."""
    length, queue = course.waiting_count[n], course.waiting[n]
    place = place_in_order(queue, length, job)
    for i in range(length, place, -1):
        queue[i] = queue[i - 1]
    queue[place] = job
    course.waiting_count[n] = length + 1
    course.job_state[n, job] = WAITING


@compiled_part
def leave_queue(course: Course, n: int, job: int) -> None:
    """Removes a job from cluster n's queue; the caller sets its state."""
    length, queue = course.waiting_count[n] - 1, course.waiting[n]
    for i in range(place_in_order(queue, length + 1, job), length):
        queue[i] = queue[i + 1]
    course.waiting_count[n] = length
