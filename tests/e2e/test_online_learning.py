"""Runtimes learned while a replay goes on: the running suite, over gRPC, with jobs of which nothing is declared."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.cli.replaying import ReplayOptions, replay, replay_specs
from adlro.client import AsyncClient
from adlro.jobs import JobState
from adlro.sim.batch import simulate
from adlro.sim.estimates import expected_s, parse_runtime
from adlro.sim.job_arrays import pack_jobs
from adlro.sim.observation import Floats
from adlro.sim.scenario import load_scenario
from adlro.sim.workload import draw_jobs
from services.orchestrator.policies import POLICIES
from services.orchestrator.predictions import declared_runtime_s
from tests.e2e.running_suite import RunningSuite

pytestmark = pytest.mark.slow

JOBS, LATE = 600, slice(300, None)


@pytest.mark.timeout(120)
async def test_late_jobs_of_a_replay_gain_from_what_the_early_ones_taught(suite: RunningSuite) -> None:
    """All are submitted before the first one runs, so nothing is learned where predictions stay those of submission."""
    scenario = load_scenario("paper")
    jobs = draw_jobs(scenario, load=0.9, count=JOBS, rng=np.random.default_rng(7))

    models = scenario.cluster.gpu_models
    specs = replay_specs(jobs, exact_runtimes=False)
    assert all(spec.expected_runtime is None for spec in specs)

    def simulated_s(believed_s: Floats) -> float:
        arrays = pack_jobs([jobs], scenario.cluster, [believed_s])
        outcome = simulate(scenario.cluster, arrays, POLICIES["mct"]().act)
        return float((outcome.end_s[0] - arrays.submit_s[0])[LATE].mean())

    by_group_s = simulated_s(expected_s(jobs, models, parse_runtime("group"), scenario, 0))
    unlearned_s = simulated_s(np.array([[declared_runtime_s(spec, model) for model in models] for spec in specs]))
    assert unlearned_s > 1.1 * by_group_s  # else this list has nothing to show

    async with AsyncClient(suite.server, patience_s=30.0) as client:
        result = await replay(client, specs, ReplayOptions(policy="mct"))
    assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}
    online_s = float(np.mean([job.jct_s for job in result.jobs][LATE]))
    assert online_s < (by_group_s + unlearned_s) / 2
