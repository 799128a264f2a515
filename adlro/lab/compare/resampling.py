"""Intervals of the figures of one history of jobs: resampled histories, replayed. numpy only.

A history is one list in one queue: its jobs' completion times depend on each other, for hundreds of jobs where the load
is high, and single jobs or single decisions allow no interval. Its *inputs*, gaps between submissions and what jobs ask
for and run, hardly depend on each other. So the inputs are resampled, and the queue is simulated anew (R. R. Barton, L.
W. Schruben, "Uniform and bootstrap resampling of empirical distributions", Winter Simulation Conference 1993):

- The history is cut into blocks of consecutive jobs with the gaps before them, from every place on, around its end
  (moving blocks: H. R. Kuensch, Annals of Statistics 17, 1989): what users do in a row stays together. A resampled
  history is 40 blocks or more, drawn with repetition, as long as the history.
- Each one is replayed under every policy: the same for all, so differences are paired. The interval is from the 2.5 to
  the 97.5 % percentile of its figures.
- It tells how far a figure of other such jobs, as many, may be from this one's: what is to be expected, not what these
  jobs themselves would have gained, which the replay says without chance.
- Fewer than 200 jobs give no interval, and a longest wait has none: one job decides it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Bools, Floats, Ints

CONFIDENCE = 0.95
LEAST_BLOCKS, LEAST_IN_BLOCK = 40, 5
LEAST_JOBS = LEAST_BLOCKS * LEAST_IN_BLOCK
RESAMPLES = 100
_WIDE = 12_800
"""Jobs simulated at once."""
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; None: there is none."""

    value: float
    interval: tuple[float, float] | None = None


def too_few(jobs: int) -> str:
    """Why so many measured jobs allow no interval; empty: they do."""
    return f"too few finished jobs: {jobs} of {LEAST_JOBS}" if jobs < LEAST_JOBS else ""


def block_size(jobs: int) -> int:
    """Jobs of a block: their square root, but at least `LEAST_BLOCKS` blocks."""
    return max(1, min(math.isqrt(jobs), jobs // LEAST_BLOCKS))


def drawn_places(jobs: int, resamples: int, seed: int) -> Ints:
    """(resamples, jobs) places in the history of the jobs of resampled histories."""
    size = block_size(jobs)
    blocks = -(-jobs // size)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(jobs, 0xB10C)))
    starts = rng.integers(0, jobs, size=(resamples, blocks))
    places = (starts[:, :, None] + np.arange(size)) % jobs
    drawn: Ints = places.reshape(resamples, -1)[:, :jobs]
    return drawn


def resampled(jobs: JobArrays, measured: Bools, resamples: int, seed: int) -> Iterator[tuple[JobArrays, Bools]]:
    """Resampled histories, so many at once as is good for the simulator.

    Args:
        jobs: one list of J jobs.
        measured: (J,) which count.
        resamples: number of histories.
        seed: of the draw.

    Yields:
        L lists, and (L, J) which of their jobs count.
    """
    count = int(jobs.job_count[0])
    # The first job has no gap before it: it gets a typical one.
    gap_s = np.diff(jobs.submit_s[0], prepend=jobs.submit_s[0, 0])
    gap_s[0] = np.median(gap_s[1:]) if count > 1 else 0.0
    places = drawn_places(count, resamples, seed)
    at_once = max(1, _WIDE // max(count, 1))
    for first in range(0, resamples, at_once):
        here = places[first : first + at_once]
        submit_s = np.round(np.cumsum(gap_s[here], axis=1), _DIGITS)
        fields = {name: getattr(jobs, name)[0][here] for name in JobArrays._fields if name != "job_count"}
        lists = JobArrays(job_count=np.full(len(here), count), **{**fields, "submit_s": submit_s - submit_s[:, :1]})
        yield lists, measured[here]


def estimate(value: float, of_resamples: Floats | None) -> Estimate:
    """A figure with the interval from those of resampled histories; None: without."""
    if of_resamples is None or not len(of_resamples) or not np.isfinite(of_resamples).all():
        return Estimate(value)
    tail = 100.0 * (1.0 - CONFIDENCE) / 2.0
    low, high = np.percentile(of_resamples, (tail, 100.0 - tail))
    return Estimate(value, (float(low), float(high)))
