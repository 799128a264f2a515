"""The candidates of one job under the compiled rule `hold_gang`, on any cluster. numpy and numba only."""

from __future__ import annotations

import numpy as np

from adlro.decide.gang_rule import cost_of, ends_before_the_queue, is_too_long, unused_share
from adlro.decide.reservation import may_start
from adlro.decide.rollouts.gang_base import GangBase
from adlro.decide.rollouts.gang_look import fill_durations, look_ahead
from adlro.numeric.compiled import compiled_call, compiled_part
from adlro.numeric.exact_compiled import log, log1p
from adlro.sim.course import Course
from adlro.sim.fits import find_gives, is_idle
from adlro.state.cluster_arrays import Hardware, Machines
from adlro.state.gangs import NEVER, choose_packed, choose_spread
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import HOLD, Ints
from adlro.state.room import has_room


@compiled_part
def log_of(base: GangBase, job: int, place: int, value: float) -> float:
    """The logarithm of a number that mostly was the same at the last decision."""
    if base.log_of[job, place] != value:
        base.log_of[job, place] = value
        base.log[job, place] = log(value)
    return float(base.log[job, place])


@compiled_part
def at_most_log1p(ratio: float) -> float:
    """A number that is not below ln(1 + ratio), quickly: tangents at 0, 3 and 19."""
    return min(ratio, 1.3863 + (ratio - 3.0) * 0.25, 2.9958 + (ratio - 19.0) * 0.05)


@compiled_part
def cost_here(
    machines: Machines,
    jobs: JobArrays,
    n: int,
    number: int,
    job: int,
    best_s: float,
    duration_s: float,
    unused: float,
    place: int,
    least: float,
    base: GangBase,
) -> float:
    """The cost of a candidate; inf where it is above `least` for certain.

    Args:
        place: that of its duration's logarithm.
    """
    ratio = max(machines.time_s[n] - jobs.submit_s[number, job], 0.0) / best_s
    gpu_count, length_ln = jobs.gpu_count[number, job], log_of(base, job, 0, best_s)
    slow_ln = log_of(base, job, 1 + place, duration_s / best_s)
    alpha, beta = base.surroundings.at_depth[0], base.surroundings.at_depth[1]
    # Logarithms of times waited are new at each decision.
    if cost_of(base.rule, alpha, beta, gpu_count, length_ln, slow_ln, unused, at_most_log1p(ratio)) > least + 1e-6:
        return np.inf
    return float(cost_of(base.rule, alpha, beta, gpu_count, length_ln, slow_ln, unused, log1p(ratio)))


@compiled_call
def set_of(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    model: int,
    spread: int,
    gpus: Ints,
    base: GangBase,
) -> bool:
    """Fills in the GPUs of a set for a job of several, then HOLD; returns False where there is none now."""
    number = course.list_of[n]
    gpu_count, packed = jobs.gpu_count[number, job], course.job_nodes[n, job, model]
    count = find_gives(hardware, machines, jobs, course, n, job, model)
    gives, taken = course.gives[n], course.taken[n]
    if spread == 1:
        found = choose_spread(gives, count, gpu_count, packed, jobs.max_nodes[number, job], taken)
    else:
        found = choose_packed(gives, count, gpu_count, packed, taken)
    for i in range(gpus.shape[0]):
        gpus[i] = HOLD
    if not found:
        return False
    place = 0
    for i in range(count):
        gpu, left = hardware.node_first_gpu[n, course.node[n, i]], taken[i]
        while left > 0:
            if (
                is_idle(machines, n, gpu)
                and hardware.gpu_model[n, gpu] == model
                and hardware.gpu_memory_mib[n, gpu] >= jobs.gpu_memory_mib[number, job]
            ):
                gpus[place] = gpu
                place += 1
                left -= 1
            gpu += 1
    return True


