"""The speed that a job of several GPUs keeps on more nodes than it needs, learned from finished jobs. Arrays only.

What is learned is the *deviation*: the logarithm of the kept share, minus that of the prior (the shipped table). A
spread job tells it by its runtime and the prediction of its packed runtime, which is made from packed jobs alone: as
certain as that prediction. Deviations are similar for the same application, GPU model, user and neighbouring GPU counts
(fractional-power codes of log2 n, `hypervectors.similarity_kernel`); without any observation, the prior stands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from adlro.services.decompose.hypervectors.similarity_kernel import Features, Floats, KernelTerm
from adlro.services.decompose.regression.kernel_regression import Cells, KernelRegression, log_evidence, make_cells
from adlro.services.decompose.variables.job_features import Category, Real

LENGTH_OCTAVES = 2.0
"""Distance of two GPU counts, in doublings, at which their deviations' similarity is a third."""
CELL_LIMIT = 256
SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
SCALE_LOG_STD = 1.5
"""Assumed standard deviation of the logarithm of a scale."""
LEAST_VARIANCE = 0.02**2
"""Least variance of an observation's logarithm."""
_GPU, _APPLICATION, _USER = Category.GPU_MODEL, Category.APPLICATION, Category.USER
_COUNT = 0  # the only real
_TERMS = (
    # A network of its own: all jobs of the cluster, or of a model.
    KernelTerm(0.03),
    KernelTerm(0.01, (), (_COUNT,)),
    KernelTerm(0.02, (_GPU,)),
    KernelTerm(0.04, (_APPLICATION,)),
    KernelTerm(0.03, (_APPLICATION,), (_COUNT,)),
    KernelTerm(0.03, (_APPLICATION, _GPU)),
    KernelTerm(0.02, (_APPLICATION, _GPU), (_COUNT,)),
    # Two users' models under one name.
    KernelTerm(0.02, (_APPLICATION, _USER)),
)


def _terms(scale: float) -> list[KernelTerm]:
    return [each._replace(weight=scale * each.weight) for each in _TERMS]


def _log_prior(scale: float) -> float:
    return -0.5 * (math.log(scale) / SCALE_LOG_STD) ** 2


class SpreadObservations(NamedTuple):
    """N spread jobs.

    features: N rows. deviation: N. packed_variance: N, of the log packed runtime's prediction, the same for all jobs of
    a configuration. noise_variance: N, of a single job.
    """

    features: Features
    deviation: Floats
    packed_variance: Floats
    noise_variance: Floats


@dataclass(frozen=True, slots=True)
class SpreadRegression:
    """Without arguments, nothing is learned yet; never changes."""

    model: KernelRegression | None = None
    scale: float = 1.0
    """Of the prior variances: how far this cluster's shares are from the shipped ones."""

    @classmethod
    def of(cls, seen: SpreadObservations) -> SpreadRegression:
        """Learns from N spread jobs."""
        if not len(seen.deviation):
            return cls()
        features = _columns(seen.features)
        # Jobs of a configuration are averaged by precision; the error of their packed prediction is common to them.
        cells, cell = make_cells(features, seen.deviation, range(features.categories.shape[1]), (_COUNT,))
        precision = np.bincount(cell, 1.0 / seen.noise_variance)
        mean = np.bincount(cell, seen.deviation / seen.noise_variance) / precision
        common = np.bincount(cell, seen.packed_variance) / cells.count
        count = 1.0 / (common + np.maximum(1.0 / precision, LEAST_VARIANCE))
        merged = Cells(cells.features, cells.configuration, count, mean, np.zeros(len(mean)))
        most = np.sort(np.argsort(-count, kind="stable")[:CELL_LIMIT])
        held = merged.rows(most)
        # The noise is 1: a cell's count is its precision.
        scale = max(SCALES, key=lambda each: log_evidence(held, _terms(each), LENGTH_OCTAVES, 1.0) + _log_prior(each))
        return cls(KernelRegression(held, _terms(scale), LENGTH_OCTAVES, 1.0), scale)

    def estimate(self, features: Features) -> tuple[Floats, Floats]:
        """For N rows: the mean of the deviation; its variance, as a share of that before anything was learned."""
        if self.model is None:
            return np.zeros(len(features)), np.ones(len(features))
        found = self.model.estimate(_columns(features))
        return found.mean, self.scale * found.unexplained


def _columns(features: Features) -> Features:
    """The categories and the real that matter."""
    categories = features.categories.copy()
    categories[:, [Category.JOB_TYPE, Category.LABELS]] = 0
    return Features(categories, features.reals[:, [Real.GPU_COUNT]])
