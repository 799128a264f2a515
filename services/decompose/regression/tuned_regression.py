"""A regression over similarity that follows a window of observations: tuning, calibration, residuals. Arrays only.

Hyperparameters (prior variances, noise, active reals) maximise the likelihood of the observations; they are tuned again
as the observations grow. The regression has at most CELL_LIMIT cells; the effects of users and applications beyond them
come from the residuals of the other cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from adlro.services.decompose.hypervectors.similarity_kernel import Features, Floats, KernelTerm, self_similarity
from adlro.services.decompose.regression.kernel_regression import (
    NOISES,
    Cells,
    KernelRegression,
    LeaveOneOut,
    Residuals,
    log_evidence,
    make_cells,
)
from adlro.services.decompose.regression.unseen_values import (
    GROUP_PRIOR_COUNT,
    Familiarity,
    SeenValues,
    best_share,
    evenly,
    numbered,
    sizes_of,
)
from adlro.services.decompose.variables.job_features import REAL_COUNT, Category, Real

CELL_LIMIT = 512
TUNING_CELL_LIMIT = 192
TUNING_WINDOW = 512
FIRST_TUNING = 12
MOST_PASSES = 4
GAIN = {0: 0.1, 1: 4.0, -1: -2.0}
"""Least growth of the log evidence for a step that adds a real, and for one that removes one (there it may decrease a
little: fewer reals mean fewer cells)."""
CENTRE_PRIOR_COUNT = 0.36
"""Weight of the target 0 in observations: (0.9 / 1.5)^2, by the assumed spread of applications and of the prior
(`predictor.PRIOR_LOG_SIGMA`)."""
UNTOLD_VARIANCE = 0.3
"""Variance of the logarithm for a new value of a real that was constant in all observations: that before any tuning."""
FloatOrFloats = TypeVar("FloatOrFloats", float, Floats)
_CONFIGURATION = (Category.JOB_TYPE, Category.APPLICATION, Category.USER, Category.LABELS)


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Prior variances of jobs and of GPU models' effects, length of reals, noise, active reals.

    fixed: the always active reals, even if constant over all records; their new values have no residuals of their own.
    """

    jobs: float = 0.3
    gpus: float = 0.03
    length: float = 4.0
    noise: float = NOISES[10]
    reals: tuple[int, ...] = (Real.GPU_COUNT, *range(len(Real), REAL_COUNT))
    fixed: bool = False

    def counting(self, present: Collection[int]) -> tuple[int, ...]:
        """The active reals that distinguish any two records."""
        return self.reals if self.fixed else tuple(real for real in self.reals if real in present)

    def terms(self, present: Collection[int]) -> list[KernelTerm]:
        """The similarity of records: by their kinds, their sizes, and the GPU model."""
        kind, application, user, gpu = Category.JOB_TYPE, Category.APPLICATION, Category.USER, Category.GPU_MODEL
        s, g = self.jobs, self.gpus
        terms = [
            KernelTerm(s),
            KernelTerm(0.5 * s, (kind,)),
            KernelTerm(s, (application,)),
            KernelTerm(0.3 * s, (user,)),
            KernelTerm(s, (application, user)),
            KernelTerm(0.5 * s, (application, Category.LABELS)),
            KernelTerm(0.5 * g, (gpu,)),
            KernelTerm(0.3 * g, (kind, gpu)),
            KernelTerm(0.5 * g, (application, gpu)),
        ]
        reals = self.counting(present)
        for real in reals:
            terms += [
                KernelTerm(0.5 * s, (), (real,)),
                KernelTerm(s, (application,), (real,)),
                KernelTerm(0.3 * s, (application, user), (real,)),
                KernelTerm(0.3 * g, (gpu,), (real,)),
                KernelTerm(0.3 * g, (application, gpu), (real,)),
            ]
        if len(reals) > 1:
            terms += [KernelTerm(0.3 * s, (application,), reals), KernelTerm(0.1 * g, (application, gpu), reals)]
        return terms

    def neighbours(self, present: Collection[int]) -> list[Hyperparameters]:
        """Hyperparameters one step away. `present` are the reals that distinguish any two records."""
        at = NOISES.index(self.noise)
        steps = [replace(self, noise=NOISES[i]) for i in (at - 2, at - 1, at + 1, at + 2) if 0 <= i < len(NOISES)]
        steps += [replace(self, jobs=self.jobs * f) for f in (1 / 3, 3.0) if 0.003 < self.jobs * f < 30]
        steps += [replace(self, gpus=self.gpus * f) for f in (1 / 10, 10.0) if 1e-5 < self.gpus * f < 30]
        steps += [replace(self, length=self.length * f) for f in (0.5, 2.0) if 1 < self.length * f < 10]
        for real in () if self.fixed else present:
            changed = set(self.reals) ^ {real}
            steps.append(replace(self, reals=tuple(sorted(changed))))
        return steps


