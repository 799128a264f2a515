"""The values of candidate actions, by rollouts with the true durations of the present jobs. numpy and numba only.

At a decision each candidate is carried out, and the base policy continues over the same K futures (common random
numbers): the present jobs with their true durations, then arrivals drawn from the world's own jobs at its own rate. The
true number of later jobs is no input. The base and the learner use only estimates; the true durations are one sample of
their distribution given the estimates, so costs, averaged over states with equal observations, are the expected ones
given the observation: without bias, whereas the scheduler's own rollouts (adlro/decide/rollouts/futures.py) take the
estimates for true.

A cost is a total completion time: the integral of the number of jobs in the system over the future; with jobs weighted
by priority, of the sum of priorities.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.decide.rollouts.candidates import Candidates, find_candidates
from adlro.decide.rollouts.continuation import cost_of
from adlro.decide.rollouts.futures import Imagination, copy_job, copy_now
from adlro.decide.rollouts.rule import Base
from adlro.numeric.compiled import compiled, compiled_part
from adlro.sim.course import FUTURE, PRIORITY_S, Course, place_in_order
from adlro.state.cluster_arrays import Hardware, Machines
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import HOLD, Floats, Ints


class Sampled(NamedTuple):
    """Candidates of S states and their costs; C candidates at most, the base's own first.

    Attributes:
        played: (S,) number of candidates; 1 or less: there was no choice, and no rollout.
        place: (S, C) the job's place in the queue, or HOLD.
        gpu: (S, C) or HOLD.
        gain_s: (S, C) mean over the futures of seconds saved relative to the base's choice; 0 for that itself. With
            jobs weighted by priority: each job's seconds times its priority over the mean of the world's jobs.
        error_s: (S, C) its standard error.
    """

    played: Ints
    place: NDArray[np.int16]
    gpu: NDArray[np.int16]
    gain_s: NDArray[np.float32]
    error_s: NDArray[np.float32]


class FutureDraws(NamedTuple):
    """Random numbers for S states; F futures of A arrivals.

    Attributes:
        gap: (S, F, A) exponential with mean 1.
        pick: (S, F, A) uniform in 0..1: selects the world's job that arrives.
        choice: (S, C) uniform in 0..1: selects the further candidates.
    """

    gap: NDArray[np.float32]
    pick: NDArray[np.float32]
    choice: NDArray[np.float32]


@compiled
def lay_out_arrivals(
    time_s: float, jobs: JobArrays, mean_gap_s: float, draws: FutureDraws, s: int, future: int, room: Imagination
) -> None:
    """Puts one future's arrivals after the present jobs, in place of the previous future's."""
    target, list_ = room.course, room.jobs
    known, lists, ahead = target.arrived_count[0], jobs.job_count.shape[0], draws.gap.shape[2]
    length = jobs.job_count[0]  # all of a world's lists have the same length
    for i in range(ahead):
        time_s += mean_gap_s * draws.gap[s, future, i]
        pick = min(int(draws.pick[s, future, i] * (lists * length)), lists * length - 1)
        copy_job(jobs, pick // length, pick % length, jobs.duration_s, list_, known + i)
        list_.submit_s[0, known + i] = time_s
        target.job_state[0, known + i] = FUTURE
    list_.job_count[0] = known + ahead


@compiled_part
def _keep_some(candidates: Candidates, count: int, sure: int, limit: int, draws: FutureDraws, s: int) -> int:
    """Selects the first `sure` candidates, and of the others as many as fit, all equally likely."""
    if count <= limit:
        return count
    for place in range(sure, limit):
        other = min(place + int(draws.choice[s, place] * (count - place)), count - 1)
        job, gpu = candidates.job[other], candidates.gpu[other]
        candidates.job[other], candidates.gpu[other] = candidates.job[place], candidates.gpu[place]
        candidates.job[place], candidates.gpu[place] = job, gpu
    return limit


@compiled
def sample(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    clusters: Ints,
    asked_job: Ints,
    asked_gpu: Ints,
    mean_gap_s: float,
    base: Base,
    draws: FutureDraws,
    room: Imagination,
    candidates: Candidates,
    sure: int,
    costs: Floats,
    sampled: Sampled,
    first: int,
    by_priority: bool,
) -> None:
    """Fills rows of `sampled` from `first` on with the candidates of clusters at decisions.

    Args:
        clusters: (S,).
        asked_job, asked_gpu: (S,) a required candidate: a job's number or HOLD; -2: none.
        candidates: room for more than the played ones: the best of them by the base's cost are always played, others by
            chance.
        sure: number of those always played.
        costs: (C, F) scratch.
        by_priority: jobs are weighted by their priority.
    """
    limit, futures = sampled.place.shape[1], draws.gap.shape[1]
    mean_priority = max(jobs.priority.mean(), 1e-9)
    now, played_on = 0, 1  # rows of the room
    for i in range(clusters.shape[0]):
        n, row = clusters[i], first + i
        count = find_candidates(hardware, machines, jobs, course, n, base, candidates)
        count = _keep_some(candidates, count, sure, limit, draws, i)
        if asked_job[i] >= HOLD:
            there = False
            for c in range(count):
                there |= candidates.job[c] == asked_job[i] and candidates.gpu[c] == asked_gpu[i]
            if not there:
                count = min(count + 1, limit)
                candidates.job[count - 1], candidates.gpu[count - 1] = asked_job[i], asked_gpu[i]
        sampled.played[row] = count
        if count < 2:
            continue
        copy_now(machines, jobs, course, n, jobs.duration_s, room)
        for future in range(futures):
            lay_out_arrivals(machines.time_s[n], jobs, mean_gap_s, draws, i, future, room)
            for c in range(count):
                job = candidates.job[c]
                if job >= 0:
                    job = room.course.waiting[0, place_in_order(course.waiting[n], course.waiting_count[n], job)]
                costs[c, future] = cost_of(
                    room.hardware,
                    room.machines,
                    room.jobs,
                    room.changes,
                    room.course,
                    now,
                    job,
                    candidates.gpu[c],
                    base,
                    room.hardware,
                    room.machines,
                    room.course,
                    played_on,
                )
                if by_priority and costs[c, future] < np.inf:
                    costs[c, future] = room.course.totals[played_on, PRIORITY_S] / mean_priority
        for c in range(count):
            job = candidates.job[c]
            place = place_in_order(course.waiting[n], course.waiting_count[n], job) if job >= 0 else HOLD
            sampled.place[row, c], sampled.gpu[row, c] = place, candidates.gpu[c]
            mean, squares = 0.0, 0.0
            for future in range(futures):
                mean += (costs[0, future] - costs[c, future]) / futures
            for future in range(futures):
                off = costs[0, future] - costs[c, future] - mean
                squares += off * off
            sampled.gain_s[row, c] = mean
            sampled.error_s[row, c] = np.sqrt(squares / max(futures - 1, 1) / futures)


@compiled
def base_actions(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    clusters: Ints,
    base: Base,
    one: Candidates,
    rows: Ints,
    gpus: Ints,
) -> None:
    """The base's actions for clusters at decisions: places in the queue and GPUs, or HOLD."""
    for i in range(clusters.shape[0]):
        n = clusters[i]
        find_candidates(hardware, machines, jobs, course, n, base, one)
        job = one.job[0]
        rows[i] = place_in_order(course.waiting[n], course.waiting_count[n], job) if job >= 0 else HOLD
        gpus[i] = one.gpu[0]
