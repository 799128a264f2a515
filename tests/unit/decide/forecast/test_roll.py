"""The compiled futures against the rule in plain Python, to the last bit, on queues of all sorts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.decide.forecast.futures import sorts_of
from adlro.decide.forecast.moment import Jobs, Moment, Past
from adlro.decide.forecast.roll import roll
from adlro.decide.forecast.site import room_for, site_of
from adlro.state.observation import Floats
from tests.unit.decide.forecast.plain_roll import plain_roll

NOW_S = 100.0


def drawn_jobs(rng: np.random.Generator, count: int, kinds: int, gangs: float, later: float) -> Jobs:
    """Jobs that differ in all that the rule reads; some can't have a kind of GPU, some none."""
    duration_s = np.exp(rng.normal(3.0, 1.0, (count, 1)) + rng.normal(0.0, 0.5, (count, kinds)))
    duration_s[rng.random((count, kinds)) < 0.1] = np.inf
    submit_s = NOW_S - rng.exponential(50.0, count) + 120.0 * (rng.random(count) < later)
    return Jobs(
        duration_s,
        np.zeros(count),
        np.where(rng.random(count) < gangs, rng.integers(2, 5, count), 1),
        np.where(rng.random(count) < 0.3, 2, 0),
        rng.integers(1, 9, count),
        1024 * rng.integers(1, 9, count),
        np.sort(submit_s),
    )


def drawn_moment(rng: np.random.Generator, nodes: int, gpus_each: int, queue: Jobs, *, mixed: bool) -> Moment:
    """A cluster of which four GPUs in five are busy; its nodes have GPUs of one kind, or of several."""
    gpus, kinds = nodes * gpus_each, queue.duration_s.shape[1]
    kind = rng.integers(kinds, size=gpus) if mixed else np.repeat(rng.integers(kinds, size=nodes), gpus_each)
    kind[-1] = kinds - 1
    node, busy = np.repeat(np.arange(nodes), gpus_each), rng.random(gpus) < 0.8
    cores, memory_mib = busy * rng.integers(1, 7, gpus), 1024 * busy * rng.integers(1, 7, gpus)
    free = np.full(nodes, 6 * gpus_each + 3) - np.bincount(node, cores, nodes).astype(np.int64)
    free_mib = np.full(nodes, 1024 * (6 * gpus_each + 3)) - np.bincount(node, memory_mib, nodes).astype(np.int64)
    return Moment(
        NOW_S,
        kind,
        node,
        rng.random(gpus) < 0.95,
        busy,
        np.where(busy, NOW_S - rng.exponential(20.0, gpus), 0.0),
        np.where(busy, rng.exponential(50.0, gpus), 0.0),
        np.zeros(gpus),
        np.where(busy, np.arange(gpus), -1),
        cores,
        memory_mib,
        free,
        free_mib,
        queue,
    )


def compared(seed: int, nodes: int, gpus_each: int, known: int, arrivals: int, gangs: float) -> tuple[Floats, Floats]:
    """The starts by both, for one future."""
    rng = np.random.default_rng(seed)
    kinds = int(rng.integers(1, 4))
    queue, past = (drawn_jobs(rng, count, kinds, gangs, 0.1 * (seed % 2)) for count in (known, 30))
    moment = drawn_moment(rng, nodes, gpus_each, queue, mixed=bool(rng.integers(2)))
    site, sorts = site_of(moment), sorts_of(moment, Past(past, 10.0, np.zeros(0)))
    wanted = rng.random(known) < rng.random()
    wanted[rng.integers(known)] = True
    end_s = np.where(moment.gpu_busy, rng.exponential(30.0, nodes * gpus_each), np.inf)
    arrival_s = np.cumsum(rng.exponential(20.0 / (nodes * gpus_each), arrivals))
    arrival_sort = known + rng.integers(30, size=arrivals)
    factor = np.exp(rng.normal(0.0, 0.3, known + arrivals))
    found, plain = np.zeros((2, known))
    drawn = site, sorts, known, wanted, end_s, arrival_s, arrival_sort, factor
    roll(*drawn, 10**12, room_for(site, known + arrivals), found)
    plain_roll(*drawn, plain)
    return found, plain


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    nodes=st.integers(1, 5),
    gpus_each=st.integers(1, 4),
    known=st.integers(1, 12),
    arrivals=st.integers(0, 15),
    gangs=st.sampled_from([0.0, 0.3]),
)
def test_small_queues_start_as_by_the_rule_in_plain_python(
    seed: int, nodes: int, gpus_each: int, known: int, arrivals: int, gangs: float
) -> None:
    found, plain = compared(seed, nodes, gpus_each, known, arrivals, gangs)
    assert found.tobytes() == plain.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("gangs", [0.0, 0.1])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_long_queue_starts_as_by_the_rule_in_plain_python(seed: int, gangs: float) -> None:
    """So many that places of jobs that have left are given to others, and bounds become old."""
    found, plain = compared(seed, 6, 4, 90, 120, gangs)
    assert np.isfinite(found).sum() > 30
    assert found.tobytes() == plain.tobytes()
