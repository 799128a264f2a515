"""Scenarios with jobs of several GPUs, jobs that can be stopped, and jobs that share: what is drawn, and for what."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from adlro.errors import NotFound
from adlro.hardware.shared_speeds import KEPT_SHARES
from adlro.hardware.speeds import GAVEL_APPLICATIONS
from adlro.records.jobs import Preemptible
from adlro.workload.demand import find_unplaceable, node_kinds, packed_node_counts
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import ONE_GPU_SCENARIO_NAMES, SCENARIO_NAMES, load_scenario

PAPER_MODELS = ("v100_sxm2", "rtx_2080_ti", "radeon_vii")
GAVEL = {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05}
PHILLY = {1: 0.955, 2: 0.0165, 4: 0.0137, 8: 0.0147}
FACTOR = {1: 1.0, 2: 3.0, 4: 4.0, 8: 5.0}


def jobs_of(name: str, count: int = 20_000, seed: int = 5):
    return draw_jobs(load_scenario(name), load=0.9, rng=np.random.default_rng(seed), count=count)


@pytest.fixture(scope="module")
def gangs():
    return jobs_of("gangs")


@pytest.mark.parametrize("family", ["gangs", "gangs_philly", "gangs_heavy", "preemptive", "shared"])
@pytest.mark.parametrize(("suffix", "copies", "jobs"), [("", 1, 256), ("_64", 4, 512), ("_256", 16, 4096)])
def test_clusters_have_nodes_of_four_gpus_of_one_model(family, suffix, copies, jobs):
    scenario = load_scenario(family + suffix)
    cluster = scenario.cluster
    models = ("v100", "p100", "k80") if family == "shared" else PAPER_MODELS
    assert Counter(gpu.gpu_model for _, gpu in cluster.gpus()) == dict(
        zip(models, (8 * copies, 4 * copies, 4 * copies), strict=True)
    )
    assert all(len(node.gpus) == 4 and len({gpu.gpu_model for gpu in node.gpus}) == 1 for node in cluster.nodes)
    assert len({node.node_id for node in cluster.nodes}) == 4 * copies
    assert all(gpu.gpu_id.rpartition("/")[0] == node.node_id for node in cluster.nodes for gpu in node.gpus)
    assert [node.gpus[0].gpu_model for node in cluster.nodes] == sorted(
        (node.gpus[0].gpu_model for node in cluster.nodes), key=models.index
    )
    assert (scenario.job_count, scenario.loads) == (jobs, (0.6, 0.9, 1.1))


@pytest.mark.parametrize("name", [name for name in SCENARIO_NAMES if name not in (*ONE_GPU_SCENARIO_NAMES, "trace")])
def test_cores_and_memory_never_bind(name):
    scenario = load_scenario(name)
    on_a_node = 8 if scenario.shareable else 4
    for node in scenario.cluster.nodes:
        for choices in scenario.cpu_cores.values():
            most = max(cores for cores, _ in choices)
            assert on_a_node * most <= node.cpu_cores
            assert on_a_node * most * scenario.memory_mib_per_core <= node.memory_mib


@pytest.mark.parametrize("name", ONE_GPU_SCENARIO_NAMES)
def test_other_scenarios_draw_jobs_as_ever(name):
    for job in jobs_of(name, 50):
        assert (job.gpu_count, job.max_node_count, job.gpu_models) == (1, 0, ())
        assert job.preemptible is None
        assert not job.shareable


@pytest.mark.parametrize(("name", "shares"), [("gangs", GAVEL), ("gangs_heavy", GAVEL), ("gangs_philly", PHILLY)])
def test_sizes_have_their_shares(name, shares):
    jobs = jobs_of(name)
    counts = Counter(job.gpu_count for job in jobs)
    assert counts.keys() == shares.keys()
    for gpu_count, share in shares.items():
        deviation = math.sqrt(share * (1 - share) / len(jobs))
        assert counts[gpu_count] / len(jobs) == pytest.approx(share, abs=3.5 * deviation)


def test_sizes_are_independent_of_all_else(gangs):
    assert load_scenario("gangs").work_factor(8) == 1.0
    log_work = np.log([job.work_s for job in gangs])
    sizes = np.array([job.gpu_count for job in gangs])
    for values in (
        log_work,
        np.diff([0.0, *(job.submit_s for job in gangs)]),
        np.array([job.gpu_memory_mib for job in gangs]),
        np.array([int(job.job_type) for job in gangs]),
        np.array([job.cpu_cores for job in gangs]),
        sizes[[*range(1, len(sizes)), 0]],
    ):
        assert abs(np.corrcoef(sizes, values)[0, 1]) < 3.5 / math.sqrt(len(gangs))


def test_all_else_is_drawn_as_for_paper(gangs):
    paper, own = load_scenario("paper"), load_scenario("gangs")
    for name in ("mix", "median_work_s", "gpu_memory_mib", "cpu_cores", "priorities", "groups", "work", "arrivals"):
        assert getattr(own, name) == getattr(paper, name)
    assert all(1.0 <= job.work_s <= 600.0 for job in gangs)
    rate = 0.9 * own.capacity_jobs_per_h
    assert 3600 * len(gangs) / gangs[-1].submit_s == pytest.approx(rate, rel=0.03)


def test_larger_jobs_of_the_philly_mix_have_more_work():
    scenario, jobs = load_scenario("gangs_philly"), jobs_of("gangs_philly", 60_000)
    assert {size.gpu_count: size.work_factor for size in scenario.gang_sizes} == FACTOR
    median_s = {gpus: np.median([job.work_s for job in jobs if job.gpu_count == gpus]) for gpus in FACTOR}
    for gpus, factor in FACTOR.items():
        assert median_s[gpus] / median_s[1] == pytest.approx(factor, rel=0.15)


def test_heavy_tails_are_gavels_at_a_median_of_18_s():
    work_s = np.array([job.work_s for job in jobs_of("gangs_heavy")])
    scale = 18.0 / 10**2.4375
    assert work_s.min() >= scale * 10**1.5 - 1e-3
    assert work_s.max() <= scale * 10**4.0 + 1e-3
    assert np.median(work_s) == pytest.approx(18.0, rel=0.05)
    assert np.mean(work_s > scale * 10**3) == pytest.approx(0.2, abs=0.01)
    scenario = load_scenario("gangs_heavy")
    assert work_s.mean() == pytest.approx(scenario.work.expected_s(0.0), rel=0.05)
    assert {group.mean_work_s for group in scenario.groups} == {scenario.work.expected_s(0.0)}


@pytest.mark.parametrize(
    ("name", "restart_s"),
    [
        ("preemptive", 0.3),
        ("preemptive_64", 0.3),
        ("preemptive_256", 0.3),
        ("preemptive_20s", 0.1),
        ("preemptive_240s", 1.2),
        ("preemptive_600s", 3.0),
    ],
)
def test_jobs_that_can_be_stopped_are_those_of_gangs(name, restart_s):
    suffix = name.removeprefix("preemptive")
    jobs = jobs_of(name, 100)
    assert {job.preemptible for job in jobs} == {Preemptible(restart_s, 0.0)}
    plain = jobs_of("gangs" + ("" if suffix.endswith("s") else suffix), 100)
    alike = ("submit_s", "user", "application", "work_s", "gpu_memory_mib", "gpu_count")
    assert [[getattr(job, each) for each in alike] for job in jobs] == [
        [getattr(job, each) for each in alike] for job in plain
    ]
    # Times a job of an hour, over the mean job of 17.8 s: 60 s, and 20, 240 and 600 s.
    assert restart_s * 3600 / 17.8 == pytest.approx(float(suffix.strip("_s") or 60) if "s" in suffix else 60, rel=0.02)


def test_a_share_of_the_jobs_can_be_stopped_and_all_else_stays():
    scenario = load_scenario("preemptive")

    def drawn(share: float):
        rules = replace(scenario, preemptible_share=share)
        return draw_jobs(rules, load=0.9, count=2000, rng=np.random.default_rng(3))

    all_may, some, none = drawn(1.0), drawn(0.25), drawn(0.0)
    assert np.mean([job.preemptible is not None for job in some]) == pytest.approx(0.25, abs=0.04)
    assert all(job.preemptible is None for job in none)
    for jobs in (some, none):
        assert [replace(job, preemptible=all_may[0].preemptible) for job in jobs] == all_may


def test_jobs_that_share_have_one_gpu_and_measured_pairs():
    jobs = jobs_of("shared")
    assert all(job.shareable and job.gpu_count == 1 for job in jobs)
    assert {job.application for job in jobs} == set(GAVEL_APPLICATIONS)
    counts = Counter(job.application for job in jobs)
    assert min(counts.values()) / max(counts.values()) > 0.75
    assert {name for _, *names in KEPT_SHARES for name in names} == set(GAVEL_APPLICATIONS)
    logs = np.log([job.work_s / 18.0 for job in jobs])
    assert np.mean(logs) == pytest.approx(0.0, abs=0.025)
    assert np.std(logs) == pytest.approx(0.9, rel=0.02)
    scenario = load_scenario("shared")
    assert scenario.work.expected_s(18.0) == pytest.approx(18.0 * math.exp(0.5 * 0.81), rel=1e-6)
    assert {group.mean_work_s for group in scenario.groups} == {18.0}


@pytest.mark.parametrize("name", ["gangs", "gangs_64", "shared"])
def test_every_drawn_job_can_run(name):
    scenario = load_scenario(name)
    assert find_unplaceable(scenario.cluster, jobs_of(name, 1000)) is None


def test_a_gang_of_eight_has_the_v100s_only_at_16_gpus(gangs):
    eight = next(job for job in gangs if job.gpu_count == 8 and job.gpu_memory_mib <= 11_264)
    assert packed_node_counts(node_kinds(load_scenario("gangs").cluster), eight) == {"v100_sxm2": 2}
    assert packed_node_counts(node_kinds(load_scenario("gangs_64").cluster), eight) == dict.fromkeys(PAPER_MODELS, 2)
    four = next(job for job in gangs if job.gpu_count == 4 and job.gpu_memory_mib > 11_264)
    assert packed_node_counts(node_kinds(load_scenario("gangs").cluster), four) == {"v100_sxm2": 1, "radeon_vii": 1}


def test_a_spec_states_the_number_of_gpus(gangs):
    for job in gangs[:20]:
        assert job.spec("a").gpu_count == job.gpu_count
    spec = replace(gangs[0], gpu_count=4, max_node_count=2, gpu_models=("v100_sxm2",)).spec("b")
    assert (spec.gpu_count, spec.max_node_count, spec.gpu_models) == (4, 2, ("v100_sxm2",))


def test_unknown_sizes_are_unknown_scenarios():
    with pytest.raises(NotFound, match="no scenario 'gangs_32'"):
        load_scenario("gangs_32")
