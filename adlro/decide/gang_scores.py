"""Which candidates of an observation the rule `hold_gang` takes, and for which job it keeps GPUs free. Compiled.

adlro/decide/gang_rule.py has the costs and refusals. At most one job has a reservation (adlro/decide/reservation.py):

    it stays      Where no job has one, the job of several GPUs that fits nowhere now and has waited the most times its
                  shortest duration b gets it, if that is more than rho times, later in a deep queue; it keeps it
                  until it starts, or with a factor `drain` while that holds.
    it passes     With a factor `drain` above 0, and where no job has waited so long: the job of several GPUs that fits
                  nowhere now and has the least haste wait + duration gets it, if that is less than drain times the
                  shortest b of the jobs that could start now: the wait is the expected time until its set is free, the
                  duration what is expected there. It has it until the next decision, where that is worked out anew.

numpy and numba only.
"""

from __future__ import annotations

import numpy as np

from adlro.decide.gang_rule import (
    GangRule,
    Surroundings,
    add_to_queue,
    as_seen_by,
    as_seen_by_all,
    cost_of,
    count_gpus,
    counts_queue,
    empty_queue,
    ends_before_the_queue,
    fastest_model,
    fill_model_s,
    is_too_long,
    look_at_depth,
    unused_share,
    waited_ratio,
)
from adlro.decide.looked import ALONE, CHOOSES, Looked, as_type, is_picky
from adlro.decide.reservation import MODEL, SPREAD, keep_whole, may_start, reserve
from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.numeric.exact_compiled import log, log1p
from adlro.state.gangs import Outlook
from adlro.state.observation import Bools, Floats, Gangs, Ints, Observation


def never_short(observation: Observation, outlook: Outlook, n: int) -> bool:
    """Whether neither cores nor memory ever keep a job from a GPU of a model on which it can run.

    GPUs of a model have equal memory then, and a node has enough for as many of the most demanding jobs as it has GPUs.
    """
    return bool(
        _never_short(
            outlook,
            as_type(observation.job_waiting[n], np.bool_),
            as_type(observation.job_cores[n], np.int64),
            as_type(observation.job_memory_mib[n], np.int64),
            np.empty(len(observation.gpu_models), dtype=np.int64),
        )
    )


@compiled
def _never_short(outlook: Outlook, waiting: Bools, cores: Ints, memory_mib: Ints, of_model: Ints) -> bool:
    """`never_short`, for callers in Python."""
    return is_never_short(outlook, waiting, cores, memory_mib, of_model)


@compiled_part
def is_never_short(outlook: Outlook, waiting: Bools, cores: Ints, memory_mib: Ints, of_model: Ints) -> bool:
    """`never_short`.

    Args:
        waiting, cores, memory_mib: (J,) of the jobs in the queue.
        of_model: (K,) room for the memory of each model's GPUs.
    """
    most_cores, most_mib = 0, 0
    for model in range(of_model.shape[0]):
        of_model[model] = -1
    for job in range(waiting.shape[0]):
        if waiting[job]:
            most_cores, most_mib = max(most_cores, cores[job]), max(most_mib, memory_mib[job])
    for gpu in range(outlook.gpu_model.shape[0]):
        most_cores = max(most_cores, outlook.gpu_cores_held[gpu])
        most_mib = max(most_mib, outlook.gpu_memory_held_mib[gpu])
        model, its_mib = outlook.gpu_model[gpu], outlook.gpu_memory_mib[gpu]
        if its_mib >= 0:
            if of_model[model] >= 0 and of_model[model] != its_mib:
                return False
            of_model[model] = its_mib
    for node in range(outlook.node_cores_free.shape[0]):
        gpus, its_cores, its_mib = 0, outlook.node_cores_free[node], outlook.node_memory_free_mib[node]
        for gpu in range(outlook.node_first_gpu[node], outlook.node_first_gpu[node + 1]):
            if outlook.gpu_memory_mib[gpu] >= 0:
                gpus += 1
                its_cores += outlook.gpu_cores_held[gpu]
                its_mib += outlook.gpu_memory_held_mib[gpu]
        if most_cores * gpus > its_cores or most_mib * gpus > its_mib:
            return False
    return True


