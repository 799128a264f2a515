"""What schedulers believe about runtimes: each kind of knowledge by its definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adlro.errors import InvalidInput
from adlro.hardware.gang_speeds import spread_speed
from adlro.hardware.speeds import GPU_MODELS, SHIPPED, speed
from adlro.records.jobs import JobSpec, JobType
from adlro.services.orchestrator.runtimes.predictions import declared_runtime_s
from adlro.state.job_arrays import pack_jobs
from adlro.workload.estimates import (
    PRIOR_WORK_S,
    RuntimeKnowledge,
    claimed_spread,
    expected_s,
    expected_spread_speeds,
    parse_runtime,
    prior_work_s,
)
from adlro.workload.job_lists import draw_groups, draw_jobs
from adlro.workload.scenario import load_scenario

SCENARIO = load_scenario("paper")
JOBS = draw_jobs(SCENARIO, load=0.9, rng=np.random.default_rng(3), count=400)
MODELS = GPU_MODELS
TRUE = np.array([[job.work_s / speed(job.application, job.job_type, model) for model in MODELS] for job in JOBS])


def believed(runtime, jobs=JOBS, scenario=SCENARIO, seed=0, **more):
    return expected_s(jobs, MODELS, runtime, scenario, seed, **more)


def test_the_truth_is_work_by_speed():
    np.testing.assert_array_equal(believed("true"), TRUE)
    np.testing.assert_array_equal(believed("noise:0"), TRUE)


def test_noise_is_one_factor_a_job_with_median_one():
    error = np.log(believed("noise:0.5", seed=7) / TRUE)
    np.testing.assert_allclose(error, np.broadcast_to(error[:, :1], error.shape), atol=1e-12)
    assert np.std(error[:, 0]) == pytest.approx(0.5, rel=0.1)
    assert np.median(error[:, 0]) == pytest.approx(0.0, abs=0.08)
    np.testing.assert_array_equal(believed("noise:0.5", seed=7), believed("noise:0.5", seed=7))
    assert not np.array_equal(believed("noise:0.5", seed=8), believed("noise:0.5", seed=7))
    # The n-th job's error does not depend on how many follow.
    np.testing.assert_array_equal(believed("noise:0.5", JOBS[:9]), believed("noise:0.5")[:9])


def test_of_a_group_the_mean_is_known():
    means = {(group.user, group.application): group.mean_work_s for group in SCENARIO.groups}
    work_s = np.array([SCENARIO.work.expected_s(means[job.user, job.application]) for job in JOBS])
    np.testing.assert_allclose(believed("group") / TRUE, (work_s / [job.work_s for job in JOBS])[:, None] * [[1.0] * 3])
    # Without bias: the mean error over many jobs is small beside their scatter.
    assert np.mean(believed("group")) == pytest.approx(np.mean(TRUE), rel=0.1)


def test_another_population_has_means_of_its_own():
    groups = draw_groups(SCENARIO, np.random.default_rng(1))
    jobs = draw_jobs(SCENARIO, load=0.9, rng=np.random.default_rng(3), count=50, groups=groups)
    ours = believed("group", jobs, groups=groups)
    assert not np.allclose(ours, believed("group", jobs))
    log_error = np.log(ours / believed("true", jobs))
    assert np.abs(log_error).max() < 0.4 * 4


def test_in_a_trace_groups_and_types_are_those_of_the_list():
    trace = load_scenario("trace")
    jobs = [replace(JOBS[0], work_s=work_s) for work_s in (1000.0, 2000.0, 6000.0)]
    at = speed(jobs[0].application, jobs[0].job_type, MODELS[1])
    assert believed("group", jobs, trace)[:, 1] == pytest.approx([3000.0 / at] * 3)
    mean_speed = SHIPPED.type_speed(jobs[0].job_type, MODELS[1])
    assert believed("type", jobs, trace)[:, 1] == pytest.approx([2000.0 / mean_speed] * 3)


def test_of_a_type_the_median_and_the_mean_speeds_are_known():
    expected = believed("type")
    for job, row in zip(JOBS, expected, strict=True):
        for model, each in zip(MODELS, row, strict=True):
            median_s = SCENARIO.median_work_s[job.job_type]
            assert each == pytest.approx(median_s / speed("", job.job_type, model))


def test_of_nothing_all_jobs_look_the_same_and_gpus_do_not():
    expected = believed("none")
    assert expected.shape == TRUE.shape
    np.testing.assert_array_equal(expected, np.broadcast_to(expected[:1], expected.shape))
    assert expected[0, 0] < expected[0, 1]  # a V100 is known to be the faster one


@pytest.mark.parametrize("runtime", ["true", "noise:1.5", "group", "type", "none"])
@pytest.mark.parametrize("name", ["paper", "gavel", "heavy_tails", "surge", "gangs_philly", "gangs_heavy", "shared"])
def test_all_kinds_hold_for_all_scenarios(name, runtime):
    scenario = load_scenario(name)
    jobs = draw_jobs(scenario, load=0.9, rng=np.random.default_rng(3), count=20)
    expected = expected_s(jobs, scenario.cluster.gpu_models, runtime, scenario, 1)
    assert expected.shape == (20, 3)
    assert np.isfinite(expected).all()
    assert (expected > 0).all()


def test_an_empty_list_and_unknown_models():
    assert expected_s([], MODELS, "type", SCENARIO, 0).shape == (0, 3)
    with pytest.raises(InvalidInput, match="a100"):
        expected_s(JOBS, ["a100"], "none", SCENARIO, 0)


@pytest.mark.parametrize("text", ["true", "noise:0.5", "group", "type", "none"])
def test_kinds_are_read_and_written_alike(text):
    assert str(parse_runtime(text)) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("exact", "must be true, noise:SIGMA, group, type or none, not 'exact'"),
        ("", "must be true,"),
        ("noise", "must be true,"),
        ("true:1", "must be true,"),
        ("noise:", "the sigma of noise must be a number from 0 to 10, as in noise:0.5, not ''"),
        ("noise:nan", "not 'nan'"),
        ("noise:-1", "not '-1'"),
        ("noise:11", "not '11'"),
    ],
)
def test_other_kinds_are_refused(text, complaint):
    with pytest.raises(InvalidInput) as caught:
        parse_runtime(text)
    assert complaint in caught.value.message
    assert caught.value.field == "runtime"


def test_the_prior_is_the_scenarios_median():
    assert PRIOR_WORK_S == {JobType.SIMULATION: 18.0, JobType.MACHINE_LEARNING: 15.0, JobType.DATA_PROCESSING: 8.0}
    assert PRIOR_WORK_S is SCENARIO.median_work_s
    assert RuntimeKnowledge("none") == parse_runtime("none")


@pytest.mark.parametrize("job_type", list(JobType))
def test_the_services_know_no_other_prior(job_type):
    spec = JobSpec(name="n", user="u", job_type=job_type)
    assert declared_runtime_s(spec, "v100_sxm2") == prior_work_s(job_type)
    if job_type is not JobType.UNSPECIFIED:
        assert prior_work_s(job_type) == PRIOR_WORK_S[job_type]
    else:
        assert min(PRIOR_WORK_S.values()) < prior_work_s(job_type) < max(PRIOR_WORK_S.values())


@pytest.mark.parametrize(("runtime", "least", "most"), [("true", 0.0, 1e-9), ("noise:0.5", 0.42, 0.58)])
def test_a_calibrated_predictor_says_how_far_it_is_off(runtime, least, most):
    scenario = load_scenario("paper")
    jobs = draw_jobs(scenario, load=0.9, rng=np.random.default_rng(5), count=600)
    models = scenario.cluster.gpu_models
    packed = pack_jobs([jobs], models, [expected_s(jobs, models, runtime, scenario, seed=3)])
    spread = claimed_spread(jobs, packed.duration_s[0], packed.expected_s[0])
    assert spread.shape == (600,)
    assert ((least <= spread) & (spread <= most)).all()


def test_who_knows_less_is_less_sure():
    scenario = load_scenario("paper")
    jobs = draw_jobs(scenario, load=0.9, rng=np.random.default_rng(6), count=600)
    models = scenario.cluster.gpu_models
    sure = []
    for runtime in ("group", "type"):
        packed = pack_jobs([jobs], models, [expected_s(jobs, models, runtime, scenario, seed=3)])
        sure.append(claimed_spread(jobs, packed.duration_s[0], packed.expected_s[0]))
    assert (sure[0] > 0).all()
    assert (sure[0] < sure[1]).all()


def test_a_spread_must_be_a_number_from_0_for_each_job():
    jobs = draw_jobs(load_scenario("paper"), load=0.9, rng=np.random.default_rng(6), count=3)
    for wrong in (np.zeros(2), np.array([0.1, -0.1, 0.0]), np.array([0.1, np.inf, 0.0])):
        with pytest.raises(InvalidInput, match="spread"):
            pack_jobs([jobs], load_scenario("paper").cluster, expected_spread=[wrong])


def test_a_group_s_mean_is_known_for_each_number_of_gpus():
    scenario = load_scenario("gangs_philly")
    one = draw_jobs(scenario, load=0.9, rng=np.random.default_rng(3), count=1)[0]
    jobs = [replace(one, gpu_count=gpu_count) for gpu_count in (1, 2, 4, 8)]
    assert believed("group", jobs, scenario)[:, 0] == pytest.approx(
        believed("group", jobs[:1], scenario)[0, 0] * np.array([1.0, 3.0, 4.0, 5.0])
    )
    trace = load_scenario("trace")
    own = [replace(one, gpu_count=1, work_s=10.0), replace(one, gpu_count=2, work_s=50.0), replace(one, work_s=20.0)]
    assert believed("group", own, trace)[:, 0] == pytest.approx(
        np.array([15.0, 50.0, 15.0]) / speed(one.application, one.job_type, MODELS[0])
    )


@pytest.mark.parametrize(
    ("runtime", "share"), [("true", 0.23), ("noise:0.5", 0.23), ("group", 0.23), ("type", None), ("none", None)]
)
def test_what_a_spread_job_loses_is_known_as_well_as_its_speeds(runtime, share):
    job = replace(JOBS[0], application="gnmt_fp16", job_type=JobType.MACHINE_LEARNING, gpu_count=2)
    found = expected_spread_speeds([job, replace(job, gpu_count=1)], ["v100_sxm2"], runtime)
    stands_in = JobType.UNSPECIFIED if runtime == "none" else job.job_type
    assert found[0, 0] == (spread_speed("", stands_in, 2, "v100_sxm2") if share is None else share)
    assert found[1, 0] == 1.0
    assert expected_spread_speeds([], ["v100_sxm2"], runtime).shape == (0, 1)
