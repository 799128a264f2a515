"""The rule of the policy `hold_greedy`, compiled, on plain arrays of one cluster. numpy and numba only.

The policy (adlro/decide/policies/hold_greedy.py) calls it with observations, the rollouts
(adlro/decide/rollouts/rule.py) with the simulator's arrays. It stands here because compiled code is kept by a
digest of this package's files and of the caller's own (adlro/numeric/compiled.py).

With d the expected duration of a pair, b the job's shortest on any GPU that can hold it and is there, s = d / b the
slowdown, c the cores asked for, f the node's free cores for each of its idle GPUs, w the time the job has waited, the
score is minus

    ln b + alpha ln s + packing |c / f - 1| - ageing ln(1 + w / b)

A pair is refused where d is above both

    theta min over all GPUs of (kappa wait + duration)     the job's earliest expected completion anywhere, and
    max(1, backlog (s_g / s) ^ affinity) drain             some drains of the queue.

A hold leaves a GPU idle. That pays where the job is sooner done on a GPU that is busy now, and nobody else needs the
idle one. A job that would be done there before the queue has drained takes nothing from anybody: without it the GPU
would stand idle beside a backlog. So a long queue refuses nothing, however slow a GPU is. Jobs still arrive while a
queue drains, which makes it last longer: so `backlog` drains count, not one, on a GPU that is as slow for the other
waiting jobs. One that is slow for this job only is kept for those that it suits: s_g is the least slowdown of any
waiting job on that GPU. With one fast and one slow machine and arrivals at a rate, the best rule is a threshold on the
queue (Lin and Kumar 1984, "Optimal control of a queueing system with two heterogeneous servers").

The drain is the time until the last waiting job is expected to start, by a list schedule (Graham 1969, "Bounds on
multiprocessing timing anomalies"): each waiting job in the order of submission is planned on the GPU where it is done
first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.numeric.compiled import compiled, compiled_part
from adlro.numeric.exact_compiled import exp, log, log1p
from adlro.state.observation import Bools, Floats, Ints


class HoldRule(NamedTuple):
    """The rule's figures, floats, as in the formulas above."""

    alpha: float
    theta: float
    kappa: float
    backlog: float
    affinity: float
    packing: float
    ageing: float


class Surroundings(NamedTuple):
    """What the rule looks at of one cluster beside the pair itself, the same for each job: `look_around` fills it.

    Attributes:
        node_idle: (M,) idle GPUs of each node.
        node_next_end_s: (M,) expected time until a job of the node ends, or its GPU comes back; inf: never.
        gpu_wait_s: (G,) expected time until the GPU could take a job that does not fit now.
        gpu_core_share: (G,) free cores of the node for each of its idle GPUs; filled where the GPU is idle.
        gpu_planned_s: (G,) time until the GPU has done what is planned on it (`plan_job`); at first 0 where it is idle,
            and its remaining time elsewhere.
        gpu_slowdown: (G,) the least slowdown on it of the jobs looked at (`look_at_job`); inf: none can run there.
    """

    node_idle: Floats
    node_next_end_s: Floats
    gpu_wait_s: Floats
    gpu_core_share: Floats
    gpu_planned_s: Floats
    gpu_slowdown: Floats


def room_to_look(gpus: int, nodes: int) -> Surroundings:
    """Room for the surroundings in a cluster of up to so many GPUs and nodes; one a thread."""
    of_gpus = (np.zeros(gpus) for _ in range(4))
    return Surroundings(np.zeros(nodes), np.zeros(nodes), *of_gpus)


