"""Traces through the running services: exact to an independent program, whole after a `kill -9` of anything."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from adlro.client import Client, JobEventKind, JobFilter
from adlro.jobs import Job, JobState
from tests.e2e.conftest import COMMAND, ROOT, RunningSuite, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KILLED = ("simcluster", "orchestrator", "ingest", "decompose", "valkey")


@pytest.mark.parametrize("policy", ["fcfs", "fcfs_fastest", "sjf"])
def test_the_papers_lists_get_what_an_independent_program_gets(
    suite: RunningSuite, shared_data: Path, policy: str
) -> None:
    with (shared_data / "paper" / "expected.csv").open() as file:
        expected = list(csv.DictReader(file))
    for row in expected:
        report = suite.json("replay", str(shared_data / "paper" / row["file"]), "--policy", policy)
        assert report["jobs"]["succeeded"] == report["jobs"]["total"]
        assert report["jct_s"]["mean"] == pytest.approx(float(row[f"{policy}_mean_jct_s"]), rel=1e-3), row["file"]
        assert report["makespan_s"] == pytest.approx(float(row[f"{policy}_makespan_s"]), rel=1e-3), row["file"]


class Watcher:
    """Follows WatchJobs from the beginning, as a user would beside a replay."""

    def __init__(self, server: str) -> None:
        self.states: dict[str, list[JobState]] = defaultdict(list)
        self.revisions: list[int] = []
        self.final: dict[str, Job] = {}
        self.condition = threading.Condition()
        self._client = Client(server, patience_s=60)
        with self._client as client:
            after = max((job.revision for job in client.list()), default=0)
        self._client = Client(server, patience_s=60)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, args=(after,), daemon=True)
        self._thread.start()

    def _follow(self, after: int) -> None:
        for event in self._client.watch(after, patience_s=60):
            if event.kind is JobEventKind.CHANGE and event.job is not None:
                with self.condition:
                    self.revisions.append(event.revision)
                    self.states[event.job.job_id].append(event.job.state)
                    if event.job.state.final:
                        self.final[event.job.job_id] = event.job
                    self.condition.notify_all()
            if self._stop.is_set():
                return

    def until_final(self, count: int, timeout_s: float = 120.0) -> None:
        with self.condition:
            assert self.condition.wait_for(lambda: len(self.final) >= count, timeout_s), len(self.final)

    def close(self) -> None:
        self._stop.set()
        self._client.close()


def check(report: dict[str, Any], queue: list[dict[str, Any]], watcher: Watcher, count: int) -> None:
    """The report, the queue and the watch tell one story, and it is a possible one."""
    placements = report["placements"]
    assert len(placements) == count
    assert report["jobs"]["succeeded"] == count
    listed = {job["job_id"]: job for job in queue}
    assert set(listed) == {each["job_id"] for each in placements}
    for each in placements:
        job, seen = listed[each["job_id"]], watcher.final[each["job_id"]]
        assert each["state"] == job["state"] == seen.state.name.lower() == "succeeded"
        for key in ("submit_s", "start_s", "end_s", "gpu_id"):
            assert each[key] == job[key] == getattr(seen, key), (each["job_id"], key)
        assert each["attempts"] == job["attempt_count"]
    assert watcher.revisions == sorted(set(watcher.revisions))

    held: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for job in queue:
        ends = [attempt["end_s"] for attempt in job["attempts"]]
        starts = [attempt["start_s"] for attempt in job["attempts"]]
        assert [attempt["attempt"] for attempt in job["attempts"]] == list(range(1, len(ends) + 1))
        assert all(end <= start for end, start in zip(ends, starts[1:], strict=False) if start is not None), job[
            "job_id"
        ]
        for attempt in job["attempts"]:
            if attempt["start_s"] is not None:
                held[attempt["gpu_id"]].append((attempt["start_s"], attempt["end_s"], job["job_id"]))
    for gpu_id, spans in held.items():
        spans.sort()
        for before, after in pairwise(spans):
            assert before[1] <= after[0] + 1e-6, (gpu_id, before, after)


def run_replay(suite: RunningSuite, trace: Path, count: int, report: Path, *, kill: str = "") -> dict[str, Any]:
    watcher = Watcher(suite.server)
    arguments = ["replay", str(trace), "--jobs", str(count), "--report", str(report), "--server", suite.server]
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        if kill:
            watcher.until_final(count // 4)
            os.kill(suite.status["pids"][kill], signal.SIGKILL)
        output, errors = process.communicate(timeout=250)
        assert process.returncode == 0, errors
        assert f"{count} jobs under" in output
        watcher.until_final(count)
        found: dict[str, Any] = json.loads(report.read_text())
        queue = suite.json("queue", "--all", "--label", f"adlro-replay={found['replay_id']}")["jobs"]
        check(found, queue, watcher, count)
    finally:
        watcher.close()
        if process.poll() is None:
            process.kill()
            process.communicate()
    return found


def test_a_real_trace_ends_and_all_views_of_it_agree(suite: RunningSuite, shared_data: Path, tmp_path: Path) -> None:
    report = run_replay(suite, shared_data / "traces" / "lublin_256.swf", 2000, tmp_path / "report.json")
    assert report["jobs"]["several_attempts"] == 0
    submits = [each["submit_s"] for each in report["placements"]]
    assert submits == sorted(submits)
    assert any("several processors" in note for note in report["notes"])


@pytest.mark.parametrize("name", KILLED)
def test_a_kill_in_the_middle_of_a_replay_loses_nothing(
    suite: RunningSuite, shared_data: Path, tmp_path: Path, name: str
) -> None:
    trace = shared_data / "traces" / "lublin_256.swf"
    run_replay(suite, trace, 400, tmp_path / "report.json", kill=name)
    with Client(suite.server) as client:
        assert list(client.list(JobFilter(states=(JobState.PENDING, JobState.RUNNING)))) == []
        assert not client.describe_cluster().running
