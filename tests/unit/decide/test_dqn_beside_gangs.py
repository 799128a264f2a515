"""The learned policy where jobs of several GPUs run and none waits: it leaves nodes whole for the next."""

from __future__ import annotations

import dataclasses

import numpy as np

from adlro.decide.policies.dqn import Dqn
from adlro.decide.policies.hold_gang import HoldGang
from adlro.decide.present import waiting_gangs
from adlro.decide.winner import winner
from adlro.sim.batch import BatchSimulator
from adlro.state.candidate_table import with_new_table
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import HOLD, Gangs
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.unit.decide.decision_points import merged
from tests.unit.decide.gang_points import Several, point

BESIDE = [Several(1, 5.0)]
SPARE, RUNS = [[0, 0, 0, 0], [0, 0, 20, 20], [0, 20, 20, 20]], [(6, 7), (9, 10, 11)]
"""Node 0 is empty; one job of several GPUs runs on node 1, another on node 2."""


def test_where_no_gang_waits_a_job_of_one_gpu_goes_where_it_leaves_nodes_whole_for_one() -> None:
    policy = Dqn().load()
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        first = np.cumsum([0, *(4 for _ in order)])
        moved = {4 * old + slot: int(first[place]) + slot for place, old in enumerate(order) for slot in range(4)}
        seen = point(BESIDE, [SPARE[old] for old in order], runs=[[moved[gpu] for gpu in run] for run in RUNS])
        judgement = policy.judge(seen)
        assert policy.choose(seen, judgement)[0, 1] == moved[8], "the fullest node"
        if order[0] == 0:
            assert judgement.notes[0].startswith("on the fullest node")
    alone = dataclasses.replace(point(BESIDE, SPARE), gangs=None)
    assert policy.act(alone)[0, 1] == 0, "where no job of several GPUs runs the network decides"


def test_what_runs_on_other_clusters_of_a_batch_moves_nothing() -> None:
    points = [point(BESIDE, SPARE), point(BESIDE, SPARE, runs=RUNS)]
    columns = zip(*(seen.gangs or () for seen in points), strict=True)
    beside = dataclasses.replace(merged(points), gangs=Gangs(*(np.concatenate(column) for column in columns)))
    assert Dqn().load().act(with_new_table(beside))[:, 1].tolist() == [0, 8]


def test_the_job_and_the_kind_of_gpu_are_still_the_networks_choice() -> None:
    scenario, policy, moves = load_scenario("gangs_64"), Dqn().load(), 0
    rng = np.random.default_rng(3)
    jobs = pack_jobs([draw_jobs(scenario, load=0.8, rng=rng, count=300)], scenario.cluster)
    simulator, base = BatchSimulator(scenario.cluster, jobs), HoldGang()
    while len(simulator.active):
        seen = simulator.observe()
        judgement = base.weigh(seen)
        if seen.gangs is not None and not waiting_gangs(seen)[0] and len(seen.table.job):
            kind = seen.gpu_kind[0][seen.table.gpu]
            its, alone = (winner(policy.judge(each).scores) for each in (seen, dataclasses.replace(seen, gangs=None)))
            assert (its == HOLD) == (alone == HOLD)
            if its != HOLD:
                assert seen.table.job[its] == seen.table.job[alone]
                assert kind[its] == kind[alone]
                moves += its != alone
        simulator.act(base.choose(seen, judgement), judgement.reserve)
    assert moves > 10
