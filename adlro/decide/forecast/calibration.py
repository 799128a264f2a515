"""Intervals that come true as often as they say: the spread of futures, corrected by forecasts that have finished.

A future is imagined: durations, arrivals and the policy's own order are known about, not known. So the spread of the
futures alone is no interval. Here a finished forecast leaves its *error*, on a log scale and in units of the futures'
spread, and an interval is cut from the errors of earlier forecasts of the same kind (normalised conformal prediction:
Papadopoulos, Gammerman and Vovk 2008, "Normalized nonconformity measures for regression conformal prediction"; a
window that moves with the service: Gibbs and Candes 2021, "Adaptive conformal inference under distribution shift").
The errors that ship (shipped.py) count as a number of own ones, and fade as own ones come. They come from lists on 16
GPUs. A large cluster begins with its futures' spread and a quarter instead: there futures are nearly right by
themselves, and the shipped errors would tell starts too soon (benchmarks/expected_start_scale.py).

Plain data, no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from adlro.decide.forecast.moment import LARGE_GPUS, Moment, Past
from adlro.decide.forecast.shipped import ERRORS
from adlro.numeric.exact import exp, log, log_array
from adlro.numeric.normal import quantile
from adlro.state.observation import Floats

LEAST_WAIT_S = 5.0
"""A forecast is for jobs that wait longer than this in all: it says when, given that it is not at once."""

LOW, HIGH = 0.1, 0.9
"""The interval holds 80 %: a start before it, and one after it, are as rare."""

KEPT = 200
"""Finished forecasts of one kind that count; older ones are forgotten."""

SHIPPED_WEIGHT = 60.0
"""The shipped errors of a kind count as so many of the cluster's own, and as none once `KEPT` of these have come."""

SPREAD_FLOOR = 0.1
"""Futures that agree are taken to differ by this on the log scale."""

LARGE_ERRORS = tuple(round(1.25 * quantile((place + 0.5) / 41), 3) for place in range(41))
"""In place of the shipped errors on a large cluster: a normal distribution."""

KINDS = tuple(
    f"{age}_{wait}_{spread}_{runtimes}_{load}"
    for age in ("fresh", "older")
    for wait in ("soon", "late")
    for spread in ("close", "wide")
    for runtimes in ("sure", "unsure")
    for load in ("calm", "busy")
)
"""Kinds of forecasts: made at submission or later; by their median against a typical job's duration, by the spread of
their futures, by that of expected durations, and by the load that the past offered."""

_LATE_RATIO, _WIDE, _UNSURE, _BUSY = 1.5, 0.15, 0.05, 0.65


class Raw(NamedTuple):
    """What the futures say of one start, ln(1 + seconds from now).

    Attributes:
        middle: the median.
        spread: half the distance of the 10 % and 90 % quantiles, in standard deviations of a normal distribution.
        least: below this the job would not have waited for `LEAST_WAIT_S`.
    """

    middle: float
    spread: float
    least: float


class Setting(NamedTuple):
    """What a forecast was made in: what tells its kind besides the futures.

    Attributes:
        fresh: whether it is made at the job's submission.
        typical_s: median of the shortest durations of the jobs that the scheduler has seen.
        spread: mean spread of the expected durations of waiting and running jobs.
        load: GPU time that the past asked for against what the GPUs had.
        large: whether the cluster has `LARGE_GPUS` or more.
    """

    fresh: bool
    typical_s: float
    spread: float
    load: float
    large: bool = False


