"""What a restart costs: seconds until a job that was stopped, and is started again, goes on. Plain records and arrays.

A job may state its restart time. Users' statements are wrong by a factor, which is learned:

    restart = stated x exp(b),   b(user, application) ~ N(b(application), .), b(application) ~ N(b(all), .)

so that a user's jobs of an application say most about the next one, those of other users something, and other
applications little. Jobs without a statement have `DEFAULT_RESTART_S` in its place, and factors of their own. Each b
has a value on a grid, so that the sums over the others are exact, and an observation may have any error, also one
larger than the restart itself: then it says that the restart is not much longer.

While all observed restarts are what their jobs stated, to the last digits, statements are returned as they are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DEFAULT_RESTART_S = 30.0
"""Restart time of a job that does not state it: Sia's simulator charges 30 s to what it does not list."""
STATED_LOG_STD, NOT_STATED_LOG_STD = 0.5, 1.0
"""Assumed standard deviation of b(all); Sia's listed restarts, 15 to 250 s, are within a factor of 2.8 at 68 %."""
APPLICATION_LOG_STD = 0.7
USER_LOG_STD = 0.4
JOB_LOG_STD = 0.2
"""Of a single restart about those of its user and application."""
GROUP_LIMIT = 4096
"""Largest number of (user, application); the one learned from longest ago is dropped."""
NEWEST = 32
"""Observations of each (user, application) that count, so that a restart may change."""
INTERVAL = (0.1, 0.5, 0.9)
_GRID = np.linspace(-5.0, 5.0, 201)
_EXACT = 1e-6  # error of a restart that counts as none: what rounding leaves of differences of times
_FREEDOM = 4.0  # of Student's distribution: a restart that hung for minutes is an outlier


class AttemptRun(NamedTuple):
    """One of the attempts of a job: seconds that its program ran, and its speed relative to the reference GPU."""

    run_s: float
    speed: float


@dataclass(frozen=True, slots=True)
class ObservedRestart:
    """The restart time of a job that was stopped and went on.

    Attributes:
        user, application: of the job.
        restart_s: mean over its restarts; may be below 0 by its error.
        std_s: standard deviation of its error.
        stated_s: what the job stated; None: nothing.
    """

    user: str
    application: str
    restart_s: float
    std_s: float
    stated_s: float | None = None


class RestartPrediction(NamedTuple):
    """The restart time of a job: between low_s and high_s with probability 0.8.

    restart_count: number of observations of its user and application.
    """

    median_s: float
    low_s: float
    high_s: float
    restart_count: int


def observed_restart(
    runs: Sequence[AttemptRun], work_s: float, work_log_std: float, lost_s: float = 0.0
) -> tuple[float, float] | None:
    """The mean restart time of a finished job, from what its attempts took beyond its work, and its standard deviation.

    Args:
        runs: its attempts, in order; all but the last were stopped, and the next one went on.
        work_s: its predicted seconds on the reference GPU without a stop.
        work_log_std: standard deviation of the logarithm of that; 0: known.
        lost_s: progress lost at each stop, in seconds of the attempt's run.

    Returns:
        None: it was never stopped.
    """
    if len(runs) < 2:
        return None
    worked_s = math.fsum(each.run_s * each.speed for each in runs)
    lost_work_s = math.fsum(min(lost_s, each.run_s) * each.speed for each in runs[:-1])
    per_second = math.fsum(each.speed for each in runs[1:])
    return (worked_s - lost_work_s - work_s) / per_second, work_log_std * work_s / per_second


@dataclass(slots=True)
class _User:
    """log_likelihood: of b(user, application), by its newest observations. up: the same of b(application)."""

    observed: deque[ObservedRestart] = field(default_factory=lambda: deque(maxlen=NEWEST))
    log_likelihood: Floats = field(default_factory=lambda: np.zeros(len(_GRID)))
    up: Floats = field(default_factory=lambda: np.zeros(len(_GRID)))


@dataclass(slots=True)
class _Application:
    """total: the sum of its users' `up`. up: what it says of b(all)."""

    users: dict[str, _User] = field(default_factory=dict)
    total: Floats = field(default_factory=lambda: np.zeros(len(_GRID)))
    up: Floats = field(default_factory=lambda: np.zeros(len(_GRID)))


class _Factors:
    """The factors of the jobs with a statement, or of those without."""

    def __init__(self, log_std: float) -> None:
        self._prior = -0.5 * (_GRID / log_std) ** 2
        self._applications: dict[str, _Application] = {}
        self._total = np.zeros(len(_GRID))

    def learn(self, observed: ObservedRestart) -> None:
        """Adds an observation."""
        of_application = self._applications.setdefault(observed.application, _Application())
        of_user = of_application.users.setdefault(observed.user, _User())
        full = len(of_user.observed) == NEWEST
        of_user.observed.append(observed)
        if full:  # summed anew, without the oldest
            of_user.log_likelihood = np.sum([_log_likelihood(each) for each in of_user.observed], axis=0)
        else:
            of_user.log_likelihood = of_user.log_likelihood + _log_likelihood(observed)
        up = _spread(of_user.log_likelihood, USER_LOG_STD)
        self._pass_up(observed.application, of_application, of_user, up)

    def observed(self, user: str, application: str) -> Sequence[ObservedRestart]:
        """A user's observations of an application, oldest first."""
        return self._applications[application].users[user].observed

    def drop(self, user: str, application: str) -> None:
        """Forgets a user's jobs of an application."""
        of_application = self._applications[application]
        self._pass_up(application, of_application, of_application.users.pop(user), np.zeros(len(_GRID)))
        if not of_application.users:
            self._total = self._total - of_application.up
            del self._applications[application]

    def posterior(self, user: str, application: str) -> tuple[Floats, int]:
        """The probabilities of b(user, application) on the grid, and the number of its observations."""
        of_application = self._applications.get(application) or _Application()
        of_user = of_application.users.get(user) or _User()
        of_all = self._prior + self._total - of_application.up
        down = _spread(of_all, APPLICATION_LOG_STD) + of_application.total - of_user.up
        log_p = _spread(down, USER_LOG_STD) + of_user.log_likelihood
        weights = np.exp(log_p - log_p.max())
        return weights / weights.sum(), len(of_user.observed)

    def _pass_up(self, name: str, of_application: _Application, of_user: _User, up: Floats) -> None:
        of_application.total = of_application.total + (up - of_user.up)
        of_user.up = up
        before = of_application.up
        of_application.up = _spread(of_application.total, APPLICATION_LOG_STD)
        self._total = self._total + (of_application.up - before)


