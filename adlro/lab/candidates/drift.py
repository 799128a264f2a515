"""How far the jobs of two pasts differ: whether a policy that learned from one should learn again. numpy only.

The population stability index over the kinds of jobs: sum of (p - q) ln(p / q) over classes of job type, number of GPUs
and duration. Its usual reading (N. Siddiqi, Credit Risk Scorecards, Wiley 2006): below 0.1 alike, above 0.25 another
population. By chance alone it is (classes - 1) (1 / n + 1 / m) on average for n and m jobs (B. Yurdakul, Statistical
Properties of Population Stability Index, Western Michigan University 2018), which is taken off.
"""

from __future__ import annotations

import numpy as np

from adlro.lab.candidates.past import Past
from adlro.state.observation import Floats, Ints

ANOTHER = 0.25
LEAST_JOBS = 200
"""Of fewer jobs on one side the index is mostly chance."""
_QUANTILES = (0.2, 0.4, 0.6, 0.8)
_WIDEST = 5  # 1, 2, 3-4, 5-8, and more GPUs


def drift(before: Past, now: Past) -> float | None:
    """The index; None: too few jobs to tell.

    Args:
        before: what a policy learned from; its durations set the classes.
        now: what has run since.
    """
    if min(len(before), len(now)) < LEAST_JOBS:
        return None
    bounds = np.quantile(_duration_s(before), _QUANTILES)
    one, other = _shares(before, bounds), _shares(now, bounds)
    kinds = max(len(one), len(other))
    used = len(set(np.flatnonzero(one).tolist()) | set(np.flatnonzero(other).tolist()))
    one, other = _filled(one, kinds), _filled(other, kinds)
    index = float(((other - one) * np.log(other / one)).sum())
    return max(index - (used - 1) * (1.0 / len(before) + 1.0 / len(now)), 0.0)


def _duration_s(past: Past) -> Floats:
    shortest: Floats = past.jobs.duration_s[0].min(axis=1)
    return shortest


def _shares(past: Past, bounds: Floats) -> Floats:
    kinds = _kinds(past, bounds)
    shares = np.zeros(int(kinds.max()) + 1)
    np.add.at(shares, kinds, 1.0 / len(past))
    return shares


def _kinds(past: Past, bounds: Floats) -> Ints:
    width = np.minimum(np.ceil(np.log2(past.jobs.gpu_count[0])).astype(np.int64), _WIDEST - 1)
    long = np.searchsorted(bounds, _duration_s(past))
    kinds: Ints = (past.jobs.job_type[0] * _WIDEST + width) * (len(bounds) + 1) + long
    return kinds


def _filled(shares: Floats, kinds: int) -> Floats:
    """With half a job in a thousand for classes without any, so that the index stays finite."""
    whole = np.full(kinds, 5e-4)
    whole[: len(shares)] += shares
    found: Floats = whole / whole.sum()
    return found
