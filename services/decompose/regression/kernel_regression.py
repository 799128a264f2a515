"""A ridge read-out over records' similarity, with its uncertainty. Knows arrays only.

Ridge regression on hypervectors is, in the dual form, a linear combination of similarities to the learned records; with
the expected similarity (`hypervectors.similarity_kernel`) it is Gaussian-process regression (Rasmussen, Williams 2006,
ch. 2). Records with the same values are one *cell*, whose mean is more certain with more records, so that the work
grows with distinct records, not with all.

The errors of predictions come from leaving out, in closed form (ibid. eq. 5.12): each cell once by itself, once with
all cells of its *configuration*, as if that was never seen. The residuals over their predicted spread give the
intervals, so that these have their claimed coverage even for a wrong model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.services.decompose.hypervectors.similarity_kernel import (
    Features,
    Floats,
    KernelTerm,
    kernel,
    kernel_by_value,
    self_similarity,
)

NOISES = tuple(np.geomspace(0.01, 2.0, 16).tolist())
"""The candidate standard deviations of a target about its record's mean."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Distinct records with the statistics of their observations.

    features: N. configuration: N numbers; cells with equal numbers are left out together. count, mean: N.
    deviation: N; sum of squared deviations from the mean.
    """

    features: Features
    configuration: NDArray[np.intp]
    count: Floats
    mean: Floats
    deviation: Floats

    def __len__(self) -> int:
        return len(self.count)

    def rows(self, which: NDArray[np.intp]) -> Cells:
        """Some of the cells."""
        return Cells(
            self.features.rows(which),
            self.configuration[which],
            self.count[which],
            self.mean[which],
            self.deviation[which],
        )


def make_cells(
    features: Features, targets: Floats, configuration_columns: Sequence[int], active: Sequence[int]
) -> tuple[Cells, NDArray[np.intp]]:
    """Merges N records that are equal in all categories and in the `active` reals.

    Args:
        features: the records.
        targets: N.
        configuration_columns: the categories of a configuration, in addition to the active reals.
        active: numbers of the active reals; the others become 0.

    Returns:
        The cells, and the cell of each record.
    """
    reals = np.zeros_like(features.reals)
    reals[:, list(active)] = features.reals[:, list(active)]
    # NaN equals itself here: compared as bits. Adding 0 unifies the two zeros.
    bits = np.where(np.isnan(reals), np.nan, reals + 0.0).view(np.int64)
    rows = np.concatenate([features.categories.astype(np.int64), bits], axis=1)
    first, cell = _unique_rows(rows)
    shared = [*configuration_columns, *(features.categories.shape[1] + number for number in active)]
    _, configuration = _unique_rows(np.ascontiguousarray(rows[first][:, shared]))
    count = np.bincount(cell).astype(np.float64)
    mean = np.bincount(cell, targets) / count
    deviation: Floats = np.bincount(cell, (targets - mean[cell]) ** 2).astype(np.float64)
    return Cells(Features(features.categories[first], reals[first]), configuration, count, mean, deviation), cell


def log_evidence(cells: Cells, terms: Sequence[KernelTerm], length: float, noise: float) -> float:
    """The log likelihood of the observations under these settings (ibid. eq. 2.30), including those within cells."""
    covariance = kernel(cells.features, cells.features, terms, length)
    covariance[np.diag_indices_from(covariance)] += noise**2 / cells.count
    try:
        lower = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return -math.inf
    whitened = np.linalg.solve(lower, cells.mean)
    total = float(cells.count.sum())
    between = -0.5 * float(whitened @ whitened) - float(np.log(np.diag(lower)).sum())
    within = -0.5 * float(cells.deviation.sum()) / noise**2 - (total - len(cells)) * math.log(noise)
    return between + within - 0.5 * float(np.log(cells.count).sum()) - 0.5 * total * math.log(2 * math.pi)


class Residuals:
    """Standardised residuals and the intervals from them; immutable.

    Args:
        values: the residuals over their predicted spread.
        count: number of independent ones; None: all.
        prior_count: weight of the normal distribution in independent residuals.
        scaled: the normal distribution has the width of the residuals, and more while they are few (by Student's
            distribution): for residuals whose predicted spread was itself a guess.
    """

    PRIOR_COUNT = 12
    """Weight of the normal distribution in residuals."""

    def __init__(
        self, values: Floats, count: int | None = None, prior_count: int = PRIOR_COUNT, *, scaled: bool = False
    ) -> None:
        self.values = np.sort(values)
        self._count = len(values) if count is None else count
        self._prior_count = prior_count
        self._scaled = scaled
        self._ends: dict[tuple[float, ...], tuple[float, float]] = {}

    def ends(self, low: float, high: float, z_low: float, z_high: float) -> tuple[float, float]:
        """Quantiles by Weibull positions, shrunk towards the normal distribution's while there are few."""
        asked = low, high, z_low, z_high
        if asked not in self._ends:
            self._ends[asked] = self._find_ends(*asked)
        return self._ends[asked]

    def _find_ends(self, low: float, high: float, z_low: float, z_high: float) -> tuple[float, float]:
        if not len(self.values):
            return z_low, z_high
        total = self._count + self._prior_count
        weight = self._count / total
        found = np.quantile(self.values, [low, high], method="weibull")
        scale = 1.0
        if self._scaled:
            scale = math.sqrt((self._count * float(np.mean(self.values**2)) + self._prior_count) / total)
        assumed = [z * scale * (1.0 + (z * z + 1.0) / (4.0 * total) if self._scaled else 1.0) for z in (z_low, z_high)]
        return (
            min(0.0, float(weight * found[0] + (1 - weight) * assumed[0])),
            max(0.0, float(weight * found[1] + (1 - weight) * assumed[1])),
        )


