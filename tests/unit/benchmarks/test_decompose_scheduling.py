"""The share of the gap that learned predictions close, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.decompose_scheduling import KNOWLEDGE, recovered, table


def jct_s(group: float, by_type: float, learned: float) -> list[float]:
    by_kind = {"true": 1.0, "group": group, "type": by_type, "none": 99.0, "learned": learned}
    return [by_kind[kind] for kind in KNOWLEDGE]


def test_the_share_is_one_of_sums_so_a_list_with_hardly_a_gap_does_no_harm() -> None:
    lists = np.array([jct_s(20, 40, 25), jct_s(30, 50, 35), jct_s(10, 10.01, 10.0025)])
    share, low, high = recovered(lists, seed=0)
    assert [share, low, high] == pytest.approx([0.75] * 3)  # each list closes three quarters of its own gap
    lists[2] = jct_s(10, 10.01, 11)  # by itself: minus 99 gaps
    assert recovered(lists, seed=0)[0] == pytest.approx((100.01 - 71) / 40.01)


def test_the_interval_tells_how_far_lists_differ() -> None:
    rng = np.random.default_rng(0)
    lists = np.array([jct_s(20, 40, 24 + 4 * rng.standard_normal()) for _ in range(50)])
    share, low, high = recovered(lists, seed=0)
    assert low < share < high
    assert share == pytest.approx(0.8, abs=0.1)
    assert high - low == pytest.approx(2 * 1.96 * 0.2 / np.sqrt(50), rel=0.3)


def test_a_row_for_each_load_and_policy() -> None:
    values = dict(zip(KNOWLEDGE, (1.0, 2.0, 3.0, 4.0, 2.5), strict=True))
    row = {"load": 0.9, "policy": "mct", "late_jct_s": values, "mean_jct_s": values}
    lines = table([row | {"recovered": 0.5, "recovered_ci95": [0.4, 0.6]}]).splitlines()
    assert lines[2] == "| 0.9 | `mct` | 1.0 | 2.0 | 3.0 | 4.0 | 2.5 | 0.500 (0.400 .. 0.600) | 2.5 |"
    assert len({line.count("|") for line in lines}) == 1
