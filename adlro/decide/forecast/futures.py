"""Many futures of one moment: what is uncertain in them is drawn, and each is played by `roll`. Arrays only.

Drawn are the true durations of waiting and running jobs, of the latter given the time that they have run; how many jobs
come (from the rate's posterior), and which: those of the past again.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from adlro.decide.forecast.moment import LARGE_GPUS, Jobs, Moment, Past
from adlro.decide.forecast.placing import ALPHA, LATE_RATIO
from adlro.decide.forecast.roll import roll
from adlro.decide.forecast.site import Sorts, room_for, site_of
from adlro.numeric.draws import standard_exponentials, standard_normals
from adlro.numeric.exact import exp_array, log_array
from adlro.state.observation import Bools, Floats

NORMAL_WEIGHT = 20
"""The normal distribution of errors counts as so many observed ones."""

AHEAD_OF_GPU = 6
"""Arrivals of each future for each GPU: where they end too soon, jobs that many overtake seem to start too soon."""

MOST_AHEAD = 16_384
"""Arrivals of one future at most."""


class Size(NamedTuple):
    """The size of a forecast.

    Attributes:
        futures: their number.
        ahead: arrivals of each future for each job of the queue, and at least `least_ahead` or `AHEAD_OF_GPU`.
        least_ahead: the least arrivals of a future.
        most_work: looks at places of the queue, nodes and GPUs in all futures together, each two or three nanoseconds;
            with a long queue there are fewer futures.
        fewest: futures at least.
    """

    futures: int = 32
    ahead: float = 4.0
    least_ahead: int = 96
    most_work: int = 480_000_000
    fewest: int = 12


def sorts_of(moment: Moment, past: Past) -> Sorts:
    """The jobs of the queue, then those of the past."""
    columns: dict[str, Any] = {
        name: np.concatenate([of_queue, of_past])
        for (name, of_queue), of_past in zip(moment.queue._asdict().items(), past.jobs, strict=True)
    }
    for name in ("gpu_count", "max_nodes", "cores", "memory_mib"):
        columns[name] = columns[name].astype(np.int64)
    jobs = Jobs(**{**columns, "submit_s": columns["submit_s"] - moment.time_s})
    # What is not there now counts for nothing: a lost GPU may never come back.
    kinds = jobs.duration_s.shape[1]
    present = np.bincount(moment.gpu_kind[moment.gpu_there], minlength=kinds)[:kinds]
    possible = present[None, :] >= jobs.gpu_count[:, None]
    duration_s = np.where(possible, jobs.duration_s, np.inf)
    best_s = duration_s.min(axis=1, initial=np.inf)
    there = np.isfinite(duration_s)
    best_log = log_array(np.where(np.isfinite(best_s), best_s, 1.0))
    cost = np.where(
        there, (1.0 - ALPHA) * best_log[:, None] + ALPHA * log_array(np.where(there, duration_s, 1.0)), np.inf
    )
    cost = np.concatenate([cost, cost.min(axis=1, initial=np.inf, keepdims=True)], axis=1)
    return Sorts(jobs._replace(duration_s=np.ascontiguousarray(duration_s)), best_s, np.ascontiguousarray(cost))


def play_futures(
    moment: Moment, past: Past, wanted: Bools, rng: np.random.Generator, size: Size | None = None
) -> Floats:
    """The starts of waiting jobs in many futures.

    Args:
        moment: the cluster and its queue, J jobs.
        past: what came before.
        wanted: (J,) the jobs whose starts are asked for: a future ends when they have all started.
        rng: what is uncertain is drawn from it.
        size: how many futures, and how long.

    Returns:
        (F, J) seconds from now to each job's start; inf where the future ended before, or no more jobs came in it.
    """
    size = size or Size()
    site, sorts = site_of(moment), sorts_of(moment, past)
    known, count = len(moment.queue.spread), size.futures
    if known == 0 or not wanted.any():
        return np.zeros((count, known))
    seen = len(past.jobs.spread)
    ahead = max(size.least_ahead, int(size.ahead * known), AHEAD_OF_GPU * len(moment.gpu_kind))
    ahead = min(ahead, MOST_AHEAD) if seen and past.span_s > 0 else 0
    arrival_s, arrival_sort = np.zeros((count, ahead)), np.zeros((count, ahead), dtype=np.int64)
    if ahead:
        # About the rate's posterior, a gamma distribution.
        rate = np.maximum(seen + math.sqrt(seen) * standard_normals(rng, count)[:, None], 0.5) / past.span_s
        arrival_s = np.cumsum(standard_exponentials(rng, (count, ahead)), axis=1) / rate
        arrival_sort = known + rng.integers(seen, size=(count, ahead))
    spread = np.concatenate([np.tile(sorts.jobs.spread[:known], (count, 1)), sorts.jobs.spread[arrival_sort]], axis=1)
    factor = _factors(rng, spread, past.errors)
    end_s = _ends(moment, count, rng, past.errors)
    room, starts_s = room_for(site, known + ahead), np.full((count, known), np.inf)
    work, played = 0, 0
    for future in range(count):
        work += roll(
            site,
            sorts,
            known,
            wanted,
            end_s[future],
            arrival_s[future],
            arrival_sort[future],
            factor[future],
            size.most_work // size.fewest,
            room,
            starts_s[future],
        )
        if ahead and len(moment.gpu_kind) >= LARGE_GPUS:
            # Not known: who comes after the last arrival overtakes many jobs of a large cluster. Of a small one few.
            starts_s[future, starts_s[future] > arrival_s[future, -1]] = np.inf
        played += 1
        if work > size.most_work and played >= size.fewest:
            break
    return starts_s[:played]


def _factors(rng: np.random.Generator, spread: Floats, seen: Floats) -> Floats:
    """True durations against expected ones: exp(spread times error), with errors seen before or normal ones."""
    if not spread.any():
        return np.ones(spread.shape)
    errors: Floats = standard_normals(rng, spread.size)
    if len(seen):
        again = rng.random(spread.size) < len(seen) / (len(seen) + NORMAL_WEIGHT)
        errors = np.where(again, seen[rng.integers(len(seen), size=spread.size)], errors)
    return exp_array(spread * errors.reshape(spread.shape))


_TRIES = 8


def _ends(moment: Moment, count: int, rng: np.random.Generator, seen: Floats) -> Floats:
    """(F, G) from now on, ends of the runs, drawn given that they have not ended yet; one for all GPUs of a run."""
    end_s = np.full((count, len(moment.gpu_busy)), np.inf)
    busy = np.flatnonzero(moment.gpu_busy)
    if not len(busy):
        return end_s
    _, first, of_run = np.unique(moment.gpu_run[busy], return_index=True, return_inverse=True)
    runs = busy[first]
    elapsed_s = moment.time_s - moment.gpu_start_s[runs]
    spread = np.broadcast_to(moment.gpu_spread[runs], (_TRIES, count, len(runs)))
    durations_s = moment.gpu_expected_s[runs] * _factors(rng, spread, seen)
    longer = durations_s > elapsed_s
    tried = np.argmax(longer, axis=0)[None]
    drawn_s = np.take_along_axis(durations_s, tried, axis=0)[0]
    # Longer than every draw: it is overdue by more than is known of such runs.
    overdue_s = LATE_RATIO * elapsed_s * standard_exponentials(rng, (count, len(runs)))
    left_s = np.where(longer.any(axis=0), drawn_s - elapsed_s, overdue_s)
    end_s[:, busy] = left_s[:, of_run]
    return end_s
