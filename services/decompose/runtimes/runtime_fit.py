"""A fit to the newest finished jobs, computed in one step from a copy of them. Uses arrays only.

A `Refit` has all its inputs and a `RuntimeFit` never changes, so another thread may compute it while the previous fit
answers requests.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from adlro.services.decompose.hypervectors.similarity_kernel import Features, Floats, KernelTerm
from adlro.services.decompose.regression.kernel_regression import Residuals
from adlro.services.decompose.regression.observation_window import Observations
from adlro.services.decompose.regression.spread_regression import SpreadObservations, SpreadRegression
from adlro.services.decompose.regression.tuned_regression import Hyperparameters, TunedRegression
from adlro.services.decompose.runtimes.interval_coverage import Calibration, PredictionKind
from adlro.services.decompose.variables.job_features import Category

EXACT = 1e-3
"""Declarations with a smaller error, in root mean square of the logarithm, are not corrected."""
MIX_FROM = 16
"""Number of finished jobs with a declared runtime from which declarations are mixed with the outcomes' estimate."""


STEP_OCTAVES = 1.0
"""Declared runtimes within this distance count as one size."""
FADE_OCTAVES = 3.0
"""Distance beyond the learned sizes after which the learned correction counts for a third."""
NEAR_PRIOR_COUNT = 4
"""The declared runtime has the weight of so many finished jobs of similar size against the outcomes' estimate."""
NO_CORRECTIONS = (-math.inf, math.inf)
UNKNOWN_VARIANCE = 1e6
"""Variance of a packed runtime of which nothing is known: nothing is learned from it."""
UNTESTED_DECLARATION_VARIANCE = 0.5**2
"""Variance of the error of declarations before any packed job has tested one, as `PRIOR_LOG_SIGMA` has it."""


def correction_terms(hyperparameters: Hyperparameters, present: Collection[int]) -> list[KernelTerm]:
    """Similarity of two declarations' errors: by all users', the user's and the application's; half of it by size.

    An error factor for minutes need not hold for hours: what is learned of one size counts less for another.
    """
    del present  # a job's other demands say little about its user's estimates
    s, application, user = 0.5 * hyperparameters.jobs, Category.APPLICATION, Category.USER
    return [
        KernelTerm(weight * s, categories, reals)
        for weight, categories in (
            (1.0, ()),
            (0.3, (Category.JOB_TYPE,)),
            (0.5, (application,)),
            (1.0, (user,)),
            (0.5, (application, user)),
        )
        for reals in ((), (0,))
    ]


def declaration_features(features: Features, declared: Floats) -> Features:
    """The rows of N jobs for the corrections of their declarations: `declared` is the only real.

    Args:
        features: N rows.
        declared: N; log2 of the declared seconds.
    """
    categories = features.categories.copy()
    categories[:, [Category.GPU_MODEL, Category.LABELS]] = 0  # these are unrelated to declarations
    return Features(categories, (np.round(declared / STEP_OCTAVES) * STEP_OCTAVES)[:, None])


class DeclaredSizes:
    """Sizes of the learned declarations, by user and application.

    Args:
        features: N rows of `declaration_features`.
    """

    def __init__(self, features: Features | None = None) -> None:
        self._sizes: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        self.least, self.greatest = math.inf, -math.inf
        if features is None or not len(features):
            return
        self.least, self.greatest = float(features.reals.min()), float(features.reals.max())
        of_pair: dict[tuple[int, int], list[float]] = {}
        for pair, size in zip(self._pairs(features), features.reals[:, 0].tolist(), strict=True):
            of_pair.setdefault(pair, []).append(size)
        for pair, sizes in of_pair.items():
            values, counts = np.unique(np.array(sizes), return_counts=True)
            self._sizes[pair] = values, counts.astype(np.float64)

    @staticmethod
    def _pairs(features: Features) -> list[tuple[int, int]]:
        rows = features.categories[:, [Category.APPLICATION, Category.USER]].tolist()
        return [(application, user) for application, user in rows]

    def near(self, features: Features) -> Floats:
        """For N declarations: the number of those of their user and application, each weighted by its nearness."""
        none = np.empty(0), np.empty(0)
        found = []
        for pair, size in zip(self._pairs(features), features.reals[:, 0].tolist(), strict=True):
            sizes, counts = self._sizes.get(pair, none)
            found.append(float((np.exp(-np.abs(sizes - size)) * counts).sum()))
        return np.array(found)

    def strangeness(self, features: Features) -> Floats:
        """For N declarations: 0 within the learned sizes and a step beyond, towards 1 with the distance from them."""
        if self.least > self.greatest:
            return np.zeros(len(features))
        sizes = features.reals[:, 0]
        beyond = np.maximum(self.least - sizes, sizes - self.greatest) - STEP_OCTAVES
        return np.asarray(1.0 - np.exp(np.minimum(0.0, -beyond / FADE_OCTAVES)))


