"""The rule of the policy `hold_gang`, compiled, on plain arrays of one cluster. numpy and numba only.

The policy (adlro/decide/policies/hold_gang.py) calls it with observations, the rollouts
(adlro/decide/rollouts/gang_rule.py) with the simulator's arrays.

A candidate is a job and a set of GPUs for it: of each model the packed and the spread set (adlro/state/gangs.py), and
for a job of one GPU of each kind of GPU one on the node with the fewest idle GPUs, the lowest-numbered on a tie. With d
the expected duration there, n the number of GPUs, b the job's shortest duration on any model of which enough GPUs are
present, w the time it has waited, the cost is

    ln b + beta q ln n + (alpha + (alpha_deep - alpha) q^2) ln(d / b)
        + frag (unused share of the empty nodes that the set breaks) - ageing ln(1 + w / b),    q = min(1, r / depth)

r is the depth of the queue, in jobs of mean length before each present GPU:

    r = sum n b / (mean b x present GPUs), over the jobs that wait and can run, of those that the rule is shown

In a short queue a job of many GPUs takes GPUs that nothing else wants; in a deep one it keeps others waiting by all the
GPU time that it takes, n b, which is what beta = 1 orders by. And in a short queue a slow GPU is left to the jobs that
it suits; in a deep one a short job is better done there than late. A long job that needs more GPUs than the fast model
has would otherwise take the middle model's GPUs from all the short jobs that wait for a fast one.

A node is empty if all its present GPUs are idle; of one with four GPUs, a job on one of them leaves a share of 3/4
unused. A candidate is refused where

    d > s_max b                                     it is too slow there, or
    d > theta min(kappa wait + duration)            it is expected to end earlier elsewhere: the least of all models,
                                                    packed and spread, with the expected time until such a set is free,

unless it is expected to end before faster GPUs would have drained the queue of all jobs that they suit best, itself
included, by a part of that time (for a spread set, its own model's GPUs count as faster ones):

    d max(1, (d / b) / f)^affinity
        <= backlog sum of n b exp(1.5 s^2) over the jobs whose fastest GPUs are among the faster ones
               / sum of b / d' over the faster GPUs, those on which the job takes d' < d

with f the least slowdown of any waiting job on this model, its duration there against its shortest: a GPU that is slow
only for this job is left to the jobs that it suits, as in hold_greedy (adlro/decide/hold_rule.py). With s the
uncertainty of b: expectations are medians, and a sum of uncertain times is longer than that of their medians (by
exp(s^2 / 2) if they are lognormal; three times the exponent did better where little is known). A job that is equally
fast on several models counts for the first. A GPU that is five times slower than the fastest would otherwise stay idle
beside any queue. A spread set, and a GPU that is known to be slow, count as slower too.

A candidate is also refused where it would delay the reserved job (adlro/decide/reservation.py). Which job that is,
adlro/decide/gang_scores.py says: one that has waited longer than rho max(1, defer r) times b exp(doubt s^2). In a deep
queue all have waited long; doubt is for a job of uncertain length (with 1/2 the mean counts, of which b is the median).
Once it fits on its set, it starts before all others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.looked import ALONE, Looked, is_picky
from adlro.decide.reservation import Kept, look_again, look_as, room_to_keep
from adlro.numeric.compiled import compiled_call, compiled_part
from adlro.numeric.exact_compiled import exp, log
from adlro.state.gangs import NEVER, Outlook, ends_sooner, free_at_s
from adlro.state.observation import Bools, Floats, Ints

MOST_SPREAD = 1.5
"""Uncertainty, a standard deviation of the logarithm, from which on a greater one changes nothing."""

_SLOTS = 1024
"""Room for expected free times that a decision has already worked out."""

_KEY = 7


class GangRule(NamedTuple):
    """The rule's parameters, floats, as in the formulas above."""

    alpha: float
    theta: float
    s_max: float
    kappa: float
    beta: float
    ageing: float
    frag: float
    rho: float
    drain: float
    haste: float
    backlog: float
    depth: float
    defer: float
    alpha_deep: float
    doubt: float
    affinity: float


