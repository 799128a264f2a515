"""The rule of the policy `hold_greedy`, compiled, on plain arrays of one cluster. numpy and numba only.

The policy (adlro/decide/policies/hold_greedy.py) calls it with observations, the rollouts
(adlro/decide/rollouts/rule.py) with the simulator's arrays. The rule is in this package because numba's cache is keyed
by a digest of this package's files and of the caller's own (adlro/numeric/compiled.py).

With d the expected duration of a pair, b the job's shortest on any present GPU that can hold it, s = d / b the
slowdown, c the requested cores, f the node's free cores per idle GPU, w the time the job has waited, the score is minus

    ln b + alpha ln s + packing |c / f - 1| - ageing ln(1 + w / b)

A pair is refused where d is above both

    theta min over all GPUs of (kappa wait + duration)     the job's earliest expected completion anywhere, and
    max(1, backlog (s_g / s) ^ affinity) drain             some drains of the queue.

A hold leaves a GPU idle. A hold pays if the job ends earlier on a GPU that is busy now, and no other job needs the idle
one. A job that would end on the idle GPU before the queue has drained delays no other job: without it the GPU would be
idle despite a backlog. So a long queue refuses no pair, however slow its GPU. While a queue drains, more jobs arrive
and prolong the drain: so `backlog` drains count instead of one, on a GPU that is as slow for the other waiting jobs. A
GPU that is slow only for this job is left to the jobs that it suits: s_g is the least slowdown of any waiting job on
that GPU. With one fast and one slow machine and a given arrival rate, the optimal rule is a threshold on the queue (Lin
and Kumar 1984, "Optimal control of a queueing system with two heterogeneous servers").

The drain is the time until the last waiting job is expected to start, by a list schedule (Graham 1969, "Bounds on
multiprocessing timing anomalies"): the rule plans each waiting job, in the order of submission, on the GPU where it
ends first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.looked import ALONE, Looked, is_picky
from adlro.numeric.compiled import compiled, compiled_part
from adlro.numeric.exact_compiled import exp, log, log1p
from adlro.state.observation import Bools, Floats, Ints
from adlro.state.room import node_has_room


class HoldRule(NamedTuple):
    """The rule's parameters, floats, as in the formulas above."""

    alpha: float
    theta: float
    kappa: float
    backlog: float
    affinity: float
    packing: float
    ageing: float


class Surroundings(NamedTuple):
    """The rule's input about one cluster apart from the pair itself, the same for each job: `look_around` fills it.

    GPUs of one kind take the same time for every job: among those on which a job does not fit now, it starts first on
    the one with the shortest wait.

    Attributes:
        node_idle: (M,) idle GPUs of each node.
        node_next_end_s: (M,) expected time until a job of the node ends, or its GPU comes back; inf: never.
        gpu_kind: (G,) the GPU's kind.
        gpu_wait_s: (G,) expected time until the GPU could take a job that does not fit now.
        gpu_core_share: (G,) free cores of the node per idle GPU; filled for idle GPUs.
        gpu_planned_s: (G,) time until the GPU has finished its planned jobs (`plan_job`); at first 0 for an idle GPU,
            and the remaining time of a busy one.
        kind_wait_s: (S,) the least `gpu_wait_s` of the kind's GPUs.
        kind_slowdown: (S,) the least slowdown there of the jobs so far (`look_at_job`); inf: none can run there.
        kind_fits: (S,) whether the present job fits on a GPU of the kind now.
        kind_cost: (S,) cost of the job's duration there (`score_job`); inf: refused; filled if the job fits there.
    """

    node_idle: Floats
    node_next_end_s: Floats
    gpu_kind: Ints
    gpu_wait_s: Floats
    gpu_core_share: Floats
    gpu_planned_s: Floats
    kind_wait_s: Floats
    kind_slowdown: Floats
    kind_fits: Bools
    kind_cost: Floats


def room_to_look(gpus: int, nodes: int) -> Surroundings:
    """Room for the surroundings in a cluster of up to this size; one per thread."""
    return Surroundings(
        node_idle=np.zeros(nodes),
        node_next_end_s=np.zeros(nodes),
        gpu_kind=np.zeros(gpus, dtype=np.int64),
        gpu_wait_s=np.zeros(gpus),
        gpu_core_share=np.zeros(gpus),
        gpu_planned_s=np.zeros(gpus),
        # A cluster may have as many kinds as GPUs.
        kind_wait_s=np.zeros(gpus),
        kind_slowdown=np.zeros(gpus),
        kind_fits=np.zeros(gpus, dtype=np.bool_),
        kind_cost=np.zeros(gpus),
    )


