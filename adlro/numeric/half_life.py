"""GPU time that counts less the longer ago it was, by a half-life. numpy only."""

from __future__ import annotations

import math

import numpy as np

from adlro.numeric.exact import Floats, exp, exp_array

_LN2 = 0.6931471805599453


def kept_ratio(half_life_s: float, since_s: float) -> float:
    """What of a GPU second counts after some time: 1/2 after the half-life; inf: 1 for ever."""
    return 1.0 if half_life_s == math.inf else exp(-_LN2 * max(since_s, 0.0) / half_life_s)


def kept_ratios(half_life_s: float, since_s: Floats) -> Floats:
    """`kept_ratio` of an array."""
    if half_life_s == math.inf:
        return np.ones_like(since_s)
    return exp_array(-_LN2 * np.maximum(since_s, 0.0) / half_life_s)


def counted_s(half_life_s: float, took_s: float) -> float:
    """What counts of a GPU's last `took_s` seconds: the integral of `kept_ratio` over them."""
    return took_s if half_life_s == math.inf else half_life_s / _LN2 * (1.0 - kept_ratio(half_life_s, took_s))


def counted_seconds(half_life_s: float, took_s: Floats) -> Floats:
    """`counted_s` of an array."""
    if half_life_s == math.inf:
        return took_s
    counted: Floats = half_life_s / _LN2 * (1.0 - kept_ratios(half_life_s, took_s))
    return counted
