"""Intervals of figures of one history of jobs: blocks of consecutive jobs. numpy only.

A history is one list in one queue: its jobs' completion times depend on each other, so single jobs, or single
decisions, allow no interval. Consecutive blocks that are long enough hardly depend on each other (batch means:
A. M. Law, W. D. Kelton, "Simulation Modeling and Analysis", chapter 9), and at a *regeneration point*, where a job
comes to an empty cluster, what follows does not depend on what was (M. A. Crane, D. L. Iglehart, 1975).

- The jobs, in the order of submission, are cut into 20 blocks of about equal numbers; each cut moves to the nearest
  regeneration point of all replays within half a block, if there is one.
- If the means of neighbouring blocks are alike (lag-1 autocorrelation above 0.3), there are 10 blocks of twice the
  length; if they still are, no interval is given.
- A mean's standard error is that of a ratio of sums over blocks; a percentile's comes from 1,000 resamples of whole
  blocks. Intervals are the figure, plus and minus Student's t of the number of blocks less 1 times the standard error.
- A longest wait has no interval: one job decides it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from adlro.numeric.normal import quantile
from adlro.state.observation import Bools, Floats, Ints

CONFIDENCE = 0.95
MANY_BLOCKS, FEW_BLOCKS = 20, 10
LEAST_JOBS = 200
"""Fewer measured jobs give no interval: 10 jobs of a block, of 20 blocks."""
MOST_ALIKE = 0.3
"""Highest accepted autocorrelation of the means of neighbouring blocks."""
RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Blocks:
    """Consecutive blocks of J jobs.

    Attributes:
        of_job: (J,) number of the block of each job.
        count: number of blocks.
        at_points: number of cuts between blocks that are regeneration points.
        alike: autocorrelation of the means of neighbouring blocks.
    """

    of_job: Ints
    count: int
    at_points: int
    alike: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; None: there is none."""

    value: float
    interval: tuple[float, float] | None = None


def regeneration_points(submit_s: Floats, ends_s: Sequence[Floats]) -> Bools:
    """(J,) whether a job comes when all before it have ended, in every replay.

    Args:
        submit_s: (J,) ascending.
        ends_s: for each replay (J,).
    """
    free_s = np.full(len(submit_s), -np.inf)
    for end_s in ends_s:
        free_s[1:] = np.maximum(free_s[1:], np.maximum.accumulate(end_s)[:-1])
    points: Bools = submit_s >= free_s
    return points


def too_few(jobs: int) -> str:
    """Why so many jobs allow no interval; empty: they do."""
    return f"too few finished jobs: {jobs} of {LEAST_JOBS}" if jobs < LEAST_JOBS else ""


def blocks_of(series: Floats, points: Bools) -> Blocks | str:
    """Blocks of jobs that hardly depend on each other; or, in words, why there are none.

    Args:
        series: (J,) a figure of each job, in the order of submission.
        points: (J,) regeneration points.
    """
    if problem := too_few(len(series)):
        return problem
    blocks = _cut(series, points, MANY_BLOCKS)
    if blocks.alike > MOST_ALIKE:
        blocks = _cut(series, points, FEW_BLOCKS)
    if blocks.alike > MOST_ALIKE:
        return (
            f"neighbouring parts of the history depend on each other (autocorrelation {blocks.alike:.2f} of "
            f"{blocks.count} blocks of {len(series) // blocks.count} jobs): it is one long busy period, or a trend; "
            "take a longer history"
        )
    return blocks


def _cut(series: Floats, points: Bools, count: int) -> Blocks:
    size = len(series)
    found = np.flatnonzero(points)
    half = size / count / 2.0
    cuts, at_points = [0], 0
    for number in range(1, count):
        cut = round(number * size / count)
        if len(found):
            nearest = int(found[np.argmin(np.abs(found - cut))])
            if abs(nearest - cut) < half and nearest > cuts[-1]:
                cut, at_points = nearest, at_points + 1
        cuts.append(max(cut, cuts[-1] + 1))
    of_job = np.zeros(size, dtype=np.int64)
    of_job[cuts[1:]] = 1
    of_job = np.cumsum(of_job)
    means = np.bincount(of_job, weights=series) / np.bincount(of_job)
    return Blocks(of_job, count, at_points, _alike(means))


