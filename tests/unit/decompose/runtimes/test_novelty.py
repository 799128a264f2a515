"""What was never seen: the mean of what was, with an interval as wide as its like differ, and a way from there."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from adlro.package_data import csv_rows
from adlro.records.jobs import JobSpec, JobType
from adlro.services.decompose.regression.tuned_regression import Hyperparameters, TunedRegression
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor
from benchmarks.decompose_prediction import Row, gavel_spec, learned_predictor

MODEL = "v100_sxm2"


def gavel_rows() -> list[Row]:
    """Seconds a step of job configurations on V100, P100 and K80: the table that ships."""
    rows = []
    for line in csv_rows("adlro.hardware", "gavel_throughputs.csv"):
        spec = gavel_spec(line["application"], 1)
        for model in ("v100", "p100", "k80"):
            steps_per_s = float(line[f"{model}_steps_per_s"])
            if steps_per_s > 0:
                rows.append(Row(spec, model, 1 / steps_per_s, line["application"]))
    return rows


def test_an_application_never_seen_is_predicted_no_worse_than_by_the_mean_of_all():
    rows = gavel_rows()
    off: dict[str, list[float]] = {"adlro": [], "mean": []}
    for application in sorted({row.spec.application for row in rows}):
        train = [row for row in rows if row.spec.application != application]
        test = [row for row in rows if row.spec.application == application]
        predictor = learned_predictor(train)
        median_s = [float(predictor.predict([row.spec], [row.gpu_model]).median_s[0, 0]) for row in test]
        log_s = np.log([row.step_s for row in test])
        off["adlro"].append(float(np.median(np.abs(np.log(median_s) - log_s))))
        off["mean"].append(float(np.median(np.abs(np.log([row.step_s for row in train]).mean() - log_s))))
    # In seconds a step the prior of the job type, 18 s a job, means nothing: it must not draw predictions to it.
    assert np.mean(off["adlro"]) <= 1.1 * np.mean(off["mean"])


def test_a_novel_job_is_expected_at_the_mean_of_what_was_seen_however_far_the_prior_is():
    rng = np.random.default_rng(0)
    rows = [
        Row(JobSpec("a", f"user-{number % 4}", JobType.SIMULATION, f"app-{number % 6}"), MODEL, seconds, "")
        for number, seconds in enumerate((50_000 * np.exp(0.2 * rng.standard_normal(120))).tolist())
    ]
    answer = learned_predictor(rows).predict([JobSpec("a", "new", JobType.SIMULATION, "new")], [MODEL])
    assert float(answer.median_s[0, 0]) == pytest.approx(50_000, rel=0.1)


def test_evidence_moves_a_prediction_from_the_mean_step_by_step():
    rng = np.random.default_rng(1)
    rows = [
        Row(JobSpec("a", "ann", JobType.SIMULATION, f"app-{number % 8}"), MODEL, seconds, "")
        for number, seconds in enumerate(
            (np.exp(np.resize(rng.standard_normal(8), 160)) * 100 * np.exp(0.3 * rng.standard_normal(160))).tolist()
        )
    ]
    job = JobSpec("a", "ann", JobType.SIMULATION, "new")
    medians, widths = [], []
    for count in range(6):
        answer = learned_predictor([*rows, *[Row(job, MODEL, 4000.0, "")] * count]).predict([job], [MODEL])
        medians.append(float(answer.median_s[0, 0]))
        widths.append(math.log(float(answer.high_s[0, 0] / answer.low_s[0, 0])))
    assert medians == sorted(medians)
    assert medians[0] < 400
    assert 3000 < medians[-1] < 4000
    assert widths == sorted(widths, reverse=True)


Draw = Callable[[np.random.Generator], tuple[LearnedPredictor, list[tuple[JobSpec, float]]]]


def by(kind: str) -> Draw:
    """Jobs of 20 users, 20 applications and 6 sizes, of which the last of a kind are asked about and never seen."""

    def draw(rng: np.random.Generator) -> tuple[LearnedPredictor, list[tuple[JobSpec, float]]]:
        of_user, of_application = 0.5 * rng.standard_normal(20), rng.standard_normal(20)
        slope = 0.4 + 0.2 * rng.standard_normal()
        train: list[tuple[JobSpec, float]] = []
        test: list[tuple[JobSpec, float]] = []
        for _ in range(260):
            user, application, size = (int(rng.integers(count)) for count in (20, 20, 6))
            spec = JobSpec("a", f"u{user}", JobType.SIMULATION, f"a{application}", gpu_count=2**size)
            log_s = 5 + of_user[user] + of_application[application] + slope * size + 0.3 * rng.standard_normal()
            held_out = {"user": user >= 10, "application": application >= 10, "size": size == 5}[kind]
            (test if held_out else train).append((spec, math.exp(log_s)))
        return learned_predictor([Row(spec, MODEL, seconds, "") for spec, seconds in train]), test

    return draw


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["user", "application", "size"])
def test_intervals_cover_what_they_claim_for_what_was_never_seen(kind):
    covered, off, off_mean = [], [], []
    for seed in range(8):
        predictor, test = by(kind)(np.random.default_rng([seed, 3]))
        answer = predictor.predict([spec for spec, _ in test], [MODEL])
        true_s = np.array([seconds for _, seconds in test])
        covered.append(((answer.low_s[:, 0] <= true_s) & (true_s <= answer.high_s[:, 0])).mean())
        off.append(np.abs(np.log(answer.median_s[:, 0] / true_s)).mean())
        of_all = [math.log(job.runtime_s) for job in predictor._memory.jobs()]
        off_mean.append(np.abs(np.log(true_s) - np.mean(of_all)).mean())
    assert 0.7 <= np.mean(covered) <= 0.9
    assert np.mean(off) <= 1.1 * np.mean(off_mean)


def test_a_size_that_was_the_same_in_all_jobs_is_less_sure_where_it_is_another():
    rows = [
        Row(JobSpec("a", "ann", JobType.SIMULATION, "tealeaf", gpu_count=1), MODEL, 100.0 + number, "")
        for number in range(40)
    ]
    predictor = learned_predictor(rows)
    same, other = (
        predictor.predict([JobSpec("a", "ann", JobType.SIMULATION, "tealeaf", gpu_count=count)], [MODEL])
        for count in (1, 8)
    )
    assert math.log(other.high_s[0, 0] / other.low_s[0, 0]) > 2 * math.log(same.high_s[0, 0] / same.low_s[0, 0])


def test_before_anything_is_learned_nothing_is_known():
    learner = TunedRegression(Hyperparameters())
    assert (learner.centre, learner.share) == (0.0, 0.0)
