"""The same jobs through the running suite in virtual time and through the batched simulator, under every policy.

Both sides are told the true runtimes, so that they see the same observations: the suite by declared runtimes, which
decompose takes as they stand. What differs is everything else: gRPC, the store, three processes and a clock on the one
side, arrays on the other.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import numpy as np
import pytest

from adlro.cli.replaying import ReplayOptions, replay, replay_specs
from adlro.client import AsyncClient
from adlro.decide.policies import POLICIES
from adlro.records.jobs import JobState
from adlro.sim.batch import BatchSimulator
from adlro.state.gangs import gpus_of
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.scenario import load_scenario
from tests.e2e.running_suite import RunningSuite
from tests.picky_jobs import picky
from tests.policies import made
from tests.volume import DEEP

pytestmark = pytest.mark.slow

SCENARIO = load_scenario("paper")
GANGS = load_scenario("gangs")
LISTS = (("paper", 1.1, 48, 12), ("gangs", 1.0, 48, 13), ("nodes", 0.9, 48, 14), ("paper", 0.9, 48, 11))
"""(scenario, load, jobs, seed). The last has nothing that the others have not: `make test-deep` plays it."""
ROUNDING_S = 1e-6
"""Cluster time is wherever the suite has come to: floats of that size, added to the list's own times."""


@pytest.fixture(params=LISTS if DEEP else LISTS[:-1], ids=lambda drawn: f"{drawn[0]}, load {drawn[1]}")
def jobs(request: pytest.FixtureRequest) -> list[WorkloadJob]:
    name, load, count, seed = request.param
    rng, scenario = np.random.default_rng(seed), SCENARIO if name == "paper" else GANGS
    drawn = draw_jobs(scenario, load=load, count=count, rng=rng)
    if name == "paper":
        return drawn
    # The nodes of the other scenario have more cores; four GPUs of a job are to fit on one of these.
    fitting = [replace(job, cpu_cores=min(job.cpu_cores, 5)) for job in drawn]
    return picky(fitting, SCENARIO.cluster, rng) if name == "nodes" else fitting


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_job_starts_and_ends_when_and_where_the_simulator_says(
    suite: RunningSuite, jobs: list[WorkloadJob], policy: str
) -> None:
    decides = made(policy)
    # What users have had of GPU time outlasts a replay: each has users of its own, as the simulator's lists do.
    mark = uuid.uuid4().hex[:8]
    own = [replace(job, user=f"{job.user}.{mark}") for job in jobs]
    # The simulator goes first: it compiles the policy's code, which the suite then finds compiled.
    simulator = BatchSimulator(SCENARIO.cluster, pack_jobs([own], SCENARIO.cluster))
    while len(simulator.active):
        seen = simulator.observe()
        judgement = decides.judge(seen)
        simulator.act(decides.choose(seen, judgement), judgement.reserve)
    outcome = simulator.outcome()
    assert not outcome.stuck.any()

    async with AsyncClient(suite.server, patience_s=30.0) as client:
        result = await replay(client, replay_specs(own), ReplayOptions(policy=policy))
    assert result.policy == policy
    assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}
    gpu_ids = [gpu.gpu_id for _, gpu in result.cluster.gpus()]
    found = [
        (tuple(map(gpu_ids.index, job.attempts[0].placement.gpu_ids)), job.start_s, job.end_s) for job in result.jobs
    ]
    gpus, starts_s, ends_s = zip(*found, strict=True)
    assert [len(job.attempts) for job in result.jobs] == outcome.attempts[0].tolist()
    assert list(gpus) == [gpus_of(row) for row in outcome.gpus[0]]
    np.testing.assert_allclose(np.array(starts_s) - result.begin_s, outcome.start_s[0], rtol=0, atol=ROUNDING_S)
    np.testing.assert_allclose(np.array(ends_s) - result.begin_s, outcome.end_s[0], rtol=0, atol=ROUNDING_S)
