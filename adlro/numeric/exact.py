"""exp, log, powers and sine, the same numbers on every processor. numpy only.

A C library and numpy choose by processor among forms of these functions that differ in the last bit. This module
composes them only of additions, multiplications, divisions and square roots, one after the other, each of which IEEE
754 rounds in one way: neither Python nor numpy ever fuses two of them, nor does LLVM without being asked to
(`exact_compiled` has the compiled forms). No other functions are between a seed and a job list, a population, an
estimate or an imagined future (tests/unit/sim/test_exact_path.py).

`exp`, `log`, `log1p`, `sin`, `cos` and `power` carry about 17 bits more than a double has and round once: their error
is below 0.50002 ulp (`power`: 0.503 where the result is far from 1), so that they mostly give what any good library
does. Each has one core of straight arithmetic (`*_core`), for numbers, arrays and compiled code alike. At the borders
(0, inf, nan, too large) results are numpy's; nobody is warned.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_N = TypeVar("_N", float, Floats)
"""The cores take numbers, or arrays of one shape."""

_LN2 = "0.693147180559945309417232121458176568075500134360255254120680009493"
_PI = "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899"

CELLS = 256
"""`log` looks up ln c for one c in each cell of the numbers from 1 to 2."""
UPPER_CELL = 106
"""From here on, about sqrt 2, x = m 2^e counts as m / 2 and e + 1, so that ln m is 0 only where ln x is."""
PARTS = 128
"""`exp` looks up 2^(j / PARTS)."""
ARCS = 256
"""`sin` and `cos` look up these parts of the circle."""

SPLIT = 134217729.0
"""2^27 + 1: by it a number is split into halves of 26 bits, products of which are exact (T. J. Dekker, 1971)."""


def _pieces(value: Decimal, *bits: int) -> tuple[float, ...]:
    """A number as a sum: consecutive multiples of 2^-bits, and the rest."""
    found = []
    for each in bits:
        found.append(float(int((value * 2**each).to_integral_value())) / 2.0**each)
        value -= Decimal(found[-1])
    return (*found, float(value))


def _inverse(cell: int) -> float:
    """About 1 / m for the numbers m of a cell, in 11 bits; 1 at both ends, where ln m nears 0."""
    if cell in (0, CELLS - 1):
        return 1.0
    middle = 1.0 + (cell + 0.5) / CELLS
    return round(1024.0 * (1.0 if cell < UPPER_CELL else 2.0) / middle) / 1024.0


INVERSE = tuple(_inverse(cell) for cell in range(CELLS))
with localcontext() as _context:
    _context.prec = 60
    LN2_HIGH, LN2_LOW = _pieces(Decimal(_LN2), 42)
    STEP_HIGH, STEP_MIDDLE, STEP_LOW = _pieces(Decimal(_LN2) / PARTS, 42, 77)
    STEPS = float(PARTS / Decimal(_LN2))
    ARC = _pieces(2 * Decimal(_PI) / ARCS, 31, 57, 83)
    ARCS_PER_RADIAN = float(ARCS / (2 * Decimal(_PI)))
    _context.prec = 34
    _root = Decimal(2) ** (Decimal(1) / PARTS)
    _powers = itertools.accumulate(itertools.repeat(_root, PARTS - 1), operator.mul, initial=Decimal(1))
    EXP_HIGH, EXP_LOW = zip(*(_pieces(each, 25) for each in _powers), strict=True)
    LOG_HIGH, LOG_LOW = zip(*(_pieces(-Decimal(c).ln(), 42) for c in INVERSE), strict=True)

EXP_MOST, EXP_LEAST = 709.7827128933840, -745.2
"""Beyond them `exp` is inf and 0."""
NEAR_1 = 1.0 / CELLS
"""1 + x is in the first or last cell for x up to so much."""
ANGLE_MOST = 2.0**20
"""Larger angles are first brought below a turn by the double nearest to 2 pi: an error smaller than their own ulp's."""


# --- cores -----------------------------------------------------------------------------------------------------------


def log_cell(m: _N, c: _N, rest: _N) -> tuple[_N, _N]:
    """(m + rest) c - 1 as a sum of two numbers; c has 11 bits, `rest` is below an ulp of m."""
    top = m * SPLIT
    top = top - (top - m)
    a = top * c - 1.0
    b = (m - top) * c
    r = a + b
    t = r - a
    return r, (a - (r - t)) + (b - t) + rest * c