class Surroundings(NamedTuple):
    """The rule's input about one cluster apart from the jobs, with room for what it works out; one per thread.

    Attributes:
        outlook: when what is free.
        kept: what is kept free.
        node_idle, node_there: (M,) idle and present GPUs of each node.
        model_there: (K,) present GPUs of each model.
        kind_model: (S,) the model of a kind of GPUs; S is at most the number of GPUs.
        kind_there: (S,) whether a GPU of it is present.
        model_s: (K,) room: a job's expected duration on each model.
        known: (1,) number of the decision, from 1.
        key: (_SLOTS, _KEY) of which free time, and of which decision.
        wait_s: (_SLOTS,) these times.
        plain_s: (G,) room: when GPUs are free, while the outlook is as one job sees it (`as_seen_by`).
        queue_s: (3,) of the waiting jobs that can run: GPU time that they are expected to take on their fastest GPUs,
            the sum of their shortest durations, and their number.
        suited_s: (K,) GPU time that those of them may take (`may_take_s`) that are fastest on a model.
        least_slowdown: (K,) of those of them that can run on a model: the least duration there against the shortest.
        at_depth: (3,) alpha, beta and rho at the depth of this queue.
    """

    outlook: Outlook
    kept: Kept
    node_idle: Ints
    node_there: Ints
    model_there: Ints
    kind_model: Ints
    kind_there: Bools
    model_s: Floats
    known: Ints
    key: Ints
    wait_s: Floats
    plain_s: Floats
    queue_s: Floats
    suited_s: Floats
    least_slowdown: Floats
    at_depth: Floats


def surroundings_of(outlook: Outlook, models: int) -> Surroundings:
    """Room for a cluster with this outlook, of GPUs of so many models."""
    gpus, nodes = len(outlook.gpu_node), len(outlook.node_cores_free)
    return Surroundings(
        outlook=outlook,
        kept=room_to_keep(nodes),
        node_idle=np.zeros(nodes, dtype=np.int64),
        node_there=np.zeros(nodes, dtype=np.int64),
        model_there=np.zeros(models, dtype=np.int64),
        kind_model=np.zeros(gpus, dtype=np.int64),
        kind_there=np.zeros(gpus, dtype=np.bool_),
        model_s=np.zeros(models),
        known=np.zeros(1, dtype=np.int64),
        key=np.zeros((_SLOTS, _KEY), dtype=np.int64),
        wait_s=np.zeros(_SLOTS),
        plain_s=np.zeros(gpus),
        queue_s=np.zeros(3),
        suited_s=np.zeros(models),
        least_slowdown=np.full(models, np.inf),
        at_depth=np.zeros(3),
    )


@compiled_part
def as_seen_by(surroundings: Surroundings, looked: Looked, n: int, job: int) -> None:
    """Lets the outlook be as a picky job of cluster n sees it, until `as_seen_by_all`."""
    surroundings.known[0] += 1
    alone = is_picky(looked, n, job, ALONE)
    look_as(surroundings.outlook, looked.kind_duration_s[n, job], looked.gpu_kind[n], alone, surroundings.plain_s)


@compiled_part
def as_seen_by_all(surroundings: Surroundings) -> None:
    """Lets the outlook be as jobs that are not picky see it."""
    surroundings.known[0] += 1
    look_again(surroundings.outlook, surroundings.plain_s)


