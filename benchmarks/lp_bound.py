"""A lower bound on the total completion time of a job list that no scheduler can beat, clairvoyant or not. Arrays only.

The time-indexed linear program of nonpreemptive scheduling (Dyer and Wolsey, "Formulating the single machine sequencing
problem with release dates as a mixed integer program", Discrete Applied Mathematics 26, 1990), with GPUs and cores of
each node as capacities: each job starts, in fractions that sum to 1, at times on nodes, and in each slot of time what
is in use fits on average.

What counts is not the program's value but its dual prices. For any prices of GPUs and cores over time, none below 0,
the total completion time of every schedule is at least

    sum over jobs of the cheapest (completion time + what its GPU and cores cost while it runs, anywhere, at any time)
    - what all GPUs and cores cost

(weak Lagrangian duality: Geoffrion, "Lagrangean relaxation for integer programming", Mathematical Programming Study 2,
1974). That is evaluated exactly, in continuous time: the slots and the solver's tolerances cost sharpness, never truth.
"""

from __future__ import annotations

import numpy as np
import scipy.optimize
import scipy.sparse

from adlro.state.observation import Floats
from benchmarks.annealing import Problem

SLOT_S = 2.0
TAIL_GROWTH = 1.25
"""Slots grow by this from one to the next behind the last submission."""


def slots_of(problem: Problem, horizon_s: float, slot_s: float = SLOT_S) -> Floats:
    """(T + 1,) bounds of slots up to a horizon at least."""
    last_s = float(problem.submit_s.max()) + 10.0 * slot_s
    bounds = list(np.arange(float(problem.submit_s.min()), last_s, slot_s))
    width_s = slot_s
    while bounds[-1] < horizon_s:
        width_s *= TAIL_GROWTH
        bounds.append(bounds[-1] + width_s)
    return np.array(bounds)


def prices(problem: Problem, bounds: Floats, most_wait_s: float) -> tuple[Floats, Floats]:
    """Dual prices of the time-indexed program.

    Args:
        problem: the list.
        bounds: of the slots.
        most_wait_s: starts are tried up to so long after a submission; a shorter one costs sharpness only.

    Returns:
        (M, T) prices of a GPU, and of a core, for a second.
    """
    nodes, slots = len(problem.node_gpus), len(bounds) - 1
    job, node, start_s = [], [], []
    for j, submit_s in enumerate(problem.submit_s):
        starts = np.append(submit_s, bounds[(bounds > submit_s) & (bounds <= submit_s + most_wait_s)])
        for m in np.flatnonzero(np.isfinite(problem.duration_s[j])):
            job.append(np.full(len(starts), j))
            node.append(np.full(len(starts), m))
            start_s.append(starts)
    jobs, on, starts_s = np.concatenate(job), np.concatenate(node), np.concatenate(start_s)
    end_s = starts_s + problem.duration_s[jobs, on]
    overlap_s = np.minimum(end_s[:, None], bounds[1:]) - np.maximum(starts_s[:, None], bounds[:-1])
    column, slot = np.nonzero(overlap_s > 0.0)
    in_use_s = overlap_s[column, slot]
    row = on[column] * slots + slot
    shape = (nodes * slots, len(jobs))
    use = scipy.sparse.vstack(
        [
            scipy.sparse.csr_matrix((in_use_s, (row, column)), shape),
            scipy.sparse.csr_matrix((in_use_s * problem.cores[jobs[column]], (row, column)), shape),
        ]
    )
    widths_s = np.diff(bounds)
    room = np.concatenate(
        [np.outer(problem.node_gpus, widths_s).ravel(), np.outer(problem.node_cores, widths_s).ravel()]
    )
    once = scipy.sparse.csr_matrix(
        (np.ones(len(jobs)), (jobs, np.arange(len(jobs)))), (len(problem.submit_s), len(jobs))
    )
    solved = scipy.optimize.linprog(
        end_s - problem.submit_s[jobs],
        A_ub=use,
        b_ub=room,
        A_eq=once,
        b_eq=np.ones(len(problem.submit_s)),
        method="highs",
    )
    if solved.status != 0:
        raise RuntimeError(f"the linear program was not solved: {solved.message}")
    dual = np.maximum(-np.asarray(solved.ineqlin.marginals), 0.0).reshape(2, nodes, slots)
    return dual[0], dual[1]


def bound_s(problem: Problem, bounds: Floats, gpu_price: Floats, core_price: Floats) -> float:
    """The lower bound on the total completion time that prices prove.

    Args:
        problem: the list.
        bounds: (T + 1,) of the slots.
        gpu_price, core_price: (M, T) from 0, constant over each slot; outside the slots everything is free.
    """
    widths_s = np.diff(bounds)
    total = -float((problem.node_gpus @ gpu_price + problem.node_cores @ core_price) @ widths_s)
    for j, submit_s in enumerate(problem.submit_s):
        cheapest = np.inf
        for m in np.flatnonzero(np.isfinite(problem.duration_s[j])):
            duration_s = problem.duration_s[j, m]
            rate = gpu_price[m] + problem.cores[j] * core_price[m]
            paid = np.append(0.0, np.cumsum(rate * widths_s))
            # Between these starts the cost is linear in the start: the least is at one of them.
            starts = np.concatenate([[submit_s], bounds, bounds - duration_s])
            starts = starts[starts >= submit_s]
            end_s = starts + duration_s
            cost = end_s - submit_s + np.interp(end_s, bounds, paid) - np.interp(starts, bounds, paid)
            cheapest = min(cheapest, float(cost.min()))
        total += cheapest
    return total


def lower_bound_s(problem: Problem, horizon_s: float, most_wait_s: float, slot_s: float = SLOT_S) -> float:
    """A lower bound on the total completion time of the list.

    Args:
        problem: the list.
        horizon_s: about when a good schedule ends.
        most_wait_s: about how long a good schedule lets a job wait.
        slot_s: the finer, the sharper and slower.
    """
    bounds = slots_of(problem, horizon_s, slot_s)
    return bound_s(problem, bounds, *prices(problem, bounds, most_wait_s))