def log_core(r: _N, r_low: _N, exponent: _N, high: _N, low: _N) -> tuple[_N, _N]:
    """Logarithm of (1 + r + r_low) 2^exponent, plus (high + low), as a sum of two numbers; |r| is up to 1 / 256."""
    # ln(1 + r) = r - r^2 / 2 + ..., with r^2 = square + square_low exactly.
    square = r * r
    top = r * SPLIT
    top = top - (top - r)
    bottom = r - top
    square_low = ((top * top - square) + 2.0 * top * bottom) + bottom * bottom
    tail = 1 / 6 - r * (1 / 7 - r * (1 / 8 - r * (1 / 9 - r / 10)))
    tail = r * square * (1 / 3 - r * (1 / 4 - r * (1 / 5 - r * tail)))
    base = exponent * LN2_HIGH + high
    first = base + r
    first_low = r - (first - base)
    half = 0.5 * square
    second = first - half
    second_low = (first - second) - half
    return second, (first_low + second_low) + (
        (exponent * LN2_LOW + low) + (r_low - 0.5 * square_low - r * r_low) + tail
    )


def exp_rest(x: _N, steps: _N) -> tuple[_N, _N]:
    """The rest of x above so many steps of ln 2 / PARTS, as a sum of two numbers."""
    a = x - steps * STEP_HIGH
    b = -(steps * STEP_MIDDLE)
    r = a + b
    t = r - a
    return r, (a - (r - t)) + (b - t) - steps * STEP_LOW


def exp_core(r: _N, r_low: _N, high: _N, low: _N) -> _N:
    """(high + low) exp(r + r_low); |r| is up to ln 2 / 256, `high` has 26 bits."""
    bend = r * r * (0.5 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720 + r * (1 / 5040))))))
    top = r * SPLIT
    top = top - (top - r)
    a = high * top
    s = high + a
    s_low = a - (s - high)
    return s + (s_low + (high * ((r - top) + (bend + r_low * (1.0 + r))) + (low + low * (r + bend))))


def arc_rest(x: _N, arcs: _N) -> tuple[_N, _N]:
    """The rest of x above so many ARCS of the circle, as a sum of two numbers."""
    t = x - arcs * ARC[0]
    low = 0.0 * t
    for piece in ARC[1:]:
        a, b = t, -(arcs * piece)
        t = a + b
        beyond = t - a
        low = low + ((a - (t - beyond)) + (b - beyond))
    return t, low


def sine_core(t: _N, t_low: _N, s: _N, s_low: _N, c: _N, c_low: _N) -> _N:
    """Sine of (t + t_low) beyond the angle whose sine is s + s_low and cosine c + c_low; |t| is up to pi / 256."""
    square = t * t
    less = square * (-1 / 2 + square * (1 / 24 + square * (-1 / 720 + square * (1 / 40320))))
    bend = t * square * (-1 / 6 + square * (1 / 120 + square * (-1 / 5040)))
    top = t * SPLIT
    top = top - (top - t)
    a = c * top
    first = s + a
    b = first - s
    first_low = (s - (first - b)) + (a - b)
    return first + (
        first_low + (c * ((t - top) + (t_low + bend)) + c_low * (t + bend) + (s_low + (s + s_low) * (less - t * t_low)))
    )


# --- numbers ---------------------------------------------------------------------------------------------------------


def exp(x: float) -> float:
    """e^x."""
    return _exp(x, 0.0)


def log(x: float) -> float:
    """Natural logarithm; -inf of 0, nan below."""
    if not 0.0 < x < math.inf:
        return x if x > 0.0 else -math.inf if x == 0.0 else math.nan
    high, low = _log(x, 0.0)
    return high + low


def log1p(x: float) -> float:
    """Logarithm of 1 + x; -inf of -1, nan below."""
    if -NEAR_1 < x < NEAR_1:
        high, low = log_core(x, 0.0, 0.0, 0.0, 0.0)
        return high + low
    if not -1.0 < x < math.inf:
        return x if x > 0.0 else -math.inf if x == -1.0 else math.nan
    whole = 1.0 + x
    one = whole - x
    high, low = _log(whole, (x - (whole - one)) + (1.0 - one))
    return high + low


def power(x: float, y: float) -> float:
    """x^y of a number above 0.

    Raises:
        ValueError: x is not above 0, or not finite.
    """
    if not 0.0 < x < math.inf:
        raise ValueError(f"x must be above 0 and finite, not {x}")
    high, low = _log(x, 0.0)
    whole = high + low
    return _exp(*_product(y, whole, y * (low - (whole - high))))


def sin(x: float) -> float:
    """Sine of an angle in radians; nan of an infinite one."""
    return _sine(x, 0)


