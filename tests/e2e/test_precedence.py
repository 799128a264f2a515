"""A rule of precedence in the running suite: the schedule is the simulator's, and the commands tell of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from adlro.cli.replaying import ReplayOptions, replay, replay_specs
from adlro.client import AsyncClient, Client
from adlro.records.jobs import JobState
from adlro.records.precedence import parse_precedence
from adlro.sim.batch import BatchSimulator
from adlro.state.gangs import gpus_of
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.e2e.running_suite import RunningSuite, adlro, adlro_json, start_suite
from tests.policies import made

pytestmark = pytest.mark.slow

RULE = "fair_share=2,age=1,priority=1,half_life=10m,full_age=5m"
SCENARIO = load_scenario("paper")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    options = ("--port", "0", "--clock", "virtual")
    suite = start_suite(tmp_path_factory.mktemp("precedence"), *options, ADLRO_ORCHESTRATOR_PRECEDENCE=RULE)
    try:
        yield suite
    finally:
        suite.end()


@pytest.mark.parametrize("name", ["fcfs", "dqn"])
async def test_jobs_go_before_others_as_in_the_simulator(suite: RunningSuite, name: str) -> None:
    drawn = draw_jobs(SCENARIO, load=1.1, count=64, rng=np.random.default_rng(21))
    jobs = [replace(job, user=f"{job.user}.{name}") for job in drawn]  # GPU time outlasts a replay
    async with AsyncClient(suite.server, patience_s=30.0) as client:
        result = await replay(client, replay_specs(jobs), ReplayOptions(policy=name))
    assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}
    gpu_ids = [gpu.gpu_id for _, gpu in result.cluster.gpus()]
    policy = made(name)
    policy.precedence = parse_precedence(RULE)
    assert policy.precedence is not None
    packed = pack_jobs([jobs], SCENARIO.cluster)
    simulator = BatchSimulator(SCENARIO.cluster, packed, half_life_s=policy.precedence.half_life_s)
    while len(simulator.active):
        seen = simulator.observe()
        simulator.act(policy.act(seen))
    outcome = simulator.outcome()
    found = [tuple(map(gpu_ids.index, job.attempts[0].placement.gpu_ids)) for job in result.jobs]
    assert found == [gpus_of(row) for row in outcome.gpus[0]]
    starts_s = np.array([job.start_s for job in result.jobs]) - result.begin_s
    np.testing.assert_allclose(starts_s, outcome.start_s[0], rtol=0, atol=1e-6)
    without = made(name)
    plain = BatchSimulator(SCENARIO.cluster, packed)
    while len(plain.active):
        plain.act(without.act(plain.observe()))
    assert plain.outcome().start_s.tolist() != outcome.start_s.tolist()


def test_the_rule_is_told(suite: RunningSuite) -> None:
    with Client(suite.server) as client:
        assert parse_precedence(client.status().precedence) == parse_precedence(RULE)
    said = adlro("fair-share", "ann", "--shares", "2", "--group", "vision", server=suite.server).stdout
    assert said == "ann: 2 shares, in the group vision\n"
    assert adlro("fair-share", "@vision", "--shares", "3", server=suite.server).stdout == "@vision: 3 shares\n"
    listed = adlro_json("fair-share", server=suite.server)["fair_shares"]
    assert {each["account"] for each in listed} >= {"@vision", "ann"}
    assert "GPU HOURS" in adlro("fair-share", server=suite.server).stdout
