"""The newest observations of finished jobs as arrays, for the regressions. Arrays only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.services.decompose.hypervectors.similarity_kernel import Features, Floats
from adlro.services.decompose.variables.job_features import REAL_COUNT, Category

WINDOW = 4096
"""Number of newest finished jobs in the regressions."""

_TARGET_COUNT = 5  # after the reals: outcome, correction, declared, seen correction, spread


class Observations(NamedTuple):
    """N observations, oldest first.

    features: N rows. outcomes: N. corrections: N, NaN without a declaration. added_count, declared_count: numbers of
    all observations, and of those with a correction, also dropped ones. declared: N, log2 of the declared seconds.
    seen_corrections: N, as observed, without a correction for the job's GPU. spread: N, whether the job's GPUs were on
    more nodes than needed; its outcome and corrections are then those of a packed job by the prior's ratio.
    """

    features: Features
    outcomes: Floats
    corrections: Floats
    added_count: int
    declared_count: int
    declared: Floats
    seen_corrections: Floats
    spread: NDArray[np.bool_]


class ObservationWindow:
    """The newest observations, as arrays.

    Args:
        capacity: their largest number.
    """

    def __init__(self, capacity: int = WINDOW) -> None:
        self._capacity = capacity
        self._categories = np.zeros((2 * capacity, len(Category)), dtype=np.int32)
        self._values = np.zeros((2 * capacity, REAL_COUNT + _TARGET_COUNT))
        self._start = self._end = 0
        self.added_count = 0
        """Number of observations so far, also dropped ones."""
        self.declared_count = 0
        """Number of those with a correction."""

    def __len__(self) -> int:
        return self._end - self._start

    def add(
        self,
        categories: Sequence[int],
        reals: Sequence[float],
        outcome: float,
        correction: float,
        declared: float = math.nan,
        seen_correction: float | None = None,
        *,
        spread: bool = False,
    ) -> None:
        """Adds an observation; drops the oldest of a full window. See `Observations`.

        Args:
            categories: the job's categories.
            reals: the job's reals.
            outcome: log runtime, relative to the prior's.
            correction: log(observed / declared); NaN without a declaration.
            declared: log2 of the declared seconds.
            seen_correction: None: the correction.
            spread: see `Observations`.
        """
        if self._end == len(self._values):
            # Moves the newest to the front: once in `capacity` observations, so that all are always contiguous.
            self._categories[: len(self)] = self._categories[self._start :].copy()
            self._values[: len(self)] = self._values[self._start :].copy()
            self._start, self._end = 0, len(self)
        self._categories[self._end] = categories
        self._values[self._end] = (
            *reals,
            outcome,
            correction,
            declared,
            correction if seen_correction is None else seen_correction,
            float(spread),
        )
        self._end += 1
        self.added_count += 1
        self.declared_count += not math.isnan(correction)
        self._start = max(self._start, self._end - self._capacity)

    def view(self) -> tuple[Features, Floats, Floats]:
        """Columns, outcomes, corrections (NaN without a declaration), oldest first."""
        rows = slice(self._start, self._end)
        values = self._values[rows]
        outcomes, corrections = values[:, -_TARGET_COUNT], values[:, -_TARGET_COUNT + 1]
        return Features(self._categories[rows], values[:, :-_TARGET_COUNT]), outcomes, corrections

    def copy(self) -> Observations:
        """A copy of all observations."""
        rows = slice(self._start, self._end)
        categories, values = self._categories[rows].copy(), self._values[rows].copy()
        outcomes, corrections, declared, seen, spread = values[:, -_TARGET_COUNT:].T
        return Observations(
            Features(categories, values[:, :-_TARGET_COUNT]),
            outcomes,
            corrections,
            self.added_count,
            self.declared_count,
            declared,
            seen,
            spread > 0,
        )

    def clear_real(self, column: int) -> None:
        """Clears a column of reals."""
        self._values[:, column] = math.nan

    def clear(self) -> None:
        """Forgets all observations."""
        self._start = self._end = 0
        self.added_count = self.declared_count = 0
