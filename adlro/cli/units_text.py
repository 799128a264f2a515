"""Durations and sizes as text for people. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "-"

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
# Below it a duration is written in seconds with a decimal.
_LEAST_WITH_MINUTES_S = 99.95


def seconds(value: float | None) -> str:
    """A duration or a time of the cluster's clock by itself: `8.3 s`, `12m 5s`, `3h 20m`, `1d 6h 04m`.

    `durations` writes those of a column.
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    sign, value = ("-" if value < 0 else ""), abs(value)
    if value < _LEAST_WITH_MINUTES_S:
        return f"{sign}{value:.1f} s"
    whole = round(value)
    if whole >= _DAY_S:
        return sign + _with_days(whole)
    hours, rest = divmod(whole, _HOUR_S)
    minutes, left = divmod(rest, _MINUTE_S)
    if hours:
        return f"{sign}{hours}h {minutes}m"
    return f"{sign}{minutes}m {left}s"


def durations(values: Sequence[float | None]) -> list[str]:
    """Durations of one column, all in one form, by the longest of them.

    Below 100 s: `8.3 s`. Else to the second, `8s`, `12m 05s`, `3h 20m 05s`; from a day on to the minute, `< 1m`,
    `20m`, `1d 6h 04m`. Right-aligned, equal units are below each other.

    Args:
        values: seconds; None or not finite: not known.
    """
    known = [abs(each) for each in values if each is not None and math.isfinite(each)]
    longest_s = max(known, default=0.0)
    if longest_s < _LEAST_WITH_MINUTES_S:
        write = _tenths
    elif round(longest_s) < _DAY_S:
        write = _to_the_second
    else:
        write = _to_the_minute
    return [
        UNKNOWN if each is None or not math.isfinite(each) else ("-" if each < 0 else "") + write(abs(each))
        for each in values
    ]


def _tenths(value: float) -> str:
    return f"{value:.1f} s"


def _to_the_second(value: float) -> str:
    hours, rest = divmod(round(value), _HOUR_S)
    minutes, left = divmod(rest, _MINUTE_S)
    if hours:
        return f"{hours}h {minutes:02d}m {left:02d}s"
    return f"{minutes}m {left:02d}s" if minutes else f"{left}s"


def _to_the_minute(value: float) -> str:
    whole = round(value)
    if whole >= _DAY_S:
        return _with_days(whole)
    hours, minutes = divmod(whole // _MINUTE_S, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m" if minutes or not value else "< 1m"


def _with_days(whole: int) -> str:
    days, rest = divmod(whole, _DAY_S)
    hours, minutes = divmod(rest // _MINUTE_S, 60)
    return f"{days}d {hours}h {minutes:02d}m"


def mib(value: float | None) -> str:
    """Memory: `512 MiB`, `15.8 GiB`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value / 1024:.1f} GiB" if value >= 1024 else f"{value:.0f} MiB"


def whole_seconds(value: float) -> str:
    """As `seconds`, without parts of a second."""
    return f"{int(value)} s" if 0 <= value < _LEAST_WITH_MINUTES_S else seconds(value)
