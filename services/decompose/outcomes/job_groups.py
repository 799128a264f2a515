"""Groups of finished jobs with a common property, and the quantiles of their newest values. Plain records only."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from adlro.records.jobs import JobSpec

GROUP_WINDOW = 256
"""Number of newest values that a group stores."""


class GroupKey(NamedTuple):
    """The common properties of a group's jobs; other parts are empty."""

    kind: str
    first: str = ""
    second: str = ""


def user_application_key(spec: JobSpec) -> GroupKey:
    """The group of jobs of the same user and application."""
    return GroupKey("user_application", spec.user, spec.application)


def application_key(spec: JobSpec) -> GroupKey:
    """The group of jobs of the same application."""
    return GroupKey("application", spec.application)


def job_type_key(spec: JobSpec) -> GroupKey:
    """The group of jobs of the same type."""
    return GroupKey("job_type", spec.job_type.label)


def declared_key(spec: JobSpec) -> GroupKey:
    """The group of jobs with a declared runtime by the same user; its values are log(observed / declared)."""
    return GroupKey("declared", spec.user)


ALL_DECLARED = GroupKey("all_declared")
"""The group of all jobs with a declared runtime; its values are log(observed / declared)."""


class JobGroup:
    """The newest GROUP_WINDOW values of a group and their quantiles."""

    __slots__ = ("_quantiles", "_values")

    def __init__(self) -> None:
        self._values: deque[tuple[int, float]] = deque(maxlen=GROUP_WINDOW)
        self._quantiles: tuple[float, float, float] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def add(self, sequence: int, value: float) -> None:
        """Adds a value of record number `sequence`; drops the oldest of a full window."""
        self._values.append((sequence, value))
        self._quantiles = None

    def drop(self, sequence: int) -> None:
        """Removes the value of a record, if it is still stored."""
        if not self._values or sequence < self._values[0][0]:
            return
        if self._values[0][0] == sequence:
            self._values.popleft()
        else:
            self._values = deque((each for each in self._values if each[0] != sequence), maxlen=GROUP_WINDOW)
        self._quantiles = None

    def quantiles(self) -> tuple[float, float, float]:
        """The 0.1, 0.5 and 0.9 quantiles of the values; see `quantile`."""
        if self._quantiles is None:
            ordered = sorted(value for _, value in self._values)
            self._quantiles = (quantile(ordered, 0.1), quantile(ordered, 0.5), quantile(ordered, 0.9))
        return self._quantiles


def quantile(ordered: Sequence[float], probability: float) -> float:
    """The quantile of sorted values below which a further value falls with this probability.

    Linear between neighbours at p (n + 1) - 1, numpy's "weibull": its default would make intervals of ten values cover
    0.65 instead of 0.8. Beyond the ends: the end.
    """
    position = min(max(probability * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])