def cos(x: float) -> float:
    """Cosine of an angle in radians; nan of an infinite one."""
    return _sine(x, ARCS // 4)


def _log(x: float, rest: float) -> tuple[float, float]:
    m, exponent = math.frexp(x)
    cell = int(2 * CELLS * m) - CELLS
    if cell < UPPER_CELL:
        m, exponent = 2.0 * m, exponent - 1
    r, r_low = log_cell(m, INVERSE[cell], math.ldexp(rest, -exponent))
    return log_core(r, r_low, exponent, LOG_HIGH[cell], LOG_LOW[cell])


def _exp(x: float, rest: float) -> float:
    if not EXP_LEAST <= x <= EXP_MOST:
        return x if math.isnan(x) else math.inf if x > 0.0 else 0.0
    steps = math.floor(x * STEPS + 0.5)
    r, r_low = exp_rest(x, steps)
    part = steps % PARTS
    return math.ldexp(exp_core(r, r_low + rest, EXP_HIGH[part], EXP_LOW[part]), steps // PARTS)


def _product(x: float, y: float, rest: float) -> tuple[float, float]:
    """X y + rest as a sum of two numbers."""
    high = x * y
    x_top, y_top = x * SPLIT, y * SPLIT
    x_top, y_top = x_top - (x_top - x), y_top - (y_top - y)
    x_low, y_low = x - x_top, y - y_top
    return high, ((x_top * y_top - high) + x_top * y_low + x_low * y_top) + x_low * y_low + rest


def _sine(x: float, ahead: int) -> float:
    if not abs(x) <= ANGLE_MOST:
        if not math.isfinite(x):
            return math.nan
        x = math.fmod(x, math.tau)
    arcs = math.floor(x * ARCS_PER_RADIAN + 0.5)
    t, t_low = arc_rest(x, arcs)
    high, low = _circle()
    here, beside = (arcs + ahead) % ARCS, (arcs + ahead + ARCS // 4) % ARCS
    return sine_core(t, t_low, high[here], low[here], high[beside], low[beside])


@functools.cache
def _circle() -> tuple[Sequence[float], Sequence[float]]:
    """Sines of ARCS angles around the circle, as multiples of 2^-26, and their rest."""
    with localcontext() as context:
        context.prec = 40
        angle = 2 * Decimal(_PI) / ARCS
        sine = cosine = Decimal(0)
        term, order = Decimal(1), 0
        while abs(term) > Decimal("1e-40"):
            if order % 2:
                sine += term if order % 4 == 1 else -term
            else:
                cosine += term if order % 4 == 0 else -term
            order += 1
            term *= angle / order
        s, c, found = Decimal(0), Decimal(1), []
        for _ in range(ARCS):
            found.append(_pieces(s, 26))
            s, c = s * cosine + c * sine, c * cosine - s * sine
    high, low = zip(*found, strict=True)
    return high, low


# --- arrays ----------------------------------------------------------------------------------------------------------


def exp_array(x: Floats) -> Floats:
    """`exp` of each element."""
    x = np.asarray(x, dtype=np.float64)
    inside = (x >= EXP_LEAST) & (x <= EXP_MOST)
    steps = np.floor(np.where(inside, x, 0.0) * STEPS + 0.5)
    r, r_low = exp_rest(np.where(inside, x, 0.0), steps)
    number = steps.astype(np.int64)
    high, low = _tables()[:2]
    part = number % PARTS
    found = np.ldexp(exp_core(r, r_low, high[part], low[part]), number // PARTS)
    beyond = np.where(np.isnan(x), np.nan, np.where(x > 0.0, np.inf, 0.0))
    return np.where(inside, found, beyond)


def log_array(x: Floats) -> Floats:
    """`log` of each element."""
    x = np.asarray(x, dtype=np.float64)
    inside = (x > 0.0) & (x < np.inf)
    m, exponent = np.frexp(np.where(inside, x, 1.0))
    cell = (2 * CELLS * m).astype(np.int64) - CELLS
    lower = cell < UPPER_CELL
    _, _, inverse, high, low = _tables()
    r, r_low = log_cell(np.where(lower, 2.0 * m, m), inverse[cell], np.zeros(()))
    first, rest = log_core(r, r_low, (exponent - lower).astype(np.float64), high[cell], low[cell])
    beyond = np.where(x > 0.0, x, np.where(x == 0.0, -np.inf, np.nan))
    return np.where(inside, first + rest, beyond)


def sin_array(x: Floats) -> Floats:
    """`sin` of each element."""
    return _sine_array(x, 0)


def cos_array(x: Floats) -> Floats:
    """`cos` of each element."""
    return _sine_array(x, ARCS // 4)


def _sine_array(x: Floats, ahead: int) -> Floats:
    x = np.asarray(x, dtype=np.float64)
    known = np.isfinite(x)
    x = np.where(known, x, 0.0)
    x = np.where(np.abs(x) <= ANGLE_MOST, x, np.fmod(x, math.tau))
    arcs = np.floor(x * ARCS_PER_RADIAN + 0.5)
    t, t_low = arc_rest(x, arcs)
    high, low = (np.array(each) for each in _circle())
    here = (arcs.astype(np.int64) + ahead) % ARCS
    beside = (here + ARCS // 4) % ARCS
    return np.where(known, sine_core(t, t_low, high[here], low[here], high[beside], low[beside]), np.nan)


@functools.cache
def _tables() -> tuple[Floats, Floats, Floats, Floats, Floats]:
    return (np.array(EXP_HIGH), np.array(EXP_LOW), np.array(INVERSE), np.array(LOG_HIGH), np.array(LOG_LOW))
