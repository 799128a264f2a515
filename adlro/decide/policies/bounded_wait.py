"""The limit on waits: an overdue job goes first under any policy, so that no job waits for ever. Arrays only.

A job is *overdue* once it has waited longer than

    ratio (best + typical + age)

best: its own shortest expected duration, over the GPUs that can hold it; other GPUs do not count.
typical: the mean of `best` over all waiting jobs, each counted as at most `OUTLIER` times the median (the lower of two
    in the middle): a user may declare any runtime, and one such job must not disable the limit for all.
age: the mean time for which the running jobs have run. It is no estimate, and it reflects how widely durations spread:
    if they spread widely, long jobs hold most GPUs, and a wait of hours is normal. The mean wait under first come,
    first served is proportional to it (Pollaczek 1930, Khinchine 1932).

If the policy itself would start a job that was submitted before an overdue one, its choice stands. Otherwise an overdue
job may go first while fewer than its *share* of the GPUs run jobs that were submitted no later than it: `SHARE` of the
present GPUs, at least one. So in a long overload the policy still decides over most of the cluster. The rule goes
through overdue jobs in the order of submission. The first that fits now starts, on the GPU, or the set of GPUs, among
those that the policy scores highest (its fastest, if the policy refuses all: an overdue job is never held). An earlier
overdue job that does not fit counts as if it ran, and the first of these reserves nodes on which no other job starts:

    one GPU        one node with a GPU that can hold it: the node with the longest time since its last start.
    several GPUs   of each GPU model, as many nodes as a packed set has, that can give it its GPUs once they are empty,
                   and of these that set of nodes whose last start is furthest back; then the model with the furthest.
                   Where too few nodes are left for a packed set, after losses, the nodes of a spread one, as many as
                   the job accepts.

So the jobs on these nodes end, and it fits.

A job that chooses its nodes (`--exclude`, `--nodelist`) is overdue, and has nodes reserved, among those alone: its
expected durations elsewhere are infinite. One that must be alone on its nodes (`--exclusive`) reserves as many as any
other, and starts once they are empty, which the proof below waits for in any case. Where the packed set of a job of
several GPUs can't be on the nodes that it chose, it has a spread one, as after losses.

Under a policy that stops jobs (`preempts`), an overdue job that does not fit, and is not exclusive, may also stop
running ones that can be stopped and were submitted later than it, whatever their remaining time, as few as needed
(adlro/decide/stop_rule.py; the node where they hold the fewest GPUs, on its fastest model). A running job is overdue as
a waiting one is, with the greater of the times that it has run and is expected to run on as `best`, and is not stopped
(`spared`). Nor is one that has started at this instant: so at one instant a job is stopped at most once, and decisions
come to an end.

Under any policy, load and mix, with D the longest actual or expected duration of any job where it starts (of a job of
several GPUs also on a spread set):

    A job that the present GPUs can hold starts no later than 3 ratio D after its submission, plus 2 (k + 1) D, where k
    is the number of jobs submitted no later than it that then still wait.

Proof: each of the three durations is at most D, so the limit is at most 3 ratio D; from then on the job and those k are
overdue, and stay so. Consider the first of the waiting jobs in order. If none of the k + 1 starts for D, then all jobs
submitted no later have ended, and no older job starts: the first job may go first, and nodes are reserved for it. Let S
be the time of the last start on these nodes. While they are reserved no job starts on any of them, so that they stay
eligible with the same S; other nodes replace them only if their last start is further back. So S never grows, whichever
nodes are reserved at a time. No job runs longer than D: at most D later the nodes reserved then are empty, all at once,
and the job fits, since empty they can give it its GPUs, on no more nodes than it may have. So at least one of the k + 1
starts every 2 D, and jobs submitted later come after it. How many nodes are reserved, and how many GPUs the jobs ask
for, does not matter. A hold may last beyond that moment, by at most the time since the last event (`hold_until_s`), or
`HOLD_LIMIT_S`; and a loss of GPUs meanwhile restarts the bound.

With jobs that are stopped the same holds of their last start, where D is the longest actual or expected duration of any
attempt, what it does again and its restart included; in the service a stop takes its grace time besides:

    A job starts for the last time no later than 3 ratio D after its submission, plus 2 (k + 1) D, where k is the number
    of jobs submitted no later than it that then wait.

Proof: from 3 ratio D after its submission on, it, those k and the running jobs submitted no later are overdue, waiting
or not: the running ones are not stopped, so none of them ever waits again (after a loss it does), and each start of one
of the k + 1 is its last. The rest is as above: nothing starts on reserved nodes, by stopping neither, and no attempt
takes longer than D. A job that was stopped keeps its place in the order and its time of submission, so what it has
waited and run before counts. Before it is overdue it may be stopped, and run again, any number of times.

Where two jobs may share a GPU (policies/share_pairs.py), the pairs of a policy that lets them count as more rows of the
table: an overdue job may go beside another one, and nobody starts beside a job on the reserved nodes, so that its end
does not move away. D is then the longest duration beside any partner that a job may have, and the time of a node's last
start is that of the last of all jobs that run there.

The limit reads only the observation, so it is the same in the simulator and in service.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from adlro.decide.looked import as_type
from adlro.decide.present import gives_when_empty, kinds_that_hold
from adlro.decide.reservation import job_outlook
from adlro.decide.stop_rule import Wish, search_stop
from adlro.decide.stops import fill_stops, room_for_stops
from adlro.decide.winner import winner
from adlro.numeric.compiled import compiled
from adlro.state.gangs import NEVER
from adlro.state.observation import HOLD, Bools, Floats, Ints, Observation

Busy = tuple[int, tuple[int, ...], bool]
"""A start on busy GPUs: the job's place, its GPUs, and whether the jobs there are stopped."""

