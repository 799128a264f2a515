"""No job waits for ever: who has waited too long goes first, whatever the policy wants. Arrays only.

A job is *overdue* once it has waited longer than

    limit = ratio x (its own shortest expected duration + a typical one of all waiting jobs),

each over the GPUs that can hold it; what no GPU can hold does not count. Typical is the mean, of which each counts for
at most `OUTLIER` times the median (of two in the middle the lower): anyone may say that a job takes for ever, and one
such job among the waiting must not take the limit from all.
Overdue jobs are gone through in the order of submission. The first of them that fits now starts, on the GPU among those
that the policy likes best (its fastest, where the policy wants none: an overdue job is never held). Each one before it
that does not fit keeps every other job off all nodes with a GPU that can hold it and is there: so what runs on those
nodes ends, and it fits.

What follows, whatever the policy, the load and the mix, with D the longest that any job runs and is expected to run on
its best GPU:

    A job that a present GPU can hold starts no later than 2 ratio D after its submission, plus (k + 1) D, where k is
    the number of jobs submitted before it that then still wait.

Proof: what goes into the mean is at most those durations, so the limit is at most 2 ratio D, and from then on the job
and those k are overdue, and stay so. Of those among them that wait, the first in order fits by the time that what runs
on its nodes has ended, at most D later: nothing else starts there meanwhile. So at least one of the k + 1 starts every
D. What is submitted later comes after it. A hold may last beyond that moment, no longer than it has been since anything
happened (`hold_until_s`), or `HOLD_LIMIT_S`; and GPUs that are lost meanwhile begin the count again.

It rests on nothing but the observation, so it is the same in the simulator and in service.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adlro.sim.observation import Bools, Floats, Observation

DEFAULT_RATIO = 20.0
"""Of `benchmarks/bounded_wait.py`: far from where mean completion times of finite lists change by more than noise.
Shortest-first policies make long jobs wait; only in a lasting overload does anything wait this long."""

OUTLIER = 10.0
"""Times the median: a longer duration counts as this long in what is typical."""

LOOKED_AT_FIRST = 64
"""Overdue jobs of which it is looked first whether one can start; in a long overload there are very many."""


def overdue(observation: Observation, ratio: float) -> Bools:
    """(N, J) the job has waited longer than its limit, and a GPU that is there can hold it."""
    waited_s = observation.time_s[:, None] - observation.job_submit_s
    waiting = observation.job_waiting
    best_s = observation.duration_s.min(axis=2, initial=np.inf)  # (N, J)
    able = waiting & np.isfinite(best_s)
    middle = np.maximum(able.sum(axis=1) - 1, 0) // 2
    median_s = np.take_along_axis(np.sort(np.where(able, best_s, np.inf), axis=1), middle[:, None], axis=1)
    counted_s = np.where(able, np.minimum(best_s, OUTLIER * median_s), 0.0)
    typical_s = counted_s.sum(axis=1, keepdims=True) / np.maximum(able.sum(axis=1, keepdims=True), 1)
    late: Bools = able & (waited_s > ratio * np.where(able, best_s + typical_s, 0.0))
    if late.any():
        rows = np.flatnonzero(late.any(axis=1))
        there = np.isfinite(observation.gpu_remaining_s[rows])
        late[rows] &= (np.isfinite(observation.duration_s[rows]) & there[:, None, :]).any(axis=2)
    return late


def bound(observation: Observation, scores: Floats, ratio: float) -> Bools:
    """Changes scores so that overdue jobs go first.

    Args:
        scores: (N, J, G) the policy's, changed in place; -inf: it does not want the pair.
        ratio: of the limit; inf: no job is ever overdue.

    Returns:
        (N,) another pair is the best now, or none.
    """
    changed = np.zeros(len(scores), dtype=np.bool_)
    if not scores.size or not _perhaps_overdue(observation, ratio):
        return changed
    late = overdue(observation, ratio)
    for row in np.flatnonzero(late.any(axis=1)):
        before = _best(observation.fits_now[row], scores[row])
        _bound_one(observation, int(row), np.flatnonzero(late[row]), scores[row])
        changed[row] = _best(observation.fits_now[row], scores[row]) != before
    return changed


def _perhaps_overdue(observation: Observation, ratio: float) -> bool:
    """Cheap, and False for most decisions: nobody's limit is below 2 ratio times the shortest that anything takes."""
    if ratio == np.inf:
        return False
    waited_s = float(observation.time_s.max()) - float(observation.job_submit_s.min())
    return waited_s > 2.0 * ratio * float(observation.duration_s.min())


def _best(fits: Bools, scores: Floats) -> int:
    allowed = np.where(fits, scores, -np.inf)
    best = int(np.argmax(allowed))
    return best if allowed.flat[best] > -np.inf else -1


def _bound_one(observation: Observation, row: int, late: NDArray[np.intp], scores: Floats) -> None:
    late = late[np.argsort(observation.job_submit_s[row, late], kind="stable")]
    node, fits = observation.gpu_node[row], observation.fits_now[row]
    there = np.isfinite(observation.gpu_remaining_s[row])
    kept = np.zeros(observation.node_cores_free.shape[1], dtype=np.bool_)  # nodes that overdue jobs before keep free
    start, count = 0, LOOKED_AT_FIRST
    while start < len(late):  # a part at a time, each larger: mostly one of the first fits
        part = late[start : start + count]
        able = np.isfinite(observation.duration_s[row, part]) & there  # (L, G)
        before = np.zeros((len(part) + 1, len(kept)), dtype=np.bool_)  # [i]: the same before the part's i-th
        before[0] = kept
        place, gpu = np.nonzero(able)
        before[place + 1, node[gpu]] = True
        np.logical_or.accumulate(before, axis=0, out=before)
        open_pairs = fits[part] & ~before[:-1][:, node]  # (L, G)
        starts = np.flatnonzero(open_pairs.any(axis=1))
        if len(starts):
            job = part[starts[0]]
            wanted = np.where(open_pairs[starts[0]], scores[job], -np.inf)
            if not (wanted > -np.inf).any():
                wanted = np.where(open_pairs[starts[0]], -observation.duration_s[row, job], -np.inf)
            scores[:] = -np.inf
            scores[job] = wanted
            return
        kept, start, count = before[-1], start + count, 4 * count
    scores[:, kept[node]] = -np.inf
