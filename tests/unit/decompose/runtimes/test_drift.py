"""Drift: slow GPUs and changed mixes are flagged, healthy ones at no more than the stated rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from adlro.records.matrices import SUSPECTED
from adlro.services.decompose.runtimes.drift import (
    GPU_WINDOW,
    HEALTHY,
    MIX_WINDOW,
    UNCHANGED,
    DriftDetectors,
    GpuDriftDetector,
    MixDriftDetector,
    chi_square_tail,
    summary_of,
)


def fleet(rng: np.random.Generator, jobs: int, slow=0.0, claimed=0.4, bias=0.0, sigma=0.4) -> GpuDriftDetector:
    """Six GPUs, `jobs` each; gpu-0 is slower by `slow` in its last 20."""
    drift = GpuDriftDetector()
    for number in range(jobs):
        for gpu in range(6):
            shift = slow if gpu == 0 and number >= jobs - GPU_WINDOW else 0.0
            drift.observe(f"gpu-{gpu}", "v100_sxm2", bias + shift + sigma * rng.standard_normal(), claimed)
    return drift


@pytest.mark.parametrize(("claimed", "bias"), [(0.4, 0.0), (0.2, 0.0), (0.4, 0.3)])
def test_healthy_gpus_are_flagged_at_the_stated_rate(claimed, bias):
    # Whatever the predictor claims of its spread, and though it is off for the whole model.
    rng = np.random.default_rng(1)
    flagged = [
        state.flagged for _ in range(80) for state in fleet(rng, 40, claimed=claimed, bias=bias).states().values()
    ]
    assert np.mean(flagged) <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / len(flagged))


def large_fleet(rng: np.random.Generator, gpus: int, slow: int = 0, by: float = 0.7) -> GpuDriftDetector:
    """30 jobs on each of many GPUs, of which the first few are slow."""
    drift = GpuDriftDetector()
    for residuals in 0.3 * rng.standard_normal((30, gpus)) + by * (np.arange(gpus) < slow):
        for gpu, residual in enumerate(residuals.tolist()):
            drift.observe(gpu, "v100_sxm2", residual, 0.3)
    return drift


def test_of_many_healthy_gpus_hardly_ever_one_is_flagged_and_the_summary_says_what_chance_does():
    rng = np.random.default_rng(11)
    summaries = [summary_of(large_fleet(rng, 400).states().values(), UNCHANGED) for _ in range(12)]
    assert sum(each.flagged_count for each in summaries) <= 1
    assert all(each.suspected_by_chance_count == pytest.approx(4.0) for each in summaries)
    assert np.mean([each.suspected_count for each in summaries]) == pytest.approx(4.0, abs=2.5)


def test_slow_gpus_among_many_are_flagged_and_few_others():
    rng = np.random.default_rng(12)
    states = large_fleet(rng, 400, slow=20).states()
    flagged = {gpu for gpu, state in states.items() if state.flagged}
    assert set(range(20)) <= flagged
    assert len(flagged) <= 22
    assert all(states[gpu].score >= SUSPECTED for gpu in flagged)


@pytest.mark.slow
def test_a_slowdown_of_a_fifth_among_a_thousand_gpus_is_flagged_when_its_jobs_are_enough():
    """The newest 60 jobs are too few for that: their p is not below 1 % of 1 / 1,024 for sure."""
    rng = np.random.default_rng(15)
    drift = GpuDriftDetector()
    for residuals in 0.4 * rng.standard_normal((20, 1024)):
        for gpu, residual in enumerate(residuals.tolist()):
            drift.observe(gpu, "v100_sxm2", residual, 0.4)
    for slow in range(12):
        flagged = []
        for residual in (0.4 * rng.standard_normal(180) - math.log(0.8)).tolist():
            drift.observe(slow, "v100_sxm2", residual, 0.4)
            flagged.append(drift.state(slow).flagged)
        assert any(flagged)
    assert not any(drift.state(gpu).flagged for gpu in range(12, 1024))


def test_whether_a_gpu_is_flagged_does_not_depend_on_who_asks_first():
    drifts = [large_fleet(np.random.default_rng(13), 60, slow=3) for _ in range(2)]
    one = {gpu: drifts[0].state(gpu) for gpu in range(60)}
    assert drifts[1].states() == one
    assert summary_of(one.values(), UNCHANGED).flagged_count == sum(each.flagged for each in one.values()) >= 3


def test_a_replaced_card_is_neither_flagged_nor_counted():
    drift = large_fleet(np.random.default_rng(14), 20, slow=1)
    assert drift.state(0).flagged
    drift.observe(0, "a100", 0.0, 0.3)
    assert not drift.state(0).flagged
    assert summary_of(drift.states().values(), UNCHANGED).suspected_by_chance_count == pytest.approx(0.19)


def test_a_slow_gpu_is_flagged_and_its_speed_estimated():
    rng = np.random.default_rng(2)
    states = [fleet(rng, 60, slow=0.6).state("gpu-0") for _ in range(40)]
    assert np.mean([state.flagged for state in states]) > 0.95
    assert np.mean([-math.log(state.speed_ratio) for state in states]) == pytest.approx(0.55, abs=0.1)
    healthy = [fleet(rng, 60).log_slowdown("gpu-3") for _ in range(20)]
    assert np.mean(healthy) < 0.03


def test_a_gpu_that_is_well_again_is_believed():
    rng = np.random.default_rng(3)
    drift = fleet(rng, 60, slow=0.6)
    assert drift.state("gpu-0").flagged
    for _ in range(60):
        drift.observe("gpu-0", "v100_sxm2", 0.4 * rng.standard_normal(), 0.4)
    assert not drift.state("gpu-0").flagged
    assert drift.state("gpu-0").speed_ratio > 0.9


def test_few_jobs_and_unknown_gpus_say_nothing():
    drift = GpuDriftDetector()
    assert drift.state("a") == HEALTHY
    for _ in range(4):
        drift.observe("a", "v100_sxm2", 3.0, 0.1)
    assert drift.state("a").score == 0.0
    assert drift.log_slowdown("a") == 0.0
    drift.observe("a", "v100_sxm2", math.nan, 0.1)
    assert list(drift.states()) == ["a"]
    assert drift.state("a").job_count == 4


def test_another_card_under_the_same_name_begins_anew():
    rng = np.random.default_rng(4)
    drift = fleet(rng, 40, slow=1.0)
    assert drift.state("gpu-0").flagged
    drift.observe("gpu-0", "radeon_vii", 0.0, 0.4)
    assert drift.state("gpu-0").job_count == 1


def mix(rng: np.random.Generator, shares, count: int, drift: MixDriftDetector) -> None:
    for value in rng.choice(len(shares), count, p=shares):
        drift.observe((int(value) % 3, int(value)))


EVEN = np.full(15, 1 / 15)


def test_an_unchanged_mix_is_flagged_at_the_stated_rate():
    rng = np.random.default_rng(5)
    flagged = []
    for _ in range(60):
        drift = MixDriftDetector({"type": 1.0, "application": 3.0})
        mix(rng, EVEN, 1024, drift)
        flagged.append(drift.state().flagged)
    assert np.mean(flagged) <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / 60)


def test_a_changed_mix_is_flagged_and_named():
    rng = np.random.default_rng(6)
    flagged = []
    changed = EVEN + np.where(np.arange(15) < 7, 0.3 / 7, -0.3 / 8)
    for _ in range(20):
        drift = MixDriftDetector({"type": 1.0, "application": 3.0})
        mix(rng, EVEN, 2048, drift)
        mix(rng, changed, MIX_WINDOW, drift)
        state = drift.state()
        flagged.append(state.flagged)
        assert state.total_variation == pytest.approx(0.3, abs=0.15) or state.variable != "application"
    assert np.mean(flagged) >= 0.95


def test_a_mix_of_few_jobs_is_not_judged():
    drift = MixDriftDetector({"type": 1.0, "application": 1.0})
    for _ in range(400):
        drift.observe((1, 2))
    assert drift.state() == UNCHANGED


def test_values_that_never_were_are_a_change():
    drift = MixDriftDetector({"application": 1.0})
    for number in range(600):
        drift.observe((number % 5,))
    for number in range(MIX_WINDOW):
        drift.observe((f"new-{number}",))
    assert drift.state().score > SUSPECTED
    assert drift.state().total_variation == 1.0


def test_starting_over_forgets():
    drift = DriftDetectors()
    for _ in range(600):
        drift.mix.observe((1, "a", "u"))
    for _ in range(30):
        drift.gpus.observe("a", "m", 2.0, 0.1)
    drift.start_over()
    assert drift.gpus.states() == {}
    assert drift.mix.state() == UNCHANGED


@pytest.mark.parametrize(
    ("statistic", "degrees", "probability"),
    [(6.635, 1, 0.01), (29.141, 14, 0.01), (23.685, 14, 0.05), (63.691, 40, 0.01), (14.0, 14, 0.4497)],
)
def test_the_chi_square_tail_is_the_tables(statistic, degrees, probability):
    assert chi_square_tail(statistic, degrees) == pytest.approx(probability, rel=0.1)


CHANGED = EVEN + np.where(np.arange(15) < 7, 0.3 / 7, -0.3 / 8)


@pytest.mark.parametrize("constant", ["type", "user", "neither"])
def test_a_variable_of_one_value_does_not_hide_that_another_changed(constant):
    rng = np.random.default_rng(8)
    states = []
    for _ in range(20):
        drift = MixDriftDetector({"type": 0.2, "application": 0.6, "user": 0.2})
        for number, application in enumerate([*rng.choice(15, 2048, p=EVEN), *rng.choice(15, MIX_WINDOW, p=CHANGED)]):
            job_type = 1 if constant == "type" else int(rng.integers(3))
            user = "ann" if constant == "user" else int(rng.integers(10))
            drift.observe((job_type, int(application), user))
            if number == 2047:
                before = drift.state()
        assert before.score < drift.state().score
        states.append(drift.state())
    assert np.mean([state.flagged for state in states]) >= 0.9
    assert {state.variable for state in states if state.flagged} == {"application"}


def test_a_variable_that_fits_too_well_does_not_hide_that_another_changed():
    rng = np.random.default_rng(9)
    flagged = []
    for _ in range(20):
        drift = MixDriftDetector({"type": 1.0, "application": 3.0})
        for number, application in enumerate([*rng.choice(15, 2048, p=EVEN), *rng.choice(15, MIX_WINDOW, p=CHANGED)]):
            drift.observe((number % 32, int(application)))  # types are evener than chance allows: their p is 1
        flagged.append(drift.state().flagged)
    assert np.mean(flagged) >= 0.9


def test_nothing_to_compare_is_unchanged():
    drift = MixDriftDetector({"type": 1.0, "application": 1.0})
    for _ in range(1024):
        drift.observe((1, "a"))
    assert drift.state() == UNCHANGED


def test_the_scale_of_spreads_is_followed_however_many_jobs_there_were():
    rng = np.random.default_rng(7)
    drift = GpuDriftDetector()
    for number in range(600):
        drift.observe(f"gpu-{number % 6}", "v100_sxm2", 0.4 * rng.standard_normal(), 0.4)
    flagged = []
    for number in range(3000):  # from now on jobs scatter by more than is claimed
        gpu = f"gpu-{number % 6}"
        drift.observe(gpu, "v100_sxm2", 0.4 * rng.standard_normal(), 0.16)
        if number >= 1000:
            flagged.append(drift.state(gpu).flagged)
    assert np.mean(flagged) < 0.03
