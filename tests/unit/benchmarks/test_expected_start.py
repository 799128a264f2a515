"""The benchmark of expected starts: what a scheduler knew is rebuilt from what became of a list, and judged."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.decide.forecast.futures import Size
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.hardware.speeds import SHIPPED
from adlro.lab.evaluate.cases import Case
from adlro.sim.batch import simulate
from adlro.workload.scenario import load_scenario
from benchmarks.expected_start import Judged, figures, judged, judged_simple, made_forecasts
from benchmarks.expected_start_moments import ListReplay


@pytest.mark.slow
def test_a_moment_has_what_ran_and_waited_then() -> None:
    case = Case(load_scenario("paper"), SHIPPED, 1.1, 60, 1, 3, "group")
    arrays = case.arrays(0, 1)
    outcome = simulate(case.cluster, arrays, HoldGreedyFixed().act)
    replay = ListReplay(case.cluster, arrays, outcome, 0)
    for time_s in (0.0, 10.0, 40.0, float(replay.start_s.max())):
        queued, moment = replay.moment(time_s)
        runs = [run for run in outcome.runs(0) if run.start_s <= time_s < run.end_s]
        assert sorted(np.flatnonzero(moment.gpu_busy)) == sorted(run.gpu for run in runs)
        assert (moment.node_cores_free >= 0).all()
        assert (moment.node_memory_free_mib >= 0).all()
        assert list(moment.queue.submit_s) == list(replay.submit_s[queued])
        assert ((replay.submit_s[queued] <= time_s) & (replay.start_s[queued] > time_s)).all()
        past = replay.past(time_s)
        assert len(past.jobs.spread) == (replay.submit_s <= time_s).sum()


@pytest.mark.slow
def test_forecasts_are_made_twice_and_know_nothing_of_later() -> None:
    """A longer list has the same beginning, and so the same forecasts there."""
    size = Size(futures=4)
    (short,), (long,) = (made_forecasts("hold_greedy_fixed", 1.1, "true", 1, jobs, 3, size) for jobs in (80, 120))
    assert short
    assert [each.moment for each in short].count(0) == [each.moment for each in short].count(1)
    same = [(one, other) for one in short for other in long if one[:3] == other[:3] and one.start_s == other.start_s]
    assert len(same) > len(short) / 4
    assert all(one.raw == other.raw for one, other in same)
    for moment in (0, 1):
        for rows in (judged([short], moment), judged_simple([short], moment, np.array([6.0, 10.0, 30.0]))):
            assert len(rows.came_in) == len(short) / 2
            assert (rows.width_s > 0).all()


def test_figures_are_shares_over_lists() -> None:
    numbers = np.repeat(np.arange(20.0), 10)
    came_in = np.tile(np.array([1.0] * 8 + [0.0] * 2), 20)
    told = figures(Judged(numbers, came_in, 1.0 - came_in, np.arange(200.0)), seed=1)
    assert told["came_in"] == told["came_in_low"] == told["came_in_high"] == 0.8
    assert (told["forecasts"], told["started_before"], told["median_width_s"]) == (200, 0.2, 99.5)
