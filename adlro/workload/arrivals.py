"""Arrival processes: Poisson, by the time of day, in surges, all at once. numpy only.

A process returns one submission after the other and draws the same count of random numbers for each job, so that a list
of n jobs is the beginning of a longer one drawn from an equal generator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from adlro.errors import InvalidInput
from adlro.numeric.draws import standard_exponential
from adlro.numeric.exact import cos, sin
from adlro.records.jobs import JobType

Mix = Mapping[JobType, float]

_STEPS = 60
_CLOSE_S = 1e-9
"""Tolerance of the root: finer than the times of lists, and than floats at late times within a few steps."""


class Arrivals(Protocol):
    """An arrival process."""

    def next_s(self, now_s: float, mean_gap_s: float, mix: Mix, rng: np.random.Generator) -> float:
        """The submission after one at `now_s`.

        Args:
            now_s: the previous submission; 0 at the beginning.
            mean_gap_s: mean time between jobs at the ordinary rate.
            mix: probability of each job type at ordinary times.
            rng: draws one number, or none.
        """
        ...

    def mix_at(self, time_s: float, mix: Mix) -> Mix:
        """Relative frequency of each job type among the jobs submitted at a time."""
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent submissions at one rate."""

    def next_s(self, now_s: float, mean_gap_s: float, mix: Mix, rng: np.random.Generator) -> float:
        """See `Arrivals`."""
        return now_s + mean_gap_s * standard_exponential(rng)

    def mix_at(self, time_s: float, mix: Mix) -> Mix:
        """The same mix at all times."""
        return mix


@dataclass(frozen=True, slots=True)
class Batch:
    """All jobs at time 0; the load has no effect."""

    def next_s(self, now_s: float, mean_gap_s: float, mix: Mix, rng: np.random.Generator) -> float:
        """Always 0."""
        return 0.0

    def mix_at(self, time_s: float, mix: Mix) -> Mix:
        """The same mix at all times."""
        return mix


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A Poisson process whose rate is 1 + amplitude sin(2 pi t / period) times the mean rate.

    The load is the mean over whole periods.
    """

    period_s: float
    amplitude: float

    def next_s(self, now_s: float, mean_gap_s: float, mix: Mix, rng: np.random.Generator) -> float:
        """By time rescaling: the integral of the relative rate from one job to the next is exponential."""
        gap_s = mean_gap_s * standard_exponential(rng)
        goal_s = self._integral_s(now_s) + gap_s
        most_off_s = self.amplitude * self.period_s / math.pi
        low_s = now_s + max(0.0, gap_s - most_off_s)
        high_s = now_s + gap_s + most_off_s
        time_s = now_s + gap_s
        # Newton's method, with a bisection if a step leaves the interval that contains the root.
        for _ in range(_STEPS):
            missing_s = goal_s - self._integral_s(time_s)
            if abs(missing_s) < _CLOSE_S:
                break
            low_s, high_s = (time_s, high_s) if missing_s > 0 else (low_s, time_s)
            time_s += missing_s / (1.0 + self.amplitude * sin(2.0 * math.pi * time_s / self.period_s))
            if not low_s < time_s < high_s:
                time_s = 0.5 * (low_s + high_s)
        return max(time_s, now_s)

    def mix_at(self, time_s: float, mix: Mix) -> Mix:
        """The same mix at all times."""
        return mix

    def _integral_s(self, time_s: float) -> float:
        angle = 2.0 * math.pi / self.period_s
        return time_s + self.amplitude / angle * (1.0 - cos(angle * time_s))


@dataclass(frozen=True, slots=True)
class Surges:
    """A Poisson process in which jobs of one type at times arrive at `factor` times their rate.

    The first surge begins at `first_s`; each lasts `length_s`, and one begins every `every_s` seconds. The load is that
    between surges; the surges come on top.
    """

    job_type: JobType
    factor: float
    first_s: float
    length_s: float
    every_s: float

    def next_s(self, now_s: float, mean_gap_s: float, mix: Mix, rng: np.random.Generator) -> float:
        """By time rescaling, over the pieces of constant rate."""
        left_s = mean_gap_s * standard_exponential(rng)
        while True:
            rate = self._relative_rate(now_s, mix)
            change_s = self._next_change_s(now_s)
            if now_s + left_s / rate < change_s:
                return now_s + left_s / rate
            left_s -= (change_s - now_s) * rate
            now_s = change_s

    def mix_at(self, time_s: float, mix: Mix) -> Mix:
        """In a surge its job type counts `factor` times."""
        if not self.surges_at(time_s):
            return mix
        return {key: share * (self.factor if key is self.job_type else 1.0) for key, share in mix.items()}

    def surges_at(self, time_s: float) -> bool:
        """Whether a time is in a surge."""
        return time_s >= self.first_s and (time_s - self.first_s) % self.every_s < self.length_s

    def _relative_rate(self, time_s: float, mix: Mix) -> float:
        return 1.0 + (self.factor - 1.0) * mix[self.job_type] * self.surges_at(time_s)

    def _next_change_s(self, time_s: float) -> float:
        if time_s < self.first_s:
            return self.first_s
        begin_s = self.first_s + math.floor((time_s - self.first_s) / self.every_s) * self.every_s
        changes_s = (begin_s + self.length_s, begin_s + self.every_s, begin_s + self.every_s + self.length_s)
        return next(change_s for change_s in changes_s if change_s > time_s)


@dataclass(frozen=True, slots=True)
class FromTrace:
    """Jobs from a file; this process can't draw any."""

    def next_s(self, now_s: float, mean_gap_s: float, mix: Mix, rng: np.random.Generator) -> float:
        """Raises InvalidInput."""
        raise InvalidInput("the scenario 'trace' takes its jobs from a file; name one, and its format", field="trace")

    def mix_at(self, time_s: float, mix: Mix) -> Mix:
        """The mix for values that a trace lacks and that are drawn."""
        return mix