def _alike(means: Floats) -> float:
    """Lag-1 autocorrelation, without the bias of a short series (M. G. Kendall, 1954: about -1 / n)."""
    off = means - means.mean()
    square = float(np.square(off).sum())
    return float((off[1:] * off[:-1]).sum()) / square + 1.0 / len(means) if square > 0 else 0.0


def student_t(probability: float, freedom: int) -> float:
    """A quantile of Student's t distribution, from 5 degrees of freedom on to 4 digits.

    R. A. Fisher, E. A. Cornish, "The Percentile Points of Distributions Having Known Cumulants", Technometrics 2
    (1960).
    """
    x, n = quantile(probability), float(freedom)
    x2 = x * x
    return x * (
        1.0
        + (x2 + 1.0) / (4.0 * n)
        + ((5.0 * x2 + 16.0) * x2 + 3.0) / (96.0 * n * n)
        + (((3.0 * x2 + 19.0) * x2 + 17.0) * x2 - 15.0) / (384.0 * n * n * n)
        + ((((79.0 * x2 + 776.0) * x2 + 1482.0) * x2 - 1920.0) * x2 - 945.0) / (92160.0 * n * n * n * n)
    )


def mean_of(series: Floats, blocks: Blocks | str) -> Estimate:
    """The mean of a figure of each job."""
    mean = float(series.mean())
    if isinstance(blocks, str):
        return Estimate(mean)
    jobs = np.bincount(blocks.of_job).astype(np.float64)
    off = np.bincount(blocks.of_job, weights=series) - mean * jobs
    error = float(np.sqrt(np.square(off).sum() * blocks.count / (blocks.count - 1))) / len(series)
    return _around(mean, error, blocks)


def ratio_of(ours: Floats, theirs: Floats, blocks: Blocks | str) -> Estimate:
    """The ratio of two means over the same jobs."""
    mean = float(theirs.mean())
    if mean <= 0.0:
        return Estimate(float("nan"))
    ratio = float(ours.mean()) / mean
    off = mean_of((ours - ratio * theirs) / mean, blocks)  # its mean is 0
    if off.interval is None:
        return Estimate(ratio)
    return Estimate(ratio, (ratio + off.interval[0], ratio + off.interval[1]))


def statistic_of(
    columns: Sequence[Floats], statistic: Callable[[Sequence[float]], float], percent: float, blocks: Blocks | str
) -> Estimate:
    """A figure of percentiles, with the standard error of resamples of whole blocks.

    Args:
        columns: (J,) each.
        statistic: of the percentile of each column, such as their difference.
        percent: of the percentile.
        blocks: of the jobs.
    """
    value = statistic([np.percentile(column, percent) for column in columns])
    if isinstance(blocks, str):
        return Estimate(value)
    orders = [np.argsort(column, kind="stable") for column in columns]
    rng = np.random.default_rng(np.random.SeedSequence(len(columns[0]), spawn_key=(blocks.count, 0xB10C)))
    found = np.empty(RESAMPLES)
    for number in range(RESAMPLES):
        counts = rng.multinomial(blocks.count, np.full(blocks.count, 1.0 / blocks.count))
        times = counts[blocks.of_job]
        found[number] = statistic(
            [
                _weighted_percentile(column[order], times[order], percent)
                for column, order in zip(columns, orders, strict=True)
            ]
        )
    error = float(found.std()) * float(np.sqrt(blocks.count / (blocks.count - 1)))
    return _around(value, error, blocks)


def _weighted_percentile(ascending: Floats, times: Ints, percent: float) -> float:
    """The percentile of values that occur several times each."""
    until = np.cumsum(times)
    return float(ascending[np.searchsorted(until, percent / 100.0 * until[-1])])


def _around(value: float, error: float, blocks: Blocks) -> Estimate:
    off = student_t(1.0 - (1.0 - CONFIDENCE) / 2.0, blocks.count - 1) * error
    return Estimate(value, (value - off, value + off))
