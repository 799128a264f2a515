"""Decompose checks its own intervals against outcomes, and puts right what does not cover."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType
from adlro.records.predictions import PredictionBasis
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.runtimes.coverage_figures import CoverageFigures, show_coverage
from adlro.services.decompose.runtimes.interval_coverage import (
    CALIBRATE_FROM,
    Calibration,
    IntervalCoverage,
    PredictionKind,
    PredictionResidual,
)
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor
from adlro.services.decompose.variables.variables import Variables

KIND = PredictionKind(PredictionBasis.APPLICATION, False)
HALF_WIDTH = 1.2816 * 0.3
SPEC = JobSpec("a", "ann", JobType.SIMULATION, "tealeaf")


def compared(residuals, prior_residuals=None, *, known_count=100) -> IntervalCoverage:
    coverage = IntervalCoverage()
    others = residuals if prior_residuals is None else prior_residuals
    for residual, prior_residual in zip(residuals, others, strict=True):
        one = PredictionResidual(residual, prior_residual, -HALF_WIDTH, HALF_WIDTH, known_count)
        coverage.observe(KIND, one, hit=abs(residual) <= HALF_WIDTH)
    return coverage


def normal(sigma: float, count: int = 256, seed: int = 0):
    return (sigma * np.random.default_rng(seed).standard_normal(count)).tolist()


def test_intervals_that_cover_are_left_as_they_are():
    for sigma in (0.05, 0.3):
        [calibration] = compared(normal(sigma), normal(1.0)).calibrations(100).values()
        assert calibration == Calibration(1.0, 1.0)


@pytest.mark.parametrize("times", [2.0, 5.0])
def test_intervals_that_do_not_cover_are_widened_until_they_do(times):
    [calibration] = compared(normal(0.3 * times)).calibrations(100).values()
    wider = HALF_WIDTH + math.log(calibration.widening_ratio)
    assert wider / HALF_WIDTH == pytest.approx(times, rel=0.2)
    covered = np.abs(normal(0.3 * times, seed=1)) <= wider
    assert 0.7 <= covered.mean() <= 0.9


def test_residuals_to_one_side_are_compared_with_the_end_on_that_side():
    coverage = IntervalCoverage()
    for residual in normal(0.6):
        coverage.observe(KIND, PredictionResidual(abs(residual), 1.0, -9.0, 0.3, 100), hit=abs(residual) <= 0.3)
    [calibration] = coverage.calibrations(100).values()
    assert 0.3 + math.log(calibration.widening_ratio) == pytest.approx(0.6 * 1.2816, rel=0.2)


def test_where_the_prior_was_nearer_the_answer_goes_back_to_it():
    [calibration] = compared(normal(3.0), normal(0.5, seed=1)).calibrations(100).values()
    assert calibration.share <= 0.1
    assert HALF_WIDTH + math.log(calibration.widening_ratio) > 1.2 * HALF_WIDTH
    # As far as is best: residuals of both are made of what they share, and of as much of each one's own.
    own, prior, shared = (np.array(normal(1.0, seed=seed)) for seed in (2, 3, 4))
    [calibration] = compared((own + 0.1 * shared).tolist(), (prior + 0.1 * shared).tolist()).calibrations(100).values()
    assert 0.3 <= calibration.share <= 0.7


def test_few_comparisons_change_nothing_nor_do_those_made_from_much_less():
    assert not compared(normal(3.0, CALIBRATE_FROM - 1)).calibrations(100)
    assert compared(normal(3.0, CALIBRATE_FROM)).calibrations(100)
    assert compared(normal(3.0), known_count=100).calibrations(200)
    assert not compared(normal(3.0), known_count=100).calibrations(201)


def test_the_newest_count():
    coverage = compared([*normal(3.0, 600), *normal(0.3, 256)])
    assert coverage.calibrations(100)[KIND].widening_ratio == 1.0
    total, hits = coverage.counts()[KIND.basis]
    assert (total, hits) == (856, hits)
    assert 0.05 * 600 + 0.7 * 256 < hits < 0.2 * 600 + 0.9 * 256
    coverage.observe(KIND, PredictionResidual(math.inf, 0.0, -1.0, 1.0, 1), hit=False)  # no number: left out
    assert coverage.counts()[KIND.basis] == (total, hits)
    coverage.start_over()
    assert not coverage.counts()


class Service:
    """A predictor that finished jobs come to, and what was given for each before."""

    def __init__(self) -> None:
        variables, speeds = Variables(), ModelSpeeds()
        self.predictor = LearnedPredictor(OutcomeMemory(variables, speeds), variables, speeds, lambda: ())
        self.count = 0
        self.covered: list[bool] = []

    def finish(self, spec: JobSpec, runtime_s: float) -> None:
        answer = self.predictor.predict([spec], ["v100_sxm2"])
        self.covered.append(bool(answer.low_s[0, 0] <= runtime_s <= answer.high_s[0, 0]))
        self.predictor.learn(FinishedJob(f"job-{self.count}", spec, "v100_sxm2", runtime_s, float(self.count)))
        self.count += 1


def test_jobs_that_begin_to_scatter_are_covered_again_before_long():
    service, rng = Service(), random.Random(2)
    for sigma, times in ((0.05, 600), (0.6, 300)):
        for _ in range(times):
            service.finish(SPEC, 100 * math.exp(rng.gauss(0, sigma)))
    assert 0.65 <= np.mean(service.covered[-150:]) <= 0.95
    [calibration] = service.predictor.calibrations.values()
    assert calibration.widening_ratio > 1.5


def test_after_exact_declarations_intervals_grow_with_what_is_off_and_no_further():
    """Beside intervals of no width any residual is any number of widths off."""
    service, rng = Service(), random.Random(5)
    declared = dataclasses.replace(SPEC, expected_runtime=ExpectedRuntime("v100_sxm2", 60.0))
    for sigma, times in ((0.0, 400), (0.3, 400)):
        for count in range(times):
            service.finish(declared, 60.0 * math.exp(rng.gauss(0, sigma)))
            if sigma and count % 20 == 19:
                answer = service.predictor.predict([declared], ["v100_sxm2"])
                assert 60.0 / 5.0 <= answer.low_s[0, 0] <= 60.0 <= answer.high_s[0, 0] <= 60.0 * 5.0
    assert 0.65 <= np.mean(service.covered[-150:]) <= 0.95


def test_coverage_in_service_is_shown_by_basis():
    service, rng = Service(), random.Random(3)
    for number in range(60):
        spec = JobSpec("a", f"user-{number % 3}", JobType.SIMULATION, "tealeaf")
        service.finish(spec, 100 * math.exp(rng.gauss(0, 0.2)))
    predictor = service.predictor
    registry = CollectorRegistry()
    show_coverage(lambda: CoverageFigures(predictor.coverage.counts(), predictor.calibrations), registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"adlro_decompose_{name}", labels)

    # The first is compared with nothing, the next two users' first jobs rest on the application.
    assert value("intervals_compared_total", basis="application") == 2
    assert value("intervals_compared_total", basis="user_application") == 57
    hits = sum(value("intervals_hit_total", basis=each) or 0 for each in ("application", "user_application"))
    assert hits == sum(service.covered[1:])
    [calibration] = predictor.calibrations.values()
    labels = {"basis": "user_application", "new": "false"}
    assert value("interval_widening_ratio", **labels) == calibration.widening_ratio
    assert value("regression_share_ratio", **labels) == calibration.share


def test_the_same_jobs_are_put_right_the_same():
    answers = []
    for _ in range(2):
        service, rng = Service(), random.Random(5)
        for number in range(150):
            service.finish(SPEC, 100 * math.exp(rng.gauss(0, 0.05 if number < 100 else 1.0)))
        answer = service.predictor.predict([SPEC], ["v100_sxm2"])
        answers.append((answer.low_s.tolist(), answer.median_s.tolist(), answer.high_s.tolist()))
    assert answers[0] == answers[1]