@compiled_part
def count_gpus(surroundings: Surroundings, gpu_idle: Bools, gpu_kind: Ints) -> None:
    """Fills in what the rule reads of nodes, models and kinds, for a new decision.

    Args:
        surroundings: of a cluster whose outlook is filled in.
        gpu_idle, gpu_kind: (G,) as in an observation.
    """
    outlook = surroundings.outlook
    surroundings.known[0] += 1
    for model in range(surroundings.model_there.shape[0]):
        surroundings.model_there[model] = 0
    for gpu in range(gpu_kind.shape[0]):
        surroundings.kind_there[gpu] = False
    for node in range(surroundings.node_idle.shape[0]):
        idle, there = 0, 0
        for gpu in range(outlook.node_first_gpu[node], outlook.node_first_gpu[node + 1]):
            if outlook.gpu_free_s[gpu] < np.inf:
                there += 1
                idle += gpu_idle[gpu]
                surroundings.model_there[outlook.gpu_model[gpu]] += 1
                surroundings.kind_model[gpu_kind[gpu]] = outlook.gpu_model[gpu]
                surroundings.kind_there[gpu_kind[gpu]] = True
        surroundings.node_idle[node], surroundings.node_there[node] = idle, there


@compiled_part
def fill_model_s(surroundings: Surroundings, gpu_count: int, duration_s: Floats, nodes: Ints) -> float:
    """Fills in a job's expected duration on each model, the shortest of its present GPUs; returns the shortest of all.

    inf: the model can't hold it, or has too few GPUs now.

    Args:
        duration_s: (S,) expected duration on each kind.
        nodes: (K,) nodes of a packed set; not read for a job of one GPU.
    """
    model_s, best_s = surroundings.model_s, np.inf
    for model in range(model_s.shape[0]):
        model_s[model] = np.inf
    for kind in range(duration_s.shape[0]):
        if not surroundings.kind_there[kind]:
            continue
        model = surroundings.kind_model[kind]
        if surroundings.model_there[model] < gpu_count or (gpu_count > 1 and nodes[model] == NEVER):
            continue
        model_s[model] = min(model_s[model], duration_s[kind])
        best_s = min(best_s, duration_s[kind])
    return best_s


@compiled_part
def wait_of_s(
    surroundings: Surroundings, model: int, gpu_count: int, nodes: int, cores: int, memory_mib: int, gpu_memory_mib: int
) -> float:
    """`free_at_s`, worked out once in a decision."""
    slot = (
        model * 7919 + gpu_count * 104729 + nodes * 1299709 + cores * 31 + (memory_mib >> 6) * 17 + gpu_memory_mib
    ) % _SLOTS
    key, known = surroundings.key[slot], surroundings.known[0]
    if not (
        key[0] == known
        and key[1] == model
        and key[2] == gpu_count
        and key[3] == nodes
        and key[4] == cores
        and key[5] == memory_mib
        and key[6] == gpu_memory_mib
    ):
        key[0], key[1], key[2], key[3] = known, model, gpu_count, nodes
        key[4], key[5], key[6] = cores, memory_mib, gpu_memory_mib
        surroundings.wait_s[slot] = free_at_s(
            surroundings.outlook, model, gpu_count, nodes, cores, memory_mib, gpu_memory_mib
        )
    return float(surroundings.wait_s[slot])


@compiled_call
def is_too_long(
    rule: GangRule,
    surroundings: Surroundings,
    duration_s: float,
    gpu_count: int,
    max_nodes: int,
    cores: int,
    memory_mib: int,
    gpu_memory_mib: int,
    nodes: Ints,
    spread_speed: Floats,
) -> bool:
    """Whether a job is expected to end so much earlier elsewhere that it is better held; `fill_model_s` has filled it.

    Args:
        duration_s: expected on the candidate.
        nodes, spread_speed: (K,) of the job; not read for one of one GPU.
    """
    outlook = surroundings.outlook
    for model in range(surroundings.model_s.shape[0]):
        length_s = surroundings.model_s[model]
        if rule.theta * length_s >= duration_s:
            continue  # however soon it is free
        its_nodes = 1 if gpu_count == 1 else nodes[model]
        if its_nodes == 1:
            wait_s = wait_of_s(surroundings, model, gpu_count, its_nodes, cores, memory_mib, gpu_memory_mib)
            sooner = duration_s > rule.theta * (rule.kappa * wait_s + length_s)
        else:
            sooner = _ends_sooner(
                rule, outlook, model, gpu_count, its_nodes, cores, memory_mib, gpu_memory_mib, length_s, duration_s
            )
        if sooner:
            return True
        if gpu_count == 1 or spread_speed[model] == 0.0:
            continue
        length_s /= spread_speed[model]
        if rule.theta * length_s < duration_s and _ends_sooner(
            rule, outlook, model, gpu_count, max_nodes, cores, memory_mib, gpu_memory_mib, length_s, duration_s
        ):
            return True
    return False


