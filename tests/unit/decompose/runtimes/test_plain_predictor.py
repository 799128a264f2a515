"""The plain predictor, by hand-worked numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Collection

import numpy as np
import pytest

from adlro.errors import InvalidInput, Unavailable
from adlro.hardware.speeds import APPLICATIONS, JOB_TYPE_OF, speed
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType
from adlro.records.predictions import PredictionBasis
from adlro.services.decompose.outcomes.job_groups import quantile
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.runtimes.plain_predictor import PlainPredictor
from adlro.services.decompose.variables.variables import Variables

MODELS = ["v100_sxm2", "rtx_2080_ti", "radeon_vii"]
Z = 1.2815515655446004


def spec(user="ann", application="tealeaf", **changes) -> JobSpec:
    return JobSpec(**{"name": "a", "user": user, "job_type": JobType.SIMULATION, "application": application, **changes})


def predictor(*runs: tuple[JobSpec, str, float], in_clusters: Collection[str] | None = ()) -> PlainPredictor:
    variables, speeds = Variables(), ModelSpeeds()
    plain = PlainPredictor(OutcomeMemory(variables, speeds), speeds, lambda: in_clusters)
    for number, (job, gpu_model, runtime_s) in enumerate(runs):
        assert plain.learn(FinishedJob(f"job-{number}", job, gpu_model, runtime_s, float(number)))
    return plain


def test_a_declared_runtime_is_brought_to_the_other_models_exactly():
    # tealeaf: 1.00, 0.70, 0.97. 14 s on the RTX are 14 * 0.70 = 9.8 s of work.
    job = spec(expected_runtime=ExpectedRuntime("rtx_2080_ti", 14.0))
    answer = predictor().predict([job], MODELS)
    assert answer.basis == [PredictionBasis.DECLARED]
    assert answer.median_s[0] == pytest.approx([9.8, 14.0, 9.8 / 0.97])


@pytest.mark.parametrize("application", APPLICATIONS)
def test_declared_on_the_reference_gpu_equals_the_simulators_division_to_the_last_bit(application):
    work_s = 12.837
    job = spec(
        application=application,
        job_type=JOB_TYPE_OF[application],
        expected_runtime=ExpectedRuntime("v100_sxm2", work_s),
    )
    answer = predictor().predict([job], MODELS)
    assert answer.median_s[0].tolist() == [work_s / speed(application, job.job_type, model) for model in MODELS]


def test_what_was_learned_does_not_move_a_declared_value_but_its_interval():
    job = spec(expected_runtime=ExpectedRuntime("v100_sxm2", 10.0))
    fresh = predictor().predict([job], ["v100_sxm2"])
    assert fresh.low_s[0, 0] == pytest.approx(10 * math.exp(-0.5 * Z))
    assert fresh.high_s[0, 0] == pytest.approx(10 * math.exp(0.5 * Z))
    # Eight jobs that took twice what was declared: every quantile is log 2, and counts half beside the prior. The low
    # end, half of log 2 less 0.25 Z, is above what was declared, and stays there.
    learned = predictor(*[(job, "v100_sxm2", 20.0)] * 8).predict([job], ["v100_sxm2"])
    assert learned.median_s[0, 0] == 10.0
    assert learned.low_s[0, 0] == 10.0
    assert learned.high_s[0, 0] == pytest.approx(10 * math.exp(0.5 * math.log(2) + 0.25 * Z))


def test_a_users_own_declarations_come_before_everyones():
    declared = {"expected_runtime": ExpectedRuntime("v100_sxm2", 10.0)}
    runs = [(spec("ann", **declared), "v100_sxm2", 10.0)] * 8 + [(spec("bob", **declared), "v100_sxm2", 40.0)] * 8
    plain = predictor(*runs)
    ann = plain.predict([spec("ann", **declared)], ["v100_sxm2"])
    bob = plain.predict([spec("bob", **declared)], ["v100_sxm2"])
    assert ann.high_s[0, 0] == pytest.approx(10 * math.exp(0.25 * Z))
    assert bob.high_s[0, 0] == pytest.approx(10 * math.exp(0.5 * math.log(4) + 0.25 * Z))
    zoe = plain.predict([spec("zoe", **declared)], ["v100_sxm2"])  # half of everyone took 10 s, half 40 s
    assert zoe.high_s[0, 0] == pytest.approx(10 * math.exp(16 / 24 * math.log(4) + 8 / 24 * 0.5 * Z))


def test_the_basis_is_the_closest_group_that_has_jobs():
    plain = predictor(
        (spec("ann", "tealeaf"), "v100_sxm2", 30.0),
        (spec("bob", "tealeaf"), "v100_sxm2", 50.0),
        (spec("bob", "neutral"), "v100_sxm2", 90.0),
    )
    jobs = [
        spec("ann", "tealeaf"),
        spec("zoe", "tealeaf"),
        spec("zoe", "unseen"),
        spec("ann", ""),
        spec("ann", "unseen", job_type=JobType.DATA_PROCESSING),
    ]
    answer = plain.predict(jobs, ["v100_sxm2"])
    assert answer.basis == [
        PredictionBasis.USER_APPLICATION,
        PredictionBasis.APPLICATION,
        PredictionBasis.JOB_TYPE,
        PredictionBasis.JOB_TYPE,
        PredictionBasis.PRIOR,
    ]
    # The median of two in the middle of their logs: sqrt(30 * 50).
    assert answer.median_s[:, 0] == pytest.approx([30.0, math.sqrt(1500), 50.0, 50.0, 8.0])


@pytest.mark.parametrize(
    ("job_type", "median_s"),
    [(JobType.SIMULATION, 18.0), (JobType.MACHINE_LEARNING, 15.0), (JobType.DATA_PROCESSING, 8.0)],
)
def test_nothing_but_the_prior(job_type, median_s):
    answer = predictor().predict([spec(application="", job_type=job_type)], ["v100_sxm2"])
    assert answer.basis == [PredictionBasis.PRIOR]
    assert answer.median_s[0, 0] == median_s
    assert answer.high_s[0, 0] / median_s == pytest.approx(math.exp(1.5 * Z))
    assert answer.novelty.tolist() == [1.0]
    assert answer.coverage == 0.8


def test_runtimes_from_other_models_count_in_reference_seconds():
    # 20 s on the RTX at 0.70 are 14 s of work; on the Radeon at 0.97 that is 14 / 0.97.
    answer = predictor((spec(), "rtx_2080_ti", 20.0)).predict([spec()], MODELS)
    assert answer.median_s[0] == pytest.approx([14.0, 20.0, 14.0 / 0.97])


def test_the_interval_of_few_jobs_leans_on_the_prior():
    # One job: weight 1/9 on its spread of nothing, 8/9 on sigma 0.4, widened for the median of one.
    answer = predictor((spec(), "v100_sxm2", 10.0)).predict([spec()], ["v100_sxm2"])
    half = 8 / 9 * 0.4 * Z * math.sqrt(1 + math.pi / 2)
    assert answer.low_s[0, 0] == pytest.approx(10 * math.exp(-half))
    assert answer.high_s[0, 0] == pytest.approx(10 * math.exp(half))


def test_the_interval_of_many_jobs_is_that_of_their_residuals():
    # Logs 0, 0.1, ... 1.0 (eleven): median 0.5; the 0.1 quantile is at 0.1 * 12 - 1 = 0.2 of the first step: 0.02, the
    # 0.9 quantile 0.98; weight 11/19.
    runs = [(spec(), "v100_sxm2", math.exp(i / 10)) for i in range(11)]
    answer = predictor(*runs).predict([spec()], ["v100_sxm2"])
    half = 11 / 19 * 0.48 + 8 / 19 * 0.4 * Z * math.sqrt(1 + math.pi / 22)
    assert answer.median_s[0, 0] == pytest.approx(math.exp(0.5))
    assert np.log(answer.high_s[0, 0]) - 0.5 == pytest.approx(half)
    assert 0.5 - np.log(answer.low_s[0, 0]) == pytest.approx(half)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4, 10, 40])
def test_intervals_cover_what_they_claim(count):
    # Work as in the scenario `paper`: log-normal, sigma 0.4, about the mean of a (user, application). Some seen, one to
    # come, 600 times.
    rng = random.Random(7)
    hits = 0
    for _ in range(600):
        runs = [(spec(), "v100_sxm2", 15 * math.exp(rng.gauss(0, 0.4))) for _ in range(count)]
        answer = predictor(*runs).predict([spec()], ["v100_sxm2"])
        hits += answer.low_s[0, 0] <= 15 * math.exp(rng.gauss(0, 0.4)) <= answer.high_s[0, 0]
    assert hits / 600 == pytest.approx(0.8, abs=0.05)  # three standard errors


def test_a_model_without_speed_figures_runs_like_the_reference_give_or_take():
    job = spec(expected_runtime=ExpectedRuntime("v100_sxm2", 10.0))
    answer = predictor(in_clusters={"a100"}).predict([job], ["v100_sxm2", "a100"])
    assert answer.median_s[0].tolist() == [10.0, 10.0]
    assert np.log(answer.high_s[0] / 10) == pytest.approx([0.5 * Z, Z * math.sqrt(0.5**2 + 0.7**2)])
    # Declared on that very model, nothing is brought from model to model.
    own = spec(expected_runtime=ExpectedRuntime("a100", 10.0))
    answer = predictor(in_clusters={"a100"}).predict([own], ["a100", "radeon_vii"])
    assert np.log(answer.high_s[0] / answer.median_s[0]) == pytest.approx([0.5 * Z, Z * math.sqrt(0.5**2 + 0.7**2)])
    assert answer.median_s[0].tolist() == [10.0, 10.0 / 0.97]


def test_an_application_without_speed_figures_widens_the_interval_on_other_models():
    job = spec(application="unseen", expected_runtime=ExpectedRuntime("v100_sxm2", 10.0))
    answer = predictor().predict([job], ["v100_sxm2", "radeon_vii"])
    assert np.log(answer.high_s[0] / answer.median_s[0]) == pytest.approx([0.5 * Z, Z * math.sqrt(0.5**2 + 0.3**2)])
    assert answer.median_s[0, 1] == 10.0 / speed("unseen", JobType.SIMULATION, "radeon_vii")


def test_an_unknown_gpu_model_is_refused_by_name():
    with pytest.raises(InvalidInput) as caught:
        predictor(in_clusters={"a100"}).predict([spec()], ["v100_sxm2", "v1000"])
    assert caught.value.field == "gpu_models[1]"
    assert "'v1000'" in caught.value.message
    assert "v100_sxm2, rtx_2080_ti, radeon_vii, v100, p100, k80, a100." in caught.value.message


def test_before_the_clusters_are_read_only_listed_models_can_be_judged():
    plain = predictor(in_clusters=None)
    assert plain.predict([spec()], MODELS).median_s.shape == (1, 3)
    with pytest.raises(Unavailable, match=r"gpu_models\[0\].*not read yet"):
        plain.predict([spec()], ["a100"])


def test_novelty_is_the_closest_group_that_has_jobs():
    plain = predictor((spec(), "v100_sxm2", 10.0))
    jobs = [spec(), spec("bob"), spec(application="unseen"), spec("ann", "", job_type=JobType.DATA_PROCESSING)]
    assert plain.predict(jobs, MODELS).novelty.tolist() == [0.0, 0.25, 0.65, 1.0]


def test_evidence_prefers_the_model_asked_for():
    plain = predictor((spec(), "v100_sxm2", 10.0), (spec(), "radeon_vii", 11.0), (spec("bob"), "v100_sxm2", 12.0))
    [[on_v100, on_radeon]] = plain.evidence([spec()], ["v100_sxm2", "radeon_vii"], 2)
    assert [each.job.job_id for each in on_v100] == ["job-0", "job-1"]
    assert [each.job.job_id for each in on_radeon] == ["job-1", "job-0"]
    for first, second in (on_v100, on_radeon):
        assert (first.similarity, second.similarity) == pytest.approx((1.0, 92 / 112))
    assert [each.job.job_id for each in plain.recall(spec(), 5)] == ["job-1", "job-0", "job-2"]


def test_many_jobs_are_predicted_as_each_by_itself():
    rng = random.Random(3)
    runs = []
    for _ in range(300):
        application = rng.choice(APPLICATIONS)
        job = spec(rng.choice("abc"), application, job_type=JOB_TYPE_OF[application])
        runs.append((job, rng.choice(MODELS), rng.uniform(1, 100)))
    plain = predictor(*runs)
    jobs = [
        spec(
            rng.choice("abcd"),
            rng.choice([*APPLICATIONS, "", "unseen"]),
            job_type=rng.choice(list(JobType)),
            expected_runtime=rng.choice([None, ExpectedRuntime(rng.choice(MODELS), rng.uniform(1, 50))]),
        )
        for _ in range(200)
    ]
    together = plain.predict(jobs, MODELS)
    for number, job in enumerate(jobs):
        alone = plain.predict([job], MODELS)
        assert alone.median_s[0].tolist() == together.median_s[number].tolist()
        assert alone.low_s[0].tolist() == together.low_s[number].tolist()
        assert alone.high_s[0].tolist() == together.high_s[number].tolist()
        assert alone.basis[0] == together.basis[number]
        assert alone.novelty[0] == together.novelty[number]
    assert (together.low_s <= together.median_s).all()
    assert (together.median_s <= together.high_s).all()


def test_quantiles_are_made_once_a_group_however_many_ask(monkeypatch):
    rng = random.Random(5)
    counted = []

    def counting(ordered, share):
        counted.append(share)
        return quantile(ordered, share)

    monkeypatch.setattr("adlro.services.decompose.outcomes.job_groups.quantile", counting)
    users = [f"user-{number}" for number in range(4)]
    plain = predictor(*[(spec(rng.choice(users)), "v100_sxm2", rng.uniform(1, 100)) for _ in range(300)])
    counted.clear()
    for _ in range(3):
        plain.predict([spec(rng.choice(users)) for _ in range(200)], MODELS)
    assert len(counted) == 3 * len(users)


def test_starting_over_forgets():
    plain = predictor((spec(), "v100_sxm2", 10.0))
    revision = plain.revision
    plain.start_over()
    assert plain.revision > revision
    assert plain.predict([spec()], MODELS).basis == [PredictionBasis.PRIOR]
