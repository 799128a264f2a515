"""The winning row of the candidate table: the one with the highest score. Arrays only.

On a tie the first wins: the row of the earlier submitted job, then of the lower-numbered GPU. A score of minus infinity
never wins. Networks also score a hold, and have margins: adlro/decide/planes/choice.py.
"""

from __future__ import annotations

import numpy as np

from adlro.state.observation import HOLD, CandidateTable, Floats, Ints


def winner(scores: Floats) -> int:
    """The winning row among those of one cluster; HOLD: every row is refused.

    Args:
        scores: (C,) scores of its rows.
    """
    if not scores.size:
        return HOLD
    row = int(scores.argmax())
    return row if scores[row] > -np.inf else HOLD


def winner_and_next(scores: Floats) -> tuple[int, int]:
    """The winning row and the next best one; HOLD: there is none."""
    first = second = winner(scores)
    if first != HOLD:
        others = scores.copy()
        others[first] = -np.inf
        second = winner(others)
    return first, second


def winners(table: CandidateTable, scores: Floats) -> Ints:
    """(N,) the winning rows of N clusters, counted over all of them: `winner` of each.

    Args:
        table: the table of the N clusters.
        scores: (C,) scores of its rows.
    """
    chosen = np.full(len(table.first), HOLD, dtype=np.int64)
    if len(chosen) == 1:
        chosen[0] = winner(scores)
        return chosen
    wanted = np.flatnonzero(scores > -np.inf)
    if len(wanted):
        cluster, score = table.cluster[wanted], scores[wanted]
        first = np.flatnonzero(np.diff(cluster, prepend=-1))
        best = np.maximum.reduceat(score, first)
        highest = np.flatnonzero(score == np.repeat(best, np.diff(first, append=len(wanted))))
        highest = highest[np.diff(cluster[highest], prepend=-1) > 0]  # on a tie the first
        chosen[cluster[highest]] = wanted[highest]
    return chosen


def actions(table: CandidateTable, rows: Ints, gpu: Ints | None = None) -> Ints:
    """(N, 1 + W) place of the job in the observation, and its GPUs, for one row of the table each; or HOLD everywhere.

    Args:
        table: the table of N clusters.
        rows: (N,) or HOLD.
        gpu: (C,) the chosen GPU of each row's group, if it is not always the lowest.
    """
    found = np.full((len(rows), 1 + table.gpus.shape[1]), HOLD, dtype=np.int64)
    starts = rows != HOLD
    found[starts, 0] = table.job[rows[starts]]
    found[starts, 1:] = table.gpus[rows[starts]]
    if gpu is not None:
        found[starts, 1] = gpu[rows[starts]]
    return found
