"""Arrival processes: their rates, what a surge is made of, and that a short list begins a long one."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from adlro.errors import InvalidInput
from adlro.records.jobs import KINDS_OF_WORK, JobType
from adlro.workload.arrivals import Diurnal, Surges
from adlro.workload.job_lists import draw_groups, draw_jobs
from adlro.workload.scenario import SCENARIO_NAMES, load_scenario

DRAWN = tuple(name for name in SCENARIO_NAMES if name != "trace")


def jobs_of(name: str, count: int, seed: int = 5, load: float = 0.9):
    return draw_jobs(load_scenario(name), load=load, rng=np.random.default_rng(seed), count=count)


# Digests of lists as they were before there was any other process than Poisson, and, for the rest, before there were
# jobs of several GPUs: published results rest on them.
@pytest.mark.parametrize(
    ("name", "load", "seed", "digest"),
    [
        ("paper", 0.6, 3, "13d0c244cec92621"),
        ("paper", 1.1, 9, "2966b51133d90f69"),
        ("paper_roomy", 0.6, 3, "607b203f1b99090d"),
        ("paper_roomy", 1.1, 9, "ffc1f1291188208c"),
        ("batch", 0.6, 3, "9128ed5603dd602e"),
        ("batch", 1.1, 9, "cd620ba6c60e0e14"),
        ("surge", 0.6, 3, "7f8df14efa5d5146"),
        ("surge", 1.1, 9, "cabfca354beb7cf1"),
        ("diurnal", 0.6, 3, "858aa0088b08eff6"),
        ("diurnal", 1.1, 9, "9b1173bb134dda93"),
        ("heavy_tails", 0.6, 3, "bc2a676fc6a23289"),
        ("heavy_tails", 1.1, 9, "ae340635cc9896c0"),
        ("gavel", 0.6, 3, "87a4ee1915f4e422"),
        ("gavel", 1.1, 9, "2ac84e6ac8a0b84e"),
    ],
)
def test_lists_are_those_of_old(name, load, seed, digest):
    lines = (
        (
            job.submit_s,
            job.user,
            job.application,
            int(job.job_type),
            job.work_s,
            job.gpu_memory_mib,
            job.cpu_cores,
            job.memory_mib,
            job.priority,
            job.expected_runtime_s,
        )
        for job in jobs_of(name, 300, seed, load)
    )
    assert hashlib.sha256("\n".join(map(repr, lines)).encode()).hexdigest()[:16] == digest


def test_populations_are_those_of_old():
    drawn = [
        (group.user, group.application, int(group.job_type), group.mean_work_s)
        for group in draw_groups(load_scenario("paper"), np.random.default_rng(5))
    ]
    assert hashlib.sha256(repr(drawn).encode()).hexdigest()[:16] == "34b406f5237e37a6"


@pytest.mark.parametrize("name", DRAWN)
def test_a_short_list_is_the_beginning_of_a_long_one(name):
    long = jobs_of(name, 200)
    assert jobs_of(name, 60) == long[:60]
    assert jobs_of(name, 60, seed=6) != long[:60]
    submit_s = [job.submit_s for job in long]
    assert submit_s == sorted(submit_s)


def test_a_batch_comes_at_once():
    assert {job.submit_s for job in jobs_of("batch", 50)} == {0.0}


def test_the_diurnal_rate_follows_its_sine_and_has_the_mean_of_the_load():
    scenario = load_scenario("diurnal")
    process = scenario.arrivals
    assert isinstance(process, Diurnal)
    submit_s = np.array([job.submit_s for job in jobs_of("diurnal", 8000)])
    gap_s = 3600 / (0.9 * scenario.capacity_jobs_per_h)
    assert submit_s[-1] / len(submit_s) == pytest.approx(gap_s, rel=0.05)
    angle = 2 * np.pi * submit_s / process.period_s
    # For a density 1 + a sin(x), the mean of sin(x) is a / 2 and that of cos(x) is 0.
    assert np.sin(angle).mean() == pytest.approx(process.amplitude / 2, abs=0.04)
    assert np.cos(angle).mean() == pytest.approx(0.0, abs=0.04)


def test_in_a_surge_machine_learning_comes_five_times_as_often_and_the_rest_as_ever():
    scenario = load_scenario("surge")
    process = scenario.arrivals
    assert isinstance(process, Surges)
    assert (process.factor, process.job_type) == (5.0, JobType.MACHINE_LEARNING)
    jobs = jobs_of("surge", 10_000)
    span_s = jobs[-1].submit_s
    inside_share = process.length_s / process.every_s
    rate = 0.9 * scenario.capacity_jobs_per_h / 3600
    for job_type in KINDS_OF_WORK:
        factor = 5.0 if job_type is JobType.MACHINE_LEARNING else 1.0
        for inside, share, times in ((True, inside_share, factor), (False, 1 - inside_share, 1.0)):
            count = sum(job.job_type is job_type and process.surges_at(job.submit_s) is inside for job in jobs)
            assert count / (span_s * share) == pytest.approx(rate * scenario.mix[job_type] * times, rel=0.12)


def test_surges_begin_and_end_when_they_should():
    process = Surges(JobType.MACHINE_LEARNING, 5.0, first_s=60.0, length_s=60.0, every_s=240.0)
    at = {time_s: process.surges_at(time_s) for time_s in (0.0, 59.9, 60.0, 119.9, 120.0, 299.9, 300.0, 359.9, 360.0)}
    assert [time_s for time_s, surges in at.items() if surges] == [60.0, 119.9, 300.0, 359.9]


def test_nothing_can_be_drawn_for_the_scenario_of_traces():
    with pytest.raises(InvalidInput, match="takes its jobs from a file") as caught:
        jobs_of("trace", 1)
    assert caught.value.field == "trace"


@pytest.mark.parametrize("load", [0.0, -1.0, float("nan"), float("inf")])
def test_a_load_without_sense_is_refused(load):
    with pytest.raises(InvalidInput, match="load must be above 0") as caught:
        jobs_of("surge", 1, load=load)
    assert caught.value.field == "load"
