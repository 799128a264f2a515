"""The compiled rule `hold_gang` where jobs that ask for as many GPUs have the same sets. numpy and numba only.

That is where neither cores nor memory ever bind, and all GPUs of a model are alike, as in most simulations: a decision
works out each set, and each expected wait, once (`Plain`).
"""

from __future__ import annotations

import numpy as np

from adlro.decide.gang_rule import Surroundings, cost_of, ends_before_the_queue, fastest_model, unused_share
from adlro.decide.reservation import MODEL, SAME_INSTANT_S, SLACK
from adlro.decide.rollouts.gang_any import at_most_log1p, log_of
from adlro.decide.rollouts.gang_base import GangBase
from adlro.decide.rollouts.gang_look import fill_plain_durations
from adlro.decide.rollouts.rule import remaining_s
from adlro.numeric.compiled import compiled_part
from adlro.numeric.exact_compiled import log1p
from adlro.sim.course import Course
from adlro.state.cluster_arrays import IDLE, Hardware, Machines
from adlro.state.gangs import NEVER, can_give, choose_packed, choose_spread
from adlro.state.job_arrays import JobArrays


@compiled_part
def plain_set(base: GangBase, model: int, gpu_count: int, packed: int, spread: int) -> bool:
    """Whether there is a set for jobs that accept any number of nodes; works it out, once in a decision."""
    plain, around = base.plain, base.surroundings
    if plain.known[model, gpu_count, spread] == around.known[0]:
        return bool(plain.found[model, gpu_count, spread])
    plain.known[model, gpu_count, spread] = around.known[0]
    gives, count = plain.gives[model], plain.holders[model]
    if spread == 1:
        found = choose_spread(gives, count, gpu_count, packed, 0, plain.taken)
    else:
        found = choose_packed(gives, count, gpu_count, packed, plain.taken)
    plain.found[model, gpu_count, spread] = found
    if found:
        unused, on_kept = 0.0, 0
        for i in range(count):
            if plain.taken[i] > 0:
                unused += unused_share(around, plain.node[model, i], plain.taken[i])
                if around.kept.node[plain.node[model, i]]:
                    on_kept += plain.taken[i]
        plain.unused[model, gpu_count, spread], plain.on_kept[model, gpu_count, spread] = unused, on_kept
    return bool(found)


@compiled_part
def find_nodes_not_kept(base: GangBase) -> None:
    """Fills in, by model, the node for a job of one GPU beside a reservation: of those not kept the fullest."""
    plain, around = base.plain, base.surroundings
    for model in range(plain.idle.shape[0]):
        best = -1
        for i in range(plain.holders[model]):
            node = plain.node[model, i]
            if not around.kept.node[node] and (best < 0 or around.node_idle[node] < around.node_idle[best]):
                best = node
        plain.one[model, 1] = best


@compiled_part
def may_start_plain(around: Surroundings, model: int, gpu_count: int, on_kept: int, duration_s: float) -> bool:
    """`may_start`, where cores and memory never bind.

    Args:
        on_kept: GPUs of the set on kept nodes; for a job of one GPU: its node may be kept.
    """
    kept = around.kept
    if duration_s <= kept.start_s[0] + SAME_INSTANT_S or model != kept.figures[MODEL]:
        return True
    if gpu_count == 1:
        return bool(kept.figures[SLACK] >= 1)
    return bool(on_kept <= kept.figures[SLACK])


@compiled_part
def plain_best_s(jobs: JobArrays, course: Course, n: int, job: int, base: GangBase) -> float:
    """A job's shortest expected duration on any model; inf: on none. Worked out once in a decision, with the model."""
    if base.best_known[job] != base.calls[0]:
        base.best_known[job] = base.calls[0]
        base.best_s[job] = fill_plain_durations(jobs, course, n, job, base)
        base.best_model[job] = fastest_model(base.surroundings, base.best_s[job])
    return float(base.best_s[job])


