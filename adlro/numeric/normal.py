"""The normal distribution's function and its inverse, the same numbers on every processor and under every Python.

`statistics.NormalDist` takes them from the C library, and another formula from Python 3.12 on.
"""

from __future__ import annotations

import math

from adlro.numeric.exact import exp, log

_CERTAIN = 8.3
"""Further out the distribution function is 0 or 1 to a double's precision."""


def cumulative(x: float) -> float:
    """P(N(0, 1) <= x); absolute error below 1e-15.

    1/2 + density x (x + x^3 / 3 + x^5 / (3 5) + ...): all terms have the sign of x.
    """
    if not abs(x) < _CERTAIN:
        return x if math.isnan(x) else float(x > 0.0)
    term = total = x
    order = 1.0
    while abs(term) > 1e-18 * abs(total):
        order += 2.0
        term *= x * x / order
        total += term
    return 0.5 + total * exp(-0.5 * x * x) / math.sqrt(math.tau)


def quantile(probability: float) -> float:
    """The x with P(N(0, 1) <= x) = `probability`; relative error about 1e-16.

    M. J. Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied Statistics 37 (1988),
    as in Python's `statistics`.

    Raises:
        ValueError: the probability is not between 0 and 1.
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability must be above 0 and below 1, not {probability}")
    q = probability - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        return q * _polynomial(_CENTRE_ABOVE, r) / _polynomial(_CENTRE_BELOW, r)
    r = math.sqrt(-log(probability if q <= 0.0 else 1.0 - probability))
    if r <= 5.0:
        x = _polynomial(_SIDE_ABOVE, r - 1.6) / _polynomial(_SIDE_BELOW, r - 1.6)
    else:
        x = _polynomial(_TAIL_ABOVE, r - 5.0) / _polynomial(_TAIL_BELOW, r - 5.0)
    return -x if q < 0.0 else x


def _polynomial(coefficients: tuple[float, ...], x: float) -> float:
    """Highest power first."""
    total = 0.0
    for each in coefficients:
        total = total * x + each
    return total


# The fractions of the algorithm's three ranges, highest power first.
_CENTRE_ABOVE = (
    2509.0809287301227,
    33430.57558358813,
    67265.7709270087,
    45921.95393154987,
    13731.69376550946,
    1971.5909503065513,
    133.14166789178438,
    3.3871328727963665,
)
_CENTRE_BELOW = (
    5226.495278852854,
    28729.085735721943,
    39307.89580009271,
    21213.794301586597,
    5394.196021424751,
    687.1870074920579,
    42.31333070160091,
    1.0,
)
_SIDE_ABOVE = (
    0.0007745450142783414,
    0.022723844989269184,
    0.2417807251774506,
    1.2704582524523684,
    3.6478483247632045,
    5.769497221460691,
    4.630337846156546,
    1.4234371107496835,
)
_SIDE_BELOW = (
    1.0507500716444169e-09,
    0.0005475938084995345,
    0.015198666563616457,
    0.14810397642748008,
    0.6897673349851,
    1.6763848301838038,
    2.053191626637759,
    1.0,
)
_TAIL_ABOVE = (
    2.0103343992922881e-07,
    2.7115555687434876e-05,
    0.0012426609473880784,
    0.026532189526576124,
    0.29656057182850487,
    1.7848265399172913,
    5.463784911164114,
    6.657904643501103,
)
_TAIL_BELOW = (
    2.0442631033899397e-15,
    1.421511758316446e-07,
    1.8463183175100548e-05,
    0.0007868691311456133,
    0.014875361290850615,
    0.1369298809227358,
    0.599832206555888,
    1.0,
)