@compiled_call
def try_any(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    may_hold: bool,
    reserved: int,
    least: float,
    base: GangBase,
) -> float:
    """The least cost of a job's candidates, where cores or memory may bind; its GPUs are in `trial`.

    Only what is below `least` counts; inf: nothing is.
    """
    number, around, found = course.list_of[n], base.surroundings, np.inf
    gpu_count = jobs.gpu_count[number, job]
    best_s = fill_durations(hardware, machines, jobs, course, n, job, base)
    look_ahead(hardware, machines, n, base)
    if gpu_count == 1:
        return _try_one(hardware, machines, jobs, course, n, job, is_plain, may_hold, reserved, best_s, least, base)
    trial, best = base.trial, base.best
    for model in range(base.plain.idle.shape[0]):
        if course.job_nodes[n, job, model] == NEVER:
            continue
        for spread in range(2):
            speed = jobs.expected_spread_speed[number, job, model]
            if spread == 1 and speed == 0.0:
                continue
            if not set_of(hardware, machines, jobs, course, n, job, model, spread, trial, base):
                continue
            its_s, unused, i = 0.0, 0.0, 0
            while i < gpu_count:
                node, taken = hardware.gpu_node[n, trial[i]], 0
                while i < gpu_count and hardware.gpu_node[n, trial[i]] == node:
                    its_s = max(its_s, base.duration_s[base.gpu_kind[trial[i]]])
                    taken += 1
                    i += 1
                unused += unused_share(around, node, taken)
            if spread == 1:
                its_s /= speed
            if may_hold and _is_refused(jobs, course, n, job, is_plain, reserved, best_s, its_s, trial, base):
                continue
            cost = cost_here(machines, jobs, n, number, job, best_s, its_s, unused, model * 2 + spread, least, base)
            if cost < least and cost < found:
                found = cost
                for k in range(best.shape[0]):
                    best[k] = trial[k]
    for k in range(best.shape[0]):
        trial[k] = best[k]
    return float(found)


@compiled_part
def _is_refused(
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    reserved: int,
    best_s: float,
    duration_s: float,
    gpus: Ints,
    base: GangBase,
) -> bool:
    """Whether the rule refuses a candidate, where a hold is allowed."""
    number, around = course.list_of[n], base.surroundings
    gpu_count = jobs.gpu_count[number, job]
    cores, memory_mib = jobs.cores[number, job], jobs.memory_mib[number, job]
    gpu_memory_mib, model = jobs.gpu_memory_mib[number, job], around.outlook.gpu_model[gpus[0]]
    if duration_s > base.rule.s_max * best_s and not ends_before_the_queue(
        base.rule, around, model, best_s, duration_s
    ):
        return True
    if (
        reserved >= 0
        and job != reserved
        and not may_start(around.outlook, around.kept, gpus, gpu_count, duration_s, cores, memory_mib)
    ):
        return True
    if duration_s <= base.rule.theta * best_s:
        return False
    too_long = bool(
        is_too_long(
            base.rule,
            around,
            duration_s,
            gpu_count,
            jobs.max_nodes[number, job],
            cores * (not is_plain),
            memory_mib * (not is_plain),
            gpu_memory_mib * (not is_plain),
            course.job_nodes[n, job],
            jobs.expected_spread_speed[number, job],
        )
    )
    return too_long and not ends_before_the_queue(base.rule, around, model, best_s, duration_s)


@compiled_part
def _try_one(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    may_hold: bool,
    reserved: int,
    best_s: float,
    least: float,
    base: GangBase,
) -> float:
    """`try_any` of a job of one GPU: of each kind the GPU on the node with the fewest idle ones."""
    number, around, trial, best = course.list_of[n], base.surroundings, base.trial, base.best
    found, chosen = np.inf, HOLD
    for k in range(trial.shape[0]):
        trial[k] = HOLD
    for kind in range(base.kinds[0]):
        if not base.duration_s[kind] < np.inf:
            continue
        of_kind, fewest = -1, 0
        for gpu in range(base.kind_gpu[kind], hardware.gpu_count[n]):
            node = hardware.gpu_node[n, gpu]
            if (
                not is_idle(machines, n, gpu)
                or base.gpu_kind[gpu] != kind
                or (of_kind >= 0 and around.node_idle[node] >= fewest)
                or not has_room(
                    jobs.cores[number, job],
                    jobs.memory_mib[number, job],
                    jobs.gpu_memory_mib[number, job],
                    machines.cores_free[n, node],
                    machines.memory_free_mib[n, node],
                    hardware.gpu_memory_mib[n, gpu],
                )
            ):
                continue
            trial[0] = gpu
            its_s = base.duration_s[kind]
            if may_hold and _is_refused(jobs, course, n, job, is_plain, reserved, best_s, its_s, trial, base):
                continue
            of_kind, fewest = gpu, around.node_idle[node]
        if of_kind < 0:
            continue
        unused = unused_share(around, hardware.gpu_node[n, of_kind], 1)
        its_s = base.duration_s[kind]
        cost = cost_here(machines, jobs, n, number, job, best_s, its_s, unused, 0, least, base)
        if cost < least and (cost < found or (cost == found and of_kind < chosen)):
            found, chosen = cost, of_kind
    best[0] = trial[0] = chosen
    return float(found)
