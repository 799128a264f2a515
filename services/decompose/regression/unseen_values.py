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
"""The normal distribution has the weight of so many applications (users, sizes): less than elsewhere, since these are
few, and differ in leaps."""
EVEN = 16
"""Number of quantiles of an application's (user's, size's) residuals that represent all of them."""
SHARES = np.linspace(0.0, 1.0, 11)
SHARE_FROM = 3
"""Number of applications from which their common part can be tested on another one."""
_SURE = 1.645  # the 0.95 quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class SeenValues:
    """One of the reals that distinguish records: the seen values, and residuals with a value left out.

    real: its number. values: the seen ones, sorted, NaN last. inside: residuals for a new value between seen ones;
    outside: for one beyond them, from leaving out the least and the greatest.
    """

    real: int
    values: Floats
    inside: Residuals
    outside: Residuals

    def is_new(self, values: Floats) -> NDArray[np.bool_]:
        """Whether the value is unseen, for N values."""
        at = np.minimum(np.searchsorted(self.values, values), len(self.values) - 1)
        found = self.values[at]
        return np.asarray((found != values) & ~(np.isnan(found) & np.isnan(values)))

    def is_outside(self, values: Floats) -> NDArray[np.bool_]:
        """Whether the value is beyond the seen ones, for N values."""
        stated = self.values[~np.isnan(self.values)]
        if not len(stated):
            return ~np.isnan(values)
        return np.asarray((values < stated[0]) | (values > stated[-1]))


class Familiarity(NamedTuple):
    """The relation of N records to the learned ones; N each.

    seen: whether their configuration was learned. knows_application, knows_user: whether theirs was. untold: whether
    they differ in a real that was constant in all observations.
    """

    seen: NDArray[np.bool_]
    knows_application: NDArray[np.bool_]
    knows_user: NDArray[np.bool_]
    untold: NDArray[np.bool_]


def numbered(values: NDArray[np.int32]) -> NDArray[np.intp]:
    """For N values, the number of each among the distinct ones."""
    return np.unique(values, return_inverse=True)[1]


def sizes_of(values: Floats) -> tuple[Floats, NDArray[np.intp], NDArray[np.intp]]:
    """The distinct ones of N values, the index of each among them, and the numbers of the least and the greatest."""
    distinct, group = np.unique(values, return_inverse=True)  # at most one NaN, at the end
    stated = np.flatnonzero(~np.isnan(distinct))
    return distinct, group, np.unique(stated[[0, -1]]) if len(stated) else stated


def best_share(targets: Floats, added: Floats, group: NDArray[np.intp]) -> float:
    """The weight of the regression's difference that would have predicted unseen groups best.

    A weight must be better than 0 by more than chance (in 95 % of cases, by Student's distribution): with few groups
    the regression must not be followed only because it was right by chance.

    Args:
        targets: N differences from the centre.
        added: N, the regression's predictions without the group of each.
        group: N; number of each one's group.
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
