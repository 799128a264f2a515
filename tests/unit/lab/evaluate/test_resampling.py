from __future__ import annotations

import numpy as np
import pytest

from adlro.lab.evaluate.resampling import (
    RESAMPLES,
    holm,
    interval,
    paired_p_value,
    regression,
    resampled_means,
)


def test_resamples_are_the_same_for_every_figure() -> None:
    x = np.arange(20.0)
    both = resampled_means(np.stack([x, 3 * x + 1], axis=1), seed=1)
    assert both.shape == (RESAMPLES, 2)
    np.testing.assert_allclose(both[:, 1], 3 * both[:, 0] + 1)
    np.testing.assert_array_equal(resampled_means(x[:, None], 1)[:, 0], both[:, 0])
    assert not np.array_equal(resampled_means(x[:, None], 2)[:, 0], both[:, 0])


def test_an_interval_of_normal_figures_is_as_wide_as_theory_has_it() -> None:
    values = np.random.default_rng(0).standard_normal((400, 1))
    low, high = interval(resampled_means(values, 0)[:, 0])
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)


@pytest.mark.slow
def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        low, high = interval(resampled_means(rng.standard_normal((40, 1)), 3)[:, 0])
        covered += low <= 0 <= high
    assert 180 <= covered <= 200  # 95 % of 200, give or take


def test_holm_by_hand() -> None:
    # Ascending 0.01, 0.02, 0.04 times 3, 2, 1, never falling.
    assert holm([0.04, None, 0.01, 0.02]) == pytest.approx([0.04, None, 0.03, 0.04])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_wilcoxon_by_hand() -> None:
    theirs = np.arange(10.0, 18.0)
    # All eight differences have one sign: 2 / 2^8, exactly.
    assert paired_p_value(theirs - np.arange(1.0, 9.0), theirs) == pytest.approx(2 / 2**8)
    assert paired_p_value(theirs, theirs) == 1.0
    assert paired_p_value(theirs[:5], theirs[:5] + 1) is None


def test_regression_of_a_line() -> None:
    x = np.array([0.1, 0.2, 0.4])
    line = regression(x, 3 + 10 * x)
    assert line is not None
    assert (line.slope, line.intercept, line.r_squared) == pytest.approx((10, 3, 1))
    assert regression(np.ones(5), np.arange(5.0)) is None
