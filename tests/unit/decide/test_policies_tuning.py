"""The search for hold_greedy's settings: what it counts, and that it runs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from adlro.decide.policies.hold_greedy import FIXED, SETTINGS
from benchmarks.tune_hold_greedy import BASE, CHOICES, against, drawn_settings, interval

ROOT = Path(__file__).resolve().parents[3]


def test_scenarios_count_alike_whatever_their_completion_times() -> None:
    # One load, two scenarios with means 10 and 100: ratios 0.8 and 1.1, mean 0.95.
    base = np.array([[[5.0, 15.0], [50.0, 150.0]]])
    tried = np.array([[[6.0, 10.0], [110.0, 110.0]]])
    np.testing.assert_allclose(against(tried, base), [0.95])


def test_the_interval_is_of_paired_lists() -> None:
    # Lists differ tenfold, the ratio of each pair hardly: pairs make the interval narrow.
    rng = np.random.default_rng(3)
    base = rng.uniform(10.0, 100.0, (1, 2, 60))
    low, high = interval(base * rng.uniform(0.88, 0.92, base.shape), base, 0)
    assert 0.88 < low < 0.9 < high < 0.92


def test_what_is_drawn_is_of_the_choices() -> None:
    drawn = list(islice(drawn_settings(np.random.default_rng(4)), 60))
    assert len(set(drawn)) > 50
    for settings in drawn:
        for name, value in dataclasses.asdict(settings).items():
            assert value in CHOICES[name] or value == getattr(BASE, name)


def test_the_shipped_settings_are_among_what_a_search_can_find() -> None:
    for settings in (FIXED, *SETTINGS.values()):
        assert all(value in CHOICES[name] for name, value in dataclasses.asdict(settings).items())


@pytest.mark.slow
def test_a_search_runs_and_prints_the_table() -> None:
    command = [sys.executable, "-m", "benchmarks.tune_hold_greedy", "--trials", "2", "--lists", "2", "--processes", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split(":")[0].strip() for line in ended.stdout.splitlines()[1:4]] == ["0.6", "0.9", "1.1"]
    assert "FIXED = HoldGreedySettings(alpha=" in ended.stdout
