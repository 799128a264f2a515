"""`adlro up --cluster local` runs real programs through the whole suite, also while its cluster's service is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.client import Client, Credentials
from adlro.records.jobs import JobSpec, JobState, JobType
from adlro.records.payloads import process_payload
from tests.e2e.running_suite import RunningSuite, start_suite, wait_until
from tests.unit.attempt.node import plainly_marked
from tests.unit.local.bench import users_map

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]
GPUS = "v100_sxm2:2,rtx_2080_ti:2"
# What a program does, the end of its job, and its message.
KINDS = [
    ("exit 0", JobState.SUCCEEDED, ""),
    ("exit 3", JobState.FAILED, "exit code 3"),
    ("setsid sleep 300 & exit 0", JobState.SUCCEEDED, ""),
    ("trap '' TERM; while :; do sleep 0.1; done", JobState.FAILED, "time limit of 2 s reached"),
    ("i=0; while [ $i -lt 40 ]; do i=$((i+1)); sleep 0.05; done", JobState.SUCCEEDED, ""),
]
JOBS = 50


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="adlro-local-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def start(folder: Path) -> RunningSuite:
    mapped = users_map(folder)
    options = ("--users-map", mapped) if mapped else ()
    options = ("--cluster", "local", "--fake-gpus", GPUS, "--port", "0", *options)
    return start_suite(folder / "data", *options, XDG_STATE_HOME=str(folder / "home"))


def test_fifty_programs_end_as_they_should_while_the_service_is_killed(folder: Path) -> None:
    runs = folder / "runs"
    runs.mkdir()
    suite = start(folder)
    try:
        token = (suite.data_dir / "secrets/operator.token").read_text().strip()
        with Client(suite.server, credentials=Credentials(token=token), patience_s=120.0) as client:
            user = token.rpartition(".")[0]
            specs = [
                JobSpec(
                    f"job {n}",
                    user,
                    JobType.MACHINE_LEARNING,
                    memory_mib=64,
                    cpu_cores=1,
                    time_limit_s=2.0 if "trap" in script else None,
                    payload=process_payload(
                        ("sh", "-c", f"echo started >> {runs}/$ADLRO_JOB_ID.$ADLRO_ATTEMPT; {script}"), stop_grace_s=0.5
                    ),
                )
                for n, (script, _, _) in ((n, KINDS[n % len(KINDS)]) for n in range(JOBS))
            ]
            submitted = client.submit_many(specs, "fifty")
            assert not submitted.rejected
            chance = random.Random(7)
            for _ in range(3):
                time.sleep(chance.uniform(1.0, 3.0))
                before = suite.pids["local"]
                os.kill(before, signal.SIGKILL)
                wait_for_another(suite, before)
            done = client.wait(submitted.job_ids, timeout_s=300.0)
        ended = {job.job_id: job for job in done}
        for n, job_id in enumerate(submitted.job_ids):
            script, state, message = KINDS[n % len(KINDS)]
            job = ended[job_id]
            assert (job.state, len(job.attempts)) == (state, 1), f"{script}: {job.message}"
            assert message in job.message
        found = {path.name: path.read_text() for path in runs.iterdir()}
        assert found == {f"{job_id}.1": "started\n" for job_id in submitted.job_ids}
    finally:
        assert suite.end() == 0
    assert not [line for line in suite.error_lines() if "local.log" in line]
    assert left_in(suite.data_dir) == {}


def wait_for_another(suite: RunningSuite, pid: int) -> None:
    wait_until(lambda: suite.pids["local"] not in (pid, None), 60.0, "another process of local")


def left_in(data_dir: Path) -> dict[str, dict[int, int]]:
    marks = {path.parent.name: json.loads(path.read_text())["mark"] for path in data_dir.glob("**/intent.json")}
    return {name: found for name, mark in marks.items() if (found := plainly_marked(mark))}
