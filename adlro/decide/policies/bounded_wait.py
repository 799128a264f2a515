"""No job waits for ever: who has waited too long goes first, whatever the policy wants. Arrays only.

A job is *overdue* once it has waited longer than

    ratio (best + typical + age)

best: its own shortest expected duration, over the GPUs that can hold it. What no GPU can hold does not count.
typical: the mean of that over all waiting jobs, of which each counts for at most `OUTLIER` times the median (of two in
    the middle the lower): anyone may say that a job takes for ever, and one such job must not take the limit from all.
age: the mean time for which the running jobs have run. That is no guess, and it knows how widely durations spread:
    where they do, GPUs are mostly held by long jobs, and a wait of hours says nothing against a policy. The mean wait
    under first come, first served is proportional to it (Pollaczek 1930, Khinchine 1932).

Where the policy itself would start a job that was submitted before an overdue one, that is left to it. Else an overdue
job may go first while fewer than its *share* of the GPUs run jobs that were submitted no later than it: `SHARE` of
those that are there, at least one. So in a long overload most of the machine is still the policy's.
Overdue jobs are gone through in the order of submission. The first that fits now starts, on the GPU among those that
the policy likes best (its fastest, where the policy wants none: an overdue job is never held). One before it that does
not fit counts as if it ran, and the first of these keeps every other job off one node with a GPU that can hold it: the
one on which longest nothing has started. So what runs on that node ends, and it fits.

What follows, whatever the policy, the load and the mix, with D the longest that any job runs and is expected to run on
its best GPU:

    A job that a present GPU can hold starts no later than 3 ratio D after its submission, plus 2 (k + 1) D, where k is
    the number of jobs submitted no later than it that then still wait.

Proof: each of the three durations is at most D, so the limit is at most 3 ratio D; from then on the job and those k are
overdue, and stay so. Look at the first in order of those that wait. If none of the k + 1 starts for D, then all that
was submitted no later has ended, and nothing older is started: it may go first, and a node is kept for it. Let S be the
time at which last something started there. Nothing starts there any more, and another node takes that one's place only
if nothing has started on it for longer: S never grows. Nothing runs longer than D, so D later at the latest the node is
empty, and the job fits. So at least one of the k + 1 starts every 2 D. What is submitted later comes after it. A hold
may last beyond that moment, no longer than it has been since anything happened (`hold_until_s`), or `HOLD_LIMIT_S`; and
GPUs that are lost meanwhile begin the count again.

It rests on nothing but the observation, so it is the same in the simulator and in service.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adlro.decide.winner import winner
from adlro.state.observation import HOLD, Bools, Floats, Ints, Observation

DEFAULT_RATIO = 20.0
"""Of `benchmarks/bounded_wait.py`: far from where mean completion times of finite lists change by more than noise.
Shortest-first policies make long jobs wait; only in a lasting overload does anything wait this long."""

SHARE = 0.125
"""Of the GPUs: so many may run what was submitted no later than an overdue job while it goes first, at least one."""

OUTLIER = 10.0
"""Times the median: a longer duration counts as this long in what is typical."""


def overdue(observation: Observation, ratio: float) -> Bools:
    """(N, J) the job has waited longer than its limit, and a GPU that is there can hold it."""
    late = np.zeros(observation.job_waiting.shape, dtype=np.bool_)
    clusters = _perhaps_overdue(observation, ratio)
    if not len(clusters):
        return late
    waiting, submit_s = observation.job_waiting[clusters], observation.job_submit_s[clusters]
    duration_s = np.where(waiting[:, :, None], observation.kind_duration_s[clusters], np.inf)  # (n, J, S)
    best_s = duration_s.min(axis=2)
    can = (np.isfinite(duration_s) & kinds_there(observation)[clusters, None]).any(axis=2)
    able = np.isfinite(best_s)
    count = able.sum(axis=1, keepdims=True)
    median_s = np.take_along_axis(np.sort(best_s, axis=1), np.maximum(count - 1, 0) // 2, axis=1)
    typical_s = np.minimum(best_s, OUTLIER * median_s).sum(axis=1, keepdims=True, where=able) / np.maximum(count, 1)
    limit_s = ratio * (np.where(able, best_s, 0.0) + typical_s + _age_s(observation)[clusters, None])
    late[clusters] = can & (observation.time_s[clusters, None] - submit_s > limit_s)
    return late


def bound(observation: Observation, scores: Floats, ratio: float) -> Bools:
    """Changes scores so that overdue jobs go first.

    Args:
        scores: (C,) the policy's of the candidates, changed in place; -inf: it does not want the row.
        ratio: of the limit; inf: no job is ever overdue.

    Returns:
        (N,) another row is the best now, or none.
    """
    table = observation.table
    changed = np.zeros(len(table.first), dtype=np.bool_)
    if not scores.size or ratio == np.inf:
        return changed
    late = overdue(observation, ratio)
    for n in np.flatnonzero(late.any(axis=1)).tolist():
        its = scores[table.rows(n)]  # a view
        before = winner(its)
        chosen = int(table.job[table.rows(n)][before]) if before != HOLD else len(late[n])
        _bound_one(observation, n, np.flatnonzero(late[n]), chosen, scores)
        changed[n] = winner(its) != before
    return changed


def _perhaps_overdue(observation: Observation, ratio: float) -> Ints:
    """Cheap, and few clusters for most decisions: nobody's limit is below ratio times the age of what runs."""
    first_s = np.where(observation.job_waiting, observation.job_submit_s, np.inf).min(axis=1, initial=np.inf)
    age_s = _age_s(observation)
    clusters: Ints = np.flatnonzero(observation.time_s - first_s > ratio * age_s)
    return clusters


