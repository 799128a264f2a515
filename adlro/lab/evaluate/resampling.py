"""Bootstrap intervals over job lists, and tests of paired differences. numpy; the tests need scipy.

Intervals: percentile bootstrap (B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13) over
lists: `RESAMPLES` resamples with one seed, the same lists for every policy, so that ratios and differences are paired.
Tests: Wilcoxon's signed-rank test over lists, two-sided (F. Wilcoxon, 1945; recommended for such comparisons by
J. Demsar, JMLR 7, 2006), with Holm's correction for several policies (S. Holm, 1979).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from adlro.state.observation import Floats

RESAMPLES = 4000
CONFIDENCE = 0.95
_AT_ONCE = 2_000_000


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


class LinearRegression(NamedTuple):
    """y = intercept + slope x by least squares; `p_value` of slope 0."""

    slope: float
    intercept: float
    r_squared: float
    p_value: float


def resampled_means(values: Floats, seed: int) -> Floats:
    """(RESAMPLES, M) means of resamples of lists.

    Args:
        values: (n, M) figures of n lists; the resamples depend only on n and the seed.
        seed: seed of the resamples.
    """
    found = []
    for counts in _counts(len(values), seed):
        total = np.zeros((values.shape[1], len(counts)))
        # List by list: the order of a matrix product's sums depends on the processor.
        for count, value in zip(np.ascontiguousarray(counts.T), values, strict=True):
            total += value[:, None] * count
        found.append(total.T)
    return np.concatenate(found) / len(values)


def change_of_means(ours: Floats, theirs: Floats) -> tuple[float, float, float]:
    """The ratio of the means over the same lists minus 1, and its interval.

    Args:
        ours, theirs: (n,) one figure of n lists.
    """
    means = resampled_means(np.stack([ours, theirs], axis=1), 0)
    return float(ours.mean() / theirs.mean() - 1.0), *interval(means[:, 0] / means[:, 1] - 1.0)


def _counts(lists: int, seed: int) -> Iterator[Floats]:
    """The count of each list in each resample, (RESAMPLES, lists) in blocks."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(lists, 0xB007)))
    block = max(1, _AT_ONCE // lists)
    for first in range(0, RESAMPLES, block):
        size = min(block, RESAMPLES - first)
        yield rng.multinomial(lists, np.full(lists, 1.0 / lists), size=size).astype(np.float64)


def interval(resampled: Floats) -> Interval:
    """The interval of a figure, from its resampled values."""
    tail = 100.0 * (1.0 - CONFIDENCE) / 2.0
    low, high = np.percentile(resampled, (tail, 100.0 - tail))
    return Interval(float(low), float(high))


def paired_p_value(ours: Floats, theirs: Floats) -> float | None:
    """The p-value of Wilcoxon's test for equal paired values; None with fewer than 6 lists, 1 if no pair differs."""
    from scipy.stats import wilcoxon

    if len(ours) < 6:  # with so few no result could be significant at 5 %
        return None
    if np.array_equal(ours, theirs):
        return 1.0
    return float(wilcoxon(ours, theirs).pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p-values, in the given order; None stays None."""
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, place) in enumerate(known):
        least = max(least, min(1.0, p * (len(known) - rank)))
        adjusted[place] = least
    return adjusted


def regression(x: Floats, y: Floats) -> LinearRegression | None:
    """The regression of y on x; None with fewer than 3 points, or if x is constant."""
    from scipy.stats import linregress

    if len(x) < 3 or np.ptp(x) <= 1e-12:
        return None
    found = linregress(x, y)
    return LinearRegression(
        float(found.slope), float(found.intercept), float(np.square(found.rvalue)), float(found.pvalue)
    )
