"""The coverage of predicted intervals, by kind of prediction, and the correction of intervals that miss it.

Each finished job is compared with what was predicted for it before it was learned from. Of the newest COVERAGE_WINDOW
of a kind two things follow (`Calibration`):

- where the prior (the declared runtime; the mean of all jobs) would have been nearer than the regression, by more than
  chance, the answer moves towards it, as far as would have been best;
- where fewer than INTERVAL_COVERAGE of the runtimes lay in their intervals, both ends go outwards by as much as would
  have covered as many: conformalized quantile regression (Romano, Patterson, Candes 2019). By as much, and not by a
  multiple: where declarations were exact, intervals had no width that anything could be a multiple of.

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
"""Newest finished jobs of a kind that its calibration looks at."""
CALIBRATE_FROM = 8
"""Finished jobs of a kind from which its predictions are changed at all."""
_SHARES = np.linspace(1.0, 0.0, 11)  # of equals the first is taken: the regression as it stands
_SURE = 1.645  # the 0.95 quantile of the normal distribution
_MOST_LOG = 100.0


class PredictionKind(NamedTuple):
    """Predictions that are calibrated together.

    basis: what they rest on. is_new: application, user or a size was never seen: their intervals are made otherwise.
    """

    basis: PredictionBasis
    is_new: bool


class PredictionResidual(NamedTuple):
    """A finished job beside its prediction; all in logarithms of seconds.

    residual: observed less the regression's median. prior_residual: observed less the prior's. low, high: ends of the
    interval before it was widened, relative to the regression's median: low <= 0 <= high. known_count: of finished jobs
    then, no logarithm.
    """

    residual: float
    prior_residual: float
    low: float
    high: float
    known_count: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """What becomes of the predictions of a kind.

    Attributes:
        share: of the regression beside the prior.
        widening_ratio: by which the high end is multiplied, and the low end divided; 1 or more.
    """

    share: float = 1.0
    widening_ratio: float = 1.0


@dataclass(slots=True)
class _KindCoverage:
    compared: deque[PredictionResidual]
    total: int = 0
    hits: int = 0


class IntervalCoverage:
    """The comparisons by kind, and what follows from them."""

    def __init__(self) -> None:
        self._of: dict[PredictionKind, _KindCoverage] = {}

    def start_over(self) -> None:
        """Forgets everything."""
        self._of.clear()

    def observe(self, kind: PredictionKind, compared: PredictionResidual, *, hit: bool) -> None:
        """Takes a finished job; one whose logarithms are no numbers is left out.

        Args:
            kind: of its prediction.
            compared: its runtime beside the prediction.
            hit: whether the runtime lay in the interval as it was given.
        """
        if not all(map(math.isfinite, compared)):
            return
        of_kind = self._of.setdefault(kind, _KindCoverage(deque(maxlen=COVERAGE_WINDOW)))
        of_kind.compared.append(compared)
        of_kind.total += 1
        of_kind.hits += hit

    def counts(self) -> Mapping[PredictionBasis, tuple[int, int]]:
        """By basis: finished jobs that were compared, and those of them in their interval."""
        found: dict[PredictionBasis, tuple[int, int]] = {}
        for kind, each in self._of.items():
            total, hits = found.get(kind.basis, (0, 0))
            found[kind.basis] = total + each.total, hits + each.hits
        return found

    def calibrations(self, known_count: int) -> dict[PredictionKind, Calibration]:
        """By kind, what follows from the newest comparisons; a kind with few is left out.

        Args:
            known_count: of finished jobs now. Intervals from less than half as many were others.
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
    # Better by more than chance: by a standard error.
    loss = gained.mean(axis=1) + gained.std(axis=1, ddof=1) / math.sqrt(count)
    best = int(loss.argmin())
    off = mixed[best]
    outside = np.maximum(low - off, off - high)  # below 0: inside
    # As many as are missing for sure: fewer than chance would let miss in 5 % of cases.
    level = INTERVAL_COVERAGE - _SURE * math.sqrt(INTERVAL_COVERAGE * (1.0 - INTERVAL_COVERAGE) / count)
    rank = math.ceil((count + 1) * level)
    widening = min(max(0.0, float(np.sort(outside)[rank - 1])), _MOST_LOG)
    return Calibration(float(_SHARES[best]), math.exp(widening))
