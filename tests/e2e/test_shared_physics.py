"""Jobs that share GPUs: the same through the running suite in virtual time and through the simulator.

As tests/e2e/test_one_physics.py, on the cluster of the scenario `shared`, with what decompose says of pairs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from adlro.records.outcomes import ApplicationSize
from adlro.services.orchestrator.clients import DecomposeClient
from adlro.sim.batch import BatchOutcome, BatchSimulator
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import Floats
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.pairs import pair_table
from benchmarks.philly_replay import EventLog, check_log
from tests.e2e.running_suite import RunningSuite, start_suite
from tests.e2e.shares import MODELS, SCENARIO, check_as_simulated, check_shared_work, drawn, replayed
from tests.policies import made

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # for what hangs


@pytest.fixture(scope="module")
def sharing_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    options = ("--port", "0", "--cluster", "shared", "--clock", "virtual", "--policy", "share_pairs")
    suite = start_suite(tmp_path_factory.mktemp("sharing"), *options)
    try:
        yield suite
    finally:
        code = suite.end()
    assert code == 0, suite.text
    assert suite.error_lines() == []


async def told_by(decompose: str, jobs: list[WorkloadJob]) -> Floats:
    """(F, F, K) what decompose says now of the families of the measured applications; once it has learned all."""
    names = pair_table(MODELS).applications
    there = sorted({job.application for job in jobs})
    client = DecomposeClient(decompose, 30.0)
    try:
        before = -1
        while True:
            found = await client.pairs([ApplicationSize(name) for name in there], MODELS)
            if found.revision == before:
                break
            before = found.revision
            await asyncio.sleep(1.0)
    finally:
        await client.close()
    kept = np.zeros((len(names) + 1, len(names) + 1, len(MODELS)))
    places = [names.index(name) for name in there]
    kept[np.ix_(places, places)] = found.kept
    return kept


def simulated(jobs: list[WorkloadJob], policy_name: str, told: Floats) -> BatchOutcome:
    policy, true = made(policy_name), pair_table(MODELS)
    packed = pack_jobs([jobs], SCENARIO.cluster)
    packed.family[0, : len(jobs)] = true.families([job.application for job in jobs])
    simulator = BatchSimulator(
        SCENARIO.cluster, packed, preempts=policy.preempts, shares=policy.shares, kept=true.kept, expected_kept=told
    )
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    return simulator.outcome()


@pytest.mark.parametrize(
    ("policy", "load", "count", "seed"),
    [("share_pairs", 0.9, 96, 31), ("share_pairs", 1.2, 128, 32), ("hold_gang", 1.0, 64, 33), ("fcfs", 1.0, 64, 34)],
)
async def test_every_job_starts_and_ends_when_and_where_the_simulator_says(
    sharing_suite: RunningSuite, policy: str, load: float, count: int, seed: int
) -> None:
    jobs = drawn(load, count, seed)
    told = await told_by(sharing_suite.status["addresses"]["decompose"], jobs)
    async with EventLog(sharing_suite.status["addresses"]["simcluster"]) as log:
        result = await replayed(sharing_suite.server, jobs, policy)
        await log.catch_up()
    check_as_simulated(result, simulated(jobs, policy, told))
    assert (check_shared_work(result, jobs) > 5) == (policy == "share_pairs")
    check_log(log.events, result.jobs, result.cluster)
