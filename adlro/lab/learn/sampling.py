"""What candidate actions are worth, by rollouts that know the truth about the jobs at hand. numpy and numba only.

At a decision each candidate is carried out, and the base policy plays on over the same K futures (common random
numbers): the jobs at hand with their true durations, then arrivals drawn from the world's own jobs at its own rate. How
many jobs the list still has has no way in. The base and whoever learns see estimates only; the true durations are one
draw of what they may be given the estimates, so that costs, averaged over states that look alike, are those expected
given what is seen: without bias, where the scheduler's own rollouts (adlro/decide/rollouts/futures.py) take
the estimates for true.

A cost is a total completion time: the integral of the number of jobs in the system over the future; where jobs count by
their priority, of the sum of priorities.
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
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import Hardware, Machines
from adlro.state.observation import HOLD, Floats, Ints


class Sampled(NamedTuple):
    """Candidates of S states and what they cost; C candidates at most, the base's own first.

    Attributes:
        played: (S,) candidates; 1 or less: there was nothing to choose, and nothing was played.
        place: (S, C) the job's place in the queue, or HOLD.
        gpu: (S, C) or HOLD.
        gain_s: (S, C) mean over the futures of seconds saved against the base's choice; 0 for that itself. Where jobs
            count by their priority: each job's seconds times its priority over the mean of the world's jobs.
        error_s: (S, C) standard error of it.
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
        pick: (S, F, A) uniform in 0..1: which of the world's jobs comes.
        choice: (S, C) uniform in 0..1: which of the lesser candidates are played.
    """

    gap: NDArray[np.float32]
    pick: NDArray[np.float32]
    choice: NDArray[np.float32]


@compiled
def lay_out_arrivals(
    time_s: float, jobs: JobArrays, mean_gap_s: float, draws: FutureDraws, s: int, future: int, room: Imagination
) -> None:
    """Lays one future's arrivals behind the jobs at hand, in place of those of the future before."""
    target, list_ = room.course, room.jobs
    known, lists, ahead = target.arrived_count[0], jobs.job_count.shape[0], draws.gap.shape[2]
    length = jobs.job_count[0]  # all of a world's lists are equally long
    for i in range(ahead):
        time_s += mean_gap_s * draws.gap[s, future, i]
        pick = min(int(draws.pick[s, future, i] * (lists * length)), lists * length - 1)
        copy_job(jobs, pick // length, pick % length, jobs.duration_s, list_, known + i)
        list_.submit_s[0, known + i] = time_s
        target.job_state[0, known + i] = FUTURE
    list_.job_count[0] = known + ahead


@compiled_part
def _keep_some(candidates: Candidates, count: int, sure: int, limit: int, draws: FutureDraws, s: int) -> int:
    """The first `sure` candidates, and of the rest as many as fit, each as likely as the other."""
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
    """Fills rows `first` and on of `sampled` with the candidates of clusters that stand at decisions.

    Args:
        clusters: (S,).
        asked_job, asked_gpu: (S,) an action that must be among the candidates: a job's number or HOLD; -2: none.
        candidates: room for more than are played: the best of them by the base's cost are sure to be, others by chance.
        sure: how many are.
        costs: (C, F) scratch.
        by_priority: jobs count by their priority.
    """
    limit, futures = sampled.place.shape[1], draws.gap.shape[1]
    mean_priority = max(jobs.priority.mean(), 1e-9)
    now = 0 * limit  # rows of the room; as constants they would compile the simulator once more for each
    played_on = now + 1
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
    """What the base would do in clusters that stand at decisions: places in the queue and GPUs, or HOLD."""
    for i in range(clusters.shape[0]):
        n = clusters[i]
        find_candidates(hardware, machines, jobs, course, n, base, one)
        job = one.job[0]
        rows[i] = place_in_order(course.waiting[n], course.waiting_count[n], job) if job >= 0 else HOLD
        gpus[i] = one.gpu[0]