class RestartCosts:
    """The memory of restart times.

    Args:
        limit: largest number of (user, application).
    """

    def __init__(self, limit: int = GROUP_LIMIT) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Forgets all restarts."""
        self._factors = {True: _Factors(STATED_LOG_STD), False: _Factors(NOT_STATED_LOG_STD)}
        self._seen: dict[tuple[bool, str, str], None] = {}  # the one learned from last at the end
        self._as_stated = True
        self._known: dict[
            tuple[bool, str, str], RestartPrediction
        ] = {}  # for a base of 1 s, since the last observation

    def __len__(self) -> int:
        return len(self._seen)

    def learn(self, observed: ObservedRestart) -> None:
        """Learns from a job that was stopped and went on.

        Raises:
            ValueError: a time is not finite, the statement not above 0, or the standard deviation below 0.
        """
        base_s = _base_s(observed.stated_s)
        if not (math.isfinite(observed.restart_s) and 0.0 <= observed.std_s < math.inf):
            raise ValueError(f"not a restart time: {observed}")
        stated = observed.stated_s is not None
        key = stated, observed.user, observed.application
        self._seen.pop(key, None)
        self._seen[key] = None
        if len(self._seen) > self._limit:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._factors[oldest[0]].drop(*oldest[1:])
        self._factors[stated].learn(observed)
        if stated and not math.isclose(observed.restart_s, base_s, rel_tol=_EXACT, abs_tol=_EXACT):
            self._as_stated = False
        self._known.clear()

    def predict(self, user: str, application: str, stated_s: float | None = None) -> RestartPrediction:
        """The restart time of a job.

        Args:
            user, application: of the job.
            stated_s: what it states; None: nothing.

        Raises:
            ValueError: the statement is not above 0, or not finite.
        """
        base_s = _base_s(stated_s)
        key = stated_s is not None, user, application
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self._limit:
                self._known.clear()
            known = self._known[key] = self._predict(*key)
        median_s, low_s, high_s = (each * base_s for each in known[:3])
        if stated_s is not None and self._as_stated:
            median_s, low_s, high_s = stated_s, min(low_s, stated_s), max(high_s, stated_s)
        return RestartPrediction(median_s, low_s, high_s, known.restart_count)

    def _predict(self, stated: bool, user: str, application: str) -> RestartPrediction:
        weights, count = self._factors[stated].posterior(user, application)
        # Another job differs from those of its user and application by itself.
        weights = np.exp(_spread(np.log(np.maximum(weights, 1e-300)), JOB_LOG_STD))
        below = np.cumsum(weights / weights.sum()) - 0.5 * weights / weights.sum()
        low, median, high = np.exp(np.interp(INTERVAL, below, _GRID)).tolist()
        return RestartPrediction(median, low, high, count)

    def observations(self) -> list[ObservedRestart]:
        """All observations that count; learned in this order they give the same memory."""
        return [
            each
            for stated, user, application in self._seen
            for each in self._factors[stated].observed(user, application)
        ]


def _log_likelihood(observed: ObservedRestart) -> Floats:
    """Of b(user, application)."""
    expected_s = _base_s(observed.stated_s) * np.exp(_GRID)
    scale = np.hypot(observed.std_s, JOB_LOG_STD * expected_s)
    z = (observed.restart_s - expected_s) / scale
    log_likelihood = -0.5 * (_FREEDOM + 1.0) * np.log1p(z**2 / _FREEDOM) - np.log(scale)
    relative: Floats = log_likelihood - log_likelihood.max()
    return relative


def _base_s(stated_s: float | None) -> float:
    if stated_s is None:
        return DEFAULT_RESTART_S
    if not 0.0 < stated_s < math.inf:
        raise ValueError(f"a stated restart time is above 0, not {stated_s}")
    return stated_s


def _spread(log_weights: Floats, log_std: float) -> Floats:
    """The logarithm of weights on the grid, each spread by a normal distribution."""
    most = log_weights.max()
    spread: Floats = np.log(_NORMAL[log_std] @ np.exp(log_weights - most)) + most
    return spread


def _normal(log_std: float) -> Floats:
    weights = np.exp(-0.5 * ((_GRID[:, None] - _GRID) / log_std) ** 2)
    normal: Floats = weights / weights.sum(axis=0)
    return normal


_NORMAL = {log_std: _normal(log_std) for log_std in (APPLICATION_LOG_STD, USER_LOG_STD, JOB_LOG_STD)}
