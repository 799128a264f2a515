"""The rule that lets two jobs share a GPU, compiled, on plain arrays of one cluster. numpy and numba only.

The policy `share_pairs` (adlro/decide/policies/share_pairs.py) calls it with observations.

A pair is a waiting job and a GPU with one job, the resident, where both may share and their GPU memories fit together.
With d the expected duration of the job alone there, r the time that the resident still needs alone, and u and v the
shares of their own speeds that the job and the resident are expected to keep beside each other, they are together for

    t = min(d / u, r / v)

after which whoever is left goes on alone: the job ends after d + t (1 - u), and the resident ends t (1 - v) later than
alone. The pair's cost in time is the job's own stretched time and the harm to the resident,

    c = d + t ((1 - u) + pen (1 - v))

A pair is refused where u + v < s_min, and otherwise treated as an idle GPU on which the job takes c: by the formulas of
adlro/decide/hold_rule.py, without the queue's drain, and with 1 as the distance from an equal share of the node's cores
(that of a job without cores), so that an equally good idle GPU goes first; or, with jobs of several GPUs around, by
those of adlro/decide/gang_rule.py. Beside a job that GPUs are kept free for, a pair on the kept nodes is
refused unless both its jobs are expected to end by that job's start.

Of the GPUs of one kind whose residents are of one family, the cost is least where the resident ends first: so a job
looks at one GPU of each such group, or at the next ones where it does not fit. On a tie of costs the GPU counts whose
resident ends first, then the lower-numbered.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.gang_rule import (
    GangRule,
    as_seen_by,
    as_seen_by_all,
    cost_of,
    count_gpus,
    fill_model_s,
    is_too_long,
)
from adlro.decide.gang_rule import Surroundings as GangSurroundings
from adlro.decide.gang_scores import count_queue, reserve_for_job
from adlro.decide.hold_rule import HoldRule, Surroundings, best_duration_s, look_around
from adlro.decide.looked import CHOOSES, Looked, is_picky
from adlro.decide.reservation import SAME_INSTANT_S
from adlro.numeric.compiled import compiled, compiled_call, compiled_part
from adlro.numeric.exact_compiled import log, log1p
from adlro.state.observation import Bools, Floats, Gangs, Ints, Sharing
from adlro.state.room import node_has_room


class ShareRule(NamedTuple):
    """The rule's parameters, floats, as in the formulas above."""

    s_min: float
    pen: float


class Residents(NamedTuple):
    """The GPUs with one job that may share, for N clusters, with room for what is worked out of them.

    B is the greatest number of groups of a cluster.

    Attributes:
        order: (N, G) their numbers, by kind, family, expected end and number; then any.
        open_count: (N,) how many they are.
        gpu_model: (N, G) number of the GPU's model.
        begin: (B + 1,) room: the first place in the order of each group.
        looked: (F,) room: how many groups suit a family of jobs; -1: not yet known.
        group: (F, B) room: these groups.
        keeps, free_s, weight: (F, B) room: u, r / v of its first GPU, and (1 - u) + pen (1 - v).
    """

    order: Ints
    open_count: Ints
    gpu_model: Ints
    begin: Ints
    looked: Ints
    group: Ints
    keeps: Floats
    free_s: Floats
    weight: Floats


class Pairs(NamedTuple):
    """The best pair of each waiting job of N clusters.

    Attributes:
        gpu: (N, J) its GPU; -1: there is none.
        cost_s: (N, J) its cost in time; inf where there is none.
        score: (N, J) comparable with those of the rows of the table; -inf: refused.
    """

    gpu: Ints
    cost_s: Floats
    score: Floats


def residents_of(
    sharing: Sharing, gpu_kind: Ints, gpu_model: Ints, gpu_remaining_s: Floats, is_open: Bools
) -> Residents:
    """The residents of an observation.

    Args:
        gpu_kind, gpu_model, gpu_remaining_s: (N, G) as in the observation.
        is_open: (N, G) the GPUs on which a pair may be.
    """
    families, kinds = len(sharing.kept), int(gpu_kind.max(initial=0)) + 1
    none = families * kinds
    key = np.where(is_open, gpu_kind * families + sharing.gpu_family, none)
    groups = min(gpu_kind.shape[1], none)
    return Residents(
        order=np.lexsort((gpu_remaining_s, key), axis=-1),
        open_count=np.count_nonzero(is_open, axis=1).astype(np.int64),
        gpu_model=np.ascontiguousarray(gpu_model, dtype=np.int64),
        begin=np.empty(groups + 1, dtype=np.int64),
        looked=np.empty(families, dtype=np.int64),
        group=np.empty((families, groups), dtype=np.int64),
        keeps=np.empty((families, groups)),
        free_s=np.empty((families, groups)),
        weight=np.empty((families, groups)),
    )


