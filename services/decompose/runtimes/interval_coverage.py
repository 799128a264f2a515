"""The coverage of predicted intervals, by kind of prediction, and the correction of intervals that miss it.

Each finished job is compared with its prediction before it is learned. The newest COVERAGE_WINDOW comparisons of a kind
have two effects (`Calibration`):

- if the prior (the declared runtime; the mean of all jobs) would have been nearer than the regression, by more than
  chance, the prediction moves towards it, by the best share;
- if fewer than INTERVAL_COVERAGE of the runtimes were in their intervals, both ends move outwards by the amount that
  would have covered so many: conformalized quantile regression (Romano, Patterson, Candes 2019). The amount is
  absolute, not a multiple: with exact declarations intervals had zero width.

Knows plain numbers only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from adlro.records.predictions import PredictionBasis
from adlro.services.decompose.runtimes.predictor import INTERVAL_COVERAGE

COVERAGE_WINDOW = 256
"""Number of a kind's newest finished jobs in its calibration."""
CALIBRATE_FROM = 8
"""Finished jobs of a kind from which its predictions are calibrated."""
_SHARES = np.linspace(1.0, 0.0, 11)  # on a tie the first: the regression alone
_SURE = 1.645  # the 0.95 quantile of the normal distribution
_MOST_LOG = 100.0


class PredictionKind(NamedTuple):
    """Predictions with a common calibration.

    basis: their basis. is_new: application, user or a size was never seen: their intervals are computed differently.
    """

    basis: PredictionBasis
    is_new: bool


class PredictionResidual(NamedTuple):
    """A finished job and its prediction; all in logarithms of seconds.

    residual: observed minus the regression's median. prior_residual: observed minus the prior's. low, high: ends of the
    interval before its widening, relative to the regression's median: low <= 0 <= high. known_count: number of finished
    jobs then, no logarithm.
    """

    residual: float
    prior_residual: float
    low: float
    high: float
    known_count: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """The calibration of a kind of predictions.

    Attributes:
        share: weight of the regression against the prior.
        widening_ratio: factor of the high end, and divisor of the low end; 1 or more.
    """

    share: float = 1.0
    widening_ratio: float = 1.0


@dataclass(slots=True)
class _KindCoverage:
    compared: deque[PredictionResidual]
    total: int = 0
    hits: int = 0


class IntervalCoverage:
    """The comparisons by kind, and the calibrations from them."""

    def __init__(self) -> None:
        self._of: dict[PredictionKind, _KindCoverage] = {}

    def start_over(self) -> None:
        """Forgets everything."""
        self._of.clear()

    def observe(self, kind: PredictionKind, compared: PredictionResidual, *, hit: bool) -> None:
        """Adds a finished job; one whose logarithms are not finite is left out.

        Args:
            kind: kind of its prediction.
            compared: its runtime and the prediction.
            hit: whether the runtime was in the given interval.
        """
        if not all(map(math.isfinite, compared)):
            return
        of_kind = self._of.setdefault(kind, _KindCoverage(deque(maxlen=COVERAGE_WINDOW)))
        of_kind.compared.append(compared)
        of_kind.total += 1
        of_kind.hits += hit

    def counts(self) -> Mapping[PredictionBasis, tuple[int, int]]:
        """By basis: the number of compared finished jobs, and of those in their interval."""
        found: dict[PredictionBasis, tuple[int, int]] = {}
        for kind, each in self._of.items():
            total, hits = found.get(kind.basis, (0, 0))
            found[kind.basis] = total + each.total, hits + each.hits
        return found

    def calibrations(self, known_count: int) -> dict[PredictionKind, Calibration]:
        """The calibrations by kind from the newest comparisons; kinds with few are left out.

        Args:
            known_count: number of finished jobs now. Intervals from less than half as many no longer count.
        """
        found = {}
        for kind, each in self._of.items():
            compared = [one[:4] for one in each.compared if 2 * one.known_count >= known_count]
            if len(compared) >= CALIBRATE_FROM:
                found[kind] = _calibration(np.array(compared))
        return found


def _calibration(compared: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Calibration:
    residual, prior_residual, low, high = compared.T
    count = len(compared)
    mixed = prior_residual + _SHARES[:, None] * (residual - prior_residual)  # shares x jobs
    gained = np.abs(mixed) - np.abs(residual)
    # Better than chance: by a standard error.
    loss = gained.mean(axis=1) + gained.std(axis=1, ddof=1) / math.sqrt(count)
    best = int(loss.argmin())
    off = mixed[best]
    outside = np.maximum(low - off, off - high)  # below 0: inside
    # The certain part of the shortfall: less than chance would cause in 5 % of cases.
    level = INTERVAL_COVERAGE - _SURE * math.sqrt(INTERVAL_COVERAGE * (1.0 - INTERVAL_COVERAGE) / count)
    rank = math.ceil((count + 1) * level)
    widening = min(max(0.0, float(np.sort(outside)[rank - 1])), _MOST_LOG)
    return Calibration(float(_SHARES[best]), math.exp(widening))