@compiled_call
def _ends_sooner(
    rule: GangRule,
    outlook: Outlook,
    model: int,
    gpu_count: int,
    nodes: int,
    cores: int,
    memory_mib: int,
    gpu_memory_mib: int,
    length_s: float,
    duration_s: float,
) -> bool:
    """`ends_sooner`, with the rule's parameters."""
    return ends_sooner(
        outlook,
        model,
        gpu_count,
        nodes,
        cores,
        memory_mib,
        gpu_memory_mib,
        length_s,
        rule.kappa,
        rule.theta,
        duration_s,
    )


@compiled_part
def counts_queue(rule: GangRule) -> bool:
    """Whether the rule reads the queue: `empty_queue`, `add_to_queue` for each waiting job, `look_at_depth`."""
    return rule.backlog > 0.0 or rule.depth > 0.0 or rule.defer > 0.0  # beta and alpha_deep read it only with a depth


@compiled_part
def empty_queue(surroundings: Surroundings) -> None:
    """Begins to count the queue."""
    for i in range(surroundings.queue_s.shape[0]):
        surroundings.queue_s[i] = 0.0
    for model in range(surroundings.suited_s.shape[0]):
        surroundings.suited_s[model] = 0.0
        surroundings.least_slowdown[model] = np.inf


@compiled_part
def fastest_model(surroundings: Surroundings, best_s: float) -> int:
    """The model on which a job is fastest, the first on a tie; `fill_model_s` has filled its durations; -1: none."""
    for model in range(surroundings.model_s.shape[0]):
        if surroundings.model_s[model] == best_s and best_s < np.inf:
            return int(model)
    return -1


@compiled_part
def add_to_queue(surroundings: Surroundings, gpu_count: int, best_s: float, model: int, spread: float) -> None:
    """Counts a waiting job; `fill_model_s` has filled its durations.

    Args:
        best_s: its shortest expected duration; inf: it can't run, and does not count.
        model: on which it is that.
        spread: the uncertainty of this, a standard deviation of the logarithm.
    """
    if best_s < np.inf:
        queue_s = surroundings.queue_s
        surroundings.suited_s[model] += may_take_s(gpu_count, best_s, spread)
        queue_s[0] += gpu_count * best_s
        queue_s[1] += best_s
        queue_s[2] += 1.0
        for each in range(surroundings.model_s.shape[0]):
            slowdown = surroundings.model_s[each] / best_s
            surroundings.least_slowdown[each] = min(surroundings.least_slowdown[each], slowdown)


@compiled_part
def look_at_depth(rule: GangRule, surroundings: Surroundings) -> None:
    """Fills in alpha, beta and rho at the depth of the counted queue; `model_there` is filled in."""
    queue_s, there, rounds = surroundings.queue_s, 0, 0.0
    for model in range(surroundings.model_there.shape[0]):
        there += surroundings.model_there[model]
    if queue_s[1] > 0.0 and there > 0:
        rounds = queue_s[0] * queue_s[2] / (queue_s[1] * there)
    share = min(rounds / rule.depth, 1.0) if rule.depth > 0.0 else 1.0
    deep = rule.alpha_deep if rule.alpha_deep > 0.0 else rule.alpha
    surroundings.at_depth[0] = rule.alpha + (deep - rule.alpha) * share * share
    surroundings.at_depth[1] = rule.beta * share
    surroundings.at_depth[2] = rule.rho * max(rule.defer * rounds, 1.0)


