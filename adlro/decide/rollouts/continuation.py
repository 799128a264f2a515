"""The outcome of an action: a copy of the cluster, the action, then the base policy to the end.

Costs are total job completion times: the integral of the number of jobs in the system over time (Little's law).
Arrays only.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.rollouts.candidates import Candidates, find_candidates
from adlro.decide.rollouts.rule import Base, hold_greedy
from adlro.numeric.compiled import compiled, compiled_part
from adlro.sim import fork, kernel, starts
from adlro.sim.course import DECISION, DONE, JOBS_S, Course, GpuChanges
from adlro.state.cluster_arrays import Hardware, Machines
from adlro.state.job_arrays import JobArrays

CERTAIN_RATIO = 1e-9
"""A cost counts as lower only by more than this share of it: sums of floats differ in their last digits."""


@compiled_part
def carry_out(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    changes: GpuChanges,
    course: Course,
    n: int,
    job: int,
    gpu: int,
) -> None:
    """Carries out one action for cluster n, and simulates to its next decision; (HOLD, HOLD) holds."""
    if job < 0:
        kernel.hold(hardware, machines, jobs, course, n)
    else:
        starts.start(hardware, machines, jobs, course, n, job, gpu)
    kernel.advance(hardware, machines, jobs, changes, course, n)


@compiled
def step(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    changes: GpuChanges,
    course: Course,
    n: int,
    job: int,
    gpu: int,
) -> None:
    """`carry_out` for callers with few steps: compiling the simulator into each of them takes long."""
    carry_out(hardware, machines, jobs, changes, course, n, job, gpu)


@compiled
def play_base(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    changes: GpuChanges,
    course: Course,
    n: int,
    job: int,
    gpu: int,
    base: Base,
) -> float:
    """Simulates an action for cluster n, then the base policy to the end of its list.

    Returns:
        The integral of jobs in the system, from the cluster's totals at the start; inf if jobs are never placed.
    """
    while course.status[n] == DECISION:
        carry_out(hardware, machines, jobs, changes, course, n, job, gpu)
        if course.status[n] == DECISION:
            job, gpu = hold_greedy(hardware, machines, jobs, course, n, base)
    return float(course.totals[n, JOBS_S]) if course.status[n] == DONE else np.inf


@compiled
def cost_of(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    changes: GpuChanges,
    course: Course,
    n: int,
    job: int,
    gpu: int,
    base: Base,
    scratch_hardware: Hardware,
    scratch_machines: Machines,
    scratch_course: Course,
    m: int,
) -> float:
    """The cost of `play_base` for cluster n, which stays unchanged: row m of the scratch is simulated."""
    fork.copy_machines(machines, n, scratch_machines, m)
    fork.copy_course(jobs, course, n, scratch_course, m)
    return play_base(scratch_hardware, scratch_machines, jobs, changes, scratch_course, m, job, gpu, base)


@compiled
def play_clairvoyant(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    changes: GpuChanges,
    course: Course,
    n: int,
    base: Base,
    scratch_hardware: Hardware,
    scratch_machines: Machines,
    scratch_course: Course,
    candidates: Candidates,
) -> int:
    """Simulates cluster n to the end of its list, with the candidate of the cheapest continuation at each decision.

    The continuations know the later jobs. Another action replaces the base's only at a lower cost, so a list costs no
    more than under the base (sequential improvement: Bertsekas, Tsitsiklis and Wu, "Rollout algorithms for
    combinatorial optimization", Journal of Heuristics 3, 1997).

    Returns:
        The number of decisions with a choice.
    """
    choices = 0
    while course.status[n] == DECISION:
        count = find_candidates(hardware, machines, jobs, course, n, base, candidates)
        best, best_cost = 0, np.inf
        if count > 1:
            choices += 1
            for c in range(count):
                cost = cost_of(
                    hardware,
                    machines,
                    jobs,
                    changes,
                    course,
                    n,
                    candidates.job[c],
                    candidates.gpu[c],
                    base,
                    scratch_hardware,
                    scratch_machines,
                    scratch_course,
                    0,
                )
                if c == 0 or cost < best_cost * (1.0 - CERTAIN_RATIO):
                    best, best_cost = c, cost
        step(hardware, machines, jobs, changes, course, n, candidates.job[best], candidates.gpu[best])
    return choices
