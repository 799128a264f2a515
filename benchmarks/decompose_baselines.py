"""What decompose's predictor is measured against; part of benchmarks/decompose.py.

Boosting needs scikit-learn (`pip install -e .[bench]`); without it the benchmark says so and leaves the figure out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adlro.records.jobs import JobSpec
from adlro.services.decompose.hypervectors.algebra import bind
from adlro.services.decompose.hypervectors.codebook import Codebook

Floats = NDArray[np.float64]


class Observed(Protocol):
    """A job that ran: what was asked for, where, and how long it took."""

    @property
    def spec(self) -> JobSpec:
        """What was asked for."""

    @property
    def gpu_model(self) -> str:
        """Where it ran."""

    @property
    def step_s(self) -> float:
        """How long it took."""


def boosting(x: Floats, y: Floats, x_test: Floats) -> Floats | None:
    """Gradient-boosted trees; None where scikit-learn is not installed."""
    try:
        from sklearn.ensemble import GradientBoostingRegressor
    except ImportError:
        return None
    model = GradientBoostingRegressor(n_estimators=400, max_depth=4, learning_rate=0.05, subsample=0.7, random_state=0)
    return np.asarray(model.fit(x, y).predict(x_test))


def nearest_neighbours(x: Floats, y: Floats, x_test: Floats, k: int) -> Floats:
    """The mean of the k nearest."""
    distance = ((x_test[:, None, :] - x) ** 2).sum(axis=2)
    return np.asarray(y[np.argsort(distance, axis=1, kind="stable")[:, :k]].mean(axis=1))


def hypervector_ridge(train: Sequence[Observed], test: Sequence[Observed], dimension: int = 4096) -> Floats:
    """Log seconds by ridge regression on hypervectors, then the residual of the most similar records."""
    book = Codebook(dimension)
    batch, count = book.fractional("batch_size", 4.0), book.fractional("gpu_count", 4.0)

    def encode(rows: Sequence[Observed]) -> Floats:
        made = []
        for row in rows:
            family, model = book.atom(f"application/{row.spec.application}"), book.atom(f"model/{row.gpu_model}")
            size = batch.code(np.log2(float(row.spec.labels.get("batch_size", 1))))
            gpus = count.code(np.log2(row.spec.gpu_count))
            terms = (
                (1.0, model), (2.0, family), (1.0, size), (1.0, gpus), (1.0, bind(family, model)),
                (2.0, bind(family, size)), (1.0, bind(family, gpus)), (0.5, bind(model, size)),
                (0.5, bind(model, gpus)),
                (0.5, bind(family, model, size)), (0.5, bind(family, model, gpus)), (0.5, bind(family, size, gpus)),
            )  # fmt: skip
            made.append(np.sum([np.sqrt(weight) * vector for weight, vector in terms], axis=0))
        return np.asarray(np.array(made) / np.sqrt(dimension), dtype=np.float64)

    vectors, asked = encode(train), encode(test)
    y = np.log([row.step_s for row in train])
    mean = y.mean()
    gram = vectors @ vectors.T
    weights = np.linalg.solve(gram + 0.03 * np.eye(len(gram)), y - mean)
    similar = asked @ vectors.T
    residual = y - mean - gram @ weights
    nearest = np.argsort(-similar, axis=1)[:, :3]
    return np.asarray(similar @ weights + mean + residual[nearest].mean(axis=1))
