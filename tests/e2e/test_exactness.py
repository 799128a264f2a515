"""Lists of the paper scenario through gRPC, in virtual time: what an independent program got on them.

Four of the ten; `make test-deep` plays all, and tests/unit/sim/test_batch_lists.py in the simulator.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from adlro.cli.replaying import ReplayOptions, replay, replay_specs
from adlro.client import AsyncClient
from adlro.records.jobs import JobState, SimulatedWork
from adlro.workload.traces import read_paper_csv
from tests.e2e.records import check_placements, makespan_s, mean_jct_s, mean_jobs_in_system
from tests.e2e.running_suite import RunningSuite
from tests.volume import DEEP

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1200)  # for what hangs: ten lists take about a minute where nothing else runs
@pytest.mark.parametrize("policy", ["fcfs", "fcfs_fastest", "sjf"])
async def test_mean_jct_and_makespan_are_those_of_the_reference(
    suite: RunningSuite, shared_data: Path, policy: str
) -> None:
    with (shared_data / "paper" / "expected.csv").open(encoding="utf-8", newline="") as file:
        expected = list(csv.DictReader(file))
    assert len(expected) == 10
    async with AsyncClient(suite.server, patience_s=30.0) as client:
        for row in expected if DEEP else expected[:4]:
            workload = read_paper_csv(shared_data / "paper" / row["file"])
            result = await replay(client, replay_specs(workload), ReplayOptions(policy=policy))
            jobs = result.jobs
            assert [job.spec.simulated_work for job in jobs] == [SimulatedWork(each.work_s) for each in workload]
            assert {job.state for job in jobs} == {JobState.SUCCEEDED}
            found = (mean_jct_s(jobs), makespan_s(jobs))
            wanted = (float(row[f"{policy}_mean_jct_s"]), float(row[f"{policy}_makespan_s"]))
            assert found == pytest.approx(wanted, rel=1e-3), row["file"]
            check_placements(jobs, result.cluster)
            throughput_per_s = len(jobs) / makespan_s(jobs)
            assert mean_jobs_in_system(jobs) == pytest.approx(throughput_per_s * mean_jct_s(jobs), rel=0.01)
