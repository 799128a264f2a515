"""Waits of the batched simulator against queueing theory: FCFS on c equal GPUs is the queue M/M/c, M/D/1, GI/G/c."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from adlro.decide.policies.fcfs import Fcfs
from adlro.decide.policies.sjf import Sjf
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.sim.batch import simulate
from adlro.state.job_arrays import JobArrays, empty_job_arrays
from adlro.state.observation import Floats

MEAN_SERVICE_S = 10.0
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]


def exponential(rng: np.random.Generator, size: tuple[int, int]) -> Floats:
    return rng.exponential(MEAN_SERVICE_S, size)


def constant(rng: np.random.Generator, size: tuple[int, int]) -> Floats:
    return np.full(size, MEAN_SERVICE_S)


def hyperexponential(rng: np.random.Generator, size: tuple[int, int]) -> Floats:
    """One in ten jobs is 11 times as long as the others in the mean: means 5 and 55, squared variation 5.5."""
    return rng.exponential(np.where(rng.random(size) < 0.1, 55.0, 5.0))


def erlang_c(servers: int, load_erlang: float) -> float:
    """Probability that an arrival waits in M/M/c: a^c / c! / (1 - a / c) over itself + sum of a^k / k!, k < c."""
    waiting = load_erlang**servers / math.factorial(servers) / (1.0 - load_erlang / servers)
    return waiting / (waiting + sum(load_erlang**k / math.factorial(k) for k in range(servers)))


def mmc_wait_s(servers: int, utilization: float) -> float:
    """Mean wait in M/M/c: C / (c mu - lambda)."""
    return erlang_c(servers, servers * utilization) * MEAN_SERVICE_S / (servers * (1.0 - utilization))


def test_erlang_c_by_hand():
    # Two servers, load 1: 1 / 2 / (1 - 1/2) = 1 against 1 + 1 + 1.
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    # One server: the probability that it is busy.
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    # Three servers, load 2: 8 / 6 / (1/3) = 4 against 4 + 1 + 2 + 2.
    assert erlang_c(3, 2.0) == pytest.approx(4 / 9)
    # M/M/1 at 0.5 waits as long as it serves.
    assert mmc_wait_s(1, 0.5) == pytest.approx(MEAN_SERVICE_S)


@dataclass(frozen=True)
class Waits:
    """Mean wait, and its standard error from the means of independent lists."""

    mean_s: float
    error_s: float


def one_model(servers: int) -> Cluster:
    cards = tuple(Gpu(f"n/{number}", "v100_sxm2", 16160) for number in range(servers))
    return Cluster("equal", (Node("n", servers, servers, cards),))


def queue_of(servers: int, utilization: float, draw: Draw, *, seed: int, lists: int, jobs: int) -> JobArrays:
    """Poisson arrivals at `utilization` of c servers; each job takes one core and one MiB."""
    rng = np.random.default_rng(seed)
    arrays = empty_job_arrays(lists, jobs, 1)
    arrays.job_count[:] = jobs
    arrays.submit_s[:] = np.cumsum(rng.exponential(MEAN_SERVICE_S / (servers * utilization), (lists, jobs)), axis=1)
    arrays.duration_s[:, :, 0] = draw(rng, (lists, jobs))
    arrays.expected_s[:] = arrays.duration_s
    arrays.cores[:] = arrays.memory_mib[:] = 1
    return arrays


def waits(servers: int, utilization: float, draw: Draw, *, seed: int, lists: int, jobs: int, skip: int) -> Waits:
    """Waits of the jobs from `skip` on, when the empty beginning is forgotten."""
    arrays = queue_of(servers, utilization, draw, seed=seed, lists=lists, jobs=jobs)
    outcome = simulate(one_model(servers), arrays, Fcfs().act)
    assert not outcome.stuck.any()
    means_s = (outcome.start_s - arrays.submit_s)[:, skip:].mean(axis=1)
    return Waits(float(means_s.mean()), float(means_s.std(ddof=1) / math.sqrt(lists)))


def check(measured: Waits, theory_s: float, rel: float) -> None:
    """Within three standard errors, which are small enough to say something, and within `rel`."""
    assert measured.error_s < rel * theory_s / 2
    assert abs(measured.mean_s - theory_s) < 3 * measured.error_s
    assert measured.mean_s == pytest.approx(theory_s, rel=rel)


@pytest.mark.parametrize(("servers", "utilization"), [(1, 0.8), (4, 0.9), (7, 1.5)])
@pytest.mark.parametrize("draw", [exponential, hyperexponential])
def test_every_wait_is_that_of_the_recursion_of_kiefer_and_wolfowitz(servers, utilization, draw):
    """A job starts when it comes, or when the first of the servers is free: equal floats."""
    arrays = queue_of(servers, utilization, draw, seed=servers, lists=8, jobs=300)
    outcome = simulate(one_model(servers), arrays, Fcfs().act)
    for number in range(8):
        free_at_s = [0.0] * servers
        for job in range(300):
            start_s = max(float(arrays.submit_s[number, job]), heapq.heappop(free_at_s))
            heapq.heappush(free_at_s, start_s + float(arrays.duration_s[number, job, 0]))
            assert outcome.start_s[number, job] == start_s


def test_mm4_waits_as_erlang_c_says_at_half_load():
    check(waits(4, 0.5, exponential, seed=11, lists=160, jobs=700, skip=100), mmc_wait_s(4, 0.5), rel=0.1)


def test_md1_waits_as_pollaczek_khinchine_says():
    """M/D/1: rho / (2 mu (1 - rho))."""
    check(waits(1, 0.7, constant, seed=12, lists=100, jobs=700, skip=100), 0.7 * MEAN_SERVICE_S / (2 * 0.3), rel=0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("utilization", "seed"), [(0.5, 21), (0.7, 22), (0.85, 23)])
def test_mm4_waits_as_erlang_c_says_at_three_loads(utilization, seed):
    measured = waits(4, utilization, exponential, seed=seed, lists=240, jobs=2500, skip=400)
    check(measured, mmc_wait_s(4, utilization), rel=0.06)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("draw", "second_moment", "seed"),
    [(constant, MEAN_SERVICE_S**2, 31), (hyperexponential, 0.9 * 2 * 5.0**2 + 0.1 * 2 * 55.0**2, 32)],
)
def test_mg1_waits_as_pollaczek_khinchine_says(draw, second_moment, seed):
    """M/G/1: lambda E[S^2] / (2 (1 - rho)); for constant service that is M/D/1."""
    arrival_rate = 0.6 / MEAN_SERVICE_S
    measured = waits(1, 0.6, draw, seed=seed, lists=200, jobs=2000, skip=300)
    check(measured, arrival_rate * second_moment / (2 * 0.4), rel=0.06)


def test_shortest_first_waits_less_than_first_come_first_served_on_the_same_jobs():
    arrays = queue_of(2, 0.9, hyperexponential, seed=4, lists=20, jobs=300)
    fcfs, sjf = (simulate(one_model(2), arrays, policy().act) for policy in (Fcfs, Sjf))
    assert (sjf.start_s - arrays.submit_s).mean() < 0.7 * (fcfs.start_s - arrays.submit_s).mean()
    # One kind of GPU: whoever keeps it busy whenever a job waits does the same work in the same time.
    np.testing.assert_allclose(sjf.busy_s(), fcfs.busy_s(), rtol=1e-9)