class TunedRegression:
    """A regression over a window of observations, with its hyperparameters and calibration.

    Args:
        hyperparameters: the initial ones.
        make_terms: the similarity terms by hyperparameters and the reals that distinguish records.
        centred: the regression learns differences from the mean of the observations, not from 0: that mean is then the
            prediction for unseen records. Without it 0 has a meaning, such as an exact declaration.
    """

    def __init__(
        self,
        hyperparameters: Hyperparameters,
        make_terms: Callable[[Hyperparameters, Collection[int]], list[KernelTerm]] = Hyperparameters.terms,
        *,
        centred: bool = True,
    ) -> None:
        self._make_terms = make_terms
        self._centred = centred
        self.hyperparameters = hyperparameters
        self.model: KernelRegression | None = None
        self.known, self.unseen, self.new_user, self.novel = (Residuals(np.empty(0)) for _ in range(4))
        """The sources of intervals: for a seen configuration; an unseen one; also with an unseen user; an unseen
        application."""
        self.sizes: list[SeenValues] = []
        """The same for unseen values of reals."""
        self.unexplained = np.empty(0)
        self.left_out_residual = self.left_out_spread = np.empty(0)
        self.present: tuple[int, ...] = ()
        self.centre = 0.0
        """The prediction for a record that is similar to none."""
        self.share = 0.0
        """Weight of the regression's difference from the centre for an unseen application."""
        self._count = 0
        self._configurations: set[tuple[float, ...]] = set()
        self._applications: set[int] = set()
        self._users: set[int] = set()
        self._same: tuple[NDArray[np.intp], Floats] = np.empty(0, dtype=np.intp), np.empty(0)
        self._rest: dict[tuple[int, int], tuple[float, float]] = {}
        self._next_tuning = FIRST_TUNING

    def fit(self, features: Features, targets: Floats, observed_count: int | None = None) -> None:
        """Learns N observations, oldest first, in place of the previous ones.

        Args:
            features: N rows.
            targets: N.
            observed_count: number of all observations so far, also dropped ones; None: N.
        """
        self.present = _telling(features.reals)
        self._applications = set(features.categories[:, Category.APPLICATION].tolist())
        self._users = set(features.categories[:, Category.USER].tolist())
        self._count = len(targets)
        self.centre = self._pooled(float(targets.mean()))
        targets = targets - self.centre
        observed_count = len(targets) if observed_count is None else observed_count
        if observed_count >= self._next_tuning:
            self._tune(features, targets)
            self._next_tuning = observed_count + math.ceil(0.25 * len(targets))
        hyperparameters = self.hyperparameters
        active = hyperparameters.counting(self.present)
        cells, cell = make_cells(features, targets, _CONFIGURATION, active)
        self._configurations = set(self._configuration_keys(cells.features))
        held = _most_telling(cells, cell, CELL_LIMIT)
        self.model = KernelRegression(
            cells.rows(held),
            self._make_terms(hyperparameters, self.present),
            hyperparameters.length,
            hyperparameters.noise,
        )
        number = np.full(len(cells), -1, dtype=np.intp)
        number[held] = np.arange(len(held))
        inside = number[cell] >= 0
        observed, cell_of = targets[inside], number[cell[inside]]
        out = self.model.left_out(observed, cell_of)
        self.known = Residuals((out.residual / out.spread)[out.known])
        self.unseen = Residuals(out.unseen_residual / out.unseen_spread)
        self._calibrate_novel(features.reals[inside], observed, cell_of, out)
        # Each configuration counts once, whatever its number of jobs.
        self.unexplained = np.sort(out.unexplained[_first_of(cell_of)])
        self.left_out_residual, self.left_out_spread = np.full((2, len(targets)), np.nan)
        self.left_out_residual[inside], self.left_out_spread[inside] = out.residual, out.spread
        self._keep_rest(cells, np.flatnonzero(number < 0))

    def _pooled(self, mean: FloatOrFloats) -> FloatOrFloats:
        """The centre from the mean of the targets: shrunk to 0 while they are few."""
        return mean * (self._count / (self._count + CENTRE_PRIOR_COUNT)) if self._centred else 0.0 * mean

    def estimate(
        self,
        features: Features,
        by_value: tuple[int, Sequence[int]] | None = None,
        familiarity: Familiarity | None = None,
    ) -> tuple[Floats, Floats, Floats]:
        """Mean, variance of an observation, and unexplained share, of N records; see `KernelRegression.estimate`.

        Before any observation: 0, the prior's, 1. `familiarity`: the records' familiarity, if known.
        """
        values = 1 if by_value is None else len(by_value[1])
        if self.model is None:
            prior = self_similarity(self._make_terms(self.hyperparameters, ())) + self.hyperparameters.noise**2
            count = values * len(features)
            return np.zeros(count), np.full(count, prior), np.ones(count)
        found = self.model.estimate(features, by_value)
        mean, variance, unexplained = found.mean, found.variance, found.unexplained
        if self._rest:
            noise = self.hyperparameters.noise**2
            keys = features.categories[:, [Category.APPLICATION, Category.USER]].tolist()
            rest = np.repeat(
                [self._rest.get((key[0], key[1]), (0.0, 0.0)) for key in keys], values, axis=0
            )  # count, mean
            latent = variance - noise
            share = latent * rest[:, 0] / (latent * rest[:, 0] + noise)
            mean = mean + share * rest[:, 1]
            variance, unexplained = noise + latent * (1 - share), unexplained * (1 - share)
        familiarity = familiarity or self.familiarity(features)
        if self._centred and self.share < 1.0 and not familiarity.knows_application.all():
            mean = np.where(np.repeat(familiarity.knows_application, values), mean, self.share * mean)
        if familiarity.untold.any():  # the observations have no information about another value
            variance = variance + UNTOLD_VARIANCE * np.repeat(familiarity.untold, values)
        return self.centre + mean, variance, unexplained

    def ends(
        self, features: Features, low: float, high: float, z: float, familiarity: Familiarity | None = None
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """The ends of N records' intervals in predicted standard deviations, N x 2, and which records are new.

        A record that is new in several ways has the widest interval of these.

        Args:
            features: the records.
            low: a quantile.
            high: another.
            z: the quantile `high` of the normal distribution.
            familiarity: the records' familiarity, if known.

        Returns:
            N x 2; and for the N records, whether their application, user or a size of theirs was never seen.
        """
        familiarity = familiarity or self.familiarity(features)
        found = np.array([kind.ends(low, high, -z, z) for kind in (self.unseen, self.known)])[
            familiarity.seen.astype(np.intp)
        ]
        common = familiarity.knows_application & familiarity.knows_user
        strange = [(self.novel, ~familiarity.knows_application), (self.new_user, ~familiarity.knows_user)]
        # Residuals of their own: left-out applications and users had sizes of their own too.
        found[~common] = 0.0
        for size in self.sizes:
            values = features.reals[:, size.real]
            unlike = size.is_new(values) & common
            if unlike.any():
                strange += [(size.inside, unlike), (size.outside, size.is_outside(values) & common)]
        new = familiarity.untold.copy()
        for kind, rows in strange:
            if rows.any():
                new |= rows
                lowest, highest = kind.ends(low, high, -z, z)
                found[rows, 0], found[rows, 1] = np.minimum(found[rows, 0], lowest), np.maximum(found[rows, 1], highest)
        return found, new

    def familiarity(self, features: Features) -> Familiarity:
        """The familiarity of N records."""
        same, value = self._same
        reals = features.reals[:, same]
        return Familiarity(
            self.seen(features),
            self.knows_application(features),
            np.array([user in self._users for user in features.categories[:, Category.USER].tolist()], dtype=bool),
            np.asarray(((reals != value) & ~(np.isnan(reals) & np.isnan(value))).any(axis=1)),
        )

    def seen(self, features: Features) -> NDArray[np.bool_]:
        """Whether observations of the configuration were learned, for N records."""
        return np.array([key in self._configurations for key in self._configuration_keys(features)], dtype=bool)

    def knows_application(self, features: Features) -> NDArray[np.bool_]:
        """Whether observations of the application were learned, for N records."""
        applications = features.categories[:, Category.APPLICATION].tolist()
        return np.array([application in self._applications for application in applications], dtype=bool)

    def _calibrate_novel(self, reals: Floats, targets: Floats, cell: NDArray[np.intp], out: LeaveOneOut) -> None:
        """Intervals for unseen records, and the regression's weight there: from left-out ones.

        Args:
            reals: N rows, as observed.
            targets: N observations, as learned.
            cell: N; the cell of each.
            out: their predictions without them.
        """
        assert self.model is not None
        features = self.model.cells.features
        self.share = 0.0
        applications, users = (numbered(features.categories[:, each]) for each in (Category.APPLICATION, Category.USER))
        [self.novel] = self._of_groups(applications, targets, cell, share=True)
        [self.new_user] = self._of_groups(users, targets, cell)
        self.sizes = []
        if self.hyperparameters.fixed:
            return  # the caller with fixed reals knows the effect of their new values
        counting = self.hyperparameters.counting(self.present)
        self.sizes = [self._of_size(features.reals[:, real], real, targets, cell) for real in counting]
        # For inactive reals, one value more or less in the observations has almost no effect.
        alone = out.residual / out.spread
        for real in sorted(set(self.present) - set(counting)):
            distinct, group, ends = sizes_of(reals[:, real])
            values = evenly(alone, group)
            inside, outside = (
                Residuals(values[rows].ravel(), len(rows), GROUP_PRIOR_COUNT, scaled=True)
                for rows in (np.arange(len(values)), ends)
            )
            self.sizes.append(SeenValues(real, distinct, inside, outside))
        same = sorted(set(range(reals.shape[1])) - {size.real for size in self.sizes})
        self._same = np.array(same, dtype=np.intp), reals[0, same]

    def _of_groups(
        self,
        group: NDArray[np.intp],
        targets: Floats,
        cell: NDArray[np.intp],
        only: Sequence[NDArray[np.intp]] = (),
        *,
        share: bool = False,
    ) -> list[Residuals]:
        """Standardised residuals with the whole group left out; each group counts once.

        Args:
            group: number of each cell's group.
            targets: N.
            cell: N.
            only: numbers of groups.
            share: also computes the weight of the regression's difference from the centre.

        Returns:
            The residuals of all groups, then of each of `only`.
        """
        count = int(group.max()) + 1
        if count < 2:
            return [Residuals(np.empty(0)) for _ in range(1 + len(only))]  # no other group, so no residuals
        centre, added, spread = self._without(group, targets, cell)
        counted = 1.0
        if share and self._centred:
            counted = self.share = best_share(targets - centre, added, group[cell])
        residual = evenly((targets - centre - counted * added) / spread, group[cell])
        return [
            Residuals(residual[rows].ravel(), len(rows), GROUP_PRIOR_COUNT, scaled=True)
            for rows in (np.arange(count), *only)
        ]

    def _without(
        self, group: NDArray[np.intp], targets: Floats, cell: NDArray[np.intp]
    ) -> tuple[Floats, Floats, Floats]:
        """N observations predicted with their whole group left out.

        Args:
            group: number of each cell's group.
            targets: N, as learned: minus the centre.
            cell: N; the cell of each.

        Returns:
            The change of the centre; the regression's difference from it; the standard deviation of the observation.
            Each N.
        """
        assert self.model is not None
        count = np.bincount(group[cell])
        of_others = (targets.sum() - np.bincount(group[cell], targets)) / (len(targets) - count)
        moved = self._pooled(of_others)[group]
        mean, latent = self.model.without(group)
        if self._centred:
            # The regression would have learned other differences: from the changed centre.
            mean = mean - moved * self.model.without(group, np.ones(len(group)))[0]
        return moved[cell], mean[cell], np.sqrt(latent[cell] + self.hyperparameters.noise**2)

    def _of_size(self, values: Floats, real: int, targets: Floats, cell: NDArray[np.intp]) -> SeenValues:
        distinct, group, ends = sizes_of(values)
        inside, outside = self._of_groups(group, targets, cell, [ends])
        return SeenValues(real, distinct, inside, outside)

    def _configuration_keys(self, features: Features) -> list[tuple[float, ...]]:
        reals = features.reals[:, list(self.hyperparameters.counting(self.present))]
        # NaN is unequal to itself; no logarithm is near this value.
        keys = np.concatenate([features.categories[:, _CONFIGURATION], np.where(np.isnan(reals), 1e9, reals)], axis=1)
        return [tuple(key) for key in keys.tolist()]

    def _tune(self, features: Features, targets: Floats) -> None:
        """Increases the likelihood of the observations by steps of one hyperparameter at a time."""
        features, targets = features.rows(slice(-TUNING_WINDOW, None)), targets[-TUNING_WINDOW:]
        best = self._evidence(self.hyperparameters, features, targets)
        for _ in range(MOST_PASSES):
            before = self.hyperparameters
            for number in range(len(before.neighbours(self.present))):
                around = self.hyperparameters.neighbours(self.present)
                if number >= len(around):
                    break
                found = self._evidence(around[number], features, targets)
                more = len(around[number].counting(self.present)) - len(self.hyperparameters.counting(self.present))
                if found > best + GAIN[more]:
                    best, self.hyperparameters = found, around[number]
            if self.hyperparameters == before:
                break

    def _evidence(self, hyperparameters: Hyperparameters, features: Features, targets: Floats) -> float:
        cells, _ = make_cells(features, targets, _CONFIGURATION, hyperparameters.counting(self.present))
        if len(cells) > TUNING_CELL_LIMIT:
            # Comparisons of hyperparameters need the same observations: the newest.
            newest = slice(-TUNING_CELL_LIMIT, None)
            cells, _ = make_cells(
                features.rows(newest), targets[newest], _CONFIGURATION, hyperparameters.counting(self.present)
            )
        return log_evidence(
            cells, self._make_terms(hyperparameters, self.present), hyperparameters.length, hyperparameters.noise
        )

    def _keep_rest(self, cells: Cells, rest: NDArray[np.intp]) -> None:
        """Stores residuals of the observations outside the regression, by application and user."""
        self._rest = {}
        if not len(rest):
            return
        assert self.model is not None
        others = cells.rows(rest)
        residual = others.mean - self.model.means(others.features)
        for row, count, value in zip(
            others.features.categories[:, [Category.APPLICATION, Category.USER]].tolist(),
            others.count.tolist(),
            residual.tolist(),
            strict=True,
        ):
            held, mean = self._rest.get((row[0], row[1]), (0.0, 0.0))
            self._rest[row[0], row[1]] = held + count, (held * mean + count * value) / (held + count)


def _telling(reals: Floats) -> tuple[int, ...]:
    """The numbers of the reals that distinguish any two of N records."""
    if not len(reals):
        return ()
    differs = (reals != reals[0]) & ~(np.isnan(reals) & np.isnan(reals[0]))
    return tuple(np.flatnonzero(differs.any(axis=0)).tolist())


def _most_telling(cells: Cells, cell: NDArray[np.intp], limit: int) -> NDArray[np.intp]:
    """The cells with the most observations; on a tie those seen last. In their own order."""
    if len(cells) <= limit:
        return np.arange(len(cells))
    last = np.zeros(len(cells))
    last[cell] = np.arange(len(cell))
    return np.sort(np.lexsort((-last, -cells.count))[:limit])


def _first_of(numbers: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.unique(numbers, return_index=True)[1]