@compiled
def score_cluster(
    rule: GangRule,
    surroundings: Surroundings,
    looked: Looked,
    gangs: Gangs,
    n: int,
    plain: bool,
    scores: Floats,
    best_of_kind: Ints,
) -> int:
    """Fills the scores of the rows of cluster n in the observation's table; -inf: refused.

    Args:
        surroundings: of the cluster, with its outlook.
        looked, gangs: of the observation.
        plain: whether neither cores nor memory ever keep a job from a GPU of a model on which it can run: then all that
            ask for as many GPUs wait equally long.
        scores: (C,) of all clusters' rows.
        best_of_kind: (S,) room.

    Returns:
        The place of the job that has the reservation from now on; -1: none.
    """
    count_gpus(surroundings, looked.gpu_idle[n], looked.gpu_kind[n])
    count_queue(rule, surroundings, looked, gangs, n)
    return score_rows(rule, surroundings, looked, gangs, n, plain, scores[:0], scores, best_of_kind)


@compiled_call
def score_rows(
    rule: GangRule,
    surroundings: Surroundings,
    looked: Looked,
    gangs: Gangs,
    n: int,
    plain: bool,
    known: Floats,
    scores: Floats,
    best_of_kind: Ints,
) -> int:
    """`score_cluster`, once the GPUs and the queue of the cluster are counted.

    Args:
        known: (C,) scores of this decision by a rule with the same weights that refuses nothing; -inf: to be worked
            out; or (0,): all are.
    """
    table, kept = looked.table, surroundings.kept
    alpha, beta = surroundings.at_depth[0], surroundings.at_depth[1]
    may_hold, time_s = looked.hold_allowed[n], looked.time_s[n]
    reserved = _reserved_job(rule, surroundings, looked, gangs, n)
    best = -np.inf
    for job in range(looked.job_waiting.shape[1]):
        begin, end = table.first[n, job], table.first[n, job + 1]
        if begin == end:
            continue
        gpu_count, duration_s = gangs.gpu_count[n, job], looked.kind_duration_s[n, job]
        cores, memory_mib = looked.job_cores[n, job], looked.job_memory_mib[n, job]
        gpu_memory_mib = looked.job_gpu_memory_mib[n, job]
        best_s = fill_model_s(surroundings, gpu_count, duration_s, gangs.nodes[n, job])
        if gpu_count == 1:
            for kind in range(duration_s.shape[0]):
                best_of_kind[kind] = -1
        picky = is_picky(looked, n, job, CHOOSES + ALONE)
        if picky:
            as_seen_by(surroundings, looked, n, job)
        length_ln = age_ln = np.nan
        for row in range(begin, end):
            scores[row] = -np.inf
            its_s, model = table.duration_s[row], surroundings.outlook.gpu_model[table.gpu[row]]
            if may_hold:
                if its_s > rule.s_max * best_s and not ends_before_the_queue(rule, surroundings, model, best_s, its_s):
                    continue
                if (
                    reserved >= 0
                    and job != reserved
                    and not may_start(surroundings.outlook, kept, table.gpus[row], gpu_count, its_s, cores, memory_mib)
                ):
                    continue
            node = looked.gpu_node[n, table.gpu[row]]
            other = -1
            if gpu_count == 1:
                kind = looked.gpu_kind[n, table.gpu[row]]
                other = best_of_kind[kind]
                if (
                    other >= 0
                    and surroundings.node_idle[node] >= surroundings.node_idle[looked.gpu_node[n, table.gpu[other]]]
                ):
                    continue
            if may_hold and its_s > rule.theta * best_s:
                if plain:
                    cores_now, memory_now_mib, gpu_memory_now_mib = 0, 0, 0
                else:
                    cores_now, memory_now_mib, gpu_memory_now_mib = cores, memory_mib, gpu_memory_mib
                if is_too_long(
                    rule,
                    surroundings,
                    its_s,
                    gpu_count,
                    gangs.max_nodes[n, job],
                    cores_now,
                    memory_now_mib,
                    gpu_memory_now_mib,
                    gangs.nodes[n, job],
                    gangs.spread_speed[n, job],
                ) and not ends_before_the_queue(rule, surroundings, model, best_s, its_s):
                    continue
            score = known[row] if known.shape[0] > 0 else -np.inf
            if score == -np.inf:
                if length_ln != length_ln:
                    length_ln = log(best_s)
                    age_ln = log1p(max(time_s - looked.job_submit_s[n, job], 0.0) / best_s)
                if gpu_count == 1:
                    unused = unused_share(surroundings, node, 1)
                else:
                    unused = _unused_by_set(surroundings, table.gpus[row], gpu_count)
                score = -cost_of(rule, alpha, beta, gpu_count, length_ln, log(its_s / best_s), unused, age_ln)
            if gpu_count == 1:
                if other >= 0:
                    scores[other] = -np.inf
                best_of_kind[kind] = row
            scores[row] = score
            best = max(best, score)
        if picky:
            as_seen_by_all(surroundings)
    if reserved >= 0 and kept.start_s[0] == 0.0:
        for row in range(table.first[n, reserved], table.first[n, reserved + 1]):
            if is_reserved_set(surroundings, table.gpu[row], table.spread[row]):
                scores[row] = max(best, 0.0) + 1.0
                break
    return reserved


