"""What is learned from the newest finished jobs, made in one go from a copy of them. Knows arrays only.

A `Refit` holds all that it needs and a `Fit` is never changed once it is made, so the work may be done in another
thread while questions are answered from the fit before.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from adlro.services.decompose.hypervectors.kernel import Columns, Floats, Term
from adlro.services.decompose.regression.learner import Learner, Settings
from adlro.services.decompose.regression.regression import Residuals
from adlro.services.decompose.regression.window import Observations
from adlro.services.decompose.runtimes.coverage import Calibration, Kind
from adlro.services.decompose.variables.columns import Category

EXACT = 1e-3
"""Declarations off by less than this, in root mean square of the logarithm, are taken as they stand."""
MIX_FROM = 16
"""Finished jobs with a declared runtime from which it is mixed with what outcomes say."""


STEP_OCTAVES = 1.0
"""Declared runtimes this close count as one size."""
FADE_OCTAVES = 3.0
"""Beyond the sizes learned from, after which what was learned counts for a third."""
NEAR_PRIOR_COUNT = 4
"""The declared runtime weighs as much as so many finished jobs, near to it in size, beside what outcomes say."""
NO_CORRECTIONS = (-math.inf, math.inf)


def correction_terms(settings: Settings, present: Collection[int]) -> list[Term]:
    """How alike two declarations' errors are: by everyone's, the user's and the application's; half of it by size.

    Who is wrong by a factor about minutes may be so about hours, or not: what is learned of the one counts less there.
    """
    del present  # what else a job asks for says little about how well its user estimates
    s, application, user = 0.5 * settings.jobs, Category.APPLICATION, Category.USER
    return [
        Term(weight * s, categories, reals)
        for weight, categories in (
            (1.0, ()),
            (0.3, (Category.JOB_TYPE,)),
            (0.5, (application,)),
            (1.0, (user,)),
            (0.5, (application, user)),
        )
        for reals in ((), (0,))
    ]


def declaration_columns(columns: Columns, declared: Floats) -> Columns:
    """The rows of N jobs as the corrections of their declarations are compared: `declared` is the only real.

    Args:
        columns: N rows.
        declared: N; log2 of the declared seconds.
    """
    categories = columns.categories.copy()
    categories[:, [Category.GPU_MODEL, Category.LABELS]] = 0  # these tell nothing about a declaration
    return Columns(categories, (np.round(declared / STEP_OCTAVES) * STEP_OCTAVES)[:, None])


class Declared:
    """Sizes of the declarations that were learned from, by user and application.

    Args:
        columns: N rows, as `declaration_columns` makes them.
    """

    def __init__(self, columns: Columns | None = None) -> None:
        self._sizes: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        self.least, self.greatest = math.inf, -math.inf
        if columns is None or not len(columns):
            return
        self.least, self.greatest = float(columns.reals.min()), float(columns.reals.max())
        of_pair: dict[tuple[int, int], list[float]] = {}
        for pair, size in zip(self._pairs(columns), columns.reals[:, 0].tolist(), strict=True):
            of_pair.setdefault(pair, []).append(size)
        for pair, sizes in of_pair.items():
            values, counts = np.unique(np.array(sizes), return_counts=True)
            self._sizes[pair] = values, counts.astype(np.float64)

    @staticmethod
    def _pairs(columns: Columns) -> list[tuple[int, int]]:
        rows = columns.categories[:, [Category.APPLICATION, Category.USER]].tolist()
        return [(application, user) for application, user in rows]

    def near(self, columns: Columns) -> Floats:
        """Of N declarations: how many of their user and application there were, each counted by how near it is."""
        none = np.empty(0), np.empty(0)
        found = []
        for pair, size in zip(self._pairs(columns), columns.reals[:, 0].tolist(), strict=True):
            sizes, counts = self._sizes.get(pair, none)
            found.append(float((np.exp(-np.abs(sizes - size)) * counts).sum()))
        return np.array(found)

    def strangeness(self, columns: Columns) -> Floats:
        """Of N declarations: 0 within the sizes learned from and a step beyond, towards 1 the farther from them."""
        if self.least > self.greatest:
            return np.zeros(len(columns))
        sizes = columns.reals[:, 0]
        beyond = np.maximum(self.least - sizes, sizes - self.greatest) - STEP_OCTAVES
        return np.asarray(1.0 - np.exp(np.minimum(0.0, -beyond / FADE_OCTAVES)))


def of_outcomes(share: float, near: Floats) -> Floats:
    """How much outcomes count beside a corrected declaration: the less, the fewer such declarations were learned from.

    Args:
        share: of the corrected declaration where there were many.
        near: N; see `Declared.near`.
    """
    return (1.0 - share) * near / (near + NEAR_PRIOR_COUNT)


@dataclass(frozen=True, slots=True)
class Fit:
    """Regressions and what they are calibrated by. As it is made without arguments, nothing is learned yet.

    outcomes: of log runtimes. corrections: of log(observed / declared). exact: whether declarations were exact so far.
    share: of the corrected declaration, beside what outcomes say. declared_residuals: of jobs with a declared runtime,
    while these are exact. declared: the sizes of declarations. correction_range: least and greatest log(observed /
    declared) that was observed. calibrations: of kinds of predictions.
    """

    outcomes: Learner = field(default_factory=lambda: Learner(Settings()))
    corrections: Learner = field(
        default_factory=lambda: Learner(Settings(jobs=0.1, reals=(0,), fixed=True), correction_terms, centred=False)
    )
    exact: bool = True
    share: float = 1.0
    declared_residuals: Residuals = field(default_factory=lambda: Residuals(np.empty(0)))
    declared: Declared = field(default_factory=Declared)
    correction_range: tuple[float, float] = NO_CORRECTIONS
    calibrations: Mapping[Kind, Calibration] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refit:
    """The work of making a fit anew, from the one before (whose settings it goes on from) and what was seen."""

    previous: Fit
    seen: Observations
    calibrations: Mapping[Kind, Calibration] = field(default_factory=dict)

    def make(self) -> Fit:
        """The new fit; the one before is left as it is.

        Raises:
            LinAlgError: the observations are such that no regression can be made of them.
        """
        seen = self.seen
        outcomes = copy.copy(self.previous.outcomes)
        outcomes.fit(seen.columns, seen.outcomes, seen.added_count)
        fit = replace(self.previous, outcomes=outcomes, calibrations=self.calibrations)
        declared = np.flatnonzero(~np.isnan(seen.corrections))
        if not len(declared):
            return fit
        observed, seen_corrections = seen.corrections[declared], seen.seen_corrections[declared]
        fit = replace(fit, correction_range=(float(seen_corrections.min()), float(seen_corrections.max())))
        if np.sqrt(np.mean(observed**2)) < EXACT:
            return replace(fit, exact=True, share=1.0, declared_residuals=Residuals(observed))
        columns = declaration_columns(seen.columns.rows(declared), seen.declared[declared])
        sizes = Declared(columns)
        corrections = copy.copy(self.previous.corrections)
        corrections.fit(columns, observed, seen.declared_count)
        by_declared = corrections.left_out_residual
        by_outcomes = outcomes.left_out_residual[declared]
        both = ~(np.isnan(by_declared) | np.isnan(by_outcomes))
        near = sizes.near(columns) - 1.0  # without the job itself
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
