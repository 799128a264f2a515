"""The actions that a learned policy weighs where jobs of several GPUs count, and the figures that it sees of them.

An action is a row of the candidate table, or a hold, with the job that GPUs are kept free for from then on:

    base      what `hold_gang` does, always the first
    hold      nothing starts
    reserve   GPUs are kept free for another job that fits nowhere; `hold_gang` then starts what it starts beside that
    drop      nothing is kept free any longer; `hold_gang` then starts what it would
    start     another of the candidates with the least costs, refused ones too, beside the reservation of the base

numpy and numba only; `hold_gang`'s compiled rule (adlro/decide/gang_scores.py) does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adlro.decide.gang_rule import GangRule, Surroundings, surroundings_of
from adlro.decide.gang_scores import never_short, score_cluster
from adlro.decide.looked import Looked, as_type, looked_at
from adlro.decide.present import kinds_that_hold
from adlro.decide.reservation import outlook_of
from adlro.numeric.compiled import compiled
from adlro.numeric.exact import log_array
from adlro.numeric.exact_compiled import exp, log, log1p
from adlro.state.observation import HOLD, Bools, Floats, Gangs, Ints, Observation

BASE, HOLDS, RESERVES, DROPS, STARTS = range(5)
"""Kinds of actions."""

STARTS_AT_MOST, RESERVES_AT_MOST = 4, 3
ACTIONS_AT_MOST = 3 + STARTS_AT_MOST + RESERVES_AT_MOST

CLUSTER_FIGURES, ACTION_FIGURES = 18, 32


class GangActions(NamedTuple):
    """A actions of one decision, the base's first.

    Attributes:
        kind: (A,) BASE and so on.
        row: (A,) row of the table, or HOLD.
        reserve: (A,) place of the job that GPUs are kept free for from then on, or -1.
        cluster: (CLUSTER_FIGURES,) what the network sees of the cluster and the queue.
        figures: (A, ACTION_FIGURES) what it sees of each action.
        scale_s: the decision's typical duration.
        scores: for each action, the rule's scores (C,) of the table's rows beside its reservation.
    """

    kind: Ints
    row: Ints
    reserve: Ints
    cluster: Floats
    figures: Floats
    scale_s: float
    scores: Sequence[Floats] = ()


def no_actions() -> GangActions:
    """Two actions without figures, to try out a network."""
    figures = np.zeros((2, ACTION_FIGURES))
    two = np.array([BASE, HOLDS])
    return GangActions(two, np.full(2, HOLD), np.full(2, -1), np.zeros(CLUSTER_FIGURES), figures, 1.0)


class _Scored(NamedTuple):
    """One call of the rule: the best row or HOLD, whose reservation, and what is kept for it."""

    row: int
    reserved: int
    scores: Floats
    start_s: float
    idle_kept: int
    kept: Ints


class GangActionFinder:
    """Finds the actions of decisions of one cluster; one per thread.

    Args:
        rule: of the base.
    """

    def __init__(self, rule: GangRule) -> None:
        self._rule = rule
        self._free = self._rule._replace(rho=np.inf)
        self._lenient = self._free._replace(theta=1e9, s_max=1e9)

    def find(self, observation: Observation) -> GangActions:
        """The actions of a decision of one cluster, in which jobs of several GPUs wait or run."""
        gangs = observation.gangs
        if gangs is None or len(observation.time_s) != 1:
            raise ValueError("one decision, with jobs of several GPUs, is wanted")
        table = observation.table
        looked = looked_at(observation)
        gangs = Gangs(*(as_type(column, column.dtype) for column in gangs))
        outlook = outlook_of(observation, 0)
        around = surroundings_of(outlook, len(observation.gpu_models))
        plain = never_short(observation, outlook, 0)
        best_of_kind = np.zeros(observation.gpu_idle.shape[1], dtype=np.int64)

        def scored(rule: GangRule, reserved: int) -> _Scored:
            scores = np.full(len(table.job), -np.inf)
            asked = gangs._replace(reserved=np.array([reserved]))
            found = score_cluster(rule, around, looked, asked, 0, plain, scores, best_of_kind)
            row = int(scores.argmax()) if len(scores) else HOLD
            if row != HOLD and scores[row] == -np.inf:
                row = HOLD
            return _with_kept(around, row, int(found), scores)

        base = scored(self._rule, int(gangs.reserved[0]))
        lenient = scored(self._lenient, -1)
        may_hold = bool(observation.hold_allowed[0])
        found = [(BASE, base.row, base)]
        if may_hold and base.row != HOLD:
            found.append((HOLDS, HOLD, base))
        if base.reserved >= 0:
            free = scored(self._free, -1)
            found.append((DROPS, free.row, free))
        able = kinds_that_hold(observation)[0]
        best_s = np.where(able, observation.kind_duration_s[0], np.inf).min(axis=1, initial=np.inf)
        waited_s = np.maximum(observation.time_s[0] - observation.job_submit_s[0], 0.0)
        with np.errstate(invalid="ignore"):
            ratio = waited_s / best_s
        can = observation.job_waiting[0] & np.isfinite(best_s)
        unfit = can & (gangs.gpu_count[0] > 1) & (table.rows_of_job[0] == 0)
        wanted = np.flatnonzero(unfit & (np.arange(len(unfit)) != base.reserved))
        if len(wanted) and may_hold:
            haste = log_array(best_s[wanted]) - self._rule.ageing * log_array(1.0 + ratio[wanted])
            chosen = list(wanted[np.argsort(haste, kind="stable")[: RESERVES_AT_MOST - 1]])
            oldest = wanted[np.argsort(-ratio[wanted], kind="stable")]
            chosen += next(([job] for job in oldest if job not in chosen), [])
            for job in chosen:
                one = scored(self._free, int(job))
                if one.reserved == job:
                    found.append((RESERVES, one.row, one))
        order = np.argsort(-lenient.scores, kind="stable")[: STARTS_AT_MOST + 1]
        others = [int(row) for row in order if row != base.row and lenient.scores[row] > -np.inf]
        found += [(STARTS, row, base) for row in others[:STARTS_AT_MOST]]
        score = np.array([_score_of(lenient.scores, one, row) for _, row, one in found])
        rows = np.array([row for _, row, _ in found])
        reserve = np.array([one.reserved for _, _, one in found])
        asked = _Asked(
            kind=np.array([kind for kind, _, _ in found]),
            row=rows,
            reserve=reserve,
            same_row=(rows == base.row).astype(np.int64),
            same_reserve=(reserve == base.reserved).astype(np.int64),
            score=np.where((rows != HOLD) & (base.row != HOLD), score - score[0], 0.0),
            own_score=score,
            refused=np.array([int(row != HOLD and base.scores[row] == -np.inf) for row in rows]),
            start_s=np.array([one.start_s for _, _, one in found]),
            idle_kept=np.array([one.idle_kept for _, _, one in found]),
            kept=np.stack([one.kept for _, _, one in found]),
        )
        free_s = np.sort(observation.gpu_remaining_s[0][np.isfinite(observation.gpu_remaining_s[0])])
        quarters_s = np.array([free_s[(len(free_s) - 1) * part // 4] if len(free_s) else 0.0 for part in (1, 2, 3)])
        cluster, figures = np.zeros(CLUSTER_FIGURES), np.zeros((len(found), ACTION_FIGURES))
        scale_s = _fill_figures(
            looked,
            gangs,
            as_type(observation.gpu_model[0], np.dtype(np.int64)),
            around.node_idle,
            around.node_there,
            around.model_there,
            best_s,
            ratio,
            unfit,
            quarters_s,
            asked,
            cluster,
            figures,
        )
        scores = [one.scores for _, _, one in found]
        return GangActions(asked.kind, rows, reserve, cluster, figures, float(scale_s), scores)


def _with_kept(around: Surroundings, row: int, reserved: int, scores: Floats) -> _Scored:
    if reserved < 0:
        return _Scored(row, -1, scores, 0.0, 0, np.zeros(len(around.node_idle), dtype=np.int64))
    kept = around.kept
    nodes = kept.node.astype(np.int64)
    return _Scored(
        row,
        reserved,
        scores,
        float(kept.start_s[0]),
        int((around.node_idle * nodes).sum()),
        nodes,
    )


class _Asked(NamedTuple):
    """What `_fill_figures` reads of A actions, by their place.

    Attributes:
        kind, row, reserve: (A,) as in `GangActions`.
        same_row, same_reserve: (A,) 1 where it is the base's.
        score: (A,) the rule's score of the row less that of the base's; 0 for holds.
        own_score: (A,) the rule's score of the row.
        refused: (A,) 1 where the base refuses the row.
        start_s: (A,) expected time until the start of the job that GPUs are kept free for.
        idle_kept: (A,) idle GPUs among them.
        kept: (A, M) 1 for their nodes.
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


