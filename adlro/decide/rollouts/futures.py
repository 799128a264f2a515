"""Imagined futures: a scheduler's present knowledge, and arrivals drawn from the jobs that it has seen.

An imagined list has, in this order, the running jobs, the waiting ones, and the future arrivals. All its figures are
the scheduler's estimates: durations are the expected ones, running jobs end at their expected ends, GPUs keep their
known speeds. The true future arrivals are no input. Arrays only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.errors import InvalidInput
from adlro.numeric.compiled import compiled, compiled_part
from adlro.numeric.draws import standard_exponentials
from adlro.sim import fork
from adlro.sim.course import (
    DECISION,
    FUTURE,
    NOT_HOLDING,
    RUNNING,
    WAITING,
    Course,
    GpuChanges,
    restart_s,
    share_left,
)
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.job_arrays import JobArrays, empty_job_arrays
from adlro.state.machines import count_nodes, left_of, remaining_s
from adlro.state.observation import Floats


class History(NamedTuple):
    """Jobs that the scheduler saw before the present lists.

    Attributes:
        jobs: one list; of its durations `expected_s` is used.
        span_s: (1,) time over which they arrived.
    """

    jobs: JobArrays
    span_s: Floats


class Draws(NamedTuple):
    """The random numbers of F futures of A arrivals; the same for every candidate.

    Attributes:
        gap: (F, A) exponential with mean 1.
        pick: (F, A) uniform in 0..1: selects the job of the history that arrives again.
    """

    gap: Floats
    pick: Floats


class Imagination(NamedTuple):
    """Room for one imagined cluster; row 0 is the decision point, row 1 its continuation."""

    jobs: JobArrays
    changes: GpuChanges
    hardware: Hardware
    machines: Machines
    course: Course


def draw(rng: np.random.Generator, futures: int, ahead: int) -> Draws:
    """Random numbers for `futures` futures of `ahead` arrivals."""
    return Draws(standard_exponentials(rng, (futures, ahead)), rng.random((futures, ahead)))


def history_of(jobs: JobArrays, span_s: float) -> History:
    """Earlier jobs; `span_s`: the time over which they arrived.

    Raises:
        InvalidInput: not exactly one list, or no positive time.
    """
    if len(jobs.job_count) != 1 or not 0 < span_s < np.inf:
        raise InvalidInput(
            f"a history is one list of jobs over a time above 0, not {len(jobs.job_count)} lists over {span_s} s",
            field="history",
        )
    return History(jobs, np.array([span_s]))


def room_to_imagine(hardware: Hardware, longest_list: int, models: int, ahead: int) -> Imagination:
    """Room for the futures of clusters with the hardware of cluster 0.

    Args:
        hardware: the clusters' hardware.
        longest_list: number of jobs of their longest list.
        models: number of GPU models.
        ahead: arrivals of one future.
    """
    jobs = empty_job_arrays(1, hardware.gpu_model.shape[1] + longest_list + ahead, models)
    changes = GpuChanges(np.zeros((1, 0)), np.zeros((1, 0), dtype=np.int64), np.zeros((1, 0)))
    return Imagination(jobs, changes, *fork.scratch(hardware, jobs, changes, 2))


@compiled_part
def copy_job(jobs: JobArrays, number: int, job: int, duration_s: Floats, list_: JobArrays, place: int) -> None:
    """Copies a job to a place of list 0; the caller sets its submission.

    Args:
        duration_s: its durations there: `jobs.expected_s`, or `jobs.duration_s` for callers that may know the truth.
    """
    for model in range(duration_s.shape[2]):
        list_.duration_s[0, place, model] = duration_s[number, job, model]
        list_.expected_s[0, place, model] = jobs.expected_s[number, job, model]
    list_.cores[0, place] = jobs.cores[number, job]
    list_.memory_mib[0, place] = jobs.memory_mib[number, job]
    list_.gpu_memory_mib[0, place] = jobs.gpu_memory_mib[number, job]
    list_.job_type[0, place] = jobs.job_type[number, job]
    list_.priority[0, place] = jobs.priority[number, job]


@compiled_part
def _leave(list_: JobArrays, place: int, restart: float, share: float) -> None:
    """Leaves of a job at a place of list 0 what is left of it: nothing of an imagined list is stopped."""
    for model in range(list_.duration_s.shape[2]):
        list_.duration_s[0, place, model] = left_of(restart, share, list_.duration_s[0, place, model])
        list_.expected_s[0, place, model] = left_of(restart, share, list_.expected_s[0, place, model])


@compiled_part
def set_decision(course: Course, n: int, known: int, imagination: Imagination) -> None:
    """Sets row 0 to the decision of cluster n, whose running and waiting jobs are the `known` first of the list."""
    target = imagination.course
    target.list_of[0] = 0
    target.start_cost_s[0] = course.start_cost_s[n]
    target.status[0] = DECISION
    target.waiting_count[0] = course.waiting_count[n]
    target.arrived_count[0] = known
    target.finished_count[0] = 0
    target.impossible_count[0] = 0
    target.next_change[0] = 0
    target.hold_until_s[0] = NOT_HOLDING
    target.last_event_s[0] = course.last_event_s[n]
    target.feasible_idle[0] = 0
    target.priority_sum[0] = course.priority_sum[n]
    for total in range(target.totals.shape[1]):
        target.totals[0, total] = 0.0
    imagination.jobs.job_count[0] = known


@compiled
def copy_now(
    machines: Machines, jobs: JobArrays, course: Course, n: int, duration_s: Floats, imagination: Imagination
) -> None:
    """Copies the state of cluster n to row 0, without the later jobs of its list; `duration_s` as in `copy_job`."""
    number = course.list_of[n]
    target, state, list_ = imagination.course, imagination.machines, imagination.jobs
    fork.copy_machines(machines, n, state, 0)
    known = 0
    for gpu in range(machines.gpu_job.shape[1]):
        target.known_speed[0, gpu] = course.known_speed[n, gpu]
        job = machines.gpu_job[n, gpu]
        if job == IDLE:
            continue
        state.gpu_job[0, gpu] = known
        list_.priority[0, known] = jobs.priority[number, job]
        target.job_state[0, known] = RUNNING
        known += 1
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        copy_job(jobs, number, job, duration_s, list_, known)
        _leave(list_, known, restart_s(jobs, course, n, job), share_left(course, n, job))
        list_.submit_s[0, known] = jobs.submit_s[number, job]
        target.job_state[0, known] = WAITING
        target.waiting[0, i] = known
        known += 1
    set_decision(course, n, known, imagination)


@compiled
def imagine_now(machines: Machines, jobs: JobArrays, course: Course, n: int, imagination: Imagination) -> None:
    """Sets row 0 to the knowledge of cluster n's scheduler at its decision; no arrivals yet."""
    copy_now(machines, jobs, course, n, jobs.expected_s, imagination)
    time_s, state = machines.time_s[n], imagination.machines
    for gpu in range(machines.gpu_job.shape[1]):
        state.gpu_speed[0, gpu] = course.known_speed[n, gpu] if machines.gpu_speed[n, gpu] > 0.0 else 0.0
        if machines.gpu_job[n, gpu] == IDLE:
            continue
        started_s, expected_end_s = machines.gpu_start_s[n, gpu], machines.gpu_expected_end_s[n, gpu]
        end_s = time_s + remaining_s(time_s, started_s, expected_end_s)
        state.gpu_end_s[0, gpu] = end_s
        state.gpu_expected_end_s[0, gpu] = end_s
    count_nodes(imagination.hardware, state, 0)


@compiled
def imagine_arrivals(
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    history: History,
    draws: Draws,
    future: int,
    imagination: Imagination,
) -> None:
    """Puts one future's arrivals after the known jobs of row 0, in place of the previous future's.

    The jobs of the history and of this list arrive again in random order, at their mean rate.
    """
    target, believed = imagination.course, imagination.jobs
    known, arrived = target.arrived_count[0], course.arrived_count[n]
    earlier = history.jobs.job_count[0]
    seen = earlier + arrived
    mean_gap_s = (history.span_s[0] + machines.time_s[n]) / max(seen, 1)
    time_s = machines.time_s[n]
    ahead = draws.gap.shape[1] if seen > 0 else 0
    for i in range(ahead):
        time_s += mean_gap_s * draws.gap[future, i]
        pick = min(int(draws.pick[future, i] * seen), seen - 1)
        if pick < earlier:
            copy_job(history.jobs, 0, pick, history.jobs.expected_s, believed, known + i)
        else:
            copy_job(jobs, course.list_of[n], pick - earlier, jobs.expected_s, believed, known + i)
        believed.submit_s[0, known + i] = time_s
        target.job_state[0, known + i] = FUTURE
    believed.job_count[0] = known + ahead