def no_pairs(clusters: int, jobs: int) -> Pairs:
    """Room for the pairs of so many clusters and jobs."""
    shape = (clusters, jobs)
    return Pairs(np.full(shape, -1, dtype=np.int64), np.full(shape, np.inf), np.full(shape, -np.inf))


@compiled_part
def _find_groups(looked: Looked, sharing: Sharing, residents: Residents, n: int) -> int:
    """Fills in where the groups of cluster n begin; returns their number."""
    groups, kind, family = 0, -1, -1
    for place in range(residents.open_count[n]):
        gpu = residents.order[n, place]
        if looked.gpu_kind[n, gpu] != kind or sharing.gpu_family[n, gpu] != family:
            kind, family = looked.gpu_kind[n, gpu], sharing.gpu_family[n, gpu]
            residents.begin[groups] = place
            groups += 1
    residents.begin[groups] = residents.open_count[n]
    for each in range(residents.looked.shape[0]):
        residents.looked[each] = -1
    return groups


@compiled_part
def _look_at_family(
    share: ShareRule, looked: Looked, sharing: Sharing, residents: Residents, n: int, groups: int, family: int
) -> None:
    """Fills in the groups that suit a family of jobs."""
    count = 0
    for group in range(groups):
        gpu = residents.order[n, residents.begin[group]]
        model, other = residents.gpu_model[n, gpu], sharing.gpu_family[n, gpu]
        keeps, leaves = sharing.kept[family, other, model], sharing.kept[other, family, model]
        if keeps > 0.0 and leaves > 0.0 and keeps + leaves >= share.s_min:
            residents.group[family, count] = group
            residents.keeps[family, count] = keeps
            residents.free_s[family, count] = looked.gpu_remaining_s[n, gpu] / leaves
            residents.weight[family, count] = (1.0 - keeps) + share.pen * (1.0 - leaves)
            count += 1
    residents.looked[family] = count


@compiled_call
def _best_pair(
    share: ShareRule,
    looked: Looked,
    sharing: Sharing,
    residents: Residents,
    n: int,
    groups: int,
    job: int,
    kept_node: Bools,
    kept_start_s: float,
) -> tuple[float, int]:
    """The least cost of a job's pairs, and its GPU; (inf, -1): there is none.

    Args:
        kept_node: (M,) nodes that are kept free for another job.
        kept_start_s: its start.
    """
    family = sharing.job_family[n, job]
    if residents.looked[family] < 0:
        _look_at_family(share, looked, sharing, residents, n, groups, family)
    cores, memory_mib = looked.job_cores[n, job], looked.job_memory_mib[n, job]
    gpu_memory_mib, duration_s = looked.job_gpu_memory_mib[n, job], looked.kind_duration_s[n, job]
    best_s, best_left_s, best_gpu = np.inf, np.inf, -1
    for each in range(residents.looked[family]):
        group = residents.group[family, each]
        first = residents.order[n, residents.begin[group]]
        alone_s = duration_s[looked.gpu_kind[n, first]]
        if not alone_s < np.inf:
            continue
        stretched_s, weight = alone_s / residents.keeps[family, each], residents.weight[family, each]
        if alone_s + min(stretched_s, residents.free_s[family, each]) * weight > best_s:
            continue  # the group's least
        for place in range(residents.begin[group], residents.begin[group + 1]):
            gpu = residents.order[n, place]
            node = looked.gpu_node[n, gpu]
            if gpu_memory_mib > sharing.gpu_memory_left_mib[n, gpu] or not node_has_room(
                cores, memory_mib, looked.node_cores_free[n, node], looked.node_memory_free_mib[n, node]
            ):
                continue
            left_s = looked.gpu_remaining_s[n, gpu]
            leaves = sharing.kept[sharing.gpu_family[n, gpu], family, residents.gpu_model[n, gpu]]
            together_s = min(stretched_s, left_s / leaves)
            if kept_node[node]:
                latest_s = max(
                    alone_s + together_s * (1.0 - residents.keeps[family, each]), left_s + together_s * (1.0 - leaves)
                )
                if latest_s > kept_start_s + SAME_INSTANT_S:
                    continue
            cost_s = alone_s + together_s * weight
            if cost_s < best_s or (
                cost_s == best_s and (left_s < best_left_s or (left_s == best_left_s and gpu < best_gpu))
            ):
                best_s, best_left_s, best_gpu = cost_s, left_s, gpu
            break
    return best_s, best_gpu