@compiled_part
def look_around(
    gpu_kind: Ints,
    gpu_node: Ints,
    gpu_idle: Bools,
    gpu_remaining_s: Floats,
    node_cores_free: Ints,
    surroundings: Surroundings,
) -> None:
    """Fills the surroundings; call it before `look_at_job` for each job, and that before `plan_job` and `score_job`.

    The arguments are a row of the observation's fields.
    If a job does not fit on an idle GPU, its node lacks cores or memory: the job waits at least until the expected end
    of the node's next job. That end may not free enough: the resources of single jobs are ignored.
    """
    idle, next_end_s = surroundings.node_idle, surroundings.node_next_end_s
    for node in range(node_cores_free.shape[0]):
        idle[node] = 0.0
        next_end_s[node] = np.inf
    for gpu in range(gpu_node.shape[0]):
        node = gpu_node[gpu]
        surroundings.kind_wait_s[gpu] = surroundings.kind_slowdown[gpu] = np.inf  # there are no more kinds than GPUs
        if gpu_idle[gpu]:
            idle[node] += 1.0
        else:
            next_end_s[node] = min(next_end_s[node], gpu_remaining_s[gpu])
    for gpu in range(gpu_node.shape[0]):
        node, kind = gpu_node[gpu], gpu_kind[gpu]
        wait_s = next_end_s[node] if gpu_idle[gpu] else gpu_remaining_s[gpu]
        surroundings.gpu_kind[gpu], surroundings.gpu_wait_s[gpu] = kind, wait_s
        surroundings.kind_wait_s[kind] = min(surroundings.kind_wait_s[kind], wait_s)
        if gpu_idle[gpu]:
            surroundings.gpu_core_share[gpu] = node_cores_free[node] / idle[node]
            surroundings.gpu_planned_s[gpu] = 0.0
        else:
            surroundings.gpu_planned_s[gpu] = gpu_remaining_s[gpu]


@compiled_part
def best_duration_s(surroundings: Surroundings, duration_s: Floats, gpus: Ints) -> float:
    """A job's shortest expected duration on any present GPU that can hold it; inf: there is none.

    Args:
        surroundings: of the cluster now; `kind_fits` is filled.
        duration_s: (S,) expected duration on each kind.
        gpus: (R,) GPUs on which the job fits now: at least the lowest of each group of identical GPUs.
    """
    best_s = np.inf
    for kind in range(duration_s.shape[0]):
        surroundings.kind_fits[kind] = False
    for i in range(gpus.shape[0]):
        surroundings.kind_fits[surroundings.gpu_kind[gpus[i]]] = True
    for kind in range(duration_s.shape[0]):
        # A lost GPU is no alternative: no job can wait for it.
        if surroundings.kind_fits[kind] or surroundings.kind_wait_s[kind] < np.inf:
            best_s = min(best_s, duration_s[kind])
    return best_s


@compiled_part
def look_at_job(surroundings: Surroundings, duration_s: Floats, gpus: Ints, longest_s: float) -> float:
    """Adds a waiting job's slowdown on each kind; the arguments are those of `best_duration_s`.

    Returns:
        The longest expected duration of the job on the GPUs where it could start now, or `longest_s` if that is longer.
    """
    best_s = best_duration_s(surroundings, duration_s, gpus)
    if best_s == np.inf:
        return longest_s
    for kind in range(duration_s.shape[0]):
        if surroundings.kind_fits[kind]:
            longest_s = max(longest_s, duration_s[kind])
        if duration_s[kind] < np.inf:
            surroundings.kind_slowdown[kind] = min(surroundings.kind_slowdown[kind], duration_s[kind] / best_s)
    return longest_s


@compiled_part
def plan_job(
    surroundings: Surroundings,
    duration_s: Floats,
    gpu_node: Ints,
    node_cores_free: Ints,
    node_memory_free_mib: Ints,
    cores: int,
    memory_mib: int,
) -> float:
    """Plans a waiting job after the jobs planned before, on the GPU where it ends first; on a tie the lower-numbered.

    Args:
        surroundings: of the cluster now.
        duration_s: (S,) expected duration on each kind.
        gpu_node, node_cores_free, node_memory_free_mib: a row of the observation's fields.
        cores, memory_mib: the job's requests.

    Returns:
        The time until the job starts there; 0 if no present GPU can hold it: then it is not planned.
    """
    planned_s = surroundings.gpu_planned_s
    best_gpu, best_start_s, best_end_s = -1, 0.0, np.inf
    for gpu in range(gpu_node.shape[0]):
        start_s = planned_s[gpu]
        if start_s == 0.0:  # idle; its node may be too full for this job
            node = gpu_node[gpu]
            if not node_has_room(cores, memory_mib, node_cores_free[node], node_memory_free_mib[node]):
                start_s = surroundings.gpu_wait_s[gpu]
        end_s = start_s + duration_s[surroundings.gpu_kind[gpu]]
        if end_s < best_end_s:
            best_gpu, best_start_s, best_end_s = gpu, start_s, end_s
    if best_gpu >= 0:
        planned_s[best_gpu] = best_end_s
    return best_start_s


