"""A suite takes over the store of an older version, and refuses that of a newer one with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from adlro.client import Client, JobOrder
from adlro.records.jobs import JobState
from adlro.store.keys import STORE
from adlro.wire import FORMAT
from tests.e2e.running_suite import adlro, adlro_json, start_suite, wait_until
from tests.older_stores import restore

pytestmark = pytest.mark.slow


def test_jobs_policy_and_drained_nodes_of_an_older_version_go_on(redis_url: str, tmp_path: Path) -> None:
    restore(redis_url, "2b8a1f0")
    suite = start_suite(tmp_path / "data", "--port", "0", ADLRO_REDIS_URL=redis_url)
    try:
        status = adlro_json("status", server=suite.server)["orchestrator"]
        assert status["policy"] == "sjf"
        assert status["shadow"]["policy"] == "hold_greedy"
        assert status["drained_node_ids"] == ["turing-0"]
        with Client(suite.server) as client:
            assert client.get("job-1").state is JobState.SUCCEEDED
            # Their cluster was killed with them: they are launched again.
            wait_until(lambda: client.get("job-6").attempt_count == 2, 60.0, "job-6 runs again")
            jobs = {job.job_id: job for job in client.list()}
            assert len(jobs) == 23
            # What that version ended is in the history by time.
            ended = {job.job_id for job in client.list(order=JobOrder.ENDED) if job.state.final}
            assert ended >= {job.job_id for job in jobs.values() if job.state.final}
            bars = client.query_attempts(0.0).bars
            assert bars is not None
            assert "job-1" in bars.job_ids
            running = [job for job in jobs.values() if job.state is JobState.RUNNING]
            assert len(running) == 12
            assert not any(job.gpu_id.startswith("turing-0") for job in running)
        submitted = adlro("submit", "--type", "ml", "--user", "ann", server=suite.server)
        assert submitted.stdout.strip() == "job-24"
    finally:
        suite.end()


def test_a_store_of_a_newer_format_is_refused_before_anything_is_written(redis_url: str, tmp_path: Path) -> None:
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    client.hset(STORE, mapping={"format": FORMAT + 1, "oldest_user": FORMAT + 1, "release": "9.1"})
    ended = adlro("up", "--data-dir", str(tmp_path / "data"), "--port", "0", env={"ADLRO_REDIS_URL": redis_url})
    assert ended.returncode == 1
    assert f"format {FORMAT + 1}, written by ADLRO 9.1" in ended.stderr + ended.stdout
    assert client.keys() == [STORE.encode()]
