"""`adlro up --webhooks`: what happens in a real suite reaches a real receiver, signed; and the command about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adlro.client import Client, JobState
from adlro.kit.channel import open_blocking_channel
from adlro.records.jobs import JobSpec, JobType, SimulatedWork
from adlro.v1 import cluster_service_pb2, cluster_service_pb2_grpc
from tests.e2e.running_suite import (
    ADLRO,
    RunningSuite,
    adlro,
    environment,
    is_alive,
    marked_pids,
    start_suite,
    wait_until,
)
from tests.unit.local.bench import users_map
from tests.unit.webhooks.samples import webhooks_file
from tests.webhook_receiver import SECRET, Receiver, receiver

pytestmark = pytest.mark.slow

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def told() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def signed_file(folder: Path, url: str) -> Path:
    (folder / "ops.secret").write_text(SECRET)
    return webhooks_file(folder, url, unsigned="", secret_file='"ops.secret"')


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory, told: Receiver) -> Iterator[RunningSuite]:
    folder = tmp_path_factory.mktemp("notified")
    checkpoint = folder / "damaged.onnx"
    checkpoint.write_bytes(b"no network")
    running = start_suite(
        folder / "data",
        *("--port", "0", "--no-page", "--webhooks", str(signed_file(folder, told.url))),
        ADLRO_ORCHESTRATOR_CHECKPOINT=str(checkpoint),
        ADLRO_NOTIFY_LOOK_EVERY_S="0.2",
        ADLRO_NOTIFY_SETTLE_S="0.2",
        ADLRO_NOTIFY_LONGEST_PAUSE_S="0.2",
    )
    yield running
    assert running.end() == 0, running.text
    assert marked_pids(running.mark) == []


def webhooks(suite: RunningSuite, *arguments: str) -> subprocess.CompletedProcess[str]:
    return adlro("webhooks", "--data-dir", str(suite.data_dir), *arguments)


def events(told: Receiver, name: str) -> list[dict[str, Any]]:
    return [each for each in told.accepted if each["event"] == name]


def run_jobs(suite: RunningSuite, count: int = 1, **fields: Any) -> list[str]:
    with Client(suite.server, patience_s=60.0) as client:
        specs = [
            JobSpec(f"job {n}", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(0.2), **fields)
            for n in range(count)
        ]
        job_ids = [client.submit(each).job_id for each in specs]
        assert all(job.state is JobState.SUCCEEDED for job in client.wait(job_ids, timeout_s=WITHIN_S))
    return job_ids


def test_the_end_of_a_job_arrives_signed(suite: RunningSuite, told: Receiver) -> None:
    (job_id,) = run_jobs(suite, labels={"team": "vision"})
    wait_until(lambda: job_id in told.ended_jobs(), WITHIN_S, "the message")
    (document,) = [each for each in events(told, "job_ended") if each["job"]["job_id"] == job_id]
    assert (document["cluster"], document["version"], document["lost_count"]) == ("default", 1, 0)
    job = document["job"]
    assert (job["state"], job["user"], job["labels"]) == ("succeeded", "ada", {"team": "vision"})
    with Client(suite.server) as client:
        record = client.get(job_id)
    assert (job["start_s"], job["end_s"], job["gpu_ids"]) == (record.start_s, record.end_s, [record.gpu_id])


def test_a_policy_that_can_not_decide_is_told(suite: RunningSuite, told: Receiver) -> None:
    wait_until(lambda: events(told, "policy_fell_back"), WITHIN_S, "the message")
    policy = events(told, "policy_fell_back")[0]["policy"]
    assert (policy["policy"], policy["reason"]) == ("dqn", "missing")
    assert policy["problem"]
    with Client(suite.server) as client:
        client.set_policy("fcfs")
    wait_until(lambda: events(told, "policy_recovered"), WITHIN_S, "the message")
    assert events(told, "policy_recovered")[0]["policy"]["policy"] == "dqn"


def test_a_lost_gpu_and_its_return_are_told(suite: RunningSuite, told: Receiver) -> None:
    with open_blocking_channel(suite.status["addresses"]["simcluster"]) as channel:
        stub = cluster_service_pb2_grpc.ClusterServiceStub(channel)
        for available, name in ((False, "gpu_lost"), (True, "gpu_back")):
            request = cluster_service_pb2.SetGpuAvailabilityRequest(gpu_id="volta-0/1", available=available)
            stub.SetGpuAvailability(request, timeout=WITHIN_S)
            wait_until(lambda name=name: events(told, name), WITHIN_S, name)  # type: ignore[misc]
    assert [each["gpu"]["gpu_id"] for each in told.accepted if "gpu" in each] == ["volta-0/1", "volta-0/1"]
    assert events(told, "gpu_lost")[0]["gpu"]["gpu_model"] == "v100_sxm2"


def test_jobs_that_end_while_it_is_killed_and_the_receiver_is_away_are_told(
    suite: RunningSuite, told: Receiver
) -> None:
    told.stop()
    before = run_jobs(suite, 3)
    killed = suite.pids["notify"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not is_alive(killed), WITHIN_S, "its end")
    during = run_jobs(suite, 3)
    wait_until(lambda: suite.pids["notify"] not in (None, killed), WITHIN_S, "`adlro up` to start it again")
    told.start()
    wait_until(lambda: {*before, *during} <= set(told.ended_jobs()), WITHIN_S, "all messages")
    assert len(told.ended_jobs()) == len(set(told.ended_jobs()))


def test_the_command_lists_webhooks_and_sends_a_test(suite: RunningSuite, told: Receiver) -> None:
    listed = webhooks(suite, "-o", "json")
    assert listed.returncode == 0, listed.stderr
    (ops,) = json.loads(listed.stdout)["webhooks"]
    assert (ops["name"], ops["receiver"], ops["signed"]) == ("ops", f"127.0.0.1:{told.port}", True)
    assert ops["delivered_count"] >= 1
    table = webhooks(suite)
    assert table.returncode == 0
    assert "ops" in table.stdout
    assert "/hook" not in table.stdout + listed.stdout  # the path may be a secret
    sent = webhooks(suite, "--test", "ops")
    assert sent.returncode == 0, sent.stdout
    assert "took the test message: 204" in sent.stdout
    assert events(told, "test")[-1]["webhook"] == "ops"
    unknown = webhooks(suite, "--test", "opps")
    assert unknown.returncode == 2
    assert "there is no webhook 'opps'; there are ops" in " ".join(unknown.stderr.replace("│", " ").split())


def test_a_receiver_that_is_away_is_named_with_the_next_try(suite: RunningSuite, told: Receiver) -> None:
    told.stop()
    try:
        run_jobs(suite)
        wait_until(lambda: webhooks(suite).returncode == 1, WITHIN_S, "the failure to be told")
        assert "ops: no connection: " in webhooks(suite).stdout
        assert webhooks(suite, "--test", "ops").returncode == 1
    finally:
        told.start()
    wait_until(lambda: webhooks(suite).returncode == 0, WITHIN_S, "a delivery")


def test_neither_log_nor_status_file_shows_the_url_or_the_secret(suite: RunningSuite) -> None:
    shown = (suite.data_dir / "log" / "notify.log").read_text() + (suite.data_dir / "up.json").read_text() + suite.text
    assert "ops" in shown
    assert "/hook" not in shown
    assert SECRET.removeprefix("whsec_") not in shown


def test_a_wrong_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = webhooks_file(tmp_path, "ftp://x")
    for options, env in ((("--webhooks", str(path)), {}), ((), {"ADLRO_NOTIFY_WEBHOOKS_FILE": str(path)})):
        ended = subprocess.run(
            [*ADLRO, "up", "--port", "0", "--data-dir", str(tmp_path / "data"), *options],
            env=environment(**env),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 2
        assert "webhook[0].url of 'ops': must be an http:// or https:// URL with a host (line 3)" in ended.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone")
def test_a_real_programs_end_is_told_without_its_arguments(tmp_path: Path) -> None:
    word = "hunter2"
    with receiver() as told:
        mapped = users_map(tmp_path)
        running = start_suite(
            tmp_path / "data",
            *("--cluster", "local", "--fake-gpus", "v100_sxm2:2", "--port", "0", "--no-page"),
            *("--webhooks", str(signed_file(tmp_path, told.url)), *(("--users-map", mapped) if mapped else ())),
            XDG_STATE_HOME=str(tmp_path / "home"),
        )
        try:
            own = environment(XDG_STATE_HOME=str(tmp_path / "home"))
            for program in (("sh", "-c", "exit 3", word), (f"/no/{word}/train",)):
                ended = adlro(
                    "run",
                    "--env",
                    f"KEY={word}",
                    "--",
                    *program,
                    server=None,
                    env={**own, "ADLRO_SERVER": running.server},
                )
                assert ended.returncode != 0
            wait_until(lambda: len(events(told, "job_ended")) == 2, WITHIN_S, "the messages")
        finally:
            assert running.end() == 0, running.text
    first, second = (each["job"] for each in events(told, "job_ended"))
    assert (first["state"], first["message"], first["exit"]["code"]) == ("failed", "exit code 3", 3)
    assert second["exit"]["reason"] == "not_started"
    assert word not in json.dumps(told.accepted)
    assert (running.data_dir / "notify-local").is_dir()