def _age_s(observation: Observation) -> Floats:
    """(N,) mean time for which the running jobs have run; 0 where none runs."""
    running = ~observation.gpu_idle & (observation.gpu_remaining_s < np.inf)
    age_s: Floats = np.where(running, observation.gpu_elapsed_s, 0.0).sum(axis=1) / np.maximum(running.sum(axis=1), 1)
    return age_s


def kinds_there(observation: Observation) -> Bools:
    """(N, S) the cluster has a GPU of the kind that is neither lost nor on a drained node."""
    there = np.zeros((len(observation.gpu_kind), observation.kind_duration_s.shape[2]), dtype=np.bool_)
    n, gpu = np.nonzero(np.isfinite(observation.gpu_remaining_s))
    there[n, observation.gpu_kind[n, gpu]] = True
    return there


def _bound_one(observation: Observation, n: int, late: NDArray[np.intp], chosen: int, scores: Floats) -> None:
    """Changes the scores of the rows of one cluster with overdue jobs.

    Args:
        late: places of the overdue jobs in the queue.
        chosen: place of the job that the policy would start; behind the queue: none.
    """
    table, there = observation.table, np.isfinite(observation.gpu_remaining_s[n])
    share = max(int(SHARE * there.sum()), 1)
    running_submit_s = np.sort(observation.gpu_submit_s[n, there])
    kept = np.full(len(there), False)  # GPUs of the node that is kept free
    for before, job in enumerate(late):
        submit_s = observation.job_submit_s[n, job]
        if before + np.searchsorted(running_submit_s, submit_s, side="right") >= share:
            break  # nor may any behind it
        if chosen <= job:
            break  # the policy serves one that is as old
        rows = slice(table.first[n, job], table.first[n, job + 1])
        is_open = ~kept[table.gpu[rows]]
        if is_open.any():
            wanted = np.where(is_open, scores[rows], -np.inf)
            if not (wanted > -np.inf).any():
                wanted = np.where(is_open, -table.duration_s[rows], -np.inf)
            scores[table.rows(n)] = -np.inf
            scores[rows] = wanted
            return
        if before == 0:
            able = np.unique(observation.gpu_node[n, np.isfinite(observation.durations_s(n, job)) & there])
            kept = observation.gpu_node[n] == able[np.argmax(_since_start_s(observation, n)[able])]
    rows = table.rows(n)
    scores[rows][kept[table.gpu[rows]]] = -np.inf


def _since_start_s(observation: Observation, n: int) -> Floats:
    """(M,) how long ago the last of the jobs that run on a node started; inf where none runs."""
    since_s = np.full(observation.node_cores_free.shape[1], np.inf)
    running = np.flatnonzero(~observation.gpu_idle[n] & np.isfinite(observation.gpu_remaining_s[n]))
    np.minimum.at(since_s, observation.gpu_node[n, running], observation.gpu_elapsed_s[n, running])
    return since_s
