"""`exp`, `log` and `log1p` of adlro.numeric.exact for compiled code: the same cores and numbers. numpy and numba only.

numba compiles without fast-math, and LLVM then neither reorders additions nor fuses a multiplication with one, on any
processor (tests/unit/numeric/test_exact.py checks the machine code).
"""

from __future__ import annotations

import math

import numpy as np

from adlro.numeric import exact
from adlro.numeric.compiled import compiled_call, compiled_part

_log_cell = compiled_part(exact.log_cell)
_log_core = compiled_part(exact.log_core)
_exp_rest = compiled_part(exact.exp_rest)
_exp_core = compiled_part(exact.exp_core)

_CELLS, _UPPER_CELL, _NEAR_1 = exact.CELLS, exact.UPPER_CELL, exact.NEAR_1
_PARTS, _STEPS, _EXP_LEAST, _EXP_MOST = exact.PARTS, exact.STEPS, exact.EXP_LEAST, exact.EXP_MOST
_EXP_HIGH, _EXP_LOW = np.array(exact.EXP_HIGH), np.array(exact.EXP_LOW)
_INVERSE, _LOG_HIGH, _LOG_LOW = np.array(exact.INVERSE), np.array(exact.LOG_HIGH), np.array(exact.LOG_LOW)


@compiled_part
def _log_parts(x: float, rest: float) -> tuple[float, float]:
    m, exponent = math.frexp(x)
    cell = int(2 * _CELLS * m) - _CELLS
    if cell < _UPPER_CELL:
        m, exponent = 2.0 * m, exponent - 1
    r, r_low = _log_cell(m, _INVERSE[cell], math.ldexp(rest, -exponent) if rest != 0.0 else 0.0)
    return _log_core(r, r_low, float(exponent), _LOG_HIGH[cell], _LOG_LOW[cell])


@compiled_call
def log(x: float) -> float:
    """As `exact.log`."""
    if not 0.0 < x < np.inf:
        return x if x > 0.0 else -np.inf if x == 0.0 else np.nan
    high, low = _log_parts(x, 0.0)
    return high + low


@compiled_call
def log1p(x: float) -> float:
    """As `exact.log1p`."""
    if -_NEAR_1 < x < _NEAR_1:
        high, low = _log_core(x, 0.0, 0.0, 0.0, 0.0)
        return high + low
    if not -1.0 < x < np.inf:
        return x if x > 0.0 else -np.inf if x == -1.0 else np.nan
    whole = 1.0 + x
    one = whole - x
    high, low = _log_parts(whole, (x - (whole - one)) + (1.0 - one))
    return high + low


@compiled_call
def exp(x: float) -> float:
    """As `exact.exp`."""
    if not _EXP_LEAST <= x <= _EXP_MOST:
        return x if np.isnan(x) else np.inf if x > 0.0 else 0.0
    steps = math.floor(x * _STEPS + 0.5)
    r, r_low = _exp_rest(x, float(steps))
    part = steps % _PARTS
    return math.ldexp(_exp_core(r, r_low, _EXP_HIGH[part], _EXP_LOW[part]), steps // _PARTS)
