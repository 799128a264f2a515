"""Distributions of work: their exact means against what they draw, and the tails they promise."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.records.jobs import JobType
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from adlro.workload.work import LognormalWork, LogUniformWork, ParetoWork


@pytest.mark.parametrize(
    ("work", "mean_s"),
    [
        (LognormalWork(0.4, 1.0, 600.0), 20.0),
        (LognormalWork(0.8, 10.0, 30.0), 18.0),  # clipped at both ends for most draws
        (ParetoWork(1.1, 1000.0, 1.0, 1.0), 20.0),
        (ParetoWork(1.1, 1000.0, 1.0, 1.0), 2.0),  # most are raised to the minimum
        (LogUniformWork(((0.8, 1.5, 3.0), (0.2, 3.0, 4.0))), 0.0),
    ],
)
def test_the_expectation_is_that_of_the_draws(work, mean_s):
    rng = np.random.default_rng(8)
    drawn = np.array([work.draw_s(mean_s, rng) for _ in range(40_000)])
    error = drawn.std() / np.sqrt(len(drawn))
    assert abs(drawn.mean() - work.expected_s(mean_s)) < 4 * error
    assert error < 0.05 * drawn.mean()


def test_heavy_tails_fall_by_a_power_and_have_the_mean_of_the_paper():
    heavy, paper = load_scenario("heavy_tails"), load_scenario("paper")
    assert isinstance(heavy.work, ParetoWork)
    # Far above the minimum nothing is clipped: the mean is the paper's.
    assert heavy.work.expected_s(30.0) == pytest.approx(paper.work.expected_s(30.0), rel=1e-3)
    rng = np.random.default_rng(1)
    drawn = np.sort([heavy.work.draw_s(100.0, rng) for _ in range(40_000)])
    # log P(work > t) falls by alpha for each e-fold of t, here from the median to the 99th percentile.
    median, far = np.quantile(drawn, [0.5, 0.99])
    assert np.log(0.5 / 0.01) / np.log(far / median) == pytest.approx(heavy.work.alpha, rel=0.05)


def test_gavels_work_is_that_of_its_generator():
    scenario = load_scenario("gavel")
    work_s = np.array([job.work_s for job in draw_jobs(scenario, load=0.9, rng=np.random.default_rng(2), count=5000)])
    minutes = np.log10(work_s / 60)
    assert minutes.min() >= 1.5 - 1e-6
    assert minutes.max() <= 4.0 + 1e-6
    assert (minutes < 3).mean() == pytest.approx(0.8, abs=0.02)
    assert np.median(work_s) == pytest.approx(scenario.median_work_s[JobType.MACHINE_LEARNING], rel=0.05)
    jobs = draw_jobs(scenario, load=0.9, rng=np.random.default_rng(2), count=2000)
    assert {job.application for job in jobs} == set(scenario.job_types)
    assert {job.job_type for job in jobs} == {JobType.MACHINE_LEARNING}
    assert len({job.user for job in jobs}) == 24