@compiled_part
def _wait_s(hardware: Hardware, machines: Machines, n: int, model: int, gpu_count: int, base: GangBase) -> float:
    """Expected time until one node of a model has so many idle GPUs, once in a decision; inf: never."""
    plain, around = base.plain, base.surroundings
    if plain.most[model] >= gpu_count:
        return 0.0
    if plain.wait_known[model, gpu_count] == base.calls[0]:
        return float(plain.wait_s[model, gpu_count])
    first_s, free_s = np.inf, plain.free_s
    for i in range(plain.nodes[model]):
        node = plain.node_of[model, i]
        if around.node_there[node] < gpu_count:
            continue
        lacking, count = gpu_count - around.node_idle[node], 0
        for gpu in range(hardware.node_first_gpu[n, node], hardware.node_first_gpu[n, node + 1]):
            if machines.gpu_job[n, gpu] != IDLE:
                its_s = remaining_s(machines, n, gpu)
                place = count
                while place > 0 and free_s[place - 1] > its_s:
                    free_s[place] = free_s[place - 1]
                    place -= 1
                free_s[place] = its_s
                count += 1
        first_s = min(first_s, free_s[lacking - 1])
    plain.wait_known[model, gpu_count], plain.wait_s[model, gpu_count] = base.calls[0], first_s
    return first_s


@compiled_part
def _ends_sooner(
    hardware: Hardware,
    machines: Machines,
    n: int,
    model: int,
    gpu_count: int,
    nodes: int,
    length_s: float,
    duration_s: float,
    base: GangBase,
) -> bool:
    """Whether a set of several nodes is expected to be free so early that the job ends sooner there.

    It is known that it does if the set is free now.

    Args:
        nodes: of a packed set; for a spread one the most that the job accepts, 0: any number.
        length_s: expected duration there.
        duration_s: on the candidate.
    """
    rule, plain, around, count = base.rule, base.plain, base.surroundings, 0
    if nodes == 0 and plain.idle[model] >= gpu_count:
        return True
    gives = around.outlook.gives
    for i in range(plain.nodes[model]):
        node = plain.node_of[model, i]
        able = around.node_idle[node]
        if able < around.node_there[node]:
            for gpu in range(hardware.node_first_gpu[n, node], hardware.node_first_gpu[n, node + 1]):
                if machines.gpu_job[n, gpu] != IDLE:
                    able += duration_s > rule.theta * (rule.kappa * remaining_s(machines, n, gpu) + length_s)
        if able > 0:
            gives[count] = able
            count += 1
    return bool(can_give(gives, count, gpu_count, nodes))


@compiled_part
def _ends_before_the_queue(
    jobs: JobArrays, course: Course, n: int, job: int, model: int, best_s: float, duration_s: float, base: GangBase
) -> bool:
    """`ends_before_the_queue`; fills in the job's expected durations."""
    fill_plain_durations(jobs, course, n, job, base)
    return ends_before_the_queue(base.rule, base.surroundings, model, best_s, duration_s)


@compiled_part
def _is_too_long(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    duration_s: float,
    base: GangBase,
) -> bool:
    """`is_too_long` of the rule, in a plain cluster."""
    rule, around, number = base.rule, base.surroundings, course.list_of[n]
    gpu_count = jobs.gpu_count[number, job]
    fill_plain_durations(jobs, course, n, job, base)
    for model in range(around.model_s.shape[0]):
        for spread in range(1 if gpu_count == 1 else 2):
            length_s = around.model_s[model]
            its_nodes = 1 if gpu_count == 1 else course.job_nodes[n, job, model]
            if spread == 1:
                if jobs.expected_spread_speed[number, job, model] == 0.0:
                    continue
                length_s /= jobs.expected_spread_speed[number, job, model]
                its_nodes = jobs.max_nodes[number, job]
            if rule.theta * length_s >= duration_s:
                continue  # however soon it is free
            if spread == 0 and its_nodes == 1:
                wait_s = _wait_s(hardware, machines, n, model, gpu_count, base)
                if duration_s > rule.theta * (rule.kappa * wait_s + length_s):
                    return True
            elif _ends_sooner(hardware, machines, n, model, gpu_count, its_nodes, length_s, duration_s, base):
                return True
    return False


