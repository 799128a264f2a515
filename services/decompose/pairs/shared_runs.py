"""Outcomes of jobs that shared a GPU, as kept shares: a job's speed beside another one, of its speed alone.

Plain records only. A kept share is 1 where the other job costs nothing and 0.4 where it takes 60 % of the speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from adlro.hardware.shared_speeds import family_and_size
from adlro.records.jobs import JobSpec
from adlro.records.outcomes import ApplicationSize

LEAST_SHARED = 0.05
"""Share of a job's runtime that it must have spent beside the other job: a shorter time says too little."""
LEAST_STD = 0.005
"""Least standard deviation of an observed kept share."""
MOST_STD = 0.5
"""Greatest one: a job that is as uncertain says nothing."""


class SharingKind(NamedTuple):
    """What distinguishes jobs that share a GPU.

    Attributes:
        name: jobs of the same name are alike.
        family: jobs of a family differ in their size.
        size: log2 of the size; NaN: not stated.
    """

    name: str
    family: str
    size: float

    @classmethod
    def of(cls, spec: JobSpec) -> SharingKind:
        """The kind of a job: by its application, and the size in its name or its label."""
        return cls.of_size(ApplicationSize.of(spec))

    @classmethod
    def of_size(cls, application: ApplicationSize) -> SharingKind:
        """The kind of an application's jobs of one size."""
        return cls.named(application.application, application.batch_size)

    @classmethod
    def named(cls, application: str, size_label: str = "") -> SharingKind:
        """The kind of an application's jobs.

        Args:
            application: a size in its last parentheses, as in "LM (batch size 10)", is its size.
            size_label: the size of jobs whose application does not have it in its name; empty: not stated.
        """
        family, size_in_name = family_and_size(application)
        if size_in_name:
            return cls(application, family, _log2(size_in_name))
        size = _log2(size_label)
        return cls(application if math.isnan(size) else f"{application}/{size:g}", application, size)


@dataclass(frozen=True, slots=True)
class SharedRun:
    """The share of its speed that a job kept beside another one.

    Attributes:
        gpu_model: of the GPU.
        kind: of the job.
        beside: of the other job.
        kept_share: outside 0..1 by its error alone.
        std: standard deviation of its error.
    """

    gpu_model: str
    kind: SharingKind
    beside: SharingKind
    kept_share: float
    std: float = LEAST_STD


class TimeBeside(NamedTuple):
    """Seconds of a job's runtime beside another job; `beside` None: alone."""

    beside: SharingKind | None
    time_s: float


def observed_run(
    gpu_model: str,
    kind: SharingKind,
    times: Sequence[TimeBeside],
    alone_s: float,
    alone_log_std: float,
    predicted: Callable[[SharingKind], float],
) -> SharedRun | None:
    """What a finished job says of the neighbour with which it spent most time.

    The job's work is the sum over its neighbours of time x kept share. Of the neighbours but one the kept share is the
    predicted one. The result is not limited to 0..1, as the mean of limited ones would be biased.

    Args:
        gpu_model: of the GPU.
        kind: of the job.
        times: its whole runtime, by neighbour.
        alone_s: its predicted runtime alone on the GPU.
        alone_log_std: standard deviation of the logarithm of that; 0: known.
        predicted: the predicted kept share of the job beside each neighbour.

    Returns:
        None: it had no neighbour for long enough, or its runtime alone is too uncertain.
    """
    by_neighbour: dict[SharingKind, float] = {}
    # A job that is shorter than predicted seems to keep more, in proportion: this makes the mean right.
    rest_s = alone_s * math.exp(-0.5 * alone_log_std**2)
    for each in times:
        if each.beside is None:
            rest_s -= each.time_s
        else:
            by_neighbour[each.beside] = by_neighbour.get(each.beside, 0.0) + each.time_s
    if not by_neighbour:
        return None
    beside, most_s = max(by_neighbour.items(), key=lambda item: item[1])
    if most_s < LEAST_SHARED * sum(each.time_s for each in times):
        return None
    rest_s -= sum(predicted(other) * time_s for other, time_s in by_neighbour.items() if other != beside)
    # By the shares of its time and what was predicted, not by the times themselves: standard deviations that depend on
    # the job's own error would make weighted means wrong.
    at_work = sum(each.time_s * (1.0 if each.beside is None else predicted(each.beside)) for each in times)
    std = max(LEAST_STD, alone_log_std * at_work / most_s)
    return SharedRun(gpu_model, kind, beside, rest_s / most_s, std) if std <= MOST_STD else None


def _log2(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return math.log2(value) if 0 < value < math.inf else math.nan
