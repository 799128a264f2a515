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
from adlro.sim.batch import simulate
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.scenario import load_scenario
from tests.e2e.running_suite import RunningSuite
from tests.policies import made

pytestmark = pytest.mark.slow

SCENARIO = load_scenario("paper")
LISTS = ((0.9, 64, 11), (1.1, 64, 12))
"""(load, jobs, seed)."""
ROUNDING_S = 1e-6
"""Cluster time is wherever the suite has come to: floats of that size, added to the list's own times."""


@pytest.fixture(params=LISTS, ids=lambda drawn: f"load {drawn[0]}")
def jobs(request: pytest.FixtureRequest) -> list[WorkloadJob]:
    load, count, seed = request.param
    return draw_jobs(SCENARIO, load=load, count=count, rng=np.random.default_rng(seed))


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_job_starts_and_ends_when_and_where_the_simulator_says(
    suite: RunningSuite, jobs: list[WorkloadJob], policy: str
) -> None:
    decides = made(policy)
    # What users have had of GPU time outlasts a replay: each has users of its own, as the simulator's lists do.
    mark = uuid.uuid4().hex[:8]
    own = [replace(job, user=f"{job.user}.{mark}") for job in jobs]
    async with AsyncClient(suite.server, patience_s=30.0) as client:
        result = await replay(client, replay_specs(own), ReplayOptions(policy=policy))
    assert result.policy == policy
    assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}
    gpu_ids = [gpu.gpu_id for _, gpu in result.cluster.gpus()]

    outcome = simulate(SCENARIO.cluster, pack_jobs([own], SCENARIO.cluster), decides.act)
    assert not outcome.stuck.any()
    found = [(gpu_ids.index(job.attempts[0].gpu_id), job.start_s, job.end_s) for job in result.jobs]
    gpus, starts_s, ends_s = (np.array(column) for column in zip(*found, strict=True))
    assert [len(job.attempts) for job in result.jobs] == outcome.attempts[0].tolist()
    np.testing.assert_array_equal(gpus, outcome.gpu[0])
    np.testing.assert_allclose(starts_s - result.begin_s, outcome.start_s[0], rtol=0, atol=ROUNDING_S)
    np.testing.assert_allclose(ends_s - result.begin_s, outcome.end_s[0], rtol=0, atol=ROUNDING_S)