DEFAULT_RATIO = 20.0
"""Measured by `benchmarks/bounded_wait.py`: far above the values that change mean completion times of finite lists by
more than noise. Shortest-first policies make long jobs wait; only in a lasting overload does any job wait this long."""

SHARE = 0.125
"""Share of the GPUs that may run jobs submitted no later than an overdue job while it goes first, at least one."""

ROUNDING = 1e-9
"""Relative: sums of the same numbers in another order differ by far less."""

OUTLIER = 10.0
"""Multiple of the median at which longer durations are cut for the typical one."""


def overdue(observation: Observation, ratio: float) -> Bools:
    """(N, J) whether the job has waited longer than its limit, and a present GPU can hold it."""
    return _overdue(observation, ratio, _perhaps_overdue(observation, ratio))


def _overdue(observation: Observation, ratio: float, clusters: Ints) -> Bools:
    """(N, J) `overdue`, for which only these clusters are looked at."""
    late = np.zeros(observation.job_waiting.shape, dtype=np.bool_)
    if not len(clusters):
        return late
    waiting, submit_s = observation.job_waiting[clusters], observation.job_submit_s[clusters]
    best_s, typical_s = _best_and_typical_s(observation, clusters)
    can: Bools = waiting & kinds_that_hold(observation, clusters).any(axis=2)
    its_s = np.where(np.isfinite(best_s), best_s, 0.0)
    limit_s = ratio * (its_s + typical_s[:, None] + _age_s(observation)[clusters, None])
    late[clusters] = can & (observation.time_s[clusters, None] - submit_s > limit_s)
    return late


def spared(observation: Observation, ratio: float) -> Observation:
    """The same observation, in which running jobs that are overdue, or have started just now, can't be stopped.

    Args:
        ratio: the limit's ratio; inf: no job is ever overdue.
    """
    preemption = observation.preemption
    if preemption is None:
        return observation
    may = preemption.gpu_stoppable & (observation.gpu_elapsed_s > 0.0)
    if ratio < np.inf:
        left_s = np.where(np.isfinite(observation.gpu_remaining_s), observation.gpu_remaining_s, 0.0)
        its_s = np.maximum(observation.gpu_elapsed_s, left_s) + _age_s(observation)[:, None]
        since_s = observation.time_s[:, None] - observation.gpu_submit_s
        clusters = np.flatnonzero((may & (since_s > ratio * its_s)).any(axis=1))
        if len(clusters):
            _, typical_s = _best_and_typical_s(observation, clusters)
            may[clusters] &= since_s[clusters] <= ratio * (its_s[clusters] + typical_s[:, None])
    return dataclasses.replace(observation, preemption=preemption._replace(gpu_stoppable=may))