def of_outcomes(share: float, near: Floats) -> Floats:
    """The weight of outcomes against a corrected declaration: less with fewer learned declarations nearby.

    Args:
        share: weight of the corrected declaration if there are many.
        near: N; see `DeclaredSizes.near`.
    """
    return (1.0 - share) * near / (near + NEAR_PRIOR_COUNT)


@dataclass(frozen=True, slots=True)
class RuntimeFit:
    """The regressions and their calibration. Without arguments, nothing is learned yet.

    outcomes: of log runtimes. corrections: of log(observed / declared). exact: whether declarations were exact so far.
    share: weight of the corrected declaration against the outcomes' estimate. declared_residuals: of jobs with a
    declared runtime, while these are exact. declared: the sizes of declarations. correction_range: least and greatest
    observed log(observed / declared). calibrations: by kind of predictions. spread: of the speeds of spread jobs.
    """

    outcomes: TunedRegression = field(default_factory=lambda: TunedRegression(Hyperparameters()))
    corrections: TunedRegression = field(
        default_factory=lambda: TunedRegression(
            Hyperparameters(jobs=0.1, reals=(0,), fixed=True), correction_terms, centred=False
        )
    )
    exact: bool = True
    share: float = 1.0
    declared_residuals: Residuals = field(default_factory=lambda: Residuals(np.empty(0)))
    declared: DeclaredSizes = field(default_factory=DeclaredSizes)
    correction_range: tuple[float, float] = NO_CORRECTIONS
    calibrations: Mapping[PredictionKind, Calibration] = field(default_factory=dict)
    spread: SpreadRegression = field(default_factory=SpreadRegression)


@dataclass(frozen=True, slots=True)
class Refit:
    """A refit, from the previous fit (with its hyperparameters as a start) and the observations."""

    previous: RuntimeFit
    seen: Observations
    calibrations: Mapping[PredictionKind, Calibration] = field(default_factory=dict)

    def make(self) -> RuntimeFit:
        """The new fit; the previous one stays unchanged.

        Raises:
            LinAlgError: the observations allow no regression.
        """
        seen, spread = self.seen, SpreadRegression()
        if seen.spread.any():
            spread = self._spread()
            seen = _as_packed(seen, spread)
        outcomes = copy.copy(self.previous.outcomes)
        outcomes.fit(seen.features, seen.outcomes, seen.added_count)
        fit = replace(self.previous, outcomes=outcomes, calibrations=self.calibrations, spread=spread)
        declared = np.flatnonzero(~np.isnan(seen.corrections))
        if not len(declared):
            return fit
        # Whether declarations are exact, packed jobs tell: what a spread one shows of it depends on its ratio.
        packed = np.flatnonzero(~np.isnan(seen.corrections) & ~seen.spread)
        observed = seen.corrections[packed]
        if not len(packed) or np.sqrt(np.mean(observed**2)) < EXACT:
            least, greatest = _range(seen.seen_corrections[packed]) if len(packed) else (0.0, 0.0)
            fit = replace(fit, correction_range=(least, greatest))
            return replace(fit, exact=True, share=1.0, declared_residuals=Residuals(observed))
        observed = seen.corrections[declared]
        fit = replace(fit, correction_range=_range(seen.seen_corrections[declared]))
        features = declaration_features(seen.features.rows(declared), seen.declared[declared])
        sizes = DeclaredSizes(features)
        corrections = copy.copy(self.previous.corrections)
        corrections.fit(features, observed, seen.declared_count)
        by_declared = corrections.left_out_residual
        by_outcomes = outcomes.left_out_residual[declared]
        both = ~(np.isnan(by_declared) | np.isnan(by_outcomes))
        near = sizes.near(features) - 1.0  # without the job itself
        share = 1.0
        if both.sum() >= MIX_FROM:
            shares = np.linspace(0, 1, 11)
            counted = np.array([of_outcomes(each, near[both]) for each in shares])
            mixed = by_declared[both] + counted * (by_outcomes[both] - by_declared[both])
            share = float(shares[np.abs(mixed).mean(axis=1).argmin()])
        counted_all = np.where(both, of_outcomes(share, near), 0.0)
        mixed_all = by_declared + counted_all * np.where(both, by_outcomes - by_declared, 0.0)
        known = ~np.isnan(by_declared) & (near > 0)
        corrections.known = Residuals((mixed_all / corrections.left_out_spread)[known])
        return replace(fit, corrections=corrections, exact=False, share=share, declared=sizes)

    def _spread(self) -> SpreadRegression:
        """The speeds of spread jobs, from what packed jobs tell of their packed runtimes."""
        seen = self.seen
        spread = np.flatnonzero(seen.spread)
        packed = np.flatnonzero(~seen.spread)
        rows = seen.features.rows(spread)
        deviation, variance, noise = _by_outcomes(self.previous.outcomes, seen, packed, rows, seen.outcomes[spread])
        # A declared runtime tells the packed one too, mostly better.
        declared = np.flatnonzero(~np.isnan(seen.corrections[spread]))
        if len(declared):
            of_declared = _by_declarations(self.previous.corrections, seen, packed, spread[declared])
            better = of_declared[1] + of_declared[2] < variance[declared] + noise[declared]
            at = declared[better]
            deviation[at], variance[at], noise[at] = (each[better] for each in of_declared)
        return SpreadRegression.of(SpreadObservations(rows, deviation, variance, noise))


