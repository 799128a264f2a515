"""The gains of actions where jobs of several GPUs wait, by rollouts with the true durations. numpy and numba only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.rollouts.futures import Imagination
from adlro.decide.rollouts.gang_base import GangBase
from adlro.decide.rollouts.gang_futures import copy_gang, copy_gangs_now, gang_cost
from adlro.lab.learn.sampling import FutureDraws
from adlro.numeric.compiled import compiled
from adlro.sim.course import FUTURE, Course
from adlro.state.cluster_arrays import Machines
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats, Ints


class AskedActions(NamedTuple):
    """Actions of S states, up to A of each; the base's own first.

    Attributes:
        size: (S,) number of actions.
        place: (S, A) place in the queue of the job that starts, or HOLD.
        gpus: (S, A, W) its GPUs, then -1.
        reserve: (S, A) place in the queue of the job that GPUs are kept free for, or -1.
        price_per_s: (S,) what a second of waiting costs more, for each second of it (`gang_futures.gang_cost`).
    """

    size: Ints
    place: Ints
    gpus: Ints
    reserve: Ints
    price_per_s: Floats


@compiled
def sample_gangs(
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    clusters: Ints,
    asked: AskedActions,
    mean_gap_s: float,
    base: GangBase,
    draws: FutureDraws,
    room: Imagination,
    costs: Floats,
    gain_s: Floats,
    error_s: Floats,
) -> None:
    """Fills the gains of actions of clusters at decisions: seconds of completion time saved against the base's.

    With a price of waits, what is saved of that counts as well.

    Args:
        clusters: (S,).
        mean_gap_s: mean time between arrivals.
        base: for rows of the room.
        costs: (A, F) room.
        gain_s, error_s: (S, A) mean over the futures, and its standard error.
    """
    futures, ahead = draws.gap.shape[1], draws.gap.shape[2]
    lists, length = jobs.job_count.shape[0], jobs.job_count[0]
    target, list_ = room.course, room.jobs
    for s in range(clusters.shape[0]):
        n, count = clusters[s], asked.size[s]
        now = 0 * count
        played_on = now + 1
        copy_gangs_now(machines, jobs, course, n, jobs.duration_s, room)
        known = target.arrived_count[0]
        running = known - course.waiting_count[n]
        for future in range(futures):
            time_s = machines.time_s[n]
            for i in range(ahead):
                time_s += mean_gap_s * draws.gap[s, future, i]
                pick = min(int(draws.pick[s, future, i] * (lists * length)), lists * length - 1)
                copy_gang(jobs, pick // length, pick % length, jobs.duration_s, list_, known + i)
                list_.submit_s[0, known + i] = time_s
                target.job_state[0, known + i] = FUTURE
            list_.job_count[0] = known + ahead
            for a in range(count):
                job = asked.place[s, a]
                reserve = asked.reserve[s, a]
                costs[a, future] = gang_cost(
                    room,
                    job + running if job >= 0 else job,
                    asked.gpus[s, a],
                    reserve + running if reserve >= 0 else reserve,
                    base,
                    running,
                    asked.price_per_s[s],
                    now,
                    played_on,
                )
        for a in range(count):
            mean, squares = 0.0, 0.0
            for future in range(futures):
                mean += (costs[0, future] - costs[a, future]) / futures
            for future in range(futures):
                off = costs[0, future] - costs[a, future] - mean
                squares += off * off
            gain_s[s, a] = mean
            error_s[s, a] = np.sqrt(squares / max(futures - 1, 1) / futures)
