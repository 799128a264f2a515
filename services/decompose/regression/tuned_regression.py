"""A regression over similarity that follows a window of observations: tuning, calibration, residuals. Arrays only.

Hyperparameters (prior variances, noise, which reals count) are those by which the observations are most probable; they
are looked for again as the observations grow. The regression holds at most CELL_LIMIT cells; what a user and
application add beyond them is retrieved from the residuals of the others.
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
"""By how much the log evidence must grow for a step: to take one more real into account, and to leave one out (it may
fall a little: the fewer count, the fewer cells there are)."""
CENTRE_PRIOR_COUNT = 0.36
"""Observations that the target 0 weighs as much as: (0.9 / 1.5)^2, by the assumed spread of applications and of the
prior (`predictor.PRIOR_LOG_SIGMA`)."""
UNTOLD_VARIANCE = 0.3
"""Of the logarithm, where a real that was the same in all observations is another: as of jobs before any tuning."""
FloatOrFloats = TypeVar("FloatOrFloats", float, Floats)
_CONFIGURATION = (Category.JOB_TYPE, Category.APPLICATION, Category.USER, Category.LABELS)


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Prior variance of jobs and of what GPU models change, length of reals, noise, reals that count.

    fixed: the reals always count, also where they tell no two records apart; their new values get no residuals of their
    own.
    """

    jobs: float = 0.3
    gpus: float = 0.03
    length: float = 4.0
    noise: float = NOISES[10]
    reals: tuple[int, ...] = (Real.GPU_COUNT, *range(len(Real), REAL_COUNT))
    fixed: bool = False

    def counting(self, present: Collection[int]) -> tuple[int, ...]:
        """The reals that count and tell any two records apart."""
        return self.reals if self.fixed else tuple(real for real in self.reals if real in present)

    def terms(self, present: Collection[int]) -> list[KernelTerm]:
        """The similarity of records: of their kinds, their sizes, and on which GPU model."""
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
        """Hyperparameters one step away. `present` are the reals that tell any two records apart."""
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
    """A regression that follows a window of observations, with its hyperparameters and calibration.

    Args:
        hyperparameters: to begin with.
        make_terms: the similarity by hyperparameters and the reals that tell records apart.
        centred: differences from the mean of what was observed are learned, not from 0: of what was never seen, that
            mean is expected. Without it 0 means something, such as that a declaration holds.
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
        """By what intervals are made: the configuration was seen; was not; nor was its user; nor its application."""
        self.sizes: list[SeenValues] = []
        """The same of values of reals that were not seen."""
        self.unexplained = np.empty(0)
        self.left_out_residual = self.left_out_spread = np.empty(0)
        self.present: tuple[int, ...] = ()
        self.centre = 0.0
        """What is expected of a record that is like none."""
        self.share = 0.0
        """Of what the regression adds to the centre for an application that was never seen."""
        self._count = 0
        self._configurations: set[tuple[float, ...]] = set()
        self._applications: set[int] = set()
        self._users: set[int] = set()
        self._same: tuple[NDArray[np.intp], Floats] = np.empty(0, dtype=np.intp), np.empty(0)
        self._rest: dict[tuple[int, int], tuple[float, float]] = {}
        self._next_tuning = FIRST_TUNING

    def fit(self, features: Features, targets: Floats, observed_count: int | None = None) -> None:
        """Learns N observations, oldest first, in place of those learned before.

        Args:
            features: N rows.
            targets: N.
            observed_count: observations that there were so far, those that gave way to newer ones too; None: N.
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
        # Each configuration counts once, however many jobs it had.
        self.unexplained = np.sort(out.unexplained[_first_of(cell_of)])
        self.left_out_residual, self.left_out_spread = np.full((2, len(targets)), np.nan)
        self.left_out_residual[inside], self.left_out_spread[inside] = out.residual, out.spread
        self._keep_rest(cells, np.flatnonzero(number < 0))

    def _pooled(self, mean: FloatOrFloats) -> FloatOrFloats:
        """The centre by the mean of the targets: drawn to 0 while they are few."""
        return mean * (self._count / (self._count + CENTRE_PRIOR_COUNT)) if self._centred else 0.0 * mean

    def estimate(
        self,
        features: Features,
        by_value: tuple[int, Sequence[int]] | None = None,
        familiarity: Familiarity | None = None,
    ) -> tuple[Floats, Floats, Floats]:
        """Mean, variance of an observation, and unexplained share, of N records; see `KernelRegression.estimate`.

        Before anything is learned: 0, the prior's, 1. `familiarity` is that of the records, where it is known.
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
        if familiarity.untold.any():  # of what another value changes nothing could be learned
            variance = variance + UNTOLD_VARIANCE * np.repeat(familiarity.untold, values)
        return self.centre + mean, variance, unexplained

    def ends(
        self, features: Features, low: float, high: float, z: float, familiarity: Familiarity | None = None
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """The ends of N records' intervals in predicted standard deviations: N x 2. And which are of a new kind.

        What is new in several ways has the widest interval of these.

        Args:
            features: the records.
            low: a quantile.
            high: another.
            z: the quantile `high` of the normal distribution.
            familiarity: of the records, where it is known.

        Returns:
            N x 2; and of the N records, whether their application, user or a size of theirs was never seen.
        """
        familiarity = familiarity or self.familiarity(features)
        found = np.array([kind.ends(low, high, -z, z) for kind in (self.unseen, self.known)])[
            familiarity.seen.astype(np.intp)
        ]
        common = familiarity.knows_application & familiarity.knows_user
        strange = [(self.novel, ~familiarity.knows_application), (self.new_user, ~familiarity.knows_user)]
        # Residuals of their own: applications and users that were left out had sizes of their own too.
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
        """How N records stand to what was learned from."""
        same, value = self._same
        reals = features.reals[:, same]
        return Familiarity(
            self.seen(features),
            self.knows_application(features),
            np.array([user in self._users for user in features.categories[:, Category.USER].tolist()], dtype=bool),
            np.asarray(((reals != value) & ~(np.isnan(reals) & np.isnan(value))).any(axis=1)),
        )

    def seen(self, features: Features) -> NDArray[np.bool_]:
        """Of N records, whether observations of their configuration were learned from."""
        return np.array([key in self._configurations for key in self._configuration_keys(features)], dtype=bool)

    def knows_application(self, features: Features) -> NDArray[np.bool_]:
        """Of N records, whether observations of their application were learned from."""
        applications = features.categories[:, Category.APPLICATION].tolist()
        return np.array([application in self._applications for application in applications], dtype=bool)

    def _calibrate_novel(self, reals: Floats, targets: Floats, cell: NDArray[np.intp], out: LeaveOneOut) -> None:
        """Intervals, and how much the regression counts, for what was never seen: from leaving out what was.

        Args:
            reals: N rows, as they were observed.
            targets: N observations, as the regression learned them.
            cell: N; the cell of each.
            out: how they would have been predicted without them.
        """
        assert self.model is not None
        features = self.model.cells.features
        self.share = 0.0
        applications, users = (numbered(features.categories[:, each]) for each in (Category.APPLICATION, Category.USER))
        [self.novel] = self._of_groups(applications, targets, cell, share=True)
        [self.new_user] = self._of_groups(users, targets, cell)
        self.sizes = []
        if self.hyperparameters.fixed:
            return  # whoever holds the reals to count knows what a new value of theirs means
        counting = self.hyperparameters.counting(self.present)
        self.sizes = [self._of_size(features.reals[:, real], real, targets, cell) for real in counting]
        # Of those that do not count, a value more or less in what was learned from changes next to nothing.
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
        """Standardised residuals as if nothing of a group had been seen; each group counts once.

        Args:
            group: the number of each cell's.
            targets: N.
            cell: N.
            only: numbers of groups.
            share: also find how much of what the regression adds to the centre counts.

        Returns:
            Of all groups, then of each of `only`.
        """
        count = int(group.max()) + 1
        if count < 2:
            return [Residuals(np.empty(0)) for _ in range(1 + len(only))]  # of all others there is nothing
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
        """N observations predicted as if none of their group had been seen.

        Args:
            group: the number of each cell's.
            targets: N, as the regression learned them: less the centre.
            cell: N; the cell of each.

        Returns:
            By how much the centre would be another; what the regression would add to it; standard deviation of the
            observation. Each N.
        """
        assert self.model is not None
        count = np.bincount(group[cell])
        of_others = (targets.sum() - np.bincount(group[cell], targets)) / (len(targets) - count)
        moved = self._pooled(of_others)[group]
        mean, latent = self.model.without(group)
        if self._centred:
            # The regression would have learned other differences: those from the moved centre.
            mean = mean - moved * self.model.without(group, np.ones(len(group)))[0]
        return moved[cell], mean[cell], np.sqrt(latent[cell] + self.hyperparameters.noise**2)

    def _of_size(self, values: Floats, real: int, targets: Floats, cell: NDArray[np.intp]) -> SeenValues:
        distinct, group, ends = sizes_of(values)
        inside, outside = self._of_groups(group, targets, cell, [ends])
        return SeenValues(real, distinct, inside, outside)

    def _configuration_keys(self, features: Features) -> list[tuple[float, ...]]:
        reals = features.reals[:, list(self.hyperparameters.counting(self.present))]
        # NaN is unequal to itself; no logarithm is this far off.
        keys = np.concatenate([features.categories[:, _CONFIGURATION], np.where(np.isnan(reals), 1e9, reals)], axis=1)
        return [tuple(key) for key in keys.tolist()]

    def _tune(self, features: Features, targets: Floats) -> None:
        """Climbs to hyperparameters by which the observations are more probable, one step of one of them at a time."""
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
            # Hyperparameters are compared by the same observations, or not at all: the newest.
            newest = slice(-TUNING_CELL_LIMIT, None)
            cells, _ = make_cells(
                features.rows(newest), targets[newest], _CONFIGURATION, hyperparameters.counting(self.present)
            )
        return log_evidence(
            cells, self._make_terms(hyperparameters, self.present), hyperparameters.length, hyperparameters.noise
        )

    def _keep_rest(self, cells: Cells, rest: NDArray[np.intp]) -> None:
        """Residuals of what the regression does not hold, by application and user."""
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
    """The numbers of the reals that tell any two of N records apart."""
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
