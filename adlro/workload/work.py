"""Distributions of jobs' work around the mean of a group, and their expectations. numpy only.

`draw_s` returns one job's work, `expected_s` its exact mean (for capacities and for schedulers that know a group's
mean).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adlro.numeric.draws import standard_normal
from adlro.numeric.exact import exp, log, power
from adlro.numeric.normal import cumulative


class Work(Protocol):
    """A distribution of work, seconds on the reference GPU."""

    def draw_s(self, mean_s: float, rng: np.random.Generator) -> float:
        """One job's work; draws always the same count of random numbers."""
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
        work_s = mean_s * exp(self.sigma * standard_normal(rng))
        return min(max(work_s, self.min_s), self.max_s)

    def expected_s(self, mean_s: float) -> float:
        """The mean of a lognormal variable that is clipped at both ends."""
        return _clipped_mean_s(self, mean_s)


@functools.lru_cache(maxsize=4096)  # each list needs the same population's groups again
def _clipped_mean_s(work: LognormalWork, mean_s: float) -> float:
    sigma, low_s, high_s = work.sigma, work.min_s, work.max_s
    low = log(low_s / mean_s) / sigma
    high = log(high_s / mean_s) / sigma
    between = cumulative(high - sigma) - cumulative(low - sigma)
    return low_s * cumulative(low) + high_s * (1.0 - cumulative(high)) + mean_s * exp(0.5 * (sigma * sigma)) * between


@dataclass(frozen=True, slots=True)
class ParetoWork:
    """A bounded Pareto variable between L and ratio x L, not below `min_s`.

    P(work > t) is proportional to t^-alpha. L is such that the mean before clipping is `scale` times the group's.
    """

    alpha: float
    ratio: float
    scale: float
    min_s: float

    def draw_s(self, mean_s: float, rng: np.random.Generator) -> float:
        """By the inverse of the distribution function (one uniform number)."""
        inverse = power(1.0 - rng.random() * self._reach, -1.0 / self.alpha)
        return max(self._lowest_s(mean_s) * inverse, self.min_s)

    def expected_s(self, mean_s: float) -> float:
        """The mean with values below `min_s` raised to it."""
        lowest_s = self._lowest_s(mean_s)
        cut = min(max(self.min_s / lowest_s, 1.0), self.ratio)
        below = (1.0 - power(cut, -self.alpha)) / self._reach
        return self.min_s * below + lowest_s * _partial_mean(self.alpha, self.ratio, cut)

    @property
    def _reach(self) -> float:
        return _reach(self.alpha, self.ratio)

    def _lowest_s(self, mean_s: float) -> float:
        return self.scale * mean_s / _partial_mean(self.alpha, self.ratio, 1.0)


@functools.lru_cache(maxsize=4096)
def _reach(alpha: float, ratio: float) -> float:
    return 1.0 - power(ratio, -alpha)


@functools.lru_cache(maxsize=4096)
def _partial_mean(alpha: float, ratio: float, begin: float) -> float:
    """The integral of x f(x) from `begin` to `ratio`, for a lowest value of 1."""
    rest = 1.0 - alpha
    return alpha / rest * (power(ratio, rest) - power(begin, rest)) / _reach(alpha, ratio)


@dataclass(frozen=True, slots=True)
class LogUniformWork:
    """`unit_s` x 10^x seconds with x uniform in one of several intervals, whatever the group's mean.

    `pieces` are (probability, lowest x, highest x).
    """

    pieces: tuple[tuple[float, float, float], ...]
    unit_s: float = 60.0

    def draw_s(self, mean_s: float, rng: np.random.Generator) -> float:
        """Draws two uniform numbers: the interval, and the position in it."""
        point, place = rng.random(2)
        low, high = self.pieces[-1][1:]
        for share, *piece in self.pieces:
            point -= share
            if point < 0:
                low, high = piece
                break
        return self.unit_s * power(10.0, low + (high - low) * float(place))

    def expected_s(self, mean_s: float = 0.0) -> float:
        """The mean over all intervals."""
        total_s = 0.0
        for share, low, high in self.pieces:  # in a loop: `sum` rounds differently from Python 3.12 on
            total_s += share * (power(10.0, high) - power(10.0, low)) / ((high - low) * log(10.0))
        return self.unit_s * total_s