@compiled
def _fill_figures(
    looked: Looked,
    gangs: Gangs,
    gpu_model: Ints,
    node_idle: Ints,
    node_there: Ints,
    model_there: Ints,
    best_s: Floats,
    ratio: Floats,
    unfit: Bools,
    quarters_s: Floats,
    asked: _Asked,
    cluster: Floats,
    figures: Floats,
) -> float:
    """Fills in what the network sees; returns the decision's typical duration.

    Args:
        gpu_model: (G,) of the cluster.
        best_s: (J,) each job's shortest expected duration; inf: it can't run.
        ratio: (J,) how many times that it has waited.
        unfit: (J,) whether it is of several GPUs, waits, and fits nowhere.
        quarters_s: (3,) when a quarter, a half and three quarters of the GPUs are expected to be free.
    """
    table, count = looked.table, gangs.gpu_count[0]
    jobs, gpus, idle = 0, 0, 0
    for gpu in range(looked.gpu_idle.shape[1]):
        gpus += looked.gpu_remaining_s[0, gpu] < np.inf
        idle += looked.gpu_idle[0, gpu]
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
    for i in range(3):
        cluster[11 + i] = log1p(quarters_s[i] / scale_s)
    cluster[14] = 1.0 if asked.reserve[0] >= 0 else 0.0
    cluster[15], cluster[16] = log1p(asked.start_s[0] / scale_s), asked.idle_kept[0] / gpus
    cluster[17] = 1.0 if looked.hold_allowed[0] else 0.0
    for a in range(asked.kind.shape[0]):
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
            own[13] = log(max(its_s / best_s[job], 1e-6))
            own[14] = 1.0 if table.spread[row] else 0.0
            own[15] = log1p(ratio[job])
            own[16] = min(max(asked.score[a], -5.0), 5.0)
            own[17] = asked.refused[a]
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


def _score_of(lenient: Floats, one: _Scored, row: int) -> float:
    """The rule's score of a row; that of a GPU which is its kind's best only beside a reservation stands there."""
    if row == HOLD:
        return 0.0
    found = lenient[row] if np.isfinite(lenient[row]) else one.scores[row]
    return float(found) if np.isfinite(found) else 0.0