@compiled_part
def look_around(
    gpu_node: Ints, gpu_idle: Bools, gpu_remaining_s: Floats, node_cores_free: Ints, surroundings: Surroundings
) -> None:
    """Fills the surroundings; comes before `look_at_job` for each job, and that before `plan_job` and `score_job`.

    The arguments are a row of the observation's fields.
    A job that does not fit on an idle GPU finds too little left on its node: it waits at least until the node's next
    job is expected to end. That may not free enough: how much each job holds is not looked at.
    """
    idle, next_end_s = surroundings.node_idle, surroundings.node_next_end_s
    for node in range(node_cores_free.shape[0]):
        idle[node] = 0.0
        next_end_s[node] = np.inf
    for gpu in range(gpu_node.shape[0]):
        node = gpu_node[gpu]
        if gpu_idle[gpu]:
            idle[node] += 1.0
        else:
            next_end_s[node] = min(next_end_s[node], gpu_remaining_s[gpu])
    for gpu in range(gpu_node.shape[0]):
        node = gpu_node[gpu]
        surroundings.gpu_slowdown[gpu] = np.inf
        if gpu_idle[gpu]:
            surroundings.gpu_wait_s[gpu] = next_end_s[node]
            surroundings.gpu_core_share[gpu] = node_cores_free[node] / idle[node]
            surroundings.gpu_planned_s[gpu] = 0.0
        else:
            surroundings.gpu_wait_s[gpu] = gpu_remaining_s[gpu]
            surroundings.gpu_planned_s[gpu] = gpu_remaining_s[gpu]


@compiled_part
def best_duration_s(surroundings: Surroundings, duration_s: Floats, fits: Bools) -> float:
    """A job's shortest expected duration on any GPU that is there and can hold it; inf: there is none."""
    best_s = np.inf
    for gpu in range(duration_s.shape[0]):
        # What is lost is nothing to compare with, or to wait for.
        if fits[gpu] or surroundings.gpu_wait_s[gpu] < np.inf:
            best_s = min(best_s, duration_s[gpu])
    return best_s


@compiled_part
def look_at_job(surroundings: Surroundings, duration_s: Floats, fits: Bools, longest_s: float) -> float:
    """Takes in how slow each GPU is for a waiting job.

    Returns:
        The longest expected duration of the job on the GPUs where it could start now, or `longest_s`, if that is more.
    """
    best_s = best_duration_s(surroundings, duration_s, fits)
    if best_s == np.inf:
        return longest_s
    for gpu in range(duration_s.shape[0]):
        if fits[gpu]:
            longest_s = max(longest_s, duration_s[gpu])
        if duration_s[gpu] < np.inf:
            surroundings.gpu_slowdown[gpu] = min(surroundings.gpu_slowdown[gpu], duration_s[gpu] / best_s)
    return longest_s


@compiled_part
def plan_job(surroundings: Surroundings, duration_s: Floats, fits: Bools) -> float:
    """Plans a waiting job behind those planned before, on the GPU where it is done first; of equals the lower-numbered.

    Returns:
        The time until it starts there; 0 where no GPU that is there can hold it, which then is not planned.
    """
    planned_s = surroundings.gpu_planned_s
    best_gpu, best_start_s, best_end_s = -1, 0.0, np.inf
    for gpu in range(duration_s.shape[0]):
        start_s = planned_s[gpu]
        if start_s == 0.0 and not fits[gpu]:  # idle, and its node is too full for this job
            start_s = surroundings.gpu_wait_s[gpu]
        end_s = start_s + duration_s[gpu]
        if end_s < best_end_s:
            best_gpu, best_start_s, best_end_s = gpu, start_s, end_s
    if best_gpu >= 0:
        planned_s[best_gpu] = best_end_s
    return best_start_s


@compiled_part
def queue_drain_s(
    surroundings: Surroundings, waiting: Bools, duration_s: Floats, fits: Bools, to_the_end: bool
) -> float:
    """The drain of a queue; looks at its jobs and plans them. The arguments are rows of an observation's fields.

    Args:
        to_the_end: False: only as far as it matters to `score_job`.
    """
    longest_s, drain_s, job = 0.0, 0.0, 0
    for each in range(fits.shape[0]):
        if waiting[each]:
            longest_s = look_at_job(surroundings, duration_s[each], fits[each], longest_s)
    while job < fits.shape[0] and (to_the_end or drain_s < longest_s):
        if waiting[job]:
            drain_s = max(drain_s, plan_job(surroundings, duration_s[job], fits[job]))
        job += 1
    return drain_s


