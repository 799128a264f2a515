"""The policies that stop jobs, in the simulator, and the same rules in plain Python on the oracle: equal floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from adlro.decide.policies import Policy
from adlro.decide.policies.hold_gang import ONE_SETTING
from adlro.decide.policies.las_preemptive import LasPreemptive
from adlro.decide.policies.srtf import Srtf, SrtfSettings
from adlro.sim.batch import BatchOutcome, BatchSimulator
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.oracle import stop_rules
from tests.oracle.cluster import Rule
from tests.oracle.records import Instance
from tests.oracle.rules import HoldGang, lets_nothing_wait_for_ever
from tests.unit.sim.against_oracle import compare_policy
from tests.unit.sim.test_kernel_stops import draw_batch
from tests.volume import cases

BATCH = 50
TWICE = SrtfSettings(
    start=replace(ONE_SETTING.without_queue(), s_max=3.0, rho=math.inf, theta=2.0),
    factor=2.0,
)
PAIRS: dict[str, tuple[Callable[[], Policy], Rule]] = {
    "srtf": (Srtf, stop_rules.Srtf()),
    "srtf, H 2": (
        lambda: Srtf(TWICE),
        stop_rules.Srtf(
            HoldGang(s_max=3.0, rho=math.inf, theta=2.0, beta=0.0, backlog=0.0, defer=0.0, alpha_deep=0.0), 2.0
        ),
    ),
    "las_preemptive": (lambda: LasPreemptive(6.27), stop_rules.Las(6.27)),
}


def without_a_bound(policy: Policy) -> Policy:
    policy.wait_ratio = math.inf
    return policy


def comparable(instance: Instance, name: str) -> Instance:
    """The instance without what the rules in plain Python see otherwise: losses, and best fit where nodes are mixed."""
    jobs, plain = instance.jobs, all(node.cores == 64 for node in instance.nodes)
    if not plain and name.startswith("srtf"):
        jobs = tuple(job for job in jobs if job.gpu_count > 1)
    return replace(instance, jobs=jobs, changes=())


def agree(seed: int, name: str, **more) -> int:
    policy, rule = PAIRS[name]
    batch = [comparable(each, name) for each in draw_batch(seed, **more)]
    return int(compare_policy(batch, without_a_bound(policy()), lets_nothing_wait_for_ever(rule)).stops.sum())


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", [0, BATCH])
def test_lists_go_the_same_way(name, seed):
    assert agree(seed, name, max_jobs=20) > 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PAIRS)
def test_many_lists_go_the_same_way(name):
    for seed in range(10_000, 10_000 + cases(20) * BATCH, BATCH):
        agree(seed, name, max_jobs=30)


# ---- on the scenario


def lists_of(scenario_name: str, lists: int, load: float = 1.1, count: int = 96) -> JobArrays:
    scenario = load_scenario(scenario_name)
    drawn = [draw_jobs(scenario, load=load, rng=np.random.default_rng(40 + i), count=count) for i in range(lists)]
    return pack_jobs(drawn, scenario.cluster)


def played(policy: Policy, scenario_name: str, jobs: JobArrays) -> BatchOutcome:
    simulator = BatchSimulator(load_scenario(scenario_name).cluster, jobs, preempts=policy.preempts)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    return simulator.outcome()


@pytest.mark.parametrize("name", ["srtf", "las_preemptive"])
def test_on_the_scenario_work_is_done_once_and_nothing_stops_twice_at_an_instant(name):
    jobs = lists_of("preemptive", 4)
    outcome = played(without_a_bound(PAIRS[name][0]()), "preemptive", jobs)
    assert outcome.stops.min() > 5
    for number in range(4):
        runs = list(outcome.runs(number))
        assert sum(run.completed for run in runs) == jobs.job_count[number]
        for job in range(int(jobs.job_count[number])):
            mine = sorted((run for run in runs if run.job == job), key=lambda run: run.end_s)
            assert [run.completed for run in mine] == [False] * (len(mine) - 1) + [True]
            assert all(run.end_s > run.start_s for run in mine)
            done = 0.0
            for place, run in enumerate(mine):
                model = _model_of(run.gpus[0])
                nodes = len({gpu // 4 for gpu in run.gpus})
                full_s = jobs.duration_s[number, job, model]
                if nodes > -(-len(run.gpus) // 4):
                    full_s /= jobs.spread_speed[number, job, model]
                restart_s = jobs.restart_s[number, job] if place else 0.0
                done += (run.end_s - run.start_s - restart_s) / full_s
            assert done == pytest.approx(1.0)


def _model_of(gpu: int) -> int:
    cluster = load_scenario("preemptive").cluster
    return cluster.gpu_models.index([each.gpu_model for node in cluster.nodes for each in node.gpus][gpu])


def test_of_one_gpu_jobs_the_figures_of_gangs_change_nothing():
    jobs = lists_of("preemptive", 3)
    single = jobs._replace(gpu_count=np.ones_like(jobs.gpu_count), submit_s=jobs.submit_s / 2.0)
    outcome = played(without_a_bound(Srtf()), "preemptive", single)
    # A job of two GPUs at the very end, and its figures with it.
    late = single.gpu_count.copy()
    late[:, -1] = 2
    submit_s = single.submit_s.copy()
    submit_s[:, -1] += 10_000.0
    with_gang = single._replace(gpu_count=late, submit_s=submit_s)
    other = played(without_a_bound(Srtf()), "preemptive", with_gang)
    assert outcome.stops.sum() > 0
    before = outcome.end_s < single.submit_s[:, -1:]
    assert before.sum() > 100
    np.testing.assert_array_equal(other.end_s[before], outcome.end_s[before])
