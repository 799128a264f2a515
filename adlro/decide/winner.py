"""Which pair of a job and a GPU wins: of those that fit now, that with the highest score. Arrays only.

Of equals it is that of the earlier submitted job, then of the lower-numbered GPU. A score of minus infinity is wanted
by nobody. Networks have a figure for holding too, and margins: adlro/decide/planes/choice.py.
"""

from __future__ import annotations

import numpy as np

from adlro.state.observation import HOLD, Bools, Floats, Ints

Pair = tuple[int, int]
"""A job's and a GPU's place in an observation, or (HOLD, HOLD)."""


def winner(fits: Bools, scores: Floats) -> Pair:
    """The pair that wins in one observation; (HOLD, HOLD): none is wanted.

    Args:
        fits: (J, G) the job can start there now.
        scores: (J, G).
    """
    return _next_best(np.where(fits, scores, -np.inf)) if fits.size else (HOLD, HOLD)


def winner_and_next(fits: Bools, scores: Floats) -> tuple[Pair, Pair | None]:
    """The same, and the next best pair; None: there is none."""
    first = second = (HOLD, HOLD)
    if fits.size:
        allowed = np.where(fits, scores, -np.inf)
        first = _next_best(allowed)
        if first[0] != HOLD:
            allowed[first] = -np.inf
            second = _next_best(allowed)
    return first, None if second[0] == HOLD else second


def winners(fits: Bools, scores: Floats) -> Ints:
    """(N, 2) the pairs that win in N observations: `winner` of each.

    Args:
        fits, scores: (N, J, G).
    """
    actions = np.full((len(scores), 2), HOLD, dtype=np.int64)
    if len(scores) == 1:
        # A single cluster may be large and idle: millions of pairs fit, and a plain argmax is ten times faster.
        actions[0] = winner(fits[0], scores[0])
        return actions
    # Few pairs fit where most GPUs are busy: they alone are looked at, in the order of rows, jobs, GPUs.
    row, job, gpu = np.nonzero(fits)
    score = scores[row, job, gpu]
    wanted = score > -np.inf
    row, job, gpu, score = row[wanted], job[wanted], gpu[wanted], score[wanted]
    if len(row):
        first = np.flatnonzero(np.diff(row, prepend=-1))
        best = np.maximum.reduceat(score, first)
        highest = np.flatnonzero(score == np.repeat(best, np.diff(first, append=len(row))))
        chosen = highest[np.diff(row[highest], prepend=-1) > 0]  # of equals the first
        actions[row[chosen], 0], actions[row[chosen], 1] = job[chosen], gpu[chosen]
    return actions


def _next_best(allowed: Floats) -> Pair:
    job, gpu = divmod(int(np.argmax(allowed)), allowed.shape[1])
    return (job, gpu) if allowed[job, gpu] > -np.inf else (HOLD, HOLD)
