"""The progress of job lists on N clusters: the state of jobs and queues. numpy and numba only.

adlro/sim/kernel.py and starts.py change it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.numeric.compiled import compiled_part
from adlro.state.cluster_arrays import Hardware
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Bools, Floats, Ints

FUTURE, WAITING, RUNNING, FINISHED, IMPOSSIBLE = range(5)
"""States of a job; IMPOSSIBLE: no GPU of the cluster can ever hold it."""

DECISION, DONE, STUCK = range(3)
"""The status of a cluster: at a decision, at the end of its list, or stuck with jobs that can never start."""

NOT_HOLDING = -np.inf

ASKS_STOPS, ASKS_SHARES = 1, 2
"""When the policy is asked while jobs wait and none fits: one runs that may be stopped, now or later; a GPU has one job
alone that may share it."""

JOBS_S, PRIORITY_S, IDLE_S, FEASIBLE_IDLE_S = range(4)
"""Integrals over time: jobs in the system, their priorities, idle GPUs, and GPUs that a hold leaves idle though some
waiting job fits on them."""


_NO_TABLE = np.zeros((0, 0, 0))


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
        asks: (N,) when the policy is asked besides where a job fits: 0, or a sum of ASKS_STOPS and others.
        min_run_s: (N,) an attempt is stopped after as long at least.
        kept: (F, F, K) [family, partner's family, model] the share of its speed that a job keeps beside a partner; 0:
            they can't share. F is 0 where no GPU is ever shared.
        told: (F, F, K) the same, as a scheduler expects it.
        status: (N,) DECISION, DONE or STUCK.
        job_state: (N, J).
        job_start_s, job_end_s: (N, J) of the last attempt; nan before.
        job_gpus: (N, J, W) GPUs of the last attempt, then -1; W is the greatest number of GPUs of a job.
        job_nodes: (N, J, K) nodes of a packed set of GPUs of each model (`adlro.state.gangs`), for jobs of several GPUs
            that have arrived; K is 0 where all jobs have one GPU.
        job_attempts: (N, J) number of starts.
        job_share: (N, J) share of its work that the job had left at the start of its attempt, or has while it waits; of
            this and the next three J is 0 where no job may be stopped.
        job_stops: (N, J) number of stops.
        job_full_s: (N, J) duration of its whole work on the GPUs of the last attempt, at speed 1.
        job_attained_s: (N, J) GPU time of its ended attempts.
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
        run_job, run_start_s, run_end_s, run_completed: (N, J + C) ended attempts, in the order of their ends; J + 2 C
            where GPUs are shared.
        run_gpus: (N, J + C, W) their GPUs, then -1.
        run_count: (N,).
        stop_job, stop_start_s, stop_end_s: (N, S) attempts that were stopped, in the order of their ends; of more than
            S the last are not noted.
        stop_gpus: (N, S, W) their GPUs, then -1.
        stop_count: (N,) attempts that were stopped.
        totals: (N, 4) integrals over time since the begin, by JOBS_S and so on.
        node, gives, taken: (N, M) room to look for sets of GPUs.
    """

    list_of: Ints
    start_cost_s: Floats
    asks: Ints
    min_run_s: Floats
    kept: Floats
    told: Floats
    status: Ints
    job_state: NDArray[np.int8]
    job_start_s: Floats
    job_end_s: Floats
    job_gpus: NDArray[np.int32]
    job_nodes: Ints
    job_attempts: NDArray[np.int32]
    job_share: Floats
    job_stops: NDArray[np.int32]
    job_full_s: Floats
    job_attained_s: Floats
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
    stop_job: NDArray[np.int32]
    stop_gpus: NDArray[np.int32]
    stop_start_s: Floats
    stop_end_s: Floats
    stop_count: Ints
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
    asks: int = 0,
    min_run_s: float = 0.0,
    kept: Floats = _NO_TABLE,
    told: Floats = _NO_TABLE,
) -> Course:
    """Courses at their start; `begin` advances each cluster to its first decision."""
    batch, gpus = hardware.gpu_model.shape
    size = jobs.submit_s.shape[1]
    runs = size + changes.time_s.shape[1] * (2 if len(kept) else 1)
    users = int(jobs.user.max(initial=0)) + 1
    nodes, width = hardware.node_cores.shape[1], jobs.widest
    stoppable = size if jobs.preemptible.any() else 0
    return Course(
        list_of=list_of.astype(np.int64),
        start_cost_s=start_cost_s.astype(np.float64),
        asks=np.full(batch, asks, dtype=np.int64),
        min_run_s=np.full(batch, min_run_s),
        kept=kept,
        told=told,
        status=np.full(batch, DONE, dtype=np.int64),
        job_state=np.zeros((batch, size), dtype=np.int8),
        job_start_s=np.full((batch, size), np.nan),
        job_end_s=np.full((batch, size), np.nan),
        job_gpus=np.full((batch, size, width), -1, dtype=np.int32),
        job_nodes=np.zeros((batch, size, jobs.duration_s.shape[2] if width > 1 else 0), dtype=np.int64),
        job_attempts=np.zeros((batch, size), dtype=np.int32),
        job_share=np.ones((batch, stoppable)),
        job_stops=np.zeros((batch, stoppable), dtype=np.int32),
        job_full_s=np.zeros((batch, stoppable)),
        job_attained_s=np.zeros((batch, stoppable)),
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
        stop_job=np.zeros((batch, stoppable), dtype=np.int32),
        stop_gpus=np.full((batch, stoppable, width), -1, dtype=np.int32),
        stop_start_s=np.zeros((batch, stoppable)),
        stop_end_s=np.zeros((batch, stoppable)),
        stop_count=np.zeros(batch, dtype=np.int64),
        totals=np.zeros((batch, 4)),
        node=np.zeros((batch, nodes), dtype=np.int64),
        gives=np.zeros((batch, nodes), dtype=np.int64),
        taken=np.zeros((batch, nodes), dtype=np.int64),
    )


def with_room_for_stops(course: Course, more: int) -> Course:
    """The same course, with room to note so many more stopped attempts of each cluster."""
    room, most = course.stop_job.shape[1], int(course.stop_count.max(initial=0)) + more
    if most <= room:
        return course
    added = max(most, 2 * room) - room
    return course._replace(
        stop_job=np.pad(course.stop_job, ((0, 0), (0, added))),
        stop_gpus=np.pad(course.stop_gpus, ((0, 0), (0, added), (0, 0)), constant_values=-1),
        stop_start_s=np.pad(course.stop_start_s, ((0, 0), (0, added))),
        stop_end_s=np.pad(course.stop_end_s, ((0, 0), (0, added))),
    )


# ---- what the lists have


@compiled_part
def has_gangs(course: Course) -> bool:
    """Whether some job of the lists has several GPUs."""
    return bool(course.job_nodes.shape[2] > 0)


@compiled_part
def has_shares(course: Course) -> bool:
    """Whether GPUs may be shared."""
    return bool(course.kept.shape[0] > 0)


@compiled_part
def has_stops(course: Course) -> bool:
    """Whether some job of the lists may be stopped."""
    return bool(course.job_share.shape[1] > 0)


@compiled_part
def share_left(course: Course, n: int, job: int) -> float:
    """The share of its work that a waiting job has left."""
    return float(course.job_share[n, job]) if has_stops(course) else 1.0


@compiled_part
def restart_s(jobs: JobArrays, course: Course, n: int, job: int) -> float:
    """What the next start of a waiting job costs: 0 for one that was never stopped."""
    if has_stops(course) and course.job_stops[n, job] > 0:
        return float(jobs.restart_s[course.list_of[n], job])
    return 0.0


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
