"""A regression over similarity that follows a window of observations: settings, calibration, residuals. Arrays only.

Settings (prior variances, noise, which reals count) are those by which the observations are most probable; they are
looked for again as the observations grow. The regression holds at most CELL_LIMIT cells; what a user and application
add beyond them is retrieved from the residuals of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from services.decompose.columns import REAL_COUNT, Category, Real
from services.decompose.kernel import Columns, Floats, Term, self_similarity
from services.decompose.regression import NOISES, Cells, Regression, Residuals, log_evidence, make_cells

CELL_LIMIT = 512
TUNING_CELL_LIMIT = 192
TUNING_WINDOW = 512
FIRST_TUNING = 12
MOST_PASSES = 4
GAIN = {0: 0.1, 1: 4.0, -1: -2.0}
"""By how much the log evidence must grow for a step: to take one more real into account, and to leave one out (it may
fall a little: the fewer count, the fewer cells there are)."""
APPLICATION_PRIOR_COUNT = 4
"""The normal distribution weighs as much as so many applications: less than elsewhere, since applications are few, and
differ in leaps."""
EVEN = 16
"""Quantiles of an application's residuals that stand for all of them."""
_CONFIGURATION = (Category.JOB_TYPE, Category.APPLICATION, Category.USER, Category.LABELS)


@dataclass(frozen=True, slots=True)
class Settings:
    """Prior variance of jobs and of what GPU models change, length of reals, noise, reals that count."""

    jobs: float = 0.3
    gpus: float = 0.03
    length: float = 4.0
    noise: float = NOISES[10]
    reals: tuple[int, ...] = (Real.GPU_COUNT, *range(len(Real), REAL_COUNT))

    def counting(self, present: Collection[int]) -> tuple[int, ...]:
        """The reals that count and tell any two records apart."""
        return tuple(real for real in self.reals if real in present)

    def terms(self, present: Collection[int]) -> list[Term]:
        """The similarity of records: of their kinds, their sizes, and on which GPU model."""
        kind, application, user, gpu = Category.JOB_TYPE, Category.APPLICATION, Category.USER, Category.GPU_MODEL
        s, g = self.jobs, self.gpus
        terms = [
            Term(s),
            Term(0.5 * s, (kind,)),
            Term(s, (application,)),
            Term(0.3 * s, (user,)),
            Term(s, (application, user)),
            Term(0.5 * s, (application, Category.LABELS)),
            Term(0.5 * g, (gpu,)),
            Term(0.3 * g, (kind, gpu)),
            Term(0.5 * g, (application, gpu)),
        ]
        reals = self.counting(present)
        for real in reals:
            terms += [
                Term(0.5 * s, (), (real,)),
                Term(s, (application,), (real,)),
                Term(0.3 * s, (application, user), (real,)),
                Term(0.3 * g, (gpu,), (real,)),
                Term(0.3 * g, (application, gpu), (real,)),
            ]
        if len(reals) > 1:
            terms += [Term(0.3 * s, (application,), reals), Term(0.1 * g, (application, gpu), reals)]
        return terms

    def neighbours(self, present: Collection[int]) -> list[Settings]:
        """Settings one step away. `present` are the reals that tell any two records apart."""
        at = NOISES.index(self.noise)
        steps = [replace(self, noise=NOISES[i]) for i in (at - 2, at - 1, at + 1, at + 2) if 0 <= i < len(NOISES)]
        steps += [replace(self, jobs=self.jobs * f) for f in (1 / 3, 3.0) if 0.003 < self.jobs * f < 30]
        steps += [replace(self, gpus=self.gpus * f) for f in (1 / 10, 10.0) if 1e-5 < self.gpus * f < 30]
        steps += [replace(self, length=self.length * f) for f in (0.5, 2.0) if 1 < self.length * f < 10]
        for real in present:
            changed = set(self.reals) ^ {real}
            steps.append(replace(self, reals=tuple(sorted(changed))))
        return steps


