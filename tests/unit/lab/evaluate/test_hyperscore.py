"""HyperScore against figures worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adlro.errors import InvalidInput
from adlro.lab.evaluate.hyperscore import Weights, hyperscore, value


def test_as_good_as_fcfs_is_109_96() -> None:
    # sigmoid(-ln 2) = 1/3, and 3^-2.1 = 0.09955...
    assert float(hyperscore(np.array(1.0))) == pytest.approx(100 * (1 + 3**-2.1), rel=1e-12)
    assert round(float(hyperscore(np.array(1.0))), 2) == 109.96


def test_a_v_where_the_sigmoid_is_one_half() -> None:
    # 5 ln V = ln 2: sigmoid(0) = 1/2.
    assert float(hyperscore(np.array(2 ** (1 / 5)))) == pytest.approx(100 * (1 + 0.5**2.1), rel=1e-12)


def test_better_is_higher_and_it_stays_between_100_and_200() -> None:
    scores = hyperscore(np.array([1e-6, 0.5, 1.0, 1.5, 2.0, 1e6]))
    assert (np.diff(scores) > 0).all()
    assert scores[0] >= 100
    assert scores[-1] <= 200


def test_v_is_the_weighted_geometric_mean() -> None:
    ratios = (np.array(8.0), np.array(1.0), np.array(1.0))
    assert float(value(*ratios)) == pytest.approx(2.0)
    assert float(value(*ratios, Weights(2, 1, 1))) == pytest.approx(math.sqrt(8))
    assert float(value(*ratios, Weights(0, 1, 5))) == pytest.approx(1.0)


@pytest.mark.parametrize("weights", [(0, 0, 0), (-1, 1, 1), (math.nan, 1, 1), (math.inf, 1, 1)])
def test_weights_without_sense_are_refused(weights: tuple[float, float, float]) -> None:
    with pytest.raises(InvalidInput, match="weights"):
        Weights(*weights)
