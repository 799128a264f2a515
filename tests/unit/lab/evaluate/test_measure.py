"""Figures of a list against a schedule worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adlro.decide.policies.fcfs import Fcfs
from adlro.errors import InternalError
from adlro.lab.evaluate.measure import METRICS, best_duration_s, check_little, figures_of, jain_of_users
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobType
from adlro.sim.batch import BatchOutcome, BatchSimulator, simulate
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import WorkloadJob

SMALL = Gpu("b/0", "rtx_2080_ti", 11264)
CLUSTER = Cluster("two", (Node("a", 8, 64000, (Gpu("a/0", "v100_sxm2", 16160),)), Node("b", 8, 64000, (SMALL,))))


def job(submit_s: float, work_s: float, user: str, priority: float, gpu_memory_mib: int = 1000) -> WorkloadJob:
    # Without a listed application: both GPUs by the job type's mean; true durations come from the arrays below.
    return WorkloadJob(submit_s, user, "", JobType.SIMULATION, work_s, gpu_memory_mib, 1, 100, priority)


def outcome() -> BatchOutcome:
    """FCFS on 10 s (V100) or 20 s (Turing), three jobs: at 0 on a/0, at 0 on b/0, the third waits for a/0 until 10."""
    jobs = [job(0, 10, "ada", 1.0), job(0, 10, "ben", 0.5), job(4, 10, "ada", 0.5, 15000)]
    arrays = pack_jobs([jobs], CLUSTER)
    arrays.duration_s[0] = [[10, 20], [10, 20], [10, 20]]
    arrays.expected_s[0] = arrays.duration_s[0]
    return simulate(CLUSTER, arrays, Fcfs().act)


def test_every_metric_of_a_schedule_by_hand() -> None:
    found = figures_of(CLUSTER, outcome(), policy="fcfs")
    got = dict(zip(METRICS, found.metrics[0], strict=True))
    jct_s = np.array([10.0, 20.0, 16.0])
    assert got["mean_jct_s"] == pytest.approx(46 / 3)
    assert got["p95_jct_s"] == pytest.approx(np.percentile(jct_s, 95))
    assert got["p99_jct_s"] == pytest.approx(np.percentile(jct_s, 99))
    assert got["weighted_jct_s"] == pytest.approx((10 + 10 + 8) / 2)
    assert got["makespan_s"] == 20
    assert got["throughput_jobs_per_h"] == pytest.approx(3 / 20 * 3600)
    assert got["utilization_busy"] == pytest.approx((20 + 20) / 40)
    assert got["utilization_useful"] == pytest.approx(30 / 40)
    assert got["max_wait_s"] == 6
    assert got["bounded_slowdown"] == pytest.approx((1 + 2 + 1.6) / 3)
    # ada: (1 + 1.6) / 2, ben: 2
    assert got["late_jct_s"] == (20 + 16) / 2
    assert got["fairness_jain"] == pytest.approx((1.3 + 2) ** 2 / (2 * (1.3**2 + 2**2)))
    assert found.jct_counts.sum() == 3
    assert found.gpu_busy.mean(axis=1) == pytest.approx([1.0, 1.0])
    assert found.gantt[:, 1:].tolist() == [[0, 0, 10, 1], [1, 0, 20, 1], [0, 10, 20, 1]]


def test_a_gpu_that_two_jobs_share_is_busy_once() -> None:
    there = Cluster("one", (Node("a", 8, 64000, (Gpu("a/0", "v100_sxm2", 16160),)),))
    jobs = [replace(job(at, 10, "ada", 0.5), shareable=True) for at in (0, 0, 40)]
    arrays = pack_jobs([jobs], there)
    arrays.duration_s[0] = arrays.expected_s[0] = 10.0
    simulator = BatchSimulator(there, arrays, shares=True, kept=np.full((1, 1, 1), 0.5))
    for _ in range(3):  # each on GPU 0; the first two share it for 20 s
        simulator.act(np.array([[0, 0]]))
    found = figures_of(there, simulator.outcome(), policy="shared")
    got = dict(zip(METRICS, found.metrics[0], strict=True))
    assert got["makespan_s"] == 50
    assert got["mean_jct_s"] == pytest.approx((20 + 20 + 10) / 3)
    assert got["utilization_busy"] == pytest.approx(30 / 50)
    assert got["utilization_useful"] == pytest.approx(30 / 50)
    assert found.gpu_busy.mean() == pytest.approx(30 / 50)
    assert found.gpu_busy.max() == pytest.approx(1.0)


def test_a_short_jobs_slowdown_is_against_ten_seconds() -> None:
    arrays = pack_jobs([[job(0, 1, "ada", 0.5)]], CLUSTER)
    arrays.duration_s[0] = [[1, 40]]
    found = figures_of(CLUSTER, simulate(CLUSTER, arrays, Fcfs().act), policy="fcfs")
    assert found.metrics[0, METRICS.index("bounded_slowdown")] == 1.0


def test_the_best_duration_is_on_a_gpu_that_can_hold_the_job() -> None:
    arrays = pack_jobs([[job(0, 1, "ada", 0.5), job(0, 1, "ada", 0.5, 15000)]], CLUSTER)
    arrays.duration_s[0] = [[30, 20], [30, 20]]
    assert best_duration_s(CLUSTER, arrays).tolist() == [[20, 30]]


def test_jain_is_one_where_all_users_fare_alike() -> None:
    assert jain_of_users(np.array([3.0, 3.0, 3.0]), np.array([0, 4, 4])) == 1.0
    # One of n users has it all: 1/n (x >= 1 in practice, so only approached).
    assert jain_of_users(np.array([1.0, 0.0, 0.0, 0.0]), np.array([0, 1, 2, 3])) == 0.25


def test_littles_law_is_checked_to_one_percent() -> None:
    check_little(100.9, 100.0, policy="p", number=3)
    with pytest.raises(InternalError, match=r"policy p, list 3.*102.*100"):
        check_little(102.0, 100.0, policy="p", number=3)
    with pytest.raises(InternalError):
        check_little(float("nan"), 100.0, policy="p", number=3)


def test_an_outcome_against_littles_law_is_an_error() -> None:
    import dataclasses

    right = outcome()
    wrong = dataclasses.replace(right, jobs_integral_s=right.jobs_integral_s * 1.05)
    with pytest.raises(InternalError, match="fcfs, list 7"):
        figures_of(CLUSTER, wrong, policy="fcfs", first_list=7)