class Learner:
    """A regression that follows a window of observations, with its settings and calibration.

    Args:
        settings: to begin with.
        make_terms: the similarity by settings and the reals that tell records apart.
    """

    def __init__(
        self, settings: Settings, make_terms: Callable[[Settings, Collection[int]], list[Term]] = Settings.terms
    ) -> None:
        self._make_terms = make_terms
        self.settings = settings
        self.model: Regression | None = None
        self.known, self.unseen, self.novel = (Residuals(np.empty(0)) for _ in range(3))
        """By what intervals are made: the configuration was seen, was not, and its whole application was not."""
        self.unexplained = np.empty(0)
        self.left_out_residual = np.empty(0)
        self.present: tuple[int, ...] = ()
        self._configurations: set[tuple[float, ...]] = set()
        self._applications: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._rest: dict[tuple[int, int], tuple[float, float]] = {}
        self._next_tuning = FIRST_TUNING

    def fit(self, columns: Columns, targets: Floats, observed_count: int | None = None) -> None:
        """Learns N observations, oldest first, in place of those learned before.

        Args:
            columns: N rows.
            targets: N.
            observed_count: observations that there were so far, those that gave way to newer ones too; None: N.
        """
        self.present = _telling(columns.reals)
        observed_count = len(targets) if observed_count is None else observed_count
        if observed_count >= self._next_tuning:
            self._tune(columns, targets)
            self._next_tuning = observed_count + math.ceil(0.25 * len(targets))
        settings = self.settings
        cells, cell = make_cells(columns, targets, _CONFIGURATION, settings.counting(self.present))
        self._configurations = set(self._configuration_keys(cells.columns))
        self._applications = np.unique(cells.columns.categories[:, Category.APPLICATION])
        held = _most_telling(cells, cell, CELL_LIMIT)
        self.model = Regression(
            cells.rows(held), self._make_terms(settings, self.present), settings.length, settings.noise
        )
        number = np.full(len(cells), -1, dtype=np.intp)
        number[held] = np.arange(len(held))
        inside = number[cell] >= 0
        out = self.model.left_out(targets[inside], number[cell[inside]])
        self.known = Residuals((out.residual / out.spread)[out.known])
        self.unseen = Residuals(out.unseen_residual / out.unseen_spread)
        self.novel = self._without_application(targets[inside], number[cell[inside]])
        # Each configuration counts once, however many jobs it had.
        self.unexplained = np.sort(out.unexplained[_first_of(number[cell[inside]])])
        self.left_out_residual = np.full(len(targets), np.nan)
        self.left_out_residual[inside] = out.residual
        self._keep_rest(cells, np.flatnonzero(number < 0))

    def estimate(
        self, columns: Columns, by_value: tuple[int, Sequence[int]] | None = None
    ) -> tuple[Floats, Floats, Floats]:
        """Mean, variance of an observation, and unexplained share, of N records; see `Regression.estimate`.

        Before anything is learned: 0, the prior's, 1.
        """
        values = 1 if by_value is None else len(by_value[1])
        if self.model is None:
            prior = self_similarity(self._make_terms(self.settings, ())) + self.settings.noise**2
            count = values * len(columns)
            return np.zeros(count), np.full(count, prior), np.ones(count)
        found = self.model.estimate(columns, by_value)
        mean, variance, unexplained = found.mean, found.variance, found.unexplained
        if self._rest:
            noise = self.settings.noise**2
            keys = columns.categories[:, [Category.APPLICATION, Category.USER]].tolist()
            rest = np.repeat(
                [self._rest.get((key[0], key[1]), (0.0, 0.0)) for key in keys], values, axis=0
            )  # count, mean
            latent = variance - noise
            share = latent * rest[:, 0] / (latent * rest[:, 0] + noise)
            mean = mean + share * rest[:, 1]
            variance, unexplained = noise + latent * (1 - share), unexplained * (1 - share)
        return mean, variance, unexplained

    def seen(self, columns: Columns) -> NDArray[np.bool_]:
        """Of N records, whether observations of their configuration were learned from."""
        return np.array([key in self._configurations for key in self._configuration_keys(columns)], dtype=bool)

    def knows_application(self, columns: Columns) -> NDArray[np.bool_]:
        """Of N records, whether observations of their application were learned from."""
        return np.isin(columns.categories[:, Category.APPLICATION], self._applications)

    def _without_application(self, targets: Floats, cell: NDArray[np.intp]) -> Residuals:
        """Standardised residuals as if nobody had run the application; each application counts once."""
        assert self.model is not None
        application = self.model.cells.columns.categories[:, Category.APPLICATION]
        _, group = np.unique(application, return_inverse=True)
        mean, latent = self.model.without(group)
        residual = (targets - mean[cell]) / np.sqrt(latent[cell] + self.settings.noise**2)
        shares = (np.arange(EVEN) + 0.5) / EVEN
        each = [np.quantile(residual[group[cell] == number], shares) for number in range(group.max() + 1)]
        return Residuals(np.concatenate(each), len(each), APPLICATION_PRIOR_COUNT)

    def _configuration_keys(self, columns: Columns) -> list[tuple[float, ...]]:
        reals = columns.reals[:, list(self.settings.counting(self.present))]
        # NaN is unequal to itself; no logarithm is this far off.
        keys = np.concatenate([columns.categories[:, _CONFIGURATION], np.nan_to_num(reals, nan=1e9)], axis=1)
        return [tuple(key) for key in keys.tolist()]

    def _tune(self, columns: Columns, targets: Floats) -> None:
        """Climbs to settings by which the observations are more probable, one step of one setting at a time."""
        columns, targets = columns.rows(slice(-TUNING_WINDOW, None)), targets[-TUNING_WINDOW:]
        best = self._evidence(self.settings, columns, targets)
        for _ in range(MOST_PASSES):
            before = self.settings
            for number in range(len(before.neighbours(self.present))):
                around = self.settings.neighbours(self.present)
                if number >= len(around):
                    break
                found = self._evidence(around[number], columns, targets)
                more = len(around[number].counting(self.present)) - len(self.settings.counting(self.present))
                if found > best + GAIN[more]:
                    best, self.settings = found, around[number]
            if self.settings == before:
                break

    def _evidence(self, settings: Settings, columns: Columns, targets: Floats) -> float:
        cells, _ = make_cells(columns, targets, _CONFIGURATION, settings.counting(self.present))
        if len(cells) > TUNING_CELL_LIMIT:
            # Settings are compared by the same observations, or not at all: the newest.
            newest = slice(-TUNING_CELL_LIMIT, None)
            cells, _ = make_cells(
                columns.rows(newest), targets[newest], _CONFIGURATION, settings.counting(self.present)
            )
        return log_evidence(cells, self._make_terms(settings, self.present), settings.length, settings.noise)

    def _keep_rest(self, cells: Cells, rest: NDArray[np.intp]) -> None:
        """Residuals of what the regression does not hold, by application and user."""
        self._rest = {}
        if not len(rest):
            return
        assert self.model is not None
        others = cells.rows(rest)
        residual = others.mean - self.model.means(others.columns)
        for row, count, value in zip(
            others.columns.categories[:, [Category.APPLICATION, Category.USER]].tolist(),
            others.count.tolist(),
            residual.tolist(),
            strict=True,
        ):
            held, mean = self._rest.get((row[0], row[1]), (0.0, 0.0))
            self._rest[row[0], row[1]] = held + count, (held * mean + count * value) / (held + count)


def _telling(reals: Floats) -> tuple[int, ...]:
    """The numbers of the columns that tell any two of N records apart."""
    if not len(reals):
        return ()
    differs = (reals != reals[0]) & ~(np.isnan(reals) & np.isnan(reals[0]))
    return tuple(np.flatnonzero(differs.any(axis=0)).tolist())


def _most_telling(cells: Cells, cell: NDArray[np.intp], limit: int) -> NDArray[np.intp]:
    """The cells with the most observations; of equals those seen last. In their own order."""
    if len(cells) <= limit:
        return np.arange(len(cells))
    last = np.zeros(len(cells))
    last[cell] = np.arange(len(cell))
    return np.sort(np.lexsort((-last, -cells.count))[:limit])


def _first_of(numbers: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.unique(numbers, return_index=True)[1]
