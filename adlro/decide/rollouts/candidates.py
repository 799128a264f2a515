"""The candidate actions of a decision. numpy and numba only.

In this order: the base's action; a hold, if that is another action and allowed; then the pairs with the best costs of
the base, also those that it refuses. Identical GPUs of a node count once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.rollouts.rule import Base, hold_greedy, like_the_one_before, score_waiting
from adlro.numeric.compiled import compiled
from adlro.sim.course import Course
from adlro.sim.kernel import hold_is_allowed
from adlro.state.cluster_arrays import Hardware, Machines
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import HOLD, Floats, Ints


class Candidates(NamedTuple):
    """Room for up to C actions of one decision, in the order of their trials; the base's first.

    Attributes:
        job: (C,) number of the job, or HOLD.
        gpu: (C,) number of the GPU, or HOLD.
        cost: (C,) the base's cost of the pair, the lower the better; -inf for its own choice and for hold.
    """

    job: Ints
    gpu: Ints
    cost: Floats


def room_for_candidates(count: int) -> Candidates:
    """Room for `count` actions."""
    return Candidates(np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), np.zeros(count))


@compiled
def find_candidates(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    base: Base,
    candidates: Candidates,
) -> int:
    """Fills in the candidates of cluster n at a decision.

    Returns:
        Their number; 1: there is no choice.
    """
    limit = candidates.job.shape[0]
    base_job, base_gpu = hold_greedy(hardware, machines, jobs, course, n, base)
    candidates.job[0], candidates.gpu[0], candidates.cost[0] = base_job, base_gpu, -np.inf
    first = 1
    if base_job != HOLD and limit > 1 and hold_is_allowed(machines, jobs, course, n):
        candidates.job[1], candidates.gpu[1], candidates.cost[1] = HOLD, HOLD, -np.inf
        first = 2
    count = first
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        for k in range(score_waiting(hardware, machines, jobs, course, n, job, np.inf, base)):  # no pair is refused
            gpu = base.fitting[k]
            if (job == base_job and gpu == base_gpu) or like_the_one_before(hardware, machines, course, n, gpu):
                continue
            cost = -base.scores[k]
            if count == limit and cost >= candidates.cost[count - 1]:
                continue
            place = min(count, limit - 1)
            while place > first and candidates.cost[place - 1] > cost:
                candidates.job[place] = candidates.job[place - 1]
                candidates.gpu[place] = candidates.gpu[place - 1]
                candidates.cost[place] = candidates.cost[place - 1]
                place -= 1
            candidates.job[place], candidates.gpu[place], candidates.cost[place] = job, gpu, cost
            count = min(count + 1, limit)
    return count