class Interval(NamedTuple):
    """The expected start, seconds from now: 10 %, 50 % and 90 % quantiles."""

    low_s: float
    median_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast that was made: what is needed to judge it when the job has started.

    Attributes:
        made_s: cluster time at which it was made.
        kind: one of `KINDS`.
        raw: what the futures said.
        interval: what was told.
    """

    made_s: float
    kind: str
    raw: Raw
    interval: Interval


class Finished(NamedTuple):
    """A finished forecast: its error, and whether the start came in its interval."""

    error: float
    came_in: bool


class Tally(NamedTuple):
    """The record of forecasts: how many have finished, and the share that came in."""

    finished_count: int
    ratio: float


def raw_of(starts_s: Floats, waited_s: float) -> Raw | None:
    """What futures say of one job; None: it starts in too few of them.

    Args:
        starts_s: (F,) seconds from now; inf: it did not start in that future.
        waited_s: the time that the job has waited so far.
    """
    least_s = max(LEAST_WAIT_S - waited_s, 0.0)
    late = starts_s[starts_s > least_s]
    if len(late) == 0:
        late = np.array([least_s])  # all say: at once; those that do are not asked about
    low, middle, high = (float(late[place]) for place in _places(late))
    if not middle < np.inf:
        return None
    logs = log_array(1.0 + np.array([low, middle, high if high < np.inf else max(4.0 * middle, 1.0)]))
    return Raw(float(logs[1]), float(logs[2] - logs[0]) / _SIGMAS, log(1.0 + least_s))


_SIGMAS = 2.563
"""Standard deviations of a normal distribution between its 10 % and 90 % quantiles."""


def _places(values: Floats) -> tuple[int, int, int]:
    """Places of the quantiles; sorts the values."""
    values.sort()
    last = len(values) - 1
    return round(LOW * last), round(0.5 * last), round(HIGH * last)


def setting_of(moment: Moment, past: Past, fresh: bool) -> Setting:
    """The setting of forecasts of a moment."""
    there = max(int(np.count_nonzero(moment.gpu_there)), 1)
    best_s = past.jobs.duration_s.min(axis=1, initial=np.inf)
    known = np.isfinite(best_s)
    work_s = float((best_s[known] * past.jobs.gpu_count[known]).sum())
    typical_s = float(np.median(best_s[known])) if known.any() else 0.0
    spreads = np.concatenate([moment.gpu_spread[moment.gpu_busy], moment.queue.spread])
    spread = float(spreads.mean()) if len(spreads) else 0.0
    load = work_s / (past.span_s * there) if past.span_s > 0 else 0.0
    return Setting(fresh, typical_s, spread, load, large=len(moment.gpu_kind) >= LARGE_GPUS)


def kind_of(raw: Raw, setting: Setting) -> str:
    """The kind of a forecast."""
    age = "fresh" if setting.fresh else "older"
    wait = "late" if exp(raw.middle) - 1.0 >= _LATE_RATIO * setting.typical_s else "soon"
    spread = "wide" if raw.spread >= _WIDE else "close"
    runtimes = "unsure" if setting.spread >= _UNSURE else "sure"
    return f"{age}_{wait}_{spread}_{runtimes}_{'busy' if setting.load >= _BUSY else 'calm'}"


def error_of(raw: Raw, start_s: float) -> float:
    """The error of what the futures said, for a start so many seconds after the forecast."""
    return float((log(1.0 + max(start_s, 0.0)) - raw.middle) / max(raw.spread, SPREAD_FLOOR))


@dataclass
class Calibration:
    """The record of one cluster's forecasts, and the intervals that follow from it.

    Attributes:
        finished: by kind, the newest finished forecasts.
    """

    finished: dict[str, deque[Finished]] = field(default_factory=lambda: {kind: deque(maxlen=KEPT) for kind in KINDS})
    shipped: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: ERRORS)

    def forecast(self, time_s: float, raw: Raw, setting: Setting) -> Forecast:
        """A forecast with its interval.

        Args:
            time_s: cluster time.
            raw: what the futures say.
            setting: what it is made in.
        """
        kind = kind_of(raw, setting)
        low, middle, high = self.errors(kind, large=setting.large)
        spread = max(raw.spread, SPREAD_FLOOR)
        logs = [max(raw.middle + error * spread, raw.least) for error in (low, middle, high)]
        return Forecast(time_s, kind, raw, Interval(*(exp(each) - 1.0 for each in logs)))

    def errors(self, kind: str, *, large: bool = False) -> tuple[float, float, float]:
        """The quantiles of the errors of a kind, ascending; `large`: on a large cluster."""
        shipped = np.array(LARGE_ERRORS if large else self.shipped.get(kind, (0.0,)))
        own = np.array([each.error for each in self.finished[kind]])
        values = np.concatenate([shipped, own])
        fading = SHIPPED_WEIGHT * max(1.0 - len(own) / KEPT, 0.0)
        weights = np.concatenate([np.full(len(shipped), fading / len(shipped)), np.ones(len(own))])
        order = np.argsort(values, kind="stable")
        passed = np.cumsum(weights[order])
        centre = (passed - 0.5 * weights[order]) / passed[-1]
        low, middle, high = np.interp([LOW, 0.5, HIGH], centre, values[order])
        return float(low), float(middle), float(high)

    def learn(self, forecast: Forecast, start_s: float) -> bool:
        """Takes the outcome of a forecast into the record.

        Args:
            forecast: as it was made.
            start_s: cluster time at which the job started.

        Returns:
            Whether it came in.
        """
        after_s = start_s - forecast.made_s
        # Interval and start are told to the millisecond.
        came_in = forecast.interval.low_s - 1e-3 <= after_s <= forecast.interval.high_s + 1e-3
        self.finished[forecast.kind].append(Finished(error_of(forecast.raw, after_s), came_in))
        return came_in

    def tally(self, fresh: bool) -> Tally:
        """The record of forecasts made at submission, or of those made later."""
        of_kind = [each for kind in KINDS if kind.startswith("fresh") == fresh for each in self.finished[kind]]
        if not of_kind:
            return Tally(0, 0.0)
        return Tally(len(of_kind), [each.came_in for each in of_kind].count(True) / len(of_kind))