@compiled_part
def is_short(
    rule: HoldRule, surroundings: Surroundings, gpu: int, duration_s: float, best_s: float, drain_s: float
) -> bool:
    """A pair is not refused for the queue's sake: it takes no longer than so many drains as count on its GPU.

    Args:
        gpu: of the pair.
        duration_s: of the pair.
        best_s: of the job on any GPU.
        drain_s: of the queue.
    """
    if duration_s <= drain_s:
        return True
    unsuited = max(duration_s / best_s / surroundings.gpu_slowdown[gpu], 1.0)
    return bool(duration_s <= rule.backlog * exp(-rule.affinity * log(unsuited)) * drain_s)


@compiled_part
def score_job(
    rule: HoldRule,
    surroundings: Surroundings,
    duration_s: Floats,
    fits: Bools,
    cores: int,
    waited_s: float,
    drain_s: float,
    scores: Floats,
) -> None:
    """Fills the scores of one waiting job that fits somewhere.

    Args:
        rule: figures.
        surroundings: of the cluster now.
        duration_s: (G,) expected; inf where the GPU, or its empty node, is too small.
        fits: (G,) the job can start there now.
        cores: that it asks for.
        waited_s: since its submission.
        drain_s: of the queue; or as much of it as the longest duration that could start now, since what takes no longer
            than it is never refused. inf refuses nothing, as where nothing would end a hold.
        scores: (G,) filled; -inf where the job does not fit or the pair is refused.
    """
    best_s, completion_s = best_duration_s(surroundings, duration_s, fits), np.inf
    for gpu in range(duration_s.shape[0]):
        wait_s = 0.0 if fits[gpu] else surroundings.gpu_wait_s[gpu]
        completion_s = min(completion_s, rule.kappa * wait_s + duration_s[gpu])
    # Logarithms take long: many jobs have all their pairs refused, and neighbours are mostly of one model.
    of_job_known, length_cost, age_gain = False, 0.0, 0.0
    last_s, duration_cost = np.nan, 0.0
    for gpu in range(duration_s.shape[0]):
        scores[gpu] = -np.inf
        if not fits[gpu] or (
            duration_s[gpu] > rule.theta * completion_s
            and not is_short(rule, surroundings, gpu, duration_s[gpu], best_s, drain_s)
        ):
            continue
        if not of_job_known:
            of_job_known, length_cost = True, log(best_s)
            age_gain = rule.ageing * log1p(max(waited_s, 0.0) / best_s)
        if duration_s[gpu] != last_s:
            last_s = duration_s[gpu]
            duration_cost = length_cost + rule.alpha * log(last_s / best_s)
        # More than a GPU's share strands idle GPUs of the node, less leaves cores that nobody can use.
        share = surroundings.gpu_core_share[gpu]
        misfit = abs(cores - share) / max(share, 1.0)
        scores[gpu] = -(duration_cost + rule.packing * misfit - age_gain)


@compiled
def score_batch(
    rule: HoldRule,
    surroundings: Surroundings,
    time_s: Floats,
    gpu_node: Ints,
    gpu_idle: Bools,
    gpu_remaining_s: Floats,
    node_cores_free: Ints,
    job_waiting: Bools,
    job_submit_s: Floats,
    job_cores: Ints,
    duration_s: Floats,
    fits_now: Bools,
    hold_allowed: Bools,
    scores: Floats,
) -> None:
    """Fills (N, J, G) scores; the arguments are the figures, room, and the fields of an observation."""
    for n in range(fits_now.shape[0]):
        look_around(gpu_node[n], gpu_idle[n], gpu_remaining_s[n], node_cores_free[n], surroundings)
        drain_s = np.inf
        if hold_allowed[n]:
            to_the_end = n < 0  # False; as a constant it would compile the drain once more
            drain_s = queue_drain_s(surroundings, job_waiting[n], duration_s[n], fits_now[n], to_the_end)
        for job in range(fits_now.shape[1]):
            fits = fits_now[n, job]
            somewhere = False
            for gpu in range(fits.shape[0]):
                somewhere |= fits[gpu]
            if somewhere:
                waited_s = time_s[n] - job_submit_s[n, job]
                cores = job_cores[n, job]
                score_job(rule, surroundings, duration_s[n, job], fits, cores, waited_s, drain_s, scores[n, job])
            else:
                scores[n, job] = -np.inf