@compiled_part
def try_plain(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    may_hold: bool,
    reserved: int,
    least: float,
    base: GangBase,
) -> float:
    """The least cost of a job's candidates, if below `least`; which one is in `base.pick`: model, spread, node.

    The node is that of a job of one GPU. inf: no candidate is below.
    """
    number, plain, around, rule = course.list_of[n], base.plain, base.surroundings, base.rule
    alpha, beta = around.at_depth[0], around.at_depth[1]
    gpu_count, best_s = jobs.gpu_count[number, job], plain_best_s(jobs, course, n, job, base)
    ratio = max(machines.time_s[n] - jobs.submit_s[number, job], 0.0) / best_s
    length_ln, above, age_ln = log_of(base, job, 0, best_s), at_most_log1p(ratio), np.nan
    found = np.inf
    # No candidate costs less than one that is as fast as can be, and breaks no node.
    if cost_of(rule, alpha, beta, gpu_count, length_ln, 0.0, 0.0, above) > least + 1e-6:
        return found
    for model in range(plain.idle.shape[0]):
        if plain.idle[model] < gpu_count:
            continue
        expected_s = jobs.expected_s[number, job, model]
        if gpu_count == 1:
            if not expected_s < np.inf or jobs.gpu_memory_mib[number, job] > plain.model_memory_mib[n, model]:
                continue
        elif course.job_nodes[n, job, model] == NEVER:
            continue
        for spread in range(1 if gpu_count == 1 else 2):
            its_s, unused, on_kept = expected_s, 0.0, 0
            if gpu_count > 1:
                speed = jobs.expected_spread_speed[number, job, model]
                if spread == 1:
                    if speed == 0.0:
                        continue
                    its_s /= speed
                if (
                    may_hold
                    and its_s > rule.s_max * best_s
                    and not _ends_before_the_queue(jobs, course, n, job, model, best_s, its_s, base)
                ):
                    continue
                if not plain_set(base, model, gpu_count, course.job_nodes[n, job, model], spread):
                    continue
                unused = plain.unused[model, gpu_count, spread]
                on_kept = plain.on_kept[model, gpu_count, spread]
            elif (
                may_hold
                and its_s > rule.s_max * best_s
                and not _ends_before_the_queue(jobs, course, n, job, model, best_s, its_s, base)
            ):
                continue
            node = plain.one[model, 0]
            if (
                may_hold
                and reserved >= 0
                and job != reserved
                and not may_start_plain(around, model, gpu_count, on_kept, its_s)
            ):
                node = plain.one[model, 1]
                if gpu_count > 1 or node < 0:
                    continue
            if gpu_count == 1:
                unused = unused_share(around, node, 1)
            slow_ln = log_of(base, job, 1 + model * 2 + spread, its_s / best_s)
            if cost_of(rule, alpha, beta, gpu_count, length_ln, slow_ln, unused, above) > min(least, found) + 1e-6:
                continue
            if age_ln != age_ln:
                age_ln = log1p(ratio)
            cost = cost_of(rule, alpha, beta, gpu_count, length_ln, slow_ln, unused, age_ln)
            # On a tie of one job of one GPU the lower-numbered GPU, as a node's GPUs have consecutive numbers.
            better = cost < least and (cost < found or (cost == found and gpu_count == 1 and node < base.pick[2]))
            # The refusal that takes long comes last, for a candidate that would be chosen.
            if better and may_hold and its_s > rule.theta * best_s:
                better = not _is_too_long(
                    hardware, machines, jobs, course, n, job, its_s, base
                ) or _ends_before_the_queue(jobs, course, n, job, model, best_s, its_s, base)
            if better:
                found = cost
                base.pick[0], base.pick[1], base.pick[2] = model, spread, node
    return found