def _by_outcomes(
    previous: TunedRegression, seen: Observations, packed: NDArray[np.intp], rows: Features, outcomes: Floats
) -> tuple[Floats, Floats, Floats]:
    """For N spread jobs: deviation from the prior's log ratio, variance of the packed prediction, of a single job."""
    fit = copy.copy(previous)
    if len(packed):
        fit.fit(seen.features.rows(packed), seen.outcomes[packed], seen.added_count)
    noise = fit.hyperparameters.noise**2
    if fit.model is None or not len(packed):
        return np.zeros(len(outcomes)), np.full(len(outcomes), UNKNOWN_VARIANCE), np.full(len(outcomes), noise)
    mean, variance, _ = fit.estimate(rows)
    return mean - outcomes, np.maximum(variance - noise, 0.0), np.full(len(outcomes), noise)


def _by_declarations(
    previous: TunedRegression, seen: Observations, packed: NDArray[np.intp], spread: NDArray[np.intp]
) -> tuple[Floats, Floats, Floats]:
    """The same for N spread jobs with a declared runtime, from the errors of the packed jobs' declarations."""
    corrections = seen.corrections[spread]
    count = len(corrections)
    known = packed[~np.isnan(seen.corrections[packed])]
    if not len(known):
        return -corrections, np.full(count, UNTESTED_DECLARATION_VARIANCE), np.full(count, EXACT**2)
    if np.sqrt(np.mean(seen.corrections[known] ** 2)) < EXACT:
        return -corrections, np.zeros(count), np.full(count, EXACT**2)
    fit = copy.copy(previous)
    fit.fit(
        declaration_features(seen.features.rows(known), seen.declared[known]),
        seen.corrections[known],
        seen.declared_count,
    )
    noise = fit.hyperparameters.noise**2
    mean, variance, _ = fit.estimate(declaration_features(seen.features.rows(spread), seen.declared[spread]))
    return mean - corrections, np.maximum(variance - noise, 0.0), np.full(count, noise)


def _as_packed(seen: Observations, spread: SpreadRegression) -> Observations:
    """The observations with those of spread jobs converted to packed ones by the learned ratio, not the prior's."""
    rows = np.flatnonzero(seen.spread)
    deviation = np.zeros(len(seen.spread))
    deviation[rows] = spread.estimate(seen.features.rows(rows))[0]
    return seen._replace(
        outcomes=seen.outcomes + deviation,
        corrections=seen.corrections + deviation,
        seen_corrections=seen.seen_corrections + deviation,
    )


def _range(values: Floats) -> tuple[float, float]:
    return float(values.min()), float(values.max())
