"""Durations and sizes as text for people. Pure functions."""

from __future__ import annotations

import math

UNKNOWN = "-"


def seconds(value: float | None) -> str:
    """A duration or a time of the cluster's clock: `8.3 s`, `12m 5s`, `3h 20m`, `50d 4h`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    sign, value = ("-" if value < 0 else ""), abs(value)
    if value < 99.95:
        return f"{sign}{value:.1f} s"
    whole = round(value)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{sign}{days}d {hours}h"
    if hours:
        return f"{sign}{hours}h {minutes}m"
    return f"{sign}{minutes}m {left}s"


def mib(value: float | None) -> str:
    """Memory: `512 MiB`, `15.8 GiB`."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value / 1024:.1f} GiB" if value >= 1024 else f"{value:.0f} MiB"


def whole_seconds(value: float) -> str:
    """As `seconds`, without parts of a second."""
    return f"{int(value)} s" if 0 <= value < 99.95 else seconds(value)
