"""The policy drain_gang by hand: for whom it drains GPUs, and for how long."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.decide.policies.drain_gang import DrainGang
from adlro.decide.policies.hold_gang import HoldGang
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.sim.batch import BatchSimulator
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import HOLD
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.unit.sim.test_gang_physics import V100, begin, cluster, job, simulator


def chosen(made: BatchSimulator, rule: HoldGang) -> tuple[int, list[int], int]:
    """The job's place, its GPUs, and the place of the job that GPUs are kept free for."""
    rule.wait_ratio = np.inf
    seen = made.observe()
    judgement = rule.judge(seen)
    assert judgement.reserve is not None
    action = rule.choose(seen, judgement)[0]
    return int(action[0]), action[1:][action[1:] >= 0].tolist(), int(judgement.reserve[0])


def hold(made: BatchSimulator, reserve: int) -> None:
    made.act(np.array([[HOLD] * 5]), np.array([reserve]))


def one_node_with(*jobs: tuple[int, float, float]) -> BatchSimulator:
    """A node of 4 GPUs with a job until 4 s on the first, and jobs: GPUs, submission, duration."""
    made = simulator(cluster((V100, 4)), [job(1, work_s=4.0), *(job(n, at, work_s=s) for n, at, s in jobs)])
    begin(made, 0, 0)
    return made


def test_gpus_are_drained_for_a_job_that_would_soon_be_done():
    # At 2 s: 6 times the wait of 2 s and 1 s of duration are 13 s, less than 3 times 5 s.
    made = one_node_with((4, 2.0, 1.0), (1, 2.0, 5.0))
    assert made.time_s[0] == 2.0
    assert chosen(made, HoldGang()) == (1, [1], -1)
    assert chosen(made, DrainGang()) == (HOLD, [], 0)
    hold(made, 0)
    # It fits, needs no reservation any more, and costs less than the other one.
    assert made.time_s[0] == 4.0
    assert chosen(made, DrainGang()) == (0, [0, 1, 2, 3], -1)


def test_gpus_are_not_drained_for_longer_than_the_others_are_worth():
    made = one_node_with((4, 2.0, 1.0), (1, 2.0, 4.0))  # 3 times 4 s are less than 13 s
    assert chosen(made, DrainGang()) == (1, [1], -1)


def test_a_drain_passes_when_a_short_job_arrives():
    made = one_node_with((4, 2.0, 1.0), (1, 2.0, 50.0), (1, 3.0, 1.5))
    assert chosen(made, DrainGang()) == (HOLD, [], 0)
    hold(made, 0)
    # 6 s and 1 s, more than 3 times 1.5 s.
    assert made.time_s[0] == 3.0
    assert chosen(made, DrainGang()) == (2, [1], -1)


def test_of_two_the_one_whose_wait_and_duration_are_least_is_drained_for():
    made = one_node_with((4, 2.0, 3.0), (4, 2.0, 1.0), (1, 2.0, 50.0))
    assert chosen(made, DrainGang()) == (HOLD, [], 1)


def test_a_job_that_has_waited_long_keeps_its_reservation():
    made = simulator(
        cluster((V100, 4)),
        [job(1, work_s=40.0), job(4, 1.0, work_s=1.0), job(1, 12.0, work_s=40.0), job(1, 13.0, work_s=1.0)],
    )
    begin(made, 0, 0)
    # 11 times its second, and a drain of 28 s: no drain would be worth that, but it has waited long.
    assert made.time_s[0] == 12.0
    assert chosen(made, DrainGang()) == (HOLD, [], 0)
    hold(made, 0)
    assert chosen(made, DrainGang()) == (2, [1], 0)  # it ends in time


@pytest.mark.parametrize("load", [0.9, 1.1])
def test_without_gangs_it_is_hold_greedy_fixed_bit_for_bit(load: float):
    scenario = load_scenario("paper")
    jobs = pack_jobs([draw_jobs(scenario, load=load, rng=np.random.default_rng(5), count=48)], scenario.cluster)
    made, rule, single = BatchSimulator(scenario.cluster, jobs), DrainGang(), HoldGreedyFixed()
    while len(made.active):
        seen = made.observe()
        assert np.array_equal(rule.scores(seen), single.scores(seen))
        made.act(rule.act(seen))