@compiled_part
def queue_drain_s(surroundings: Surroundings, looked: Looked, n: int, to_the_end: bool) -> float:
    """The drain of the queue of cluster n; calls `look_at_job` and `plan_job` for its jobs.

    Args:
        to_the_end: False: only as far as `score_job` needs it.
    """
    longest_s, drain_s, job = 0.0, 0.0, 0
    jobs, first = looked.job_waiting.shape[1], looked.table.first[n]
    for each in range(jobs):
        if looked.job_waiting[n, each]:
            gpus = looked.table.gpu[first[each] : first[each + 1]]
            longest_s = look_at_job(surroundings, looked.kind_duration_s[n, each], gpus, longest_s)
    while job < jobs and (to_the_end or drain_s < longest_s):
        if looked.job_waiting[n, job]:
            start_s = plan_job(
                surroundings,
                looked.kind_duration_s[n, job],
                looked.gpu_node[n],
                looked.node_cores_free[n],
                looked.node_memory_free_mib[n],
                looked.job_cores[n, job],
                looked.job_memory_mib[n, job],
            )
            drain_s = max(drain_s, start_s)
        job += 1
    return drain_s


@compiled_part
def is_short(
    rule: HoldRule, surroundings: Surroundings, kind: int, duration_s: float, best_s: float, drain_s: float
) -> bool:
    """Whether the queue alone justifies the pair: it takes no longer than the drains that count on its GPU.

    Args:
        kind: kind of the pair's GPU.
        duration_s: the pair's duration.
        best_s: the job's shortest duration on any GPU.
        drain_s: the queue's drain.
    """
    if duration_s <= drain_s:
        return True
    unsuited = max(duration_s / best_s / surroundings.kind_slowdown[kind], 1.0)
    return bool(duration_s <= rule.backlog * exp(-rule.affinity * log(unsuited)) * drain_s)


@compiled_part
def score_job(
    rule: HoldRule,
    surroundings: Surroundings,
    duration_s: Floats,
    gpus: Ints,
    cores: int,
    waited_s: float,
    drain_s: float,
    scores: Floats,
) -> None:
    """Fills the scores of one waiting job that fits on some GPU.

    Args:
        rule: the parameters.
        surroundings: of the cluster now.
        duration_s: (S,) expected duration on each kind; inf if its GPU, or the empty node, is too small.
        gpus: (R,) GPUs on which the job fits now: at least the lowest of each group of identical GPUs.
        cores: the job's requested cores.
        waited_s: time since its submission.
        drain_s: the queue's drain, or its part up to the longest duration that could start now, since no shorter pair
            is refused then. inf refuses no pair, as when no event would end a hold.
        scores: (R,) filled; -inf for a refused pair.
    """
    best_s, completion_s = best_duration_s(surroundings, duration_s, gpus), np.inf
    for kind in range(duration_s.shape[0]):
        wait_s = 0.0 if surroundings.kind_fits[kind] else surroundings.kind_wait_s[kind]
        completion_s = min(completion_s, rule.kappa * wait_s + duration_s[kind])
    # Logarithms are slow: many jobs have all their pairs refused, and kinds are few.
    length_cost, age_gain = np.nan, 0.0
    for kind in range(duration_s.shape[0]):
        length_s = duration_s[kind]
        if not surroundings.kind_fits[kind]:
            continue
        if length_s > rule.theta * completion_s and not is_short(rule, surroundings, kind, length_s, best_s, drain_s):
            surroundings.kind_cost[kind] = np.inf
            continue
        if length_cost != length_cost:
            length_cost = log(best_s)
            age_gain = rule.ageing * log1p(max(waited_s, 0.0) / best_s)
        surroundings.kind_cost[kind] = length_cost + rule.alpha * log(length_s / best_s)
    for i in range(gpus.shape[0]):
        gpu = gpus[i]
        # More cores than a GPU's share strand idle GPUs of the node; fewer leave unusable cores.
        share = surroundings.gpu_core_share[gpu]
        misfit = abs(cores - share) / max(share, 1.0)
        scores[i] = -(surroundings.kind_cost[surroundings.gpu_kind[gpu]] + rule.packing * misfit - age_gain)


@compiled
def score_batch(rule: HoldRule, surroundings: Surroundings, looked: Looked, scores: Floats) -> None:
    """Fills (C,) scores of the rows of the observation's table; `surroundings` is scratch."""
    table = looked.table
    for n in range(looked.time_s.shape[0]):
        look_around(
            looked.gpu_kind[n],
            looked.gpu_node[n],
            looked.gpu_idle[n],
            looked.gpu_remaining_s[n],
            looked.node_cores_free[n],
            surroundings,
        )
        drain_s = np.inf
        if looked.hold_allowed[n]:
            drain_s = queue_drain_s(surroundings, looked, n, to_the_end=False)
        for job in range(looked.job_waiting.shape[1]):
            begin, end = table.first[n, job], table.first[n, job + 1]
            if begin < end:
                waited_s = looked.time_s[n] - looked.job_submit_s[n, job]
                # When a whole node is free is not known here: a job that must be alone there holds for none.
                its_drain_s = np.inf if is_picky(looked, n, job, ALONE) else drain_s
                score_job(
                    rule,
                    surroundings,
                    looked.kind_duration_s[n, job],
                    table.gpu[begin:end],
                    looked.job_cores[n, job],
                    waited_s,
                    its_drain_s,
                    scores[begin:end],
                )