@compiled_part
def may_take_s(gpu_count: int, best_s: float, spread: float) -> float:
    """GPU time that a waiting job may take on its fastest GPUs.

    Args:
        best_s: its shortest expected duration.
        spread: the uncertainty of this, a standard deviation of the logarithm.
    """
    if spread == 0.0:
        return gpu_count * best_s
    off = min(spread, MOST_SPREAD)
    return float(gpu_count * best_s * exp(1.5 * off * off))


@compiled_part
def waited_ratio(rule: GangRule, wait_s: float, best_s: float, spread: float) -> float:
    """How many times its duration a job has waited, as a reservation counts it.

    Args:
        best_s: its shortest expected duration.
        spread: the uncertainty of this, a standard deviation of the logarithm.
    """
    if spread == 0.0 or rule.doubt == 0.0:
        return wait_s / best_s
    off = min(spread, MOST_SPREAD)
    return float(wait_s / (best_s * exp(rule.doubt * off * off)))


@compiled_part
def drain_s(surroundings: Surroundings, best_s: float, duration_s: float) -> float:
    """When the GPUs that are faster for a job than a candidate's have drained the queue of jobs that they suit best.

    Each counts by its speed for this job; `fill_model_s` and `suited_s` are filled in. inf: there is none.

    Args:
        best_s: the job's shortest duration.
        duration_s: on the candidate.
    """
    speed, suited_s = 0.0, 0.0
    for model in range(surroundings.model_s.shape[0]):
        if surroundings.model_s[model] < duration_s:
            speed += surroundings.model_there[model] * best_s / surroundings.model_s[model]
            suited_s += surroundings.suited_s[model]
    return suited_s / speed if speed > 0.0 else np.inf


@compiled_part
def unsuited_ratio(surroundings: Surroundings, model: int, best_s: float, duration_s: float) -> float:
    """How many times slower a candidate's model is for its job than for the waiting job that it suits best.

    `fill_model_s` has filled the job's durations, and the queue is counted.

    Args:
        model: of the candidate's GPUs.
        best_s: the job's shortest duration.
        duration_s: on the candidate.
    """
    return float(duration_s / best_s / surroundings.least_slowdown[model])


@compiled_part
def ends_before_the_queue(
    rule: GangRule, surroundings: Surroundings, model: int, best_s: float, duration_s: float
) -> bool:
    """Whether a candidate is expected to end before faster GPUs have drained their queue: it is not refused then.

    The arguments are those of `unsuited_ratio`.
    """
    if rule.backlog == 0.0:
        return False
    at_most_s = rule.backlog * drain_s(surroundings, best_s, duration_s)
    if duration_s > at_most_s or rule.affinity == 0.0:
        return bool(duration_s <= at_most_s)
    ratio = unsuited_ratio(surroundings, model, best_s, duration_s)
    return ratio <= 1.0 or bool(duration_s * exp(rule.affinity * log(ratio)) <= at_most_s)


@compiled_part
def unused_share(surroundings: Surroundings, node: int, taken: int) -> float:
    """The share of an empty node's GPUs that a start leaves unused; 0 for a node that isn't empty."""
    there = surroundings.node_there[node]
    if surroundings.node_idle[node] != there:
        return 0.0
    return float((there - taken) / there)


@compiled_part
def cost_of(
    rule: GangRule,
    alpha: float,
    beta: float,
    gpu_count: int,
    length_ln: float,
    slow_ln: float,
    unused: float,
    age_ln: float,
) -> float:
    """The cost of a candidate.

    Args:
        alpha, beta: at the depth of the queue.
        length_ln: ln b.
        slow_ln: ln(d / b).
        unused: share of empty nodes.
        age_ln: ln(1 + w / b).
    """
    cost = length_ln + alpha * slow_ln + rule.frag * unused - rule.ageing * age_ln
    if gpu_count > 1 and beta > 0.0:
        cost += beta * log(float(gpu_count))
    return float(cost)
