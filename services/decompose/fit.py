"""What is learned from the newest finished jobs, made in one go from a copy of them. Knows arrays only.

A `Refit` holds all that it needs and a `Fit` is never changed once it is made, so the work may be done in another
thread while questions are answered from the fit before.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from services.decompose.columns import Category
from services.decompose.kernel import Term
from services.decompose.learner import Learner, Settings
from services.decompose.regression import Residuals
from services.decompose.window import Observations

EXACT = 1e-3
"""Declarations off by less than this, in root mean square of the logarithm, are taken as they stand."""
MIX_FROM = 16
"""Finished jobs with a declared runtime from which it is mixed with what outcomes say."""


def correction_terms(settings: Settings, present: Collection[int]) -> list[Term]:
    """How alike two declarations' errors are: by everyone's, the user's and the application's."""
    del present  # what a job asks for says little about how well its user estimates
    s, application, user = settings.jobs, Category.APPLICATION, Category.USER
    return [
        Term(s),
        Term(0.3 * s, (Category.JOB_TYPE,)),
        Term(0.5 * s, (application,)),
        Term(s, (user,)),
        Term(0.5 * s, (application, user)),
    ]


@dataclass(frozen=True, slots=True)
class Fit:
    """Regressions and what they are calibrated by. As it is made without arguments, nothing is learned yet.

    outcomes: of log runtimes. corrections: of log(observed / declared). exact: whether declarations were exact so far.
    share: of the corrected declaration, beside what outcomes say. declared_residuals: of jobs with a declared runtime.
    """

    outcomes: Learner = field(default_factory=lambda: Learner(Settings()))
    corrections: Learner = field(default_factory=lambda: Learner(Settings(jobs=0.1), correction_terms))
    exact: bool = True
    share: float = 1.0
    declared_residuals: Residuals = field(default_factory=lambda: Residuals(np.empty(0)))


@dataclass(frozen=True, slots=True)
class Refit:
    """The work of making a fit anew, from the one before (whose settings it goes on from) and what was seen."""

    previous: Fit
    seen: Observations

    def make(self) -> Fit:
        """The new fit; the one before is left as it is.

        Raises:
            LinAlgError: the observations are such that no regression can be made of them.
        """
        seen = self.seen
        outcomes = copy.copy(self.previous.outcomes)
        outcomes.fit(seen.columns, seen.outcomes, seen.added_count)
        fit = replace(self.previous, outcomes=outcomes)
        declared = np.flatnonzero(~np.isnan(seen.corrections))
        if not len(declared):
            return fit
        observed = seen.corrections[declared]
        if np.sqrt(np.mean(observed**2)) < EXACT:
            return replace(fit, exact=True, share=1.0, declared_residuals=Residuals(observed))
        corrections = copy.copy(self.previous.corrections)
        corrections.fit(seen.columns.rows(declared), observed, seen.declared_count)
        by_declared = corrections.left_out_residual
        by_outcomes = outcomes.left_out_residual[declared]
        both = ~(np.isnan(by_declared) | np.isnan(by_outcomes))
        share = 1.0
        if both.sum() >= MIX_FROM:
            shares = np.linspace(0, 1, 11)
            mixed = shares[:, None] * by_declared[both] + (1 - shares[:, None]) * by_outcomes[both]
            share = float(shares[np.abs(mixed).mean(axis=1).argmin()])
        known = ~np.isnan(by_declared)
        mixed_all = np.where(both, share * by_declared + (1 - share) * np.nan_to_num(by_outcomes), by_declared)
        return replace(
            fit, corrections=corrections, exact=False, share=share, declared_residuals=Residuals(mixed_all[known])
        )