def bound(
    observation: Observation,
    scores: Floats,
    ratio: float,
    busy: dict[int, Busy] | None = None,
    *,
    may_stop: bool = False,
) -> Bools:
    """Changes scores, and starts on busy GPUs, so that overdue jobs go first.

    Args:
        scores: (C,) the policy's scores of the candidates, changed in place; -inf: the policy refuses the row.
        ratio: the limit's ratio; inf: no job is ever overdue.
        busy: by cluster, the policy's start on busy GPUs, which goes before all rows; changed in place.
        may_stop: whether overdue jobs may stop running ones.

    Returns:
        (N,) whether another row or start, or none, is the best now.
    """
    table = observation.table
    changed = np.zeros(len(table.first), dtype=np.bool_)
    if ratio == np.inf or not (scores.size or busy or may_stop):
        return changed
    clusters = _perhaps_overdue(observation, ratio)
    if not len(clusters):
        return changed
    starts = {} if busy is None else busy
    late = _overdue(observation, ratio, clusters)
    for n in np.flatnonzero(late.any(axis=1)).tolist():
        its = scores[table.rows(n)]  # a view
        before, start_before = winner(its), starts.get(n)
        chosen = int(table.job[table.rows(n)][before]) if before != HOLD else len(late[n])
        if start_before is not None:
            chosen = start_before[0]
        _bound_one(observation, n, np.flatnonzero(late[n]), chosen, scores, starts, may_stop)
        start = starts.get(n)
        changed[n] = start != start_before or (start is None and winner(its) != before)
    return changed