@compiled
def find_pairs(
    rule: HoldRule,
    share: ShareRule,
    room: Surroundings,
    looked: Looked,
    sharing: Sharing,
    residents: Residents,
    nothing_kept: Bools,
    is_apart: Bools,
    pairs: Pairs,
) -> None:
    """Fills in the best pair of each waiting job, of clusters of jobs of one GPU.

    Args:
        room: scratch.
        nothing_kept: (M,) False.
        is_apart: (N,) clusters to leave out.
    """
    for n in range(looked.time_s.shape[0]):
        if is_apart[n] or residents.open_count[n] == 0:
            continue
        look_around(
            looked.gpu_kind[n],
            looked.gpu_node[n],
            looked.gpu_idle[n],
            looked.gpu_remaining_s[n],
            looked.node_cores_free[n],
            room,
        )
        groups = _find_groups(looked, sharing, residents, n)
        first = looked.table.first[n]
        for job in range(looked.job_waiting.shape[1]):
            if not (looked.job_waiting[n, job] and sharing.job_shareable[n, job]):
                continue
            cost_s, gpu = _best_pair(share, looked, sharing, residents, n, groups, job, nothing_kept, np.inf)
            if gpu < 0:
                continue
            pairs.gpu[n, job], pairs.cost_s[n, job] = gpu, cost_s
            duration_s = looked.kind_duration_s[n, job]
            best_s = best_duration_s(room, duration_s, looked.table.gpu[first[job] : first[job + 1]])
            completion_s = np.inf
            for kind in range(duration_s.shape[0]):
                wait_s = 0.0 if room.kind_fits[kind] else room.kind_wait_s[kind]
                completion_s = min(completion_s, rule.kappa * wait_s + duration_s[kind])
            if looked.hold_allowed[n] and cost_s > rule.theta * completion_s:
                continue
            waited_s = looked.time_s[n] - looked.job_submit_s[n, job]
            age_gain = rule.ageing * log1p(max(waited_s, 0.0) / best_s)
            pairs.score[n, job] = -(log(best_s) + rule.alpha * log(cost_s / best_s) + rule.packing - age_gain)


@compiled
def find_pairs_beside_gangs(
    rule: GangRule,
    share: ShareRule,
    surroundings: GangSurroundings,
    looked: Looked,
    gangs: Gangs,
    sharing: Sharing,
    residents: Residents,
    n: int,
    plain: bool,
    reserved: int,
    pairs: Pairs,
) -> None:
    """Fills in the best pair of each waiting job of cluster n, where jobs of several GPUs wait or run.

    Args:
        surroundings: of the cluster, with its outlook.
        plain: as for `adlro.decide.gang_scores.score_cluster`.
        reserved: the place of the job that GPUs are kept free for; -1: none.
    """
    kept = surroundings.kept
    if residents.open_count[n] == 0:
        return
    count_gpus(surroundings, looked.gpu_idle[n], looked.gpu_kind[n])
    count_queue(rule, surroundings, looked, gangs, n)
    for node in range(kept.node.shape[0]):
        kept.node[node] = False
    if reserved >= 0 and reserve_for_job(surroundings, looked, gangs, n, reserved) == 0.0:
        return  # the reserved job starts before all others
    groups = _find_groups(looked, sharing, residents, n)
    for job in range(looked.job_waiting.shape[1]):
        if not (looked.job_waiting[n, job] and sharing.job_shareable[n, job]):
            continue
        start_s = np.inf if job == reserved else kept.start_s[0]
        cost_s, gpu = _best_pair(share, looked, sharing, residents, n, groups, job, kept.node, start_s)
        if gpu < 0:
            continue
        pairs.gpu[n, job], pairs.cost_s[n, job] = gpu, cost_s
        best_s = fill_model_s(surroundings, 1, looked.kind_duration_s[n, job], gangs.nodes[n, job])
        if looked.hold_allowed[n]:
            if cost_s > rule.s_max * best_s:
                continue
            cores, memory_mib, gpu_memory_mib = 0, 0, 0
            if not plain:
                cores, memory_mib = looked.job_cores[n, job], looked.job_memory_mib[n, job]
                gpu_memory_mib = looked.job_gpu_memory_mib[n, job]
            picky = cost_s > rule.theta * best_s and is_picky(looked, n, job, CHOOSES)
            if picky:
                as_seen_by(surroundings, looked, n, job)
            too_long = cost_s > rule.theta * best_s and is_too_long(
                rule,
                surroundings,
                cost_s,
                1,
                gangs.max_nodes[n, job],
                cores,
                memory_mib,
                gpu_memory_mib,
                gangs.nodes[n, job],
                gangs.spread_speed[n, job],
            )
            if picky:
                as_seen_by_all(surroundings)
            if too_long:
                continue
        waited_s = max(looked.time_s[n] - looked.job_submit_s[n, job], 0.0)
        cost = cost_of(
            rule, surroundings.at_depth[0], 0.0, 1, log(best_s), log(cost_s / best_s), 0.0, log1p(waited_s / best_s)
        )
        pairs.score[n, job] = -cost
