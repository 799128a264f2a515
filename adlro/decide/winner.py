"""Which row of the candidate table wins: that with the highest score. Arrays only.

Of equals it is the first: that of the earlier submitted job, then of the lower-numbered GPU. A score of minus infinity
is wanted by nobody. Networks have a figure for holding too, and margins: adlro/decide/planes/choice.py.
"""

from __future__ import annotations

import numpy as np

from adlro.state.observation import HOLD, CandidateTable, Floats, Ints


def winner(scores: Floats) -> int:
    """The row that wins among those of one cluster; HOLD: none is wanted.

    Args:
        scores: (C,) of its rows.
    """
    if not scores.size:
        return HOLD
    row = int(scores.argmax())
    return row if scores[row] > -np.inf else HOLD


def winner_and_next(scores: Floats) -> tuple[int, int]:
    """The same, and the next best row; HOLD: there is none."""
    first = second = winner(scores)
    if first != HOLD:
        others = scores.copy()
        others[first] = -np.inf
        second = winner(others)
    return first, second


def winners(table: CandidateTable, scores: Floats) -> Ints:
    """(N,) the rows that win in N clusters, counted over all of them: `winner` of each.

    Args:
        table: of the N clusters.
        scores: (C,) of its rows.
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
        highest = highest[np.diff(cluster[highest], prepend=-1) > 0]  # of equals the first
        chosen[cluster[highest]] = wanted[highest]
    return chosen


def actions(table: CandidateTable, rows: Ints, gpu: Ints | None = None) -> Ints:
    """(N, 2) the job's and the GPU's place in the observation, or (HOLD, HOLD), for one row of the table each.

    Args:
        table: of N clusters.
        rows: (N,) or HOLD.
        gpu: (C,) which GPU of each row's group is meant, where that is not always the lowest.
    """
    found = np.full((len(rows), 2), HOLD, dtype=np.int64)
    starts = rows != HOLD
    found[starts, 0] = table.job[rows[starts]]
    found[starts, 1] = (table.gpu if gpu is None else gpu)[rows[starts]]
    return found