@compiled_part
def count_queue(rule: GangRule, surroundings: Surroundings, looked: Looked, gangs: Gangs, n: int) -> None:
    """Fills in what the rule reads of the queue of cluster n; `count_gpus` has counted its GPUs."""
    empty_queue(surroundings)
    if counts_queue(rule):
        for job in range(looked.job_waiting.shape[1]):
            if looked.job_waiting[n, job]:
                its_s = _shortest_s(surroundings, looked, gangs, n, job)
                model = fastest_model(surroundings, its_s)
                add_to_queue(surroundings, gangs.gpu_count[n, job], its_s, model, looked.job_spread[n, job])
    look_at_depth(rule, surroundings)


@compiled_part
def is_reserved_set(surroundings: Surroundings, gpu: int, spread: bool) -> bool:
    """Whether a set of the reserved job is the one that it waits for.

    Args:
        gpu: one of its GPUs.
        spread: whether it is spread.
    """
    figures = surroundings.kept.figures
    return bool(surroundings.outlook.gpu_model[gpu] == figures[0] and (figures[1] == 1) == spread)


@compiled_part
def _unused_by_set(surroundings: Surroundings, gpus: Ints, gpu_count: int) -> float:
    """The unused share of all empty nodes that a set of GPUs breaks."""
    unused, i = 0.0, 0
    while i < gpu_count:
        node, taken = surroundings.outlook.gpu_node[gpus[i]], 0
        while i < gpu_count and surroundings.outlook.gpu_node[gpus[i]] == node:
            taken += 1
            i += 1
        unused += unused_share(surroundings, node, taken)
    return unused


@compiled_part
def _reserved_job(rule: GangRule, surroundings: Surroundings, looked: Looked, gangs: Gangs, n: int) -> int:
    """The place of the job that has the reservation, or gets it now, worked out into `kept`; -1: none."""
    reserved = gangs.reserved[n]
    if (
        reserved >= 0
        and looked.job_waiting[n, reserved]
        and (
            rule.drain == 0.0
            or _waited_ratio(rule, surroundings, looked, gangs, n, reserved) > surroundings.at_depth[2]
        )
        and reserve_for_job(surroundings, looked, gangs, n, reserved) < np.inf
    ):
        return int(reserved)
    below, after = np.inf, -1
    while True:
        found, most = -1, surroundings.at_depth[2]
        for job in range(looked.job_waiting.shape[1]):
            if (
                gangs.gpu_count[n, job] > 1
                and looked.job_waiting[n, job]
                and looked.table.first[n, job] == looked.table.first[n, job + 1]
            ):
                ratio = _waited_ratio(rule, surroundings, looked, gangs, n, job)
                # Of jobs that have waited equally long, the next one: the one before may find too few GPUs present.
                if most < ratio and (ratio < below or (ratio == below and job > after)):
                    found, most = job, ratio
        if found < 0:
            return _drained_job(rule, surroundings, looked, gangs, n) if rule.drain > 0.0 else -1
        if reserve_for_job(surroundings, looked, gangs, n, found) < np.inf:
            return found
        below, after = most, found


