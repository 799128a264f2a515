"""For which job the compiled rule `hold_gang` keeps GPUs free, on the simulator's own arrays. numpy and numba only.

As adlro/decide/gang_scores.py does it for the policy.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.gang_rule import fastest_model, waited_ratio
from adlro.decide.reservation import MODEL, SPREAD, reserve
from adlro.decide.rollouts.gang_base import GangBase
from adlro.decide.rollouts.gang_look import fill_durations, fill_plain_durations, look_ahead
from adlro.decide.rollouts.gang_plain import plain_best_s, plain_set
from adlro.numeric.compiled import compiled_call, compiled_part
from adlro.sim.course import Course
from adlro.sim.fits import find_gives, fits_on_node
from adlro.state.cluster_arrays import Hardware, Machines
from adlro.state.gangs import NEVER, choose_packed, choose_spread
from adlro.state.job_arrays import JobArrays
from adlro.state.room import node_has_room


@compiled_part
def _is_startable(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    base: GangBase,
) -> bool:
    """Whether a job of several GPUs has a set now."""
    number, plain = course.list_of[n], base.plain
    gpu_count = jobs.gpu_count[number, job]
    for model in range(plain.idle.shape[0]):
        packed = course.job_nodes[n, job, model]
        if packed == NEVER or (is_plain and plain.idle[model] < gpu_count):
            continue
        speed = jobs.expected_spread_speed[number, job, model]
        if is_plain and jobs.max_nodes[number, job] == 0:
            if speed > 0.0 or plain_set(base, model, gpu_count, packed, 0):
                return True
            continue
        count = find_gives(hardware, machines, jobs, course, n, job, model)
        if choose_packed(course.gives[n], count, gpu_count, packed, course.taken[n]) or (
            speed > 0.0
            and choose_spread(course.gives[n], count, gpu_count, packed, jobs.max_nodes[number, job], course.taken[n])
        ):
            return True
    return False


@compiled_part
def _reserve(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    base: GangBase,
) -> float:
    """Works out the reservation of a job of cluster n."""
    number = course.list_of[n]
    if jobs.gpu_count[number, job] == 1:
        return np.inf
    look_ahead(hardware, machines, n, base)
    if is_plain:
        fill_plain_durations(jobs, course, n, job, base)
    else:
        fill_durations(hardware, machines, jobs, course, n, job, base)
    return float(
        reserve(
            base.surroundings.outlook,
            jobs.gpu_count[number, job],
            jobs.max_nodes[number, job],
            jobs.cores[number, job],
            jobs.memory_mib[number, job],
            jobs.gpu_memory_mib[number, job],
            course.job_nodes[n, job],
            base.surroundings.model_s,
            jobs.expected_spread_speed[number, job],
            base.surroundings.kept,
        )
    )


@compiled_part
def reserved_job(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, is_plain: bool, base: GangBase
) -> int:
    """The job that has the reservation, or gets it now, worked out into `kept`; -1: none."""
    reserved, number = course.reserved_job[n], course.list_of[n]
    if reserved >= 0 and base.rule.drain > 0.0:
        ratio = _waited_ratio(hardware, machines, jobs, course, n, reserved, is_plain, base)
        if not ratio > base.surroundings.at_depth[2]:
            reserved = -1
    if reserved >= 0 and _reserve(hardware, machines, jobs, course, n, reserved, is_plain, base) < np.inf:
        return int(reserved)
    below, after = np.inf, -1
    while True:
        found, place, most = -1, -1, base.surroundings.at_depth[2]
        for i in range(course.waiting_count[n]):
            job = course.waiting[n, i]
            if jobs.gpu_count[number, job] > 1:
                ratio = _waited_ratio(hardware, machines, jobs, course, n, job, is_plain, base)
                if (
                    most < ratio
                    and (ratio < below or (ratio == below and i > after))
                    and not _is_startable(hardware, machines, jobs, course, n, job, is_plain, base)
                ):
                    found, place, most = job, i, ratio
        if found < 0:
            if base.rule.drain > 0.0:
                return _drained_job(hardware, machines, jobs, course, n, is_plain, base)
            return -1
        if _reserve(hardware, machines, jobs, course, n, found, is_plain, base) < np.inf:
            return int(found)
        below, after = most, place


@compiled_part
def shortest_s(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    base: GangBase,
) -> float:
    """A job's shortest expected duration, on `base.best_model`; inf: on no model are enough GPUs present."""
    if is_plain:
        return plain_best_s(jobs, course, n, job, base)
    best_s = fill_durations(hardware, machines, jobs, course, n, job, base)
    base.best_model[job] = fastest_model(base.surroundings, best_s)
    return best_s


@compiled_part
def _waited_ratio(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    base: GangBase,
) -> float:
    """How many times its duration a job has waited."""
    number = course.list_of[n]
    best_s = shortest_s(hardware, machines, jobs, course, n, job, is_plain, base)
    wait_s = machines.time_s[n] - jobs.submit_s[number, job]
    return waited_ratio(base.rule, wait_s, best_s, jobs.expected_spread[number, job])


@compiled_part
def _could_start(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    base: GangBase,
) -> bool:
    """Whether a waiting job fits now."""
    number = course.list_of[n]
    if jobs.gpu_count[number, job] > machines.idle_count[n]:
        return False
    if jobs.gpu_count[number, job] > 1:
        return _is_startable(hardware, machines, jobs, course, n, job, is_plain, base)
    cores, memory_mib = jobs.cores[number, job], jobs.memory_mib[number, job]
    for node in range(hardware.node_cores.shape[1]):
        left, memory_left_mib = machines.cores_free[n, node], machines.memory_free_mib[n, node]
        if (
            machines.node_idle[n, node] > 0
            and node_has_room(cores, memory_mib, left, memory_left_mib)
            and fits_on_node(hardware, machines, jobs, n, number, job, node)
        ):
            return True
    return False


@compiled_call
def _drained_job(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, is_plain: bool, base: GangBase
) -> int:
    """The job that GPUs are drained for until the next decision, worked out into `kept`; -1: none."""
    rule, number, kept, found, startable_s = base.rule, course.list_of[n], base.surroundings.kept, -1, np.inf
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        best_s = shortest_s(hardware, machines, jobs, course, n, job, is_plain, base)
        if best_s < startable_s and _could_start(hardware, machines, jobs, course, n, job, is_plain, base):
            startable_s = best_s
    below_s, i, last = rule.drain * startable_s, 0, course.waiting_count[n]
    while i <= last:
        # The last time for the job that was found: what is kept must be for it.
        job = course.waiting[n, i] if i < last else found
        i += 1
        if job < 0 or jobs.gpu_count[number, job] == 1:
            continue
        if job != found and (
            shortest_s(hardware, machines, jobs, course, n, job, is_plain, base) >= below_s
            or _is_startable(hardware, machines, jobs, course, n, job, is_plain, base)
        ):
            continue
        start_s = _reserve(hardware, machines, jobs, course, n, job, is_plain, base)
        if start_s == np.inf:
            continue
        length_s = base.surroundings.model_s[kept.figures[MODEL]]
        if kept.figures[SPREAD] == 1:
            length_s /= jobs.expected_spread_speed[number, job, kept.figures[MODEL]]
        if rule.haste * start_s + length_s < below_s:
            found, below_s = job, rule.haste * start_s + length_s
    return int(found)
