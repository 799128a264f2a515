"""The search for the actions of one decision where jobs of several GPUs wait, and their figures. Compiled.

adlro/decide/gang_actions.py says what the actions are. numpy and numba only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from adlro.decide.gang_rule import (
    GangRule,
    Surroundings,
    count_gpus,
    ends_before_the_queue,
    fill_model_s,
    look_at_depth,
    unsuited_ratio,
)
from adlro.decide.gang_scores import count_queue, is_never_short, score_rows
from adlro.decide.looked import Looked
from adlro.decide.reservation import fill_outlook
from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.numeric.exact_compiled import exp, log, log1p
from adlro.state.observation import HOLD, Bools, Floats, Gangs, Ints

BASE, HOLDS, RESERVES, DROPS, STARTS = range(5)
"""Kinds of actions."""

SLOWNESS, REFUSED = 13, 17
"""Places of figures of an action: ln(d / b), how much longer its job takes than on its fastest GPUs; 1: the base
refuses its row."""

STARTS_AT_MOST, RESERVES_AT_MOST = 4, 3
ACTIONS_AT_MOST = 3 + STARTS_AT_MOST + RESERVES_AT_MOST

CALLS_AT_MOST = 3 + RESERVES_AT_MOST

MOST_UNSUITED = 5.0
"""A start on GPUs that are more than so many times slower for its job than for another waiting one is no action unless
it is expected to end before the queue: the training had too few clusters of which each GPU model suits one kind of work
(docs/gangs.md#gpus-that-suit-other-jobs)."""

_LENIENT = 1
"""Number of the rule's call that refuses nothing, the first that is made; 0 is the base's."""


class Calls(NamedTuple):
    """What the rule said in each of its up to R calls.

    Attributes:
        row: (R,) the best row, or HOLD.
        reserved: (R,) whose reservation, or -1.
        start_s: (R,) expected time until that job's start.
        idle_kept: (R,) idle GPUs that are kept for it.
        kept: (R, M) 1 for their nodes.
    """

    row: Ints
    reserved: Ints
    start_s: Floats
    idle_kept: Ints
    kept: Ints


def room_for_calls(nodes: int) -> Calls:
    """Room for the calls of a decision with so many nodes."""
    row, reserved, idle_kept = np.full((3, CALLS_AT_MOST), HOLD, dtype=np.int64)
    return Calls(row, reserved, np.zeros(CALLS_AT_MOST), idle_kept, np.zeros((CALLS_AT_MOST, nodes), dtype=np.int64))


class Asked(NamedTuple):
    """Up to A actions, by their place.

    Attributes:
        kind, row, reserve: (A,) as in `GangActions`.
        same_row, same_reserve: (A,) 1 where it is the base's.
        score: (A,) the rule's score of the row less that of the base's; 0 for holds.
        own_score: (A,) the rule's score of the row.
        refused: (A,) 1 where the base refuses the row.
        start_s: (A,) expected time until the start of the job that GPUs are kept free for.
        idle_kept: (A,) idle GPUs among them.
        kept: (A, M) 1 for their nodes.
        call: (A,) the call of the rule that the action comes from.
    """

    kind: Ints
    row: Ints
    reserve: Ints
    same_row: Ints
    same_reserve: Ints
    score: Floats
    own_score: Floats
    refused: Ints
    start_s: Floats
    idle_kept: Ints
    kept: Ints
    call: Ints


def room_for_asked(nodes: int) -> Asked:
    """Room for the actions of a decision with so many nodes."""
    columns: dict[str, Any] = {name: np.zeros(ACTIONS_AT_MOST, dtype=np.int64) for name in Asked._fields}
    columns |= {name: np.zeros(ACTIONS_AT_MOST) for name in ("score", "own_score", "start_s")}
    columns["kept"] = np.zeros((ACTIONS_AT_MOST, nodes), dtype=np.int64)
    return Asked(**columns)


class Queue(NamedTuple):
    """The J jobs of a decision's queue, as the search sees them: filled in by it.

    Attributes:
        best_s: (J,) each job's shortest expected duration; inf: it can't run.
        ratio: (J,) how many times that it has waited.
        unfit: (J,) whether it is of several GPUs, waits, and fits nowhere.
        able_s: (J,) the shortest durations of those that wait and can run, one after the other.
        spread: (J,) the uncertainty of these.
    """

    best_s: Floats
    ratio: Floats
    unfit: Bools
    able_s: Floats
    spread: Floats


def room_for_queue(jobs: int) -> Queue:
    """Room for a queue of so many jobs."""
    best_s, ratio, able_s, spread = np.empty((4, jobs))
    return Queue(best_s, ratio, np.empty(jobs, dtype=np.bool_), able_s, spread)


@compiled
def find_actions(
    rule: GangRule,
    free: GangRule,
    lenient: GangRule,
    gpu_model: Ints,
    around: Surroundings,
    looked: Looked,
    gangs: Gangs,
    able: Bools,
    free_s: Floats,
    queue: Queue,
    best_of_kind: Ints,
    calls: Calls,
    scores: Floats,
    asked: Asked,
    cluster: Floats,
    figures: Floats,
) -> tuple[int, int, float]:
    """Fills in the actions of the decision of a cluster, its observation's only one, and what the network sees of them.

    Args:
        rule: of the base.
        free: the same without new reservations.
        lenient: the same without refusals.
        gpu_model: (G,) of the observation.
        around: room, kept from decision to decision.
        gangs: whose `reserved` is written for a time.
        able: (J, S) whether present GPUs of the kind can hold the job; (0, S): it can wherever
            a GPU of the kind is present and its duration there is finite.
        free_s: (G,) `gpu_remaining_s` in ascending order.
        queue: filled in.
        best_of_kind: (G,) room.
        calls: room.
        scores: (R + 1, C) filled in: the scores of the table's rows in each call; the last is room.
        asked: filled in.
        cluster, figures: filled in, as in `GangActions`; zeros.

    Returns:
        The number of the actions, that of the waiting jobs that can run, and the decision's typical duration.
    """
    fill_outlook(around.outlook, looked, gpu_model)
    waiting, cores, memory_mib = looked.job_waiting[0], looked.job_cores[0], looked.job_memory_mib[0]
    plain = is_never_short(around.outlook, waiting, cores, memory_mib, around.model_there)
    count_gpus(around, looked.gpu_idle[0], looked.gpu_kind[0])
    count_queue(rule, around, looked, gangs, 0)
    can_run = _fill_queue(around, looked, gangs, able, queue)
    count = _search(rule, free, lenient, around, looked, gangs, plain, queue, best_of_kind, calls, scores, asked)
    scale_s = _fill_figures(around, looked, gangs, queue, free_s, asked, count, cluster, figures)
    return count, can_run, scale_s


@compiled_part
def _fill_queue(around: Surroundings, looked: Looked, gangs: Gangs, able: Bools, queue: Queue) -> int:
    """Fills in the queue; returns the number of the waiting jobs that can run."""
    best_s, ratio, can_run = queue.best_s, queue.ratio, 0
    for job in range(best_s.shape[0]):
        best_s[job] = np.inf
        for kind in range(looked.kind_duration_s.shape[2]):
            if around.kind_there[kind] if able.shape[0] == 0 else able[job, kind]:
                best_s[job] = min(best_s[job], looked.kind_duration_s[0, job, kind])
        ratio[job] = max(looked.time_s[0] - looked.job_submit_s[0, job], 0.0) / best_s[job]
        waits = looked.job_waiting[0, job] and best_s[job] < np.inf
        if waits:
            queue.able_s[can_run], queue.spread[can_run] = best_s[job], looked.job_spread[0, job]
            can_run += 1
        queue.unfit[job] = (
            waits and gangs.gpu_count[0, job] > 1 and looked.table.first[0, job] == looked.table.first[0, job + 1]
        )
    return can_run


@compiled_call
def _search(
    rule: GangRule,
    free: GangRule,
    lenient: GangRule,
    around: Surroundings,
    looked: Looked,
    gangs: Gangs,
    plain: bool,
    queue: Queue,
    best_of_kind: Ints,
    calls: Calls,
    scores: Floats,
    asked: Asked,
) -> int:
    """Fills in the actions; returns their number."""
    best_s, ratio, unfit = queue.best_s, queue.ratio, queue.unfit
    reserved_now, may_hold = gangs.reserved[0], looked.hold_allowed[0]
    # First the call that refuses nothing: the others need not work out the costs again.
    _call(lenient, around, looked, gangs, plain, -1, best_of_kind, calls, scores, _LENIENT)
    _call(rule, around, looked, gangs, plain, reserved_now, best_of_kind, calls, scores, 0)
    base_row, base_reserved = calls.row[0], calls.reserved[0]
    used, count = _LENIENT + 1, 0
    count = _put(calls, scores, asked, count, BASE, base_row, 0)
    if may_hold and base_row != HOLD:
        count = _put(calls, scores, asked, count, HOLDS, HOLD, 0)
    if base_reserved >= 0:
        _call(free, around, looked, gangs, plain, -1, best_of_kind, calls, scores, used)
        count = _put(calls, scores, asked, count, DROPS, calls.row[used], used)
        used += 1
    if may_hold:
        first = second = oldest = -1
        for turn in range(RESERVES_AT_MOST):
            found, least = -1, np.inf
            for job in range(best_s.shape[0]):
                if not unfit[job] or job in (base_reserved, first, second):
                    continue
                haste = -ratio[job]
                if turn < RESERVES_AT_MOST - 1:
                    haste = log(best_s[job]) - rule.ageing * log(1.0 + ratio[job])
                if haste < least:
                    found, least = job, haste
            if turn == 0:
                first = found
            elif turn == 1:
                second = found
            else:
                oldest = found
        for turn in range(RESERVES_AT_MOST):
            job = first if turn == 0 else second if turn == 1 else oldest
            if job < 0:
                continue
            _call(free, around, looked, gangs, plain, job, best_of_kind, calls, scores, used)
            if calls.reserved[used] == job:
                count = _put(calls, scores, asked, count, RESERVES, calls.row[used], used)
                used += 1
    gangs.reserved[0] = reserved_now
    own, taken, last, last_row = scores[CALLS_AT_MOST], 0, np.inf, -1
    for row in range(own.shape[0]):
        own[row] = scores[_LENIENT, row]
    if may_hold:
        _leave_out_unsuited(rule, around, looked, gangs, own)
    for _ in range(STARTS_AT_MOST + 1):
        found, most = -1, -np.inf
        for row in range(own.shape[0]):
            if own[row] > most and (own[row] < last or (own[row] == last and row > last_row)):
                found, most = row, own[row]
        if found < 0:
            break
        last, last_row = most, found
        if found != base_row and taken < STARTS_AT_MOST:
            count = _put(calls, scores, asked, count, STARTS, found, 0)
            taken += 1
    return count


@compiled_call
def _call(
    rule: GangRule,
    around: Surroundings,
    looked: Looked,
    gangs: Gangs,
    plain: bool,
    reserved: int,
    best_of_kind: Ints,
    calls: Calls,
    scores: Floats,
    number: int,
) -> None:
    """Asks the rule, and writes down what it says.

    Args:
        reserved: place of the job that GPUs are kept free for so far, or -1.
        number: of the call.
    """
    gangs.reserved[0] = reserved
    own = scores[number]
    for row in range(own.shape[0]):
        own[row] = -np.inf
    look_at_depth(rule, around)  # rules differ in rho
    known = scores[_LENIENT] if number != _LENIENT else own[:0]
    found = score_rows(rule, around, looked, gangs, 0, plain, known, own, best_of_kind)
    best, most = HOLD, -np.inf
    for row in range(own.shape[0]):
        if own[row] > most:
            best, most = row, own[row]
    calls.row[number], calls.reserved[number] = best, found
    calls.start_s[number], calls.idle_kept[number] = 0.0, 0
    for node in range(around.node_idle.shape[0]):
        calls.kept[number, node] = 0
        if found >= 0:
            calls.kept[number, node] = around.kept.node[node]
            calls.idle_kept[number] += around.node_idle[node] * around.kept.node[node]
    if found >= 0:
        calls.start_s[number] = around.kept.start_s[0]


@compiled_part
def _leave_out_unsuited(rule: GangRule, around: Surroundings, looked: Looked, gangs: Gangs, scores: Floats) -> None:
    """Sets the scores of rows on GPUs that suit other waiting jobs much better to -inf."""
    table = looked.table
    for job in range(looked.job_waiting.shape[1]):
        begin, end = table.first[0, job], table.first[0, job + 1]
        if begin == end:
            continue
        best_s = fill_model_s(around, gangs.gpu_count[0, job], looked.kind_duration_s[0, job], gangs.nodes[0, job])
        for row in range(begin, end):
            its_s, model = table.duration_s[row], around.outlook.gpu_model[table.gpu[row]]
            if unsuited_ratio(around, model, best_s, its_s) > MOST_UNSUITED and not ends_before_the_queue(
                rule, around, model, best_s, its_s
            ):
                scores[row] = -np.inf


@compiled_part
def _put(calls: Calls, scores: Floats, asked: Asked, place: int, kind: int, row: int, call: int) -> int:
    """Writes down an action; returns the next place.

    The rule's score of a row is that without refusals; a row that does not even have that, as of the GPU that is its
    kind's best only beside a reservation, has that of its own call.
    """
    asked.kind[place], asked.row[place], asked.reserve[place] = kind, row, calls.reserved[call]
    asked.same_row[place], asked.same_reserve[place] = row == calls.row[0], calls.reserved[call] == calls.reserved[0]
    asked.call[place], asked.refused[place] = call, row != HOLD and scores[0, row] == -np.inf
    own = 0.0
    if row != HOLD:
        own = scores[_LENIENT, row]
        if not np.isfinite(own):
            own = scores[call, row]
        if not np.isfinite(own):
            own = 0.0
    asked.own_score[place], asked.score[place] = own, 0.0
    if row != HOLD and calls.row[0] != HOLD:
        asked.score[place] = own - asked.own_score[0]
    asked.start_s[place], asked.idle_kept[place] = calls.start_s[call], calls.idle_kept[call]
    for node in range(calls.kept.shape[1]):
        asked.kept[place, node] = calls.kept[call, node]
    return place + 1


@compiled_part
def _fill_figures(
    around: Surroundings,
    looked: Looked,
    gangs: Gangs,
    queue: Queue,
    free_s: Floats,
    asked: Asked,
    count_of: int,
    cluster: Floats,
    figures: Floats,
) -> float:
    """Fills in what the network sees; returns the decision's typical duration.

    Args:
        free_s: (G,) when the first, the second, ... GPU is expected to be free; inf behind the present ones.
        count_of: number of the actions.
    """
    best_s, ratio, unfit, gpu_model = queue.best_s, queue.ratio, queue.unfit, around.outlook.gpu_model
    node_idle, node_there, model_there = around.node_idle, around.node_there, around.model_there
    table, count = looked.table, gangs.gpu_count[0]
    jobs, gpus, idle = 0, 0, 0
    for gpu in range(looked.gpu_idle.shape[1]):
        gpus += looked.gpu_remaining_s[0, gpu] < np.inf
        idle += looked.gpu_idle[0, gpu]
    quarter_s = half_s = three_quarters_s = 0.0
    if gpus > 0:
        quarter_s, half_s, three_quarters_s = (
            free_s[(gpus - 1) // 4],
            free_s[(gpus - 1) // 2],
            free_s[(gpus - 1) * 3 // 4],
        )
    gpus = max(gpus, 1)
    several, unfits, total_ln, work_s, unfit_s = 0, 0, 0.0, 0.0, 0.0
    for job in range(best_s.shape[0]):
        if looked.job_waiting[0, job] and best_s[job] < np.inf:
            jobs += 1
            total_ln += log(best_s[job])
            several += count[job] > 1
            work_s += best_s[job] * count[job]
            if unfit[job]:
                unfits += 1
                unfit_s += best_s[job] * count[job]
    scale_s = exp(total_ln / jobs) if jobs > 0 else 1.0
    empty, most, nodes = 0, 0, node_there.shape[0]
    for node in range(nodes):
        empty += node_idle[node] == node_there[node]
        most = max(most, node_idle[node])
    cluster[0], cluster[1], cluster[2] = log1p(float(jobs)), log1p(float(several)), log1p(float(unfits))
    cluster[3], cluster[4] = log1p(work_s / gpus / scale_s), log1p(unfit_s / gpus / scale_s)
    cluster[5], cluster[6], cluster[7] = idle / gpus, log1p(float(idle)), log1p(float(most))
    cluster[8] = empty / max(nodes, 1)
    cluster[9], cluster[10] = log(float(gpus)) / 4.0, log(float(max(nodes, 1))) / 4.0
    cluster[11], cluster[12] = log1p(quarter_s / scale_s), log1p(half_s / scale_s)
    cluster[13] = log1p(three_quarters_s / scale_s)
    cluster[14] = 1.0 if asked.reserve[0] >= 0 else 0.0
    cluster[15], cluster[16] = log1p(asked.start_s[0] / scale_s), asked.idle_kept[0] / gpus
    cluster[17] = 1.0 if looked.hold_allowed[0] else 0.0
    for a in range(count_of):
        own, row, start_s = figures[a], asked.row[a], asked.start_s[a]
        own[asked.kind[a]] = 1.0
        own[5], own[6] = asked.same_row[a], asked.same_reserve[a]
        if row < 0:
            own[7], own[8] = 1.0, idle / gpus
        else:
            job, its_s = table.job[row], table.duration_s[row]
            size = count[job]
            own[8], own[9], own[10] = (idle - size) / gpus, size / gpus, log(float(size))
            own[11] = size / max(model_there[gpu_model[table.gpu[row]]], 1)
            own[12] = log(best_s[job] / scale_s)
            own[SLOWNESS] = log(max(its_s / best_s[job], 1e-6))
            own[14] = 1.0 if table.spread[row] else 0.0
            own[15] = log1p(ratio[job])
            own[16] = min(max(asked.score[a], -5.0), 5.0)
            own[REFUSED] = asked.refused[a]
            own[18] = min(max(asked.own_score[a], -10.0), 10.0) + log(scale_s)
            if asked.reserve[a] >= 0 and job != asked.reserve[a]:
                on_kept = 0
                for i in range(size):
                    on_kept += asked.kept[a, looked.gpu_node[0, table.gpus[row, i]]]
                own[19] = on_kept / size
                own[20] = min(max(log(max(its_s, 1e-6) / max(start_s, 1e-3)), -3.0), 3.0)
            own[21] = 1.0 if size == 1 else 0.0
        if asked.reserve[a] >= 0:
            job = asked.reserve[a]
            own[22], own[23], own[24] = 1.0, count[job] / gpus, log(float(max(count[job], 1)))
            own[25], own[26] = log(best_s[job] / scale_s), log1p(ratio[job])
            own[27], own[28] = log1p(start_s / scale_s), asked.idle_kept[a] / gpus
            own[29] = log1p(asked.idle_kept[a] * start_s / gpus / scale_s)
            shorter, longer = 0, 0
            for other in range(best_s.shape[0]):
                if looked.job_waiting[0, other] and table.first[0, other] < table.first[0, other + 1]:
                    shorter += best_s[other] <= start_s
                    longer += best_s[other] > start_s
            own[30], own[31] = log1p(float(shorter)), log1p(float(longer))
        for i in range(own.shape[0]):
            own[i] = min(max(own[i], -20.0), 20.0)
    for i in range(cluster.shape[0]):
        cluster[i] = min(max(cluster[i], -20.0), 20.0)
    return scale_s
