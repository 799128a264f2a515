"""Capacity by the linear program: hand-worked cases, the figures that ship, and loads of lists."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from adlro.errors import InvalidInput, Unsupported
from adlro.hardware.speeds import SHIPPED, SpeedRow
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobType
from adlro.workload.capacity import (
    JobClass,
    capacity_jobs_per_h,
    list_classes,
    offered_load,
    scale_to_load,
    scenario_capacity_jobs_per_h,
    scenario_classes,
    scenario_on,
)
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.scenario import SCENARIO_NAMES, load_scenario


def node(name: str, model: str, gpus: int = 1, memory_mib: int = 16000, cores: int = 100) -> Node:
    return Node(name, cores, 10**6, tuple(Gpu(f"{name}/{i}", model, memory_mib) for i in range(gpus)))


def job_class(name: str, share: float, work_s: float, *, memory_mib: int = 0, cores: int = 1) -> JobClass:
    return JobClass(name, JobType.SIMULATION, memory_mib, cores, 1, share, work_s)


PHILLY = ("gangs_philly", "gangs_philly_64", "gangs_philly_256")
SHARED = ("shared", "shared_64", "shared_256")
TABLE = SHIPPED.extended(
    [
        SpeedRow("even", JobType.SIMULATION, {"fast": 1.0, "slow": 1.0}),
        SpeedRow("picky", JobType.SIMULATION, {"fast": 1.0, "slow": 0.1}),
    ]
)


def test_one_gpu_carries_an_hour_by_the_work():
    cluster = Cluster("c", (node("a", "fast"),))
    assert capacity_jobs_per_h(cluster, [job_class("even", 1.0, 36.0)], TABLE) == pytest.approx(100.0)


def test_cores_bind_where_they_are_scarce():
    # Four GPUs but cores for two jobs of three cores at a time (the program knows no packing: 7 / 3 of them).
    cluster = Cluster("c", (node("a", "fast", gpus=4, cores=7),))
    assert capacity_jobs_per_h(cluster, [job_class("even", 1.0, 36.0, cores=3)], TABLE) == pytest.approx(700.0 / 3)


def test_jobs_go_where_they_are_relatively_fastest():
    # Half of each. Picky jobs belong on the fast GPU; even ones fill what is left: 200 jobs/h, each GPU with one kind.
    cluster = Cluster("c", (node("a", "fast"), node("b", "slow")))
    classes = [job_class("even", 0.5, 36.0), job_class("picky", 0.5, 36.0)]
    assert capacity_jobs_per_h(cluster, classes, TABLE) == pytest.approx(200.0)
    # Nothing but picky jobs: the slow GPU adds a tenth.
    assert capacity_jobs_per_h(cluster, [job_class("picky", 1.0, 36.0)], TABLE) == pytest.approx(110.0)


def test_memory_keeps_jobs_off_small_gpus():
    cluster = Cluster("c", (node("a", "fast"), node("b", "slow", memory_mib=8000)))
    big = [job_class("even", 1.0, 36.0, memory_mib=12000)]
    assert capacity_jobs_per_h(cluster, big, TABLE) == pytest.approx(100.0)
    with pytest.raises(InvalidInput, match=r"jobs of even with 20000 MiB of GPU memory, 1 CPU cores .* fit on no GPU"):
        capacity_jobs_per_h(cluster, [job_class("even", 1.0, 36.0, memory_mib=20000)], TABLE)


@pytest.mark.parametrize("name", ["heavy_tails", "gavel", *PHILLY, *SHARED])
def test_the_capacities_that_were_computed_come_out_again(name):
    scenario = load_scenario(name)
    assert scenario_capacity_jobs_per_h(scenario) == pytest.approx(scenario.capacity_jobs_per_h, rel=2e-6)


def test_the_capacities_that_were_given_are_those_of_some_thousand_drawn_jobs():
    paper, roomy = load_scenario("paper"), load_scenario("paper_roomy")
    exact = {scenario.name: scenario_capacity_jobs_per_h(scenario) for scenario in (paper, roomy)}
    assert exact == {"paper": pytest.approx(3009.90, abs=0.01), "paper_roomy": pytest.approx(3010.95, abs=0.01)}
    # Both figures are off by the same share, so by the mean work and nothing else: nodes with more cores carry one more
    # job an hour in both.
    given = {"paper": 2977.0, "paper_roomy": 2978.0}
    assert {scenario.name: scenario.capacity_jobs_per_h for scenario in (paper, roomy)} == given
    ratios = [given[name] / exact[name] for name in given]
    assert ratios[0] == pytest.approx(ratios[1], rel=2e-4)
    # Capacities of lists of 4,000 jobs scatter by more than that.
    lists = [draw_jobs(paper, load=0.9, rng=np.random.default_rng(seed), count=4000) for seed in range(6)]
    drawn = [capacity_jobs_per_h(paper.cluster, list_classes(jobs, paper.cluster)) for jobs in lists]
    assert np.std(drawn) > 0.5 * (1 - ratios[0]) * exact["paper"]
    assert np.mean(drawn) == pytest.approx(exact["paper"], rel=0.02)


# Their study's: with the program's, loads would mean something else than there.
@pytest.mark.parametrize(
    ("name", "given", "computed"),
    [
        ("gangs", 1528.0, 1564.651),
        ("gangs_64", 6175.0, 6338.835),
        ("gangs_256", 24699.0, 25355.342),
        ("gangs_heavy", 463.0, 427.664),
    ],
)
def test_given_capacities_of_gangs_are_those_of_some_thousand_drawn_jobs(name, given, computed):
    scenario = load_scenario(name)
    assert scenario.capacity_jobs_per_h == given
    exact = scenario_capacity_jobs_per_h(scenario)
    assert exact == pytest.approx(computed, rel=1e-6)
    jobs = draw_jobs(scenario, load=0.9, rng=np.random.default_rng(0), count=20_000)
    gpu_time_s = np.array([job.gpu_count * job.work_s for job in jobs])
    scatter = gpu_time_s.std() / gpu_time_s.mean()
    drawn = capacity_jobs_per_h(scenario.cluster, list_classes(jobs, scenario.cluster))
    assert drawn == pytest.approx(exact, rel=3.0 * scatter / np.sqrt(20_000))
    # The given figures are within two deviations of the mean GPU time of 4,000 jobs.
    assert given == pytest.approx(exact, rel=2.0 * scatter / np.sqrt(4000))


def test_capacities_of_larger_clusters_are_off_by_the_same_share():
    for name in ("gangs_heavy_64", "gangs_heavy_256"):
        scenario = load_scenario(name)
        assert scenario.capacity_jobs_per_h / scenario_capacity_jobs_per_h(scenario) == pytest.approx(
            463.0 / 427.664, rel=1e-5
        )
    without = replace(load_scenario("gangs"), gang_sizes=())
    assert scenario_capacity_jobs_per_h(without) == pytest.approx(3010.95, abs=0.01)
    # 1.9 GPUs a job; but at 16 GPUs a gang of eight has only the V100s.
    assert scenario_capacity_jobs_per_h(load_scenario("gangs_64")) == pytest.approx(4 * 3010.95 / 1.9, rel=1e-5)
    assert scenario_capacity_jobs_per_h(load_scenario("gangs")) < 0.99 * 3010.95 / 1.9


def test_stops_do_not_change_the_capacity():
    for name in ("preemptive", "preemptive_20s", "preemptive_240s", "preemptive_600s"):
        assert load_scenario(name).capacity_jobs_per_h == load_scenario("gangs").capacity_jobs_per_h
    for gpus in (64, 256):
        one, other = load_scenario(f"preemptive_{gpus}"), load_scenario(f"gangs_{gpus}")
        assert one.capacity_jobs_per_h == other.capacity_jobs_per_h


def test_a_gang_uses_the_gpu_time_of_all_its_gpus_on_models_that_can_hold_it():
    cluster = Cluster("c", (node("a", "fast", gpus=2), node("b", "slow", gpus=1)))
    job = job_class("even", 1.0, 36.0)
    # Three GPUs, 100 jobs/h each; a gang of two has the fast ones only.
    assert capacity_jobs_per_h(cluster, [job], TABLE) == pytest.approx(300.0)
    assert capacity_jobs_per_h(cluster, [replace(job, gpu_count=2)], TABLE) == pytest.approx(100.0)
    both = [replace(job, share=0.5), replace(job, share=0.5, gpu_count=2)]
    assert capacity_jobs_per_h(cluster, both, TABLE) == pytest.approx(200.0)
    assert capacity_jobs_per_h(cluster, [replace(job, gpu_models=("slow",))], TABLE) == pytest.approx(100.0)
    with pytest.raises(InvalidInput, match=r"with each of 3 GPUs fit on no set of GPUs of the cluster"):
        capacity_jobs_per_h(cluster, [replace(job, gpu_count=3)], TABLE)


def test_variants_of_arrivals_share_the_papers_capacity():
    for name in ("batch", "surge", "diurnal", "trace"):
        assert load_scenario(name).capacity_jobs_per_h == load_scenario("paper").capacity_jobs_per_h


def test_shares_of_classes_sum_to_one():
    for name in SCENARIO_NAMES:
        assert sum(each.share for each in scenario_classes(load_scenario(name))) == pytest.approx(1.0)


def test_a_drawn_list_offers_the_load_it_was_drawn_for_and_can_be_brought_to_another():
    scenario = load_scenario("gavel")
    jobs = draw_jobs(scenario, load=0.9, rng=np.random.default_rng(4), count=6000)
    offered = offered_load(scenario.cluster, jobs)
    assert offered == pytest.approx(0.9, rel=0.08)
    scaled = scale_to_load(jobs, offered, 0.6)
    assert offered_load(scenario.cluster, scaled) == pytest.approx(0.6, rel=1e-6)
    assert scaled[0].submit_s == 0.0
    assert [job.work_s for job in scaled] == [job.work_s for job in jobs]


def test_a_scenario_moves_to_another_cluster_or_population_with_the_capacity_that_goes_with_it():
    paper = load_scenario("paper")
    half = Cluster("half", paper.cluster.nodes[::2])
    moved = scenario_on(paper, half)
    assert moved.cluster is half
    assert moved.capacity_jobs_per_h < paper.capacity_jobs_per_h
    groups = [replace(group, mean_work_s=2 * group.mean_work_s) for group in paper.groups]
    slower = scenario_on(paper, paper.cluster, groups=groups)
    assert slower.capacity_jobs_per_h == pytest.approx(0.5 * 3009.9, rel=0.01)
    assert draw_jobs(slower, load=0.9, rng=np.random.default_rng(0), count=5)[0].work_s > 0
    with pytest.raises(InvalidInput, match="fit on no GPU of the cluster"):
        scenario_on(paper, Cluster("small", (node("a", "rtx_2080_ti", memory_mib=11264),)))


def test_a_batch_has_no_rate():
    scenario = load_scenario("batch")
    jobs = draw_jobs(scenario, load=0.9, rng=np.random.default_rng(4), count=20)
    assert offered_load(scenario.cluster, jobs) == float("inf")
    with pytest.raises(InvalidInput, match="all jobs are submitted at once"):
        scale_to_load(jobs, float("inf"), 0.6)
    with pytest.raises(InvalidInput, match="load must be above 0"):
        scale_to_load(jobs, 0.5, 0.0)
    with pytest.raises(InvalidInput, match="a load needs two jobs"):
        offered_load(scenario.cluster, jobs[:1])
    with pytest.raises(InvalidInput, match="the job list is empty"):
        list_classes([], scenario.cluster)


def test_without_scipy_the_way_out_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(Unsupported, match=r"pip install '\.\[evaluate\]'"):
        scenario_capacity_jobs_per_h(load_scenario("paper"))


def test_lists_of_many_kinds_of_jobs_are_solved_in_seconds():
    scenario = load_scenario("paper")
    rng = np.random.default_rng(0)
    jobs = [
        WorkloadJob(float(i), "u", "neutral", JobType.SIMULATION, 5.0, 1000, int(rng.integers(1, 21)), m, 0.5)
        for i, m in enumerate(rng.integers(1, 200_000, 800).tolist())
    ]
    assert offered_load(scenario.cluster, jobs) > 0
