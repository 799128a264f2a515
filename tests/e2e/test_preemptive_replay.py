"""A written list of jobs that can be stopped, replayed where the owner lets policies stop jobs: each to its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adlro.client import AsyncClient, JobFilter
from adlro.records.cluster import Cluster
from adlro.records.events import ClusterEvent, EventKind
from adlro.records.jobs import Job, JobState, Preemptible
from benchmarks.philly_replay import EventLog, check_log
from tests.e2e.running_suite import RunningSuite, adlro, start_suite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # for what hangs

JOBS, RESTART_S = 150, 0.3


@pytest.fixture(scope="module")
def stopping_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    """The cluster of the scenario in virtual time, where jobs may be stopped at once."""
    options = ("--port", "0", "--cluster", "preemptive", "--clock", "virtual", "--policy", "srtf")
    settings = {"ADLRO_ORCHESTRATOR_PREEMPTION": "on", "ADLRO_ORCHESTRATOR_PREEMPTION_MIN_RUN_S": "0"}
    suite = start_suite(tmp_path_factory.mktemp("stops"), *options, **settings)
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
def replayed(stopping_suite: RunningSuite, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    trace = tmp_path_factory.mktemp("list") / "jobs.csv"
    asked = ("--scenario", "preemptive", "--load", "0.9", "--jobs", str(JOBS), "--seed", "5", "--write", str(trace))
    written = adlro("workload", *asked)
    assert written.returncode == 0, written.stderr
    return asyncio.run(_replay(stopping_suite, trace))


async def _replay(suite: RunningSuite, trace: Path) -> Replayed:
    async with AsyncClient(suite.server) as client, EventLog(suite.status["addresses"]["simcluster"]) as log:
        ended = await asyncio.to_thread(adlro, "replay", str(trace), "-o", "json", server=suite.server, timeout_s=600.0)
        assert ended.returncode == 0, ended.stderr
        report = json.loads(ended.stdout)
        jobs = [job async for job in client.list(JobFilter(labels={"adlro-replay": report["replay_id"]}))]
        await log.catch_up()
        return Replayed(report, jobs, await client.cluster(), log.events)


def test_jobs_are_stopped_go_on_and_end(replayed: Replayed) -> None:
    assert {job.spec.preemptible for job in replayed.jobs} == {Preemptible(RESTART_S)}
    assert {job.state for job in replayed.jobs} == {JobState.SUCCEEDED}
    stops = sum(each.preempted for job in replayed.jobs for each in job.attempts)
    assert stops > 10
    assert replayed.report["jobs"]["stops"] == stops
    assert sum(event.kind is EventKind.PREEMPTED for event in replayed.events) == stops
    by_id = {job.job_id: job for job in replayed.jobs}
    for job in replayed.jobs:
        *earlier, last = job.attempts
        assert last.outcome == "succeeded"
        assert not last.preempted
        for each in earlier:
            other = by_id[each.outcome.removeprefix("preempted: for ")]
            assert any(
                ref.job_id == job.job_id and ref.attempt == each.attempt for a in other.attempts for ref in a.preempts
            )


def test_no_gpu_had_two_jobs_at_any_event(replayed: Replayed) -> None:
    starts = check_log(replayed.events, replayed.jobs, replayed.cluster)["starts"]
    assert starts == sum(len(job.attempts) for job in replayed.jobs)


def test_describe_tells_of_a_jobs_stops(replayed: Replayed, stopping_suite: RunningSuite) -> None:
    job = max(replayed.jobs, key=lambda each: len(each.attempts))
    shown = adlro("describe", "job", job.job_id, server=stopping_suite.server)
    text = " ".join(shown.stdout.split())
    assert "preemptible each new start takes 0.3 s" in text
    assert "preempted: for job-" in text
    assert "of its work was left at the last start" in text