def _best_and_typical_s(observation: Observation, clusters: Ints) -> tuple[Floats, Floats]:
    """(n, J) `best` of the waiting jobs of some clusters, inf where none waits; (n,) `typical`."""
    waiting = observation.job_waiting[clusters]
    best_s = np.where(waiting[:, :, None], observation.kind_duration_s[clusters], np.inf).min(axis=2, initial=np.inf)
    able = np.isfinite(best_s)
    count = able.sum(axis=1, keepdims=True)
    if not best_s.shape[1]:
        return best_s, np.zeros(len(clusters))
    median_s = np.take_along_axis(np.sort(best_s, axis=1), np.maximum(count - 1, 0) // 2, axis=1)
    typical_s = np.minimum(best_s, OUTLIER * median_s).sum(axis=1, where=able) / np.maximum(count[:, 0], 1)
    return best_s, typical_s


def _perhaps_overdue(observation: Observation, ratio: float) -> Ints:
    """A cheap first filter; few clusters pass it: no limit is below ratio times the running jobs' age."""
    found = np.empty(len(observation.time_s), dtype=np.bool_)
    _fill_may_be_overdue(
        ratio * (1.0 - ROUNDING),
        as_type(observation.time_s, np.float64),
        as_type(observation.job_waiting, np.bool_),
        as_type(observation.job_submit_s, np.float64),
        as_type(observation.gpu_idle, np.bool_),
        as_type(observation.gpu_remaining_s, np.float64),
        as_type(observation.gpu_elapsed_s, np.float64),
        found,
    )
    clusters: Ints = found.nonzero()[0]
    return clusters


@compiled
def _fill_may_be_overdue(
    ratio: float,
    time_s: Floats,
    job_waiting: Bools,
    job_submit_s: Floats,
    gpu_idle: Bools,
    gpu_remaining_s: Floats,
    gpu_elapsed_s: Floats,
    found: Bools,
) -> None:
    """Compiled, since this is part of every decision of every policy."""
    for n in range(found.shape[0]):
        first_s, total_s, running = np.inf, 0.0, 0
        for job in range(job_waiting.shape[1]):
            if job_waiting[n, job]:
                first_s = min(first_s, job_submit_s[n, job])
        for gpu in range(gpu_idle.shape[1]):
            if not gpu_idle[n, gpu] and gpu_remaining_s[n, gpu] < np.inf:
                total_s += gpu_elapsed_s[n, gpu]
                running += 1
        found[n] = time_s[n] - first_s > ratio * total_s / max(running, 1)


def _age_s(observation: Observation) -> Floats:
    """(N,) mean time for which the running jobs have run; 0 if none runs."""
    running = ~observation.gpu_idle & (observation.gpu_remaining_s < np.inf)
    age_s: Floats = np.where(running, observation.gpu_elapsed_s, 0.0).sum(axis=1) / np.maximum(running.sum(axis=1), 1)
    return age_s


def _bound_one(
    observation: Observation,
    n: int,
    late: NDArray[np.intp],
    chosen: int,
    scores: Floats,
    busy: dict[int, Busy],
    may_stop: bool,
) -> None:
    """Changes the scores of the rows of one cluster with overdue jobs, and its start on busy GPUs.

    Args:
        late: places of the overdue jobs in the queue.
        chosen: place of the job that the policy would start; a place after the queue: none.
    """
    table, there = observation.table, np.isfinite(observation.gpu_remaining_s[n])
    share = max(int(SHARE * there.sum()), 1)
    running_submit_s = np.sort(observation.gpu_submit_s[n, there])
    kept = np.full(len(there), False)  # GPUs of the reserved nodes
    before = 0  # GPUs of the earlier overdue jobs
    for job in late:
        submit_s = observation.job_submit_s[n, job]
        if before + np.searchsorted(running_submit_s, submit_s, side="right") >= share:
            break  # nor may any later one
        if chosen <= job and not (n in busy and kept[list(busy[n][1])].any()):
            break  # the policy starts a job that is as old
        rows = slice(table.first[n, job], table.first[n, job + 1])
        is_open = ~_any_of(kept, table.gpus[rows])
        if is_open.any():
            wanted = np.where(is_open, scores[rows], -np.inf)
            if not (wanted > -np.inf).any():
                wanted = np.where(is_open, -table.duration_s[rows], -np.inf)
            scores[table.rows(n)] = -np.inf
            scores[rows] = wanted
            busy.pop(n, None)
            return
        gpus = _freed_for(observation, n, int(job), kept) if may_stop else ()
        if gpus:
            scores[table.rows(n)] = -np.inf
            busy[n] = int(job), gpus, True
            return
        gpu_count = 1 if observation.gangs is None else int(observation.gangs.gpu_count[n, job])
        if before == 0:
            since_s = _since_start_s(observation, n)
            if gpu_count == 1:
                able = np.unique(observation.gpu_node[n, np.isfinite(observation.durations_s(n, job)) & there])
                kept = observation.gpu_node[n] == able[np.argmax(since_s[able])]
            else:
                kept = _nodes_for_gang(observation, n, job, since_s)[observation.gpu_node[n]]
        before += gpu_count
    rows = table.rows(n)
    scores[rows][_any_of(kept, table.gpus[rows])] = -np.inf
    if n in busy and kept[list(busy[n][1])].any():
        del busy[n]


def _freed_for(observation: Observation, n: int, job: int, kept: Bools) -> tuple[int, ...]:
    """The GPUs that an overdue job gets by stopping jobs that were submitted later; none: there are not enough.

    Args:
        kept: (G,) GPUs of the nodes on which it may not start.
    """
    preemption = observation.preemption
    if preemption is None or not preemption.gpu_stoppable[n].any():
        return ()
    if observation.nodes is not None and observation.nodes.job_exclusive[n, job]:
        return ()  # it waits for empty nodes
    outlook, nodes, duration_s, _, figures = job_outlook(observation, n, job)
    gpu_count, _, cores, memory_mib, gpu_memory_mib = figures
    idle, kind = as_type(observation.gpu_idle[n], np.bool_), as_type(observation.gpu_kind[n], np.int64)
    stops = room_for_stops(outlook, idle, kind, len(nodes))
    run, may = as_type(preemption.gpu_run[n], np.int64), as_type(preemption.gpu_stoppable[n], np.bool_)
    _, which, count = np.unique(run, return_inverse=True, return_counts=True)
    later_s = observation.gpu_submit_s[n] - observation.job_submit_s[n, job]
    none = np.zeros(len(run))
    fill_stops(run, may, later_s, none, count[which].astype(np.float64), none, stops)
    stops.closed[observation.gpu_node[n, kept]] = True
    found, its_s = np.zeros(gpu_count, dtype=np.int64), as_type(observation.kind_duration_s[n, job], np.float64)
    for model in np.argsort(duration_s, kind="stable").tolist():
        if not np.isfinite(duration_s[model]) or nodes[model] == NEVER:
            continue
        wish = Wish(model, gpu_count, int(nodes[model]), cores, memory_mib, gpu_memory_mib, its_s, 0.0)
        if search_stop(1.0, stops, wish, found) < np.inf:
            return tuple(found.tolist())
    return ()


def _any_of(kept: Bools, gpus: Ints) -> Bools:
    """(R,) whether some of the GPUs (R, W) of each row are among those that are kept (G,)."""
    among: Bools = np.logical_or.reduce(kept[gpus] & (gpus >= 0), axis=1)
    return among


def _nodes_for_gang(observation: Observation, n: int, job: NDArray[np.intp] | int, since_s: Floats) -> Bools:
    """(M,) the nodes that an overdue job of several GPUs reserves.

    Args:
        since_s: (M,) time since the last start on each node.
    """
    gangs = observation.gangs
    assert gangs is not None
    place, best_s = int(job), -np.inf
    kept = np.zeros(len(since_s), dtype=np.bool_)
    for model in range(gangs.nodes.shape[2]):
        limits = [int(gangs.nodes[n, place, model])]
        if limits[0] == NEVER:
            continue
        if gangs.spread_speed[n, place, model] > 0.0:
            limits.append(int(gangs.max_nodes[n, place]) or len(since_s))
        gives = gives_when_empty(observation, n, place, model)
        for limit in limits:
            chosen = _longest_without_start(gives, since_s, int(gangs.gpu_count[n, place]), limit)
            if len(chosen):
                if since_s[chosen].min() > best_s:
                    best_s = float(since_s[chosen].min())
                    kept[:] = False
                    kept[chosen] = True
                break
    return kept


def _longest_without_start(gives: Ints, since_s: Floats, gpu_count: int, limit: int) -> NDArray[np.intp]:
    """Nodes, at most `limit`, that can give so many GPUs, and whose last start is furthest back; empty: there are none.

    Args:
        gives: (M,) GPUs that the empty nodes can give.
        since_s: (M,) time since the last start.
    """
    nodes = np.flatnonzero(gives)
    nodes = nodes[np.argsort(-since_s[nodes], kind="stable")]
    least, most = 1, len(nodes) + 1  # of the nodes in this order, how many are needed; more: all are too few
    chosen = nodes[:0]
    while least < most:
        count = (least + most) // 2
        first = nodes[:count]
        largest = first[np.argsort(-gives[first], kind="stable")][:limit]
        held = np.cumsum(gives[largest])
        if held[-1] >= gpu_count:
            most, chosen = count, largest[: int(np.searchsorted(held, gpu_count)) + 1]
        else:
            least = count + 1
    return chosen


def _since_start_s(observation: Observation, n: int) -> Floats:
    """(M,) time since the last start of the jobs that run on a node; inf if none runs."""
    since_s = np.full(observation.node_cores_free.shape[1], np.inf)
    running = np.flatnonzero(~observation.gpu_idle[n] & np.isfinite(observation.gpu_remaining_s[n]))
    np.minimum.at(since_s, observation.gpu_node[n, running], observation.gpu_elapsed_s[n, running])
    return since_s
