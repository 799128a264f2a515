"""`adlro.numeric.exact` against 50 decimal digits: rounded right, in Python, arrays and compiled, without warnings."""

from __future__ import annotations

import math
import random
import warnings
from decimal import Decimal, localcontext
from typing import Any, cast

import numba
import numpy as np
import pytest

from adlro.numeric import exact, exact_compiled
from adlro.numeric.compiled import compiled

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")
COUNT = 400
RNG = random.Random(12)


def sine(angle: Decimal) -> Decimal:
    angle %= 2 * PI
    total = term = angle
    order = 1
    while abs(term) > Decimal(10) ** -60:
        order += 2
        term *= -angle * angle / (order * (order - 1))
        total += term
    return total


def near(centre: float, decades: float) -> list[float]:
    """Numbers around one, from an ulp on."""
    return [centre + RNG.choice((-1, 1)) * 10 ** RNG.uniform(-decades, -0.5) for _ in range(COUNT)]


CASES = {
    "exp": (
        exact.exp,
        Decimal.exp,
        [RNG.uniform(-6, 6) for _ in range(COUNT)] + [RNG.uniform(-708, 709.7) for _ in range(COUNT)] + near(0.0, 17),
    ),
    "log": (
        exact.log,
        Decimal.ln,
        [RNG.uniform(0.5, 2.0) for _ in range(COUNT)]
        + [10 ** RNG.uniform(-307, 308) for _ in range(COUNT)]
        + near(1.0, 15.5)
        + [5e-324, 1e-310, math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0)],
    ),
    "log1p": (
        exact.log1p,
        lambda x: (1 + x).ln(),
        [-RNG.random() for _ in range(COUNT)]
        + [10 ** RNG.uniform(-30, 300) for _ in range(COUNT)]
        + near(0.0, 17)
        + [math.nextafter(-1.0, 0.0), 1 / 256, -1 / 256],
    ),
    "sin": (
        exact.sin,
        sine,
        [RNG.uniform(-10, 10) for _ in range(COUNT)]
        + [RNG.uniform(-1e6, 1e6) for _ in range(COUNT)]
        + [math.pi * number for number in range(1, 100)]
        + near(0.0, 12),
    ),
    "cos": (
        exact.cos,
        lambda x: sine(x + PI / 2),
        [RNG.uniform(-10, 10) for _ in range(COUNT)] + [math.pi * (number + 0.5) for number in range(100)],
    ),
    "power": (
        lambda x: exact.power(x, -1 / 1.7),
        lambda x: (Decimal(-1 / 1.7) * x.ln()).exp(),
        [RNG.uniform(0.0, 10.0) for _ in range(COUNT)] + [10 ** RNG.uniform(-300, 300) for _ in range(COUNT)],
    ),
    "power of 10": (
        lambda x: exact.power(10.0, x),
        lambda x: (x * Decimal(10).ln()).exp(),
        [RNG.uniform(-4.0, 9.0) for _ in range(COUNT)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rounded_right(name):
    function, reference, arguments = CASES[name]
    bound = Decimal("0.503") if name == "power" else Decimal("0.50002")
    with localcontext() as context:
        context.prec = 70
        for x in arguments:
            result = function(x)
            off = abs(Decimal(result) - reference(Decimal(x))) / Decimal(math.ulp(result))
            assert off < bound, (x, result, off)


def test_whole_powers_are_exact():
    assert [exact.power(10.0, float(number)) for number in range(20)] == [10.0**number for number in range(20)]
    assert [exact.power(2.0, float(number)) for number in (-30, -1, 0, 1, 60)] == [2.0**-30, 0.5, 1.0, 2.0, 2.0**60]


BORDERS = {
    "exp": [(-math.inf, 0.0), (-800.0, 0.0), (0.0, 1.0), (710.0, math.inf), (math.inf, math.inf), (math.nan, math.nan)],
    "log": [(0.0, -math.inf), (1.0, 0.0), (math.inf, math.inf), (-1.0, math.nan), (math.nan, math.nan)],
    "log1p": [(-1.0, -math.inf), (0.0, 0.0), (math.inf, math.inf), (-2.0, math.nan), (math.nan, math.nan)],
    "sin": [(0.0, 0.0), (math.inf, math.nan), (math.nan, math.nan)],
    "cos": [(0.0, 1.0), (-math.inf, math.nan), (math.nan, math.nan)],
}


@pytest.mark.parametrize("name", BORDERS)
def test_borders(name):
    for x, expected in BORDERS[name]:
        assert getattr(exact, name)(x) == pytest.approx(expected, abs=0, rel=0, nan_ok=True)


@pytest.mark.parametrize("x", [0.0, -1.0, math.inf, math.nan])
def test_powers_are_of_numbers_above_0(x):
    with pytest.raises(ValueError, match="x must be above 0 and finite"):
        exact.power(x, 2.0)


def test_large_angles_are_those_of_the_c_library_nearly():
    for x in (2.0**20 + 1, 1e9, -1e12):
        assert exact.sin(x) == pytest.approx(math.sin(x), abs=abs(x) * 2.0**-53)
        assert exact.cos(x) == pytest.approx(math.cos(x), abs=abs(x) * 2.0**-53)


@pytest.mark.parametrize("name", ["exp", "log", "sin", "cos"])
def test_arrays_are_of_the_same_numbers(name):
    x = np.array([*CASES[name][2], *(x for x, _ in BORDERS[name]), 1e-320, -745.1, 3e7])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = getattr(exact, f"{name}_array")(x)
    np.testing.assert_array_equal(found, [getattr(exact, name)(float(each)) for each in x])
    np.testing.assert_array_equal(getattr(exact, f"{name}_array")(x[:12].reshape(3, 4)), found[:12].reshape(3, 4))


@compiled
def fill(function, x, out):
    for i in range(x.shape[0]):
        if function == 0:
            out[i] = exact_compiled.exp(x[i])
        elif function == 1:
            out[i] = exact_compiled.log(x[i])
        else:
            out[i] = exact_compiled.log1p(x[i])


@pytest.mark.parametrize(("number", "name"), [(0, "exp"), (1, "log"), (2, "log1p")])
def test_compiled_code_has_the_same_numbers(number, name):
    x = np.array([*CASES[name][2], *(x for x, _ in BORDERS[name]), 1e-320, -745.1])
    out = np.empty_like(x)
    fill(number, x, out)
    np.testing.assert_array_equal(out, [getattr(exact, name)(float(each)) for each in x])


def test_compiled_code_fuses_nothing():
    anew = numba.njit(cast("Any", fill).py_func)  # of code that was kept on disk numba has no assembly
    anew(0, np.ones(1), np.ones(1))
    code = " ".join(anew.inspect_asm().values())
    assert "mul" in code
    assert not [each for each in ("fmadd", "fmsub", "fnmadd", "fnmsub", "fmla", "fmls") if each in code]
