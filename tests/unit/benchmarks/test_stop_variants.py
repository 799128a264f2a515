"""Variants of `srtf` are `srtf` where nothing is changed; differences to the study have both intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adlro.decide.policies.srtf import Srtf
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks import migration
from benchmarks.gangs import difference
from benchmarks.stop_variants import SHIPPED, VARIANTS, Varied, play


@pytest.fixture(scope="module")
def jobs() -> JobArrays:
    scenario = load_scenario("preemptive")
    drawn = [draw_jobs(scenario, load=0.9, rng=np.random.default_rng(seed), count=60) for seed in range(2)]
    return pack_jobs(drawn, scenario.cluster)


@pytest.mark.slow
def test_the_unchanged_variant_is_the_shipped_rule(jobs: JobArrays, monkeypatch: pytest.MonkeyPatch) -> None:
    expected_s, expected_stops = play(Srtf(), "preemptive", jobs, moves=False)
    assert expected_stops.min() > 0
    varied = Varied(VARIANTS[SHIPPED])
    np.testing.assert_array_equal(play(varied, "preemptive", jobs, moves=False)[0], expected_s)
    # Nor does the job that never starts change anything, as long as nothing moves.
    monkeypatch.setattr(migration, "best_move", lambda *_: None)
    np.testing.assert_array_equal(play(varied, "preemptive", jobs, moves=True)[0], expected_s)


@pytest.mark.slow
def test_jobs_move_where_nothing_waits(jobs: JobArrays, monkeypatch: pytest.MonkeyPatch) -> None:
    moves, find = [], migration.best_move

    def noted(*asked: Any) -> tuple[int, list[int]] | None:
        moves.append(find(*asked))
        return moves[-1]

    monkeypatch.setattr(migration, "best_move", noted)
    jct_s, stops = play(Varied(VARIANTS["moves"]), "preemptive", jobs, moves=True)
    still_s, _ = play(Varied(VARIANTS[SHIPPED]), "preemptive", jobs, moves=False)
    assert 0 < sum(move is not None for move in moves) <= stops.sum()
    assert jct_s.shape == still_s.shape
    assert (jct_s != still_s).any()


def test_a_difference_has_the_intervals_of_both_figures() -> None:
    assert difference((-10.0, -13.0, -6.0), (-12.0, -15.0, -8.0)) == (2.0, 2.0 - 5.0, 2.0 + 5.0)
    # Without an interval of the study's own, one so many times as wide as ours.
    assert difference((10.0, 7.0, 13.0), (6.0, None, None), 4.0 / 3.0) == (4.0, 4.0 - 5.0, 4.0 + 5.0)
