"""Similarity and the regression over it: closed forms against the long way round."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adlro.services.decompose.hypervectors.codebook import Codebook
from adlro.services.decompose.hypervectors.similarity_kernel import (
    Features,
    KernelTerm,
    kernel,
    kernel_by_value,
    self_similarity,
)
from adlro.services.decompose.regression.kernel_regression import KernelRegression, Residuals, log_evidence, make_cells

TERMS = [
    KernelTerm(0.5),
    KernelTerm(1.0, (0,)),
    KernelTerm(0.7, (0, 1)),
    KernelTerm(0.8, (), (0,)),
    KernelTerm(0.4, (0, 2), (0, 1)),
    KernelTerm(0.3, (2,)),
]
NOISE = 0.3


def random_features(rng: np.random.Generator, count: int) -> Features:
    reals = np.round(rng.normal(size=(count, 2)), 1)
    reals[rng.random((count, 2)) < 0.2] = np.nan
    return Features(rng.integers(3, size=(count, 3)).astype(np.int32), reals)


def naive(first: Features, second: Features, terms=TERMS, length=2.0):
    total = np.zeros((len(first), len(second)))
    for i in range(len(first)):
        for j in range(len(second)):
            for term in terms:
                value = term.weight
                for column in term.categories:
                    value *= first.categories[i, column] == second.categories[j, column]
                for column in term.reals:
                    x, y = first.reals[i, column], second.reals[j, column]
                    if math.isnan(x) or math.isnan(y):
                        value *= math.isnan(x) and math.isnan(y)
                    else:
                        value *= math.exp(-abs(x - y) / length)
                total[i, j] += value
    return total


def test_the_kernel_is_the_sum_of_products():
    rng = np.random.default_rng(0)
    first, second = random_features(rng, 9), random_features(rng, 7)
    assert kernel(first, second, TERMS, 2.0) == pytest.approx(naive(first, second))
    assert np.diag(kernel(first, first, TERMS, 2.0)) == pytest.approx(self_similarity(TERMS))


def test_values_of_a_column_at_once_are_as_one_by_one():
    rng = np.random.default_rng(1)
    first, second = random_features(rng, 5), random_features(rng, 8)
    together = kernel_by_value(first, second, TERMS, 2.0, 2, [2, 0, 9])
    for number, value in enumerate((2, 0, 9)):
        of_value = Features(first.categories.copy(), first.reals)
        of_value.categories[:, 2] = value
        assert together[number::3] == pytest.approx(kernel(of_value, second, TERMS, 2.0))


def test_hypervectors_estimate_the_kernel():
    # Binding multiplies similarities, bundling adds them: sqrt(weight) x role x product of codes, summed.
    rng = np.random.default_rng(2)
    features = Features(rng.integers(3, size=(12, 3)).astype(np.int32), np.zeros((12, 2)))
    book = Codebook(16_384)
    terms = [KernelTerm(1.0, (0,)), KernelTerm(0.7, (0, 1)), KernelTerm(0.4, (0, 1, 2))]
    vectors = []
    for row in features.categories.tolist():
        total = np.zeros(book.dimension)
        for number, term in enumerate(terms):
            product = book.atom(f"role/{number}").astype(float)
            for column in term.categories:
                product = product * book.atom(f"{column}/{row[column]}")
            total += math.sqrt(term.weight) * product
        vectors.append(total)
    gram = np.array(vectors) @ np.array(vectors).T / book.dimension
    assert gram == pytest.approx(kernel(features, features, terms, 1.0), abs=0.08)


def observed(rng: np.random.Generator, count: int):
    features = random_features(rng, count)
    return features, rng.normal(size=count)


def gaussian_process(features: Features, targets, asked: Features):
    """Record by record, without cells."""
    covariance = naive(features, features) + NOISE**2 * np.eye(len(features))
    similar = naive(asked, features)
    mean = similar @ np.linalg.solve(covariance, targets)
    latent = self_similarity(TERMS) - np.diag(similar @ np.linalg.solve(covariance, similar.T))
    return mean, latent + NOISE**2


def test_cells_lose_nothing():
    rng = np.random.default_rng(3)
    features, targets = observed(rng, 20)
    repeated = features.rows(np.concatenate([np.arange(20), np.arange(8), np.arange(3)]))
    targets = np.concatenate([targets, rng.normal(size=11)])
    cells, cell = make_cells(repeated, targets, (0, 1), (0, 1))
    assert len(cells) < len(targets)
    assert cells.count.sum() == len(targets)
    assert cells.mean[cell[20]] == pytest.approx(targets[cell == cell[20]].mean())
    asked = random_features(rng, 6)
    mean, variance = gaussian_process(repeated, targets, asked)
    found = KernelRegression(cells, TERMS, 2.0, NOISE).estimate(asked)
    assert found.mean == pytest.approx(mean)
    assert found.variance == pytest.approx(variance)
    assert ((found.unexplained > 0) & (found.unexplained <= 1)).all()
    # The evidence too is that of the records one by one.
    covariance = naive(repeated, repeated) + NOISE**2 * np.eye(len(targets))
    expected = (
        -0.5 * targets @ np.linalg.solve(covariance, targets) - 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    )
    assert log_evidence(cells, TERMS, 2.0, NOISE) == pytest.approx(expected)


def test_leaving_out_in_closed_form_is_leaving_out():
    rng = np.random.default_rng(4)
    features, targets = observed(rng, 16)
    repeated = features.rows(np.concatenate([np.arange(16), np.arange(10)]))
    targets = np.concatenate([targets, rng.normal(size=10)])
    cells, cell = make_cells(repeated, targets, (0, 1), (0, 1))
    out = KernelRegression(cells, TERMS, 2.0, NOISE).left_out(targets, cell)
    everyone = np.arange(len(targets))
    for number in everyone.tolist():
        others = everyone[everyone != number]
        mean, variance = gaussian_process(repeated.rows(others), targets[others], repeated.rows(np.array([number])))
        assert out.residual[number] == pytest.approx(targets[number] - mean[0])
        assert out.spread[number] ** 2 == pytest.approx(variance[0])
        mine = cells.configuration[cell[number]]
        strangers = everyone[cells.configuration[cell] != mine]
        mean, variance = gaussian_process(
            repeated.rows(strangers), targets[strangers], repeated.rows(np.array([number]))
        )
        assert out.unseen_residual[number] == pytest.approx(targets[number] - mean[0])
        assert out.unseen_spread[number] ** 2 == pytest.approx(variance[0])
        assert out.known[number] == (len(strangers) < len(others))


def test_reals_that_do_not_count_do_not_tell_cells_apart():
    features = Features(
        np.zeros((4, 3), dtype=np.int32), np.array([[0.0, 1.0], [-0.0, 2.0], [np.nan, 3.0], [np.nan, 4.0]])
    )
    cells, cell = make_cells(features, np.arange(4.0), (0,), (0,))
    assert cell[0] == cell[1] != cell[2] == cell[3]
    assert sorted(cells.mean.tolist()) == [0.5, 2.5]
    assert len(make_cells(features, np.arange(4.0), (0,), (0, 1))[0]) == 4
    assert len(make_cells(features, np.arange(4.0), (0,), ())[0]) == 1


def test_residuals_give_way_to_the_normal_distribution_while_they_are_few():
    assert Residuals(np.empty(0)).ends(0.1, 0.9, -1.28, 1.28) == (-1.28, 1.28)
    few = Residuals(np.array([-0.1, 0.1])).ends(0.1, 0.9, -1.28, 1.28)
    many = Residuals(np.linspace(-3, 3, 1000)).ends(0.1, 0.9, -1.28, 1.28)
    assert few[1] > 1.0
    assert many == pytest.approx((-2.4, 2.4), abs=0.05)