@dataclass(frozen=True, slots=True)
class RegressionEstimates:
    """For N records: mean and variance of an observation; the unexplained share of the prior's variance."""

    mean: Floats
    variance: Floats
    unexplained: Floats


class LeaveOneOut(NamedTuple):
    """N observations predicted without them; spread is the predicted standard deviation of the residual.

    known: whether other observations of the configuration were seen. residual, spread: predicted from all other
    observations. unseen_residual, unseen_spread: predicted with the whole configuration left out. unexplained: for the
    latter, the unexplained share of the prior's variance.
    """

    known: NDArray[np.bool_]
    residual: Floats
    spread: Floats
    unseen_residual: Floats
    unseen_spread: Floats
    unexplained: Floats


class KernelRegression:
    """A read-out learned from cells.

    Args:
        cells: the observations.
        terms: terms of the similarity; their weights are prior variances.
        length: length of reals.
        noise: standard deviation of an observation about its cell's mean.
    """

    def __init__(self, cells: Cells, terms: Sequence[KernelTerm], length: float, noise: float) -> None:
        self.cells = cells
        self.terms = tuple(terms)
        self.length = length
        self.noise = noise
        self._prior = self_similarity(terms)
        covariance = kernel(cells.features, cells.features, terms, length)
        covariance[np.diag_indices_from(covariance)] += noise**2 / cells.count
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ cells.mean

    def estimate(self, features: Features, by_value: tuple[int, Sequence[int]] | None = None) -> RegressionEstimates:
        """The predictions for N records.

        Args:
            features: the records.
            by_value: a column of categories and V values: predicts each record with each value, N V.
        """
        if by_value is None:
            similar = kernel(features, self.cells.features, self.terms, self.length)
        else:
            similar = kernel_by_value(features, self.cells.features, self.terms, self.length, *by_value)
        explained = ((similar @ self._inverse) * similar).sum(axis=1)
        latent = np.clip(self._prior - explained, 1e-12, self._prior)
        return RegressionEstimates(similar @ self._weights, latent + self.noise**2, latent / self._prior)

    def means(self, features: Features) -> Floats:
        """The predicted means of N records, without variances, which take most of the work of `estimate`."""
        return kernel(features, self.cells.features, self.terms, self.length) @ self._weights

    def without(self, group: NDArray[np.intp], means: Floats | None = None) -> tuple[Floats, Floats]:
        """Mean and latent variance of each of N cells, predicted from the cells of all other groups.

        Args:
            group: N; number of each cell's group.
            means: N; in place of the cells' observed means.
        """
        cells, variance = self.cells, self.noise**2 / self.cells.count
        observed = cells.mean if means is None else means
        weights = self._weights if means is None else self._inverse @ means
        # All cells by themselves in one step, then those with a common group.
        alone = 1.0 / np.diag(self._inverse)
        mean, latent = observed - weights * alone, alone - variance
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order]))
        for members in np.split(order, starts + 1):
            if len(members) == 1:
                continue
            covariance = np.linalg.inv(self._inverse[np.ix_(members, members)])
            mean[members] = observed[members] - covariance @ weights[members]
            latent[members] = np.diag(covariance) - variance[members]
        return mean, np.clip(latent, 1e-12, self._prior)

    def left_out(self, targets: Floats, cell: NDArray[np.intp]) -> LeaveOneOut:
        """The predictions of N observations without them.

        Args:
            targets: N observations of the cells.
            cell: N; the cell of each.
        """
        cells, variance = self.cells, self.noise**2
        alone_mean, alone_latent = self.without(np.arange(len(cells)))
        unseen_mean, unseen_latent = self.without(cells.configuration)
        with_others = np.bincount(cells.configuration)[cells.configuration] > 1
        # The other observations of the cell, added to the prediction from the other cells.
        others = cells.count[cell] - 1
        precision = 1.0 / alone_latent[cell] + others / variance
        of_others = np.where(others > 0, cells.count[cell] * cells.mean[cell] - targets, 0.0)
        mean = (alone_mean[cell] / alone_latent[cell] + of_others / variance) / precision
        return LeaveOneOut(
            known=(others > 0) | with_others[cell],
            residual=targets - mean,
            spread=np.sqrt(1.0 / precision + variance),
            unseen_residual=targets - unseen_mean[cell],
            unseen_spread=np.sqrt(unseen_latent[cell] + variance),
            unexplained=unseen_latent[cell] / self._prior,
        )


def _unique_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first of each of the distinct rows, and the index of each row among them."""
    # Rows as one number each: sums of products with random odd numbers; two collide by chance once in 2^63 pairs.
    factors = np.random.Generator(np.random.Philox(key=1)).integers(1, 2**62, rows.shape[1], dtype=np.uint64) * 2 + 1
    keys = (rows.view(np.uint64) * factors).sum(axis=1, dtype=np.uint64)
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return first, which
