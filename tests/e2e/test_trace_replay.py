"""`adlro replay` of a real trace through the running services; the trace, the queue and a watcher agree job for job."""

from __future__ import annotations

import asyncio
import csv
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adlro.client import AsyncClient, JobEvent, JobEventKind
from adlro.kit.testing import ROOT
from adlro.records.jobs import Job, JobState
from tests.e2e.records import check_placements, makespan_s, mean_jct_s, mean_jobs_in_system
from tests.e2e.running_suite import ADLRO, RunningSuite, adlro_json, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # for what hangs

JOBS = 2000


@dataclass
class Replayed:
    """What each side says of one replay."""

    report: dict[str, Any]
    queue: list[dict[str, Any]]
    events: list[JobEvent]
    server: str

    @property
    def jobs(self) -> list[Job]:
        """The watcher's last word on each job, in the order of submission."""
        last = {event.job.job_id: event.job for event in self.events if event.job is not None}
        return [last[row["job_id"]] for row in self.queue]


@pytest.fixture(scope="module")
def swf(shared_data: Path) -> Path:
    return shared_data / "traces" / "lublin_256.swf"


@pytest.fixture(scope="module")
def replayed(whole_suite: RunningSuite, swf: Path) -> Replayed:
    """The replay; the tests below look at it from all sides."""
    return asyncio.run(_replay(whole_suite.server, swf))


async def _replay(server: str, swf: Path) -> Replayed:
    events: list[JobEvent] = []
    async with AsyncClient(server) as client:
        # Everything from here on, of all jobs: so that a gap between revisions shows.
        following = asyncio.create_task(_follow(client, events))
        async with asyncio.timeout(60.0):
            while not events:  # the end of the snapshot
                await asyncio.sleep(0.01)
                assert not following.done(), following.exception()
        process = await asyncio.create_subprocess_exec(
            *ADLRO, "replay", str(swf), "--jobs", str(JOBS), "--server", server, "-o", "json",
            cwd=ROOT,
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(), 600.0)
        except BaseException:
            process.kill()
            raise
        assert process.returncode == 0, stderr.decode()
        report = json.loads(stdout)
        queue = adlro_json("queue", "--all", "--label", f"adlro-replay={report['replay_id']}", server=server)["jobs"]
        last_revision = max(row["revision"] for row in queue)
        async with asyncio.timeout(60.0):
            while not events or events[-1].revision < last_revision:
                await asyncio.sleep(0.01)
                assert not following.done(), following.exception()
        following.cancel()
    return Replayed(report, queue, events, server)


async def _follow(client: AsyncClient, events: list[JobEvent]) -> None:
    async for event in client.watch():
        if event.kind is not JobEventKind.SNAPSHOT:
            events.append(event)  # others look at the list meanwhile


def read_trace(swf: Path) -> list[tuple[float, float]]:
    """Submission and run time of the first jobs, in the order of submission; read here once more, the plain way."""
    found = []
    for line in swf.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith(";"):
            continue
        fields = line.split()
        # Field 4 is the run time, field 11 the status: 5 is a cancelled job.
        if float(fields[3]) > 0 and fields[10] != "5":
            found.append((float(fields[1]), float(fields[3])))
        if len(found) == JOBS:
            break
    return sorted(found, key=lambda job: job[0])


def read_speeds(shared_data: Path) -> dict[tuple[str, str], float]:
    """Speed by application and GPU model."""
    with (shared_data / "speeds.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    models = ("v100_sxm2", "rtx_2080_ti", "radeon_vii")
    return {(row["application"], model): float(row[model]) for row in rows for model in models}


def test_every_job_ended_well_and_the_report_says_so(replayed: Replayed) -> None:
    report = replayed.report
    assert report["jobs"] == {
        "total": JOBS, "succeeded": JOBS, "failed": 0, "cancelled": 0, "several_attempts": 0, "stops": 0,
    }  # fmt: skip
    assert len(replayed.queue) == JOBS
    assert {row["state"] for row in replayed.queue} == {"succeeded"}
    assert any("several processors" in note for note in report["notes"])
    assert any("seed 0" in note for note in report["notes"])


def test_queue_and_trace_agree_job_for_job(replayed: Replayed, swf: Path, shared_data: Path) -> None:
    speed = read_speeds(shared_data)
    trace = read_trace(swf)
    first_s = replayed.queue[0]["submit_s"]
    for row, (submit_s, run_s) in zip(replayed.queue, trace, strict=True):
        assert row["submit_s"] == row["spec"]["begin_time_s"]
        assert row["submit_s"] - first_s == pytest.approx(submit_s - trace[0][0], abs=1e-6)
        assert row["spec"]["simulated_work"]["work_s"] == run_s
        held_s = run_s / speed[row["spec"]["application"], row["gpu_model"]]
        assert row["end_s"] - row["start_s"] == pytest.approx(held_s, rel=1e-9, abs=1e-6)
        assert row["start_s"] >= row["submit_s"]


def test_the_watcher_saw_every_change_once_and_in_order(replayed: Replayed) -> None:
    changes = [event for event in replayed.events if event.kind is JobEventKind.CHANGE]
    revisions = [event.revision for event in changes]
    assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))
    states: dict[str, list[JobState]] = defaultdict(list)
    for event in changes:
        assert event.job is not None
        assert event.job.revision == event.revision
        seen = states[event.job.job_id]
        if not seen or seen[-1] is not event.job.state:
            seen.append(event.job.state)
    course = [JobState.PENDING, JobState.RUNNING, JobState.SUCCEEDED]
    assert {row["job_id"]: course for row in replayed.queue} == states


def test_queue_and_watcher_agree_job_for_job(replayed: Replayed) -> None:
    for row, job in zip(replayed.queue, replayed.jobs, strict=True):
        assert row["state"] == job.state.name.lower()
        for name in ("submit_s", "start_s", "end_s", "gpu_id", "gpu_model", "attempt_count", "revision", "jct_s"):
            assert row[name] == getattr(job, name), f"{name} of {job.job_id}"


async def test_every_placement_was_possible(replayed: Replayed) -> None:
    async with AsyncClient(replayed.server) as client:
        check_placements(replayed.jobs, await client.cluster())


def test_littles_law_holds_for_the_records_and_for_the_report(replayed: Replayed) -> None:
    jobs, report = replayed.jobs, replayed.report
    throughput_per_s = JOBS / makespan_s(jobs)
    assert mean_jobs_in_system(jobs) == pytest.approx(throughput_per_s * mean_jct_s(jobs), rel=0.01)
    # The report's own figures: those who wait and those who run are those in the system.
    told_per_s = report["throughput_jobs_per_h"] / 3600.0
    running = 16 * report["utilization"]["overall"]
    waiting = told_per_s * report["wait_s"]["mean"]
    assert running + waiting == pytest.approx(told_per_s * report["jct_s"]["mean"], rel=1e-6)
    assert running + waiting == pytest.approx(mean_jobs_in_system(jobs), rel=0.01)
