"""The rule of the policy `srtf`, compiled, on plain arrays of one cluster. numpy and numba only.

It starts what fits as `hold_gang` does (adlro/decide/gang_rule.py), without reservations. Only where it starts nothing
so, a waiting job may stop running ones (adlro/decide/stop_rule.py). It has one candidate, the packed set that it gets
with the least loss, of all models. With n GPUs, r the remaining time of a running job, c what its restart costs,
and d the waiting job's longest duration on present GPUs of the model, all of the running jobs that it stops have

    r n_running ^ beta > H (d n_waiting ^ beta + c)

The candidate's cost is that of a start with duration d that breaks no empty node, and models are refused as for such a
start. The candidate of least cost is the action. The loss of a running job is n_running (d + c) / r: what share of it
its GPUs would have done meanwhile, and while it restarts (with weights as above, where beta is not 0). A slow model has
its price in the loss, by the longer d. That the model of least cost is taken instead is a setting, for comparisons.

Stops come to an end: list the r n ^ beta of the running jobs at one instant in ascending order, and take a start of
d n ^ beta, with or without stops. What it stops stands behind that (H is at least 1, and c at least 0), and what stands
before it stays. So the list goes down in lexical order, a missing place counting as infinite. No list comes twice, and
at one instant each job has but a few durations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.gang_rule import (
    GangRule,
    Surroundings,
    as_seen_by,
    as_seen_by_all,
    cost_of,
    fill_model_s,
    is_too_long,
)
from adlro.decide.looked import ALONE, CHOOSES, Looked, is_picky
from adlro.decide.stop_rule import Wish, find_stop
from adlro.decide.stops import Stops
from adlro.numeric.compiled import compiled, compiled_part
from adlro.numeric.exact_compiled import log, log1p
from adlro.state.observation import Floats, Gangs, Ints


class SrtfRoom(NamedTuple):
    """Room for one decision.

    Attributes:
        longest_s: (K,) a job's longest duration on present GPUs of each model.
        found: (W,) GPUs on the present model.
        candidate: (W,) GPUs of the job's candidate.
        gpus: (W,) GPUs of the best candidate.
    """

    longest_s: Floats
    found: Ints
    candidate: Ints
    gpus: Ints


def room_for(models: int, widest: int) -> SrtfRoom:
    """Room for clusters with GPUs of so many models, and jobs of up to `widest` GPUs."""
    found, candidate, gpus = np.zeros((3, widest), dtype=np.int64)
    return SrtfRoom(np.zeros(models), found, candidate, gpus)


@compiled_part
def _fill_longest_s(surroundings: Surroundings, duration_s: Floats, longest_s: Floats) -> None:
    """Fills in a job's longest expected duration on kinds of present GPUs of each model that can hold it."""
    for model in range(longest_s.shape[0]):
        longest_s[model] = 0.0
    for kind in range(duration_s.shape[0]):
        if surroundings.kind_there[kind] and duration_s[kind] < np.inf:
            model = surroundings.kind_model[kind]
            longest_s[model] = max(longest_s[model], duration_s[kind])


@compiled
def choose_stop(
    rule: GangRule,
    factor: float,
    by_loss: bool,
    width_weight: Floats,
    surroundings: Surroundings,
    stops: Stops,
    looked: Looked,
    gangs: Gangs,
    n: int,
    plain: bool,
    room: SrtfRoom,
) -> int:
    """The job of cluster n that should start by stopping others; -1: none.

    Args:
        factor: H.
        by_loss: whether a job's candidate is that of least loss; if not, that of the model of least cost.
        width_weight: (W + 1,) n ^ beta by number of GPUs.
        surroundings: as `score_cluster` has left it.
        stops: filled in for this decision, with worths of remaining time x weight.
        looked, gangs, plain: as for `score_cluster`.
        room: `gpus` is filled.
    """
    best, best_job, time_s = np.inf, -1, looked.time_s[n]
    for job in range(looked.job_waiting.shape[1]):
        if not looked.job_waiting[n, job] or is_picky(looked, n, job, ALONE):
            continue  # one that must be alone waits for empty nodes
        gpu_count, duration_s, nodes = gangs.gpu_count[n, job], looked.kind_duration_s[n, job], gangs.nodes[n, job]
        weight = width_weight[gpu_count]
        best_s = fill_model_s(surroundings, gpu_count, duration_s, nodes)
        if best_s == np.inf:
            continue
        length_ln = log(best_s)
        age_ln = log1p(max(time_s - looked.job_submit_s[n, job], 0.0) / best_s)
        if not cost_of(rule, rule.alpha, rule.beta, gpu_count, length_ln, 0.0, 0.0, age_ln) < best:
            continue  # not even on its fastest model
        _fill_longest_s(surroundings, duration_s, room.longest_s)
        cores, memory_mib = looked.job_cores[n, job], looked.job_memory_mib[n, job]
        gpu_memory_mib = looked.job_gpu_memory_mib[n, job]
        picky = is_picky(looked, n, job, CHOOSES)
        candidate_cost = candidate_key = np.inf  # the key is what it is chosen by
        for model in range(room.longest_s.shape[0]):
            its_s = room.longest_s[model]
            if (
                surroundings.model_s[model] == np.inf
                or its_s > rule.s_max * best_s
                or not stops.model_worth[model] > factor * (its_s * weight)
            ):
                continue
            cost = cost_of(rule, rule.alpha, rule.beta, gpu_count, length_ln, log(its_s / best_s), 0.0, age_ln)
            if not by_loss and not cost < min(best, candidate_key):
                continue
            if its_s > rule.theta * best_s:
                if plain:
                    cores_now, memory_now_mib, gpu_memory_now_mib = 0, 0, 0
                else:
                    cores_now, memory_now_mib, gpu_memory_now_mib = cores, memory_mib, gpu_memory_mib
                if picky:
                    as_seen_by(surroundings, looked, n, job)
                too_long = is_too_long(
                    rule,
                    surroundings,
                    its_s,
                    gpu_count,
                    gangs.max_nodes[n, job],
                    cores_now,
                    memory_now_mib,
                    gpu_memory_now_mib,
                    nodes,
                    gangs.spread_speed[n, job],
                )
                if picky:
                    as_seen_by_all(surroundings)
                if too_long:
                    continue
            wish = Wish(
                model,
                gpu_count,
                1 if gpu_count == 1 else nodes[model],
                cores,
                memory_mib,
                gpu_memory_mib,
                duration_s,
                its_s * weight,
            )
            if picky:
                stops.known[0] += 1  # what it can't have others may
            loss = find_stop(factor, stops, wish, room.found)
            if picky:
                stops.known[0] += 1
            key = loss if by_loss else cost
            if loss < np.inf and key < candidate_key:
                candidate_key, candidate_cost = key, cost
                for i in range(gpu_count):
                    room.candidate[i] = room.found[i]
        if candidate_cost < best:
            best, best_job = candidate_cost, job
            for i in range(gpu_count):
                room.gpus[i] = room.candidate[i]
    return best_job