@compiled_part
def _shortest_s(surroundings: Surroundings, looked: Looked, gangs: Gangs, n: int, job: int) -> float:
    """A job's shortest expected duration; inf: on no model are enough GPUs present."""
    return float(
        fill_model_s(surroundings, gangs.gpu_count[n, job], looked.kind_duration_s[n, job], gangs.nodes[n, job])
    )


@compiled_part
def _waited_ratio(rule: GangRule, surroundings: Surroundings, looked: Looked, gangs: Gangs, n: int, job: int) -> float:
    """How many times its duration a job has waited."""
    best_s = _shortest_s(surroundings, looked, gangs, n, job)
    return waited_ratio(rule, looked.time_s[n] - looked.job_submit_s[n, job], best_s, looked.job_spread[n, job])


@compiled_part
def _drained_job(rule: GangRule, surroundings: Surroundings, looked: Looked, gangs: Gangs, n: int) -> int:
    """The place of the job that GPUs are drained for until the next decision, worked out into `kept`; -1: none."""
    first, shortest_s, found, kept = looked.table.first, np.inf, -1, surroundings.kept
    for job in range(looked.job_waiting.shape[1]):
        if looked.job_waiting[n, job] and first[n, job] < first[n, job + 1]:
            shortest_s = min(shortest_s, _shortest_s(surroundings, looked, gangs, n, job))
    below_s = rule.drain * shortest_s
    for job in range(looked.job_waiting.shape[1]):
        if (
            gangs.gpu_count[n, job] == 1
            or not looked.job_waiting[n, job]
            or first[n, job] < first[n, job + 1]
            or _shortest_s(surroundings, looked, gangs, n, job) >= below_s
        ):
            continue
        start_s = reserve_for_job(surroundings, looked, gangs, n, job)
        if start_s == np.inf:
            continue
        model = kept.figures[MODEL]
        length_s = surroundings.model_s[model]
        if kept.figures[SPREAD] == 1:
            length_s /= gangs.spread_speed[n, job, model]
        if rule.haste * start_s + length_s < below_s:
            found, below_s = job, rule.haste * start_s + length_s
    if found >= 0:
        reserve_for_job(surroundings, looked, gangs, n, found)
    return int(found)


@compiled_part
def reserve_for_job(surroundings: Surroundings, looked: Looked, gangs: Gangs, n: int, job: int) -> float:
    """Works out the reservation of a job of cluster n."""
    fill_model_s(surroundings, gangs.gpu_count[n, job], looked.kind_duration_s[n, job], gangs.nodes[n, job])
    picky = is_picky(looked, n, job, CHOOSES + ALONE)
    if picky:
        as_seen_by(surroundings, looked, n, job)
    start_s = float(
        reserve(
            surroundings.outlook,
            gangs.gpu_count[n, job],
            gangs.max_nodes[n, job],
            looked.job_cores[n, job],
            looked.job_memory_mib[n, job],
            looked.job_gpu_memory_mib[n, job],
            gangs.nodes[n, job],
            surroundings.model_s,
            gangs.spread_speed[n, job],
            surroundings.kept,
        )
    )
    if picky:
        as_seen_by_all(surroundings)
        if is_picky(looked, n, job, ALONE):
            keep_whole(surroundings.kept)
    return start_s
