"""Resampled histories: their blocks, and intervals that cover the true value."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.lab.compare.resampling import LEAST_JOBS, block_size, drawn_places, estimate, resampled, too_few
from adlro.state.job_arrays import pack_jobs
from tests.unit.lab.compare.suites import drawn


@pytest.mark.parametrize(("jobs", "size"), [(1, 1), (200, 5), (500, 12), (2000, 44), (10_000, 100)])
def test_blocks_are_40_or_more_and_of_at_most_the_root_of_the_jobs(jobs: int, size: int) -> None:
    assert block_size(jobs) == size


def test_a_resampled_history_has_whole_blocks_in_a_row_and_the_same_length() -> None:
    places = drawn_places(500, 7, seed=3)
    assert places.shape == (7, 500)
    steps = np.diff(places, axis=1) % 500
    inside = np.arange(1, 500) % block_size(500) != 0
    assert (steps[:, inside] == 1).all()
    assert not (steps[:, ~inside] == 1).all()
    np.testing.assert_array_equal(places, drawn_places(500, 7, seed=3))
    # Every place is as likely as any other, those at the ends too.
    often = np.bincount(drawn_places(500, 400, seed=0).ravel(), minlength=500)
    assert often.min() / 400 > 0.5
    assert often.max() / 400 < 1.6


def test_jobs_keep_their_demands_and_the_gap_before_them() -> None:
    cluster, jobs = drawn("paper", 60)
    arrays = pack_jobs([jobs], cluster)
    measured = np.arange(60) % 3 > 0
    lists, counts = next(resampled(arrays, measured, 5, seed=1))
    places = drawn_places(60, 5, seed=1)
    np.testing.assert_array_equal(lists.duration_s, arrays.duration_s[0][places])
    np.testing.assert_array_equal(counts, measured[places])
    assert (lists.submit_s[:, 0] == 0).all()
    gap_s = np.diff(arrays.submit_s[0])
    np.testing.assert_allclose(
        np.diff(lists.submit_s, axis=1)[places[:, 1:] > 0], gap_s[places[:, 1:] - 1][places[:, 1:] > 0], atol=2e-6
    )


def test_too_few_jobs_are_told() -> None:
    assert too_few(37) == "too few finished jobs: 37 of 200"
    assert too_few(LEAST_JOBS) == ""


def test_an_interval_has_the_middle_of_the_resamples() -> None:
    assert estimate(3.0, np.arange(1001.0)).interval == pytest.approx((25.0, 975.0))
    assert estimate(3.0, None).interval is None
    assert estimate(3.0, np.array([])).interval is None
    assert estimate(3.0, np.array([1.0, np.nan])).interval is None


def test_intervals_cover_the_true_mean_of_a_queue() -> None:
    """Waits in a queue of one GPU at load 0.8: the mean of the same queue's histories is in nearly all intervals."""
    rng = np.random.default_rng(4)
    jobs, histories = 400, 60

    def waits_s(gap_s: np.ndarray, work_s: np.ndarray) -> np.ndarray:
        left_s, found = np.zeros(work_s.shape[1]), np.zeros(work_s.shape[1])
        for gap, work in zip(gap_s, work_s, strict=True):
            left_s = np.maximum(left_s - gap, 0.0)
            found += left_s
            left_s = left_s + work
        return found / len(gap_s)

    true_s = float(waits_s(rng.exponential(1 / 0.8, (jobs, 20_000)), rng.exponential(1.0, (jobs, 20_000))).mean())
    gap_s, work_s = rng.exponential(1 / 0.8, (jobs, histories)), rng.exponential(1.0, (jobs, histories))
    mean_s = waits_s(gap_s, work_s)
    covered = 0
    for number in range(histories):
        places = drawn_places(jobs, 100, number).T
        found = estimate(float(mean_s[number]), waits_s(gap_s[places, number], work_s[places, number]))
        assert found.interval is not None
        covered += found.interval[0] <= true_s <= found.interval[1]
    # Of a correct 95 % interval 49 or fewer of 60 cover with a probability below 1e-4.
    assert covered >= 50
