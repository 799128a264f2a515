"""The learned policy through the running suite: its checkpoint is replaced, then spoiled, its process killed; and still
every job goes where the simulator says.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from adlro.cli.replaying import ReplayOptions, replay, replay_specs
from adlro.client import AsyncClient, OrchestratorStatus
from adlro.decide.planes.choice import Margins
from adlro.decide.policies.dqn import Dqn
from adlro.errors import AdlroError
from adlro.records.jobs import JobState
from adlro.sim.batch import simulate
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.e2e.running_suite import RunningSuite, adlro, marked_pids, start_suite
from tests.networks import network, put

pytestmark = pytest.mark.slow

WEIGHTS = {"duration": -1.3, "slowdown": -0.7, "misfit": -0.2, "cores_left": -0.5, "base_choice": 0.3}
MARGINS = Margins(0.05, 0.5)
JOBS = 128
PATIENCE_S = 120.0
ROUNDING_S = 1e-6


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return put(tmp_path / "net.onnx", network(WEIGHTS, hold=-1.5, margins=MARGINS))


@pytest.fixture
def suite(tmp_path: Path, checkpoint: Path) -> Iterator[RunningSuite]:
    running = start_suite(
        tmp_path / "data", "--port", "0", "--clock", "virtual", ADLRO_ORCHESTRATOR_CHECKPOINT=str(checkpoint)
    )
    try:
        yield running
    finally:
        code = running.end()
    assert code == 0, running.text
    assert marked_pids(running.mark) == []


async def test_nothing_is_lost_while_its_checkpoint_is_replaced_and_its_process_killed(
    suite: RunningSuite, checkpoint: Path
) -> None:
    scenario = load_scenario("paper")
    jobs = draw_jobs(scenario, load=1.1, count=JOBS, rng=np.random.default_rng(31))
    first = Dqn(checkpoint).load()
    expected = simulate(scenario.cluster, pack_jobs([jobs], scenario.cluster), first.act)
    # It decides alike, but is another one.
    again = network(WEIGHTS, hold=-1.5, margins=MARGINS, seed=2)

    async with AsyncClient(suite.server, patience_s=PATIENCE_S) as client, asyncio.TaskGroup() as group:
        before = await client.status()
        assert (before.policy, before.policy_version) == ("dqn", first.version)  # from the first start

        async def disturb() -> None:
            await _until_ended(client, JOBS // 8)
            put(checkpoint, again)
            await _until(client, lambda status: status.checkpoints_loaded_count == 2)
            put(checkpoint, b"no network")
            await _until(client, lambda status: status.checkpoints_refused_count == 1)
            pid = suite.pids["orchestrator"]
            os.kill(pid, signal.SIGKILL)
            put(checkpoint, again)
            await asyncio.to_thread(suite.wait_until_said, "orchestrator is back", PATIENCE_S)

        disturbing = group.create_task(disturb())
        # Slowly enough that it is disturbed in the middle.
        result = await replay(client, replay_specs(jobs), ReplayOptions(policy="dqn", scale=15.0))
        await disturbing
        status = await client.status()

    assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}
    assert {len(job.attempts) for job in result.jobs} == {1}
    gpu_ids = [gpu.gpu_id for _, gpu in result.cluster.gpus()]
    assert [gpu_ids.index(job.attempts[0].gpu_id) for job in result.jobs] == expected.gpu[0].tolist()
    starts_s = np.array([job.start_s for job in result.jobs], dtype=np.float64)
    np.testing.assert_allclose(starts_s - result.begin_s, expected.start_s[0], rtol=0, atol=ROUNDING_S)
    assert (status.policy, status.policy_problem) == ("dqn", "")
    assert status.policy_version not in ("", first.version)
    assert {str(reason) for reason in status.fallbacks} <= {"out_of_range"}

    shown = adlro("describe", "decision", result.jobs[-1].job_id, server=suite.server)
    assert shown.returncode == 0, shown.stderr
    assert "checkpoint" in shown.stdout
    assert status.policy_version in shown.stdout


async def _until_ended(client: AsyncClient, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if sum([job.state.final async for job in client.list()]) >= count:
                return
            await asyncio.sleep(0.1)


async def _until(client: AsyncClient, holds: Callable[[OrchestratorStatus], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if holds(await client.status()):
                    return
            except AdlroError:
                pass
            await asyncio.sleep(0.1)
