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
    """

    size: Ints
    place: Ints
    gpus: Ints
    reserve: Ints


class Gains(NamedTuple):
    """What the actions of S states save against the base's, means over the futures, and what is known of these means.

    Attributes:
        gain_s: (S, A) seconds of completion time.
        waits_s2: (S, A) half of the waits' squares (`gang_futures.half_squares_of_waits`).
        variance, covariance, waits_variance: (S, A) of the two means.
    """

    gain_s: Floats
    waits_s2: Floats
    variance: Floats
    covariance: Floats
    waits_variance: Floats

    def gain_at(self, price: Floats | float) -> Floats:
        """The gains where a second of waiting costs `price` more for each unit of time of the wait."""
        found: Floats = self.gain_s + price * self.waits_s2
        return found

    def variance_at(self, price: Floats | float) -> Floats:
        """The variances of `gain_at`."""
        found: Floats = self.variance + 2.0 * price * self.covariance + price * price * self.waits_variance
        return np.maximum(found, 0.0)


def room_for_gains(states: int, actions: int) -> Gains:
    """Zeros, to be filled in."""
    return Gains(*np.zeros((5, states, actions)))


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
    gains: Gains,
) -> None:
    """Fills in the gains of actions of clusters at decisions.

    Args:
        clusters: (S,).
        mean_gap_s: mean time between arrivals.
        base: for rows of the room.
        costs: (2, A, F) room.
    """
    futures, ahead = draws.gap.shape[1], draws.gap.shape[2]
    lists, length = jobs.job_count.shape[0], jobs.job_count[0]
    target, list_ = room.course, room.jobs
    for s in range(clusters.shape[0]):
        n, count = clusters[s], asked.size[s]
        now, played_on = 0, 1  # rows of the room
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
                costs[0, a, future], costs[1, a, future] = gang_cost(
                    room,
                    job + running if job >= 0 else job,
                    asked.gpus[s, a],
                    reserve + running if reserve >= 0 else reserve,
                    base,
                    running,
                    now,
                    played_on,
                )
        for a in range(count):
            mean, of_waits = 0.0, 0.0
            for future in range(futures):
                mean += (costs[0, 0, future] - costs[0, a, future]) / futures
                of_waits += (costs[1, 0, future] - costs[1, a, future]) / futures
            squares, products, of_waits_squares = 0.0, 0.0, 0.0
            for future in range(futures):
                off = costs[0, 0, future] - costs[0, a, future] - mean
                off_waits = costs[1, 0, future] - costs[1, a, future] - of_waits
                squares += off * off
                products += off * off_waits
                of_waits_squares += off_waits * off_waits
            share = 1.0 / (max(futures - 1, 1) * futures)
            gains.gain_s[s, a], gains.waits_s2[s, a] = mean, of_waits
            gains.variance[s, a], gains.covariance[s, a] = squares * share, products * share
            gains.waits_variance[s, a] = of_waits_squares * share
