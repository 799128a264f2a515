"""How much work jobs are: distributions around the mean of a group, and their expectations. numpy only.

`draw_s` gives one job's work, `expected_s` the exact mean of what it gives (for capacities and for schedulers that know
a group's mean).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np

_NORMAL = NormalDist()


class Work(Protocol):
    """A distribution of work, seconds on the reference GPU."""

    def draw_s(self, mean_s: float, rng: np.random.Generator) -> float:
        """One job's work; always the same count of random numbers."""
        ...

    def expected_s(self, mean_s: float) -> float:
        """The mean of `draw_s`."""
        ...


@dataclass(frozen=True, slots=True)
class LognormalWork:
    """mean x exp(sigma N(0, 1)), clipped."""

    sigma: float
    min_s: float
    max_s: float

    def draw_s(self, mean_s: float, rng: np.random.Generator) -> float:
        """See `Work`."""
        work_s = mean_s * float(np.exp(self.sigma * rng.standard_normal()))
        return min(max(work_s, self.min_s), self.max_s)

    def expected_s(self, mean_s: float) -> float:
        """The mean of a lognormal variable that is clipped at both ends."""
        low = math.log(self.min_s / mean_s) / self.sigma
        high = math.log(self.max_s / mean_s) / self.sigma
        between = _NORMAL.cdf(high - self.sigma) - _NORMAL.cdf(low - self.sigma)
        return (
            self.min_s * _NORMAL.cdf(low)
            + self.max_s * (1.0 - _NORMAL.cdf(high))
            + mean_s * math.exp(0.5 * self.sigma**2) * between
        )


@dataclass(frozen=True, slots=True)
class ParetoWork:
    """A bounded Pareto variable between L and ratio x L, not below `min_s`.

    P(work > t) falls as t^-alpha. L is such that the mean before clipping is `scale` times the group's.
    """

    alpha: float
    ratio: float
    scale: float
    min_s: float

    def draw_s(self, mean_s: float, rng: np.random.Generator) -> float:
        """By the inverse of the distribution function (one uniform number)."""
        inverse = math.pow(1.0 - rng.random() * self._reach, -1.0 / self.alpha)
        return max(self._lowest_s(mean_s) * inverse, self.min_s)

    def expected_s(self, mean_s: float) -> float:
        """The mean with everything below `min_s` raised to it."""
        lowest_s = self._lowest_s(mean_s)
        cut = min(max(self.min_s / lowest_s, 1.0), self.ratio)
        below = (1.0 - math.pow(cut, -self.alpha)) / self._reach
        return self.min_s * below + lowest_s * self._partial_mean(cut)

    @property
    def _reach(self) -> float:
        return 1.0 - math.pow(self.ratio, -self.alpha)

    def _partial_mean(self, begin: float) -> float:
        # The integral of x f(x) from `begin` to `ratio`, for a lowest value of 1.
        power = 1.0 - self.alpha
        return self.alpha / power * (math.pow(self.ratio, power) - math.pow(begin, power)) / self._reach

    def _lowest_s(self, mean_s: float) -> float:
        return self.scale * mean_s / self._partial_mean(1.0)


@dataclass(frozen=True, slots=True)
class LogUniformWork:
    """60 x 10^x seconds with x uniform in one of some intervals; the group's mean has no part in it.

    `pieces` are (probability, lowest x, highest x).
    """

    pieces: tuple[tuple[float, float, float], ...]

    def draw_s(self, mean_s: float, rng: np.random.Generator) -> float:
        """Two uniform numbers: which interval, where in it."""
        point, place = rng.random(2)
        low, high = self.pieces[-1][1:]
        for share, *piece in self.pieces:
            point -= share
            if point < 0:
                low, high = piece
                break
        return 60.0 * math.pow(10.0, low + (high - low) * float(place))

    def expected_s(self, mean_s: float = 0.0) -> float:
        """The mean over all intervals."""
        return 60.0 * sum(
            share * (math.pow(10.0, high) - math.pow(10.0, low)) / ((high - low) * math.log(10.0))
            for share, low, high in self.pieces
        )
