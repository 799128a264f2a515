"""Real jobs with their real numbers of GPUs, by `adlro replay --multi-gpu gang` on 64 GPUs: each to its end."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adlro.client import AsyncClient, JobFilter
from adlro.hardware.gang_speeds import spread_speed
from adlro.hardware.speeds import SHIPPED
from adlro.records.cluster import Cluster
from adlro.records.events import ClusterEvent
from adlro.records.jobs import Job, JobState
from benchmarks.philly_replay import EventLog, check_log
from tests.e2e.records import check_placements, makespan_s, mean_jct_s, mean_jobs_in_system
from tests.e2e.running_suite import RunningSuite, adlro, start_suite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # for what hangs

JOBS, GPUS_OF_A_NODE = 400, 4


@pytest.fixture(scope="module")
def gang_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    """64 GPUs of three models in virtual time, under the rule with reservations."""
    options = ("--port", "0", "--cluster", "gangs_64", "--clock", "virtual", "--policy", "hold_gang")
    suite = start_suite(tmp_path_factory.mktemp("gangs"), *options)
    try:
        yield suite
    finally:
        code = suite.end()
    assert code == 0, suite.text
    assert suite.error_lines() == []


@dataclass
class Replayed:
    """One replay: its report, its jobs in the order of submission, and the cluster with its event log."""

    report: dict[str, Any]
    jobs: list[Job]
    cluster: Cluster
    events: list[ClusterEvent]


@pytest.fixture(scope="module")
def trace(shared_data: Path) -> Path:
    return shared_data / "traces" / "philly_first_half.csv"


@pytest.fixture(scope="module")
def replayed(gang_suite: RunningSuite, trace: Path) -> Replayed:
    return asyncio.run(_replay(gang_suite, trace))


async def _replay(suite: RunningSuite, trace: Path) -> Replayed:
    async with AsyncClient(suite.server) as client, EventLog(suite.status["addresses"]["simcluster"]) as log:
        options = ("--multi-gpu", "gang", "--jobs", str(JOBS), "-o", "json")
        ended = await asyncio.to_thread(adlro, "replay", str(trace), *options, server=suite.server, timeout_s=600.0)
        assert ended.returncode == 0, ended.stderr
        report = json.loads(ended.stdout)
        mine = JobFilter(labels={"adlro-replay": report["replay_id"]})
        jobs = [job async for job in client.list(mine)]
        await log.catch_up()
        return Replayed(report, jobs, await client.cluster(), log.events)


def test_every_job_ended_with_the_gpus_that_it_has_in_the_trace(replayed: Replayed, trace: Path) -> None:
    with trace.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if float(row["duration"]) > 0][:JOBS]
    assert [job.spec.gpu_count for job in replayed.jobs] == [int(row["num_gpus"]) for row in rows]
    assert {1, 2, 4, 8, 16} <= {job.spec.gpu_count for job in replayed.jobs}
    assert {job.state for job in replayed.jobs} == {JobState.SUCCEEDED}
    assert replayed.report["jobs"]["succeeded"] == JOBS
    assert any("have several GPUs and keep them" in note for note in replayed.report["notes"])
    for job, row in zip(replayed.jobs, rows, strict=True):
        speed = SHIPPED.speed(job.spec.application, job.spec.job_type, job.gpu_model)
        nodes = {gpu_id.rpartition("/")[0] for gpu_id in job.placement.gpu_ids}
        if len(nodes) > -(-job.spec.gpu_count // GPUS_OF_A_NODE):
            speed *= spread_speed(job.spec.application, job.spec.job_type, job.spec.gpu_count, job.gpu_model)
        assert job.runtime_s == pytest.approx(float(row["duration"]) / speed, rel=1e-9, abs=1e-6), job.job_id


def test_nothing_was_overbooked_at_any_event(replayed: Replayed) -> None:
    check_placements(replayed.jobs, replayed.cluster)
    found = check_log(replayed.events, replayed.jobs, replayed.cluster)
    assert found["starts"] == JOBS
    assert found["most_gpus_in_use"] > 32


def test_littles_law_holds(replayed: Replayed) -> None:
    jobs = replayed.jobs
    throughput_per_s = JOBS / makespan_s(jobs)
    assert mean_jobs_in_system(jobs) == pytest.approx(throughput_per_s * mean_jct_s(jobs), rel=0.01)
    busy_s = sum(len(job.placement.gpus) * (job.runtime_s or 0.0) for job in jobs)
    told = replayed.report["utilization"]["overall"] * 64 * makespan_s(jobs)
    assert told == pytest.approx(busy_s, rel=1e-6)
