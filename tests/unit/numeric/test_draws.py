"""Random numbers: numpy's stream and numbers, but for the tails, which no C library has a part in."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from adlro.numeric import draws, normal
from adlro.numeric.exact import log1p

SCALARS = {
    "exponential": (draws.standard_exponential, np.random.Generator.standard_exponential, draws.EXPONENTIAL_BORDER),
    "normal": (draws.standard_normal, np.random.Generator.standard_normal, draws.NORMAL_BORDER),
}
ARRAYS = {"exponential": draws.standard_exponentials, "normal": draws.standard_normals}


@pytest.mark.parametrize("name", SCALARS)
def test_single_numbers_are_numpys_and_take_as_much_of_the_stream(name):
    ours, theirs, border = SCALARS[name]
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    tail = 0
    for _ in range(60_000):
        own, its = ours(one), theirs(other)
        if abs(its) <= border:
            assert own == its
        else:
            tail += 1
            assert own == pytest.approx(its, rel=1e-15)
        # Half of a 64-bit number is kept for the next call: working a tail out again must not lose it.
        assert one.integers(5) == other.integers(5)
    assert tail >= 10
    assert one.bit_generator.state == other.bit_generator.state


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_of_the_same_numbers(name):
    one, other = np.random.default_rng(4), np.random.default_rng(4)
    drawn = ARRAYS[name](one, 40_000)
    assert list(drawn) == [SCALARS[name][0](other) for _ in range(40_000)]
    assert (np.abs(drawn) > SCALARS[name][2]).sum() >= 5
    assert one.bit_generator.state == other.bit_generator.state


def test_exponential_arrays_have_shapes():
    drawn = draws.standard_exponentials(np.random.default_rng(5), (30, 200))
    assert drawn.shape == (30, 200)
    np.testing.assert_array_equal(drawn.ravel(), draws.standard_exponentials(np.random.default_rng(5), 6000))


def test_tails_are_those_of_the_uniform_numbers_behind_them():
    rng, found = np.random.default_rng(6), 0
    while found < 3:
        before = rng.bit_generator.state
        drawn = draws.standard_exponential(rng)
        if drawn > draws.EXPONENTIAL_BORDER:
            raw = np.random.default_rng()
            raw.bit_generator.state = before
            raw.bit_generator.random_raw()  # the layer and the place in it
            assert drawn == draws.EXPONENTIAL_BORDER - log1p(-raw.random())
            found += 1


def test_other_generators_are_refused_rather_than_drawn_from_wrongly():
    rng = np.random.Generator(np.random.MT19937(1))
    with pytest.raises(TypeError, match="default_rng"):
        draws.standard_exponentials(rng, 20_000)


def test_the_normal_quantile_is_pythons():
    of_python = statistics.NormalDist()
    for number in range(1, 2000):
        assert normal.quantile(number / 2000) == pytest.approx(of_python.inv_cdf(number / 2000), rel=4e-16, abs=1e-16)
    for power in range(4, 300, 7):
        assert normal.quantile(10.0**-power) == pytest.approx(of_python.inv_cdf(10.0**-power), rel=4e-16)
    for wrong in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="probability must be above 0 and below 1"):
            normal.quantile(wrong)


def test_the_normal_distribution_function():
    of_python = statistics.NormalDist()
    for number in range(-900, 901):
        assert normal.cumulative(number / 100) == pytest.approx(of_python.cdf(number / 100), abs=2e-15, rel=0)
    assert (normal.cumulative(-math.inf), normal.cumulative(0.0), normal.cumulative(math.inf)) == (0.0, 0.5, 1.0)
    assert math.isnan(normal.cumulative(math.nan))
