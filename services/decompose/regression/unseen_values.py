"""Intervals of unseen values, from residuals with seen values left out. Arrays only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.services.decompose.hypervectors.similarity_kernel import Floats
from adlro.services.decompose.regression.kernel_regression import Residuals

GROUP_PRIOR_COUNT = 4
"""The normal distribution weighs as much as so many applications (users, sizes): less than elsewhere, since these are
few, and differ in leaps."""
EVEN = 16
"""Quantiles of an application's (user's, size's) residuals that stand for all of them."""
SHARES = np.linspace(0.0, 1.0, 11)
SHARE_FROM = 3
"""Applications from which it can be told whether what they have in common tells of another one."""
_SURE = 1.645  # the 0.95 quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class SeenValues:
    """One of the reals that tell records apart: the values seen, and residuals as if those of a value had not been.

    real: its number. values: those seen, sorted, NaN last. inside: by what intervals are made of a new value; outside:
    of one beyond those seen, from leaving out the least and the greatest.
    """

    real: int
    values: Floats
    inside: Residuals
    outside: Residuals

    def is_new(self, values: Floats) -> NDArray[np.bool_]:
        """Of N values, which were not seen."""
        at = np.minimum(np.searchsorted(self.values, values), len(self.values) - 1)
        found = self.values[at]
        return np.asarray((found != values) & ~(np.isnan(found) & np.isnan(values)))

    def is_outside(self, values: Floats) -> NDArray[np.bool_]:
        """Of N values, which are beyond those seen."""
        stated = self.values[~np.isnan(self.values)]
        if not len(stated):
            return ~np.isnan(values)
        return np.asarray((values < stated[0]) | (values > stated[-1]))


class Familiarity(NamedTuple):
    """How N records stand to what was learned from; N each.

    seen: their configuration was. knows_application, knows_user: theirs was. untold: they differ in a real that was the
    same in all observations.
    """

    seen: NDArray[np.bool_]
    knows_application: NDArray[np.bool_]
    knows_user: NDArray[np.bool_]
    untold: NDArray[np.bool_]


def numbered(values: NDArray[np.int32]) -> NDArray[np.intp]:
    """Of N values the number of each among those that are there."""
    return np.unique(values, return_inverse=True)[1]


def sizes_of(values: Floats) -> tuple[Floats, NDArray[np.intp], NDArray[np.intp]]:
    """The distinct ones of N values, which of them each is, and the numbers of the least and the greatest stated."""
    distinct, group = np.unique(values, return_inverse=True)  # at most one NaN, at the end
    stated = np.flatnonzero(~np.isnan(distinct))
    return distinct, group, np.unique(stated[[0, -1]]) if len(stated) else stated


def best_share(targets: Floats, added: Floats, group: NDArray[np.intp]) -> float:
    """How much of what the regression adds would have predicted groups best that it had not seen.

    A share must be better than none by more than groups differ by chance (in 95 % of cases, by Student's distribution):
    with few of them the regression is not followed only because it happened to be right.

    Args:
        targets: N differences from the centre.
        added: N, as the regression predicted them without the group of each.
        group: N; the number of each one's.
    """
    count = np.bincount(group)
    if len(count) < SHARE_FROM:
        return 0.0
    off = np.abs(targets - SHARES[:, None] * added)
    gained = np.array([np.bincount(group, each - off[0]) / count for each in off])  # shares x groups
    chance = _SURE * (1.0 + (_SURE**2 + 1.0) / (4.0 * (len(count) - 1)))
    loss = gained.mean(axis=1) + chance * gained.std(axis=1, ddof=1) / math.sqrt(len(count))
    return float(SHARES[loss.argmin()])


def evenly(values: Floats, group: NDArray[np.intp]) -> Floats:
    """EVEN quantiles of the values of each group: groups x EVEN."""
    count = np.bincount(group)
    ordered = values[np.lexsort((values, group))]
    starts = np.cumsum(count) - count
    at = (np.arange(EVEN) + 0.5) / EVEN * (count - 1)[:, None]
    below = at.astype(np.intp)
    above = np.minimum(below + 1, (count - 1)[:, None])
    low, high = ordered[starts[:, None] + below], ordered[starts[:, None] + above]
    return np.asarray(low + (at - below) * (high - low))
