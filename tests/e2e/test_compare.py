"""`adlro compare` with a running suite: what ran comes back, and the other policy's gain is that of the simulator."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from adlro.cli.replaying import ReplayOptions, ReplayResult, replay, replay_specs
from adlro.client import AsyncClient
from adlro.decide.policies import POLICIES
from adlro.sim.batch import simulate
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.e2e.running_suite import RunningSuite, adlro, adlro_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # for what hangs

JOBS = 220
ACTED, OTHER = "fcfs", "sjf"


def test_a_replayed_trace_comes_back_and_so_does_the_difference(suite: RunningSuite) -> None:
    scenario = load_scenario("paper")
    jobs = draw_jobs(scenario, load=0.9, count=JOBS, rng=np.random.default_rng(21))

    async def run() -> ReplayResult:
        async with AsyncClient(suite.server, patience_s=30.0) as client:
            return await replay(client, replay_specs(jobs), ReplayOptions(policy=ACTED))

    result = asyncio.run(run())
    bounds = ("--since", str(result.begin_s), "--acted", ACTED, "--resamples", "40")
    document = adlro_json("compare", OTHER, *bounds, server=suite.server, timeout_s=300.0)

    arrays = pack_jobs([jobs], scenario.cluster)
    jct_s = {
        name: float((simulate(scenario.cluster, arrays, POLICIES[name]().act).end_s - arrays.submit_s).mean())
        for name in (ACTED, OTHER)
    }
    real_s = float(np.mean([job.jct_s for job in result.jobs if job.jct_s is not None]))
    assert document["jobs"]["measured"] == JOBS
    # Declared runtimes are true in a replay, and the suite's decisions have them.
    assert set(document["runtime"]["sources"]) <= {"decision", "estimate"}
    assert document["runtime"]["sources"]["decision"] > JOBS // 2
    assert document["check"]["real_mean_jct_s"] == pytest.approx(real_s, abs=1e-6)
    assert document["check"]["mean_jct_ratio"] == pytest.approx(1.0, abs=1e-6)
    assert document["check"]["same_start_share"] == 1.0
    (row,) = document["paired"]
    assert row["mean_jct_difference_s"] == pytest.approx(jct_s[OTHER] - jct_s[ACTED], abs=1e-4)
    assert document["interval"]["refused"] is None
    low, high = row["mean_jct_difference_s_ci95"]
    assert low < high

    shown = adlro("compare", OTHER, *bounds, "--limit", "50", server=suite.server, timeout_s=300.0)
    assert shown.returncode == 0, shown.stderr
    assert "no interval: too few finished jobs: 50 of 200" in shown.stdout
    assert "the replay's mean JCT equals the real one" in shown.stdout
