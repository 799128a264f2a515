"""What a stranger does first: `adlro up` and `adlro demo`, all services as processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from adlro.client import Client, ClockMode, JobFilter
from adlro.kit.settings import with_password
from adlro.kit.testing import ROOT
from adlro.records.jobs import JobSpec, JobState, JobType, SimulatedWork
from tests.cluster_files import LAB
from tests.e2e.running_suite import (
    RunningSuite,
    adlro,
    adlro_json,
    environment,
    is_alive,
    marked_pids,
    start_suite,
    wait_until,
)
from tests.web.page_suite import Browser, Live

pytestmark = pytest.mark.slow

SERVICES = ("simcluster", "orchestrator", "ingest", "decompose", "valkey", "web")


@pytest.fixture(scope="module")
def own_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    """`adlro up` as a user starts it; these tests kill parts of it."""
    running = start_suite(tmp_path_factory.mktemp("own") / "data", "--port", "0")
    yield running
    assert running.end() == 0, running.text
    assert marked_pids(running.mark) == []


def test_up_serves_all_services_and_says_where(own_suite: RunningSuite) -> None:
    status = own_suite.status
    assert set(status["addresses"]) == {*SERVICES} - {"valkey", "web"}
    assert set(status["pids"]) == set(SERVICES)
    assert all(is_alive(pid) for pid in status["pids"].values())
    found = adlro_json("status", server=own_suite.server)
    assert all(each["serving"] for each in found["services"])
    assert found["orchestrator"]["acting"]
    assert (own_suite.data_dir / "log" / "ingest.log").stat().st_size > 0


def test_up_prints_the_link_of_the_live_page_which_shows_the_suite(own_suite: RunningSuite) -> None:
    link = own_suite.status["page"]
    assert re.search(rf"The live page: {re.escape(link)}\s", own_suite.text)
    with urllib.request.urlopen(link, timeout=60) as answer:
        assert answer.status == 200
        assert b'<script type="module"' in answer.read()

    def whole(live: Live) -> bool:
        sources = live.told.get("sources", {"op": "sources"})
        states = {each["state"] for name, each in sources.items() if name != "op"}
        head = live.page.state.get("head", {})
        return states == {"live"} and head.get("policy") is not None and "gpus" in live.page.state

    async def look() -> dict[str, Any]:
        async with Browser(urlsplit(link).netloc).live("head", "gpus") as live:
            await live.until(whole)
            return live.page.state

    state = asyncio.run(look())
    assert len(state["gpus"]["gpus"]) == state["head"]["gpu_count"] == 16
    assert state["head"]["problem"] == ""


def test_other_users_of_the_machine_are_kept_out(own_suite: RunningSuite) -> None:
    found = [own_suite.data_dir, *own_suite.data_dir.rglob("*")]
    assert {"up.json", "lock", "valkey.log", "ingest.log", "appendonlydir", "password"} <= {path.name for path in found}
    assert [f"{path} {path.stat().st_mode:o}" for path in found if path.stat().st_mode & 0o077] == []
    status = own_suite.status
    stranger, own = status["redis_url"], with_password(status["redis_url"], status["redis_password_file"])
    with redis.Redis.from_url(stranger, retry=None) as connection, pytest.raises(redis.AuthenticationError):
        connection.incr("adlro:lease")
    with redis.Redis.from_url(own) as connection:
        password = connection.config_get("requirepass")["requirepass"]
        assert connection.ping()
    assert len(password) >= 32
    assert password not in own_suite.text
    files = [path for path in found if path.is_file() and path.name != "password"]
    arguments = [Path(f"/proc/{pid}/cmdline") for pid in own_suite.pids.values() if sys.platform == "linux"]
    assert [path for path in [*files, *arguments] if password.encode() in path.read_bytes()] == []


def test_a_job_goes_all_the_way(own_suite: RunningSuite) -> None:
    label = ["--label", "test=way"]
    submission = ["submit", "--type", "ml", "--name", "first", "--work", "0.5", "--wait", *label]
    done = adlro(*submission, server=own_suite.server)
    assert done.returncode == 0, done.stderr
    (job,) = adlro_json("queue", "--all", *label, server=own_suite.server)["jobs"]
    assert (job["state"], job["attempt_count"]) == ("succeeded", 1)
    assert job["runtime_s"] == pytest.approx(0.5, abs=0.2)
    told = adlro_json("describe", "job", job["job_id"], server=own_suite.server)
    assert told["decision"]["gpu_id"] == job["gpu_id"]
    assert {each["gpu_model"] for each in told["predictions"]} == {"v100_sxm2", "rtx_2080_ti", "radeon_vii"}

    # The first job that ends is learned from: it speaks for the runtimes of its like, with an interval about each.
    again = adlro(*submission, server=own_suite.server)
    assert again.returncode == 0, again.stderr
    jobs = adlro_json("queue", "--all", *label, server=own_suite.server)["jobs"]
    (like,) = [each for each in jobs if each["job_id"] != job["job_id"]]

    def described() -> str:
        return adlro("describe", "job", like["job_id"], server=own_suite.server).stdout

    wait_until(lambda: "evidence" in described(), 60.0, f"{job['job_id']} as evidence")
    text = described()
    assert re.search(
        rf"evidence +{job['job_id']} \(\S+ s on {job['gpu_model']}, similarity (0\.[5-9]\d|1\.00)\)", text
    ), text
    assert not re.search(rf"{like['job_id']} \(\S+ s on", text), text
    assert len(re.findall(r"\S+ s +\S+ s \.\. \S+ s \(80%\)", text)) == 3, text

    def all_gpus_tell() -> bool:
        gpus = adlro_json("gpus", server=own_suite.server)["gpus"]
        assert len(gpus) == 16
        return all(gpu["temperature_c"] is not None for gpu in gpus)

    wait_until(all_gpus_tell, 60.0, "the temperature of each GPU")


@pytest.mark.parametrize(
    ("example", "says"),
    [
        (["submit_and_wait.py"], "job-"),
        (["submit_many.py"], "jobs on v100_sxm2"),
        (["watch_cluster.py", "3"], "16 GPUs"),
    ],
)
def test_the_examples_run(own_suite: RunningSuite, example: list[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / example[0], *example[1:]],
        env=environment(ADLRO_SERVER=own_suite.server),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_a_second_up_on_the_same_data_or_ports_is_refused(own_suite: RunningSuite, tmp_path: Path) -> None:
    same_data = adlro("up", "--port", "0", "--data-dir", str(own_suite.data_dir))
    assert same_data.returncode == 2
    assert "in use" in same_data.stderr
    port = own_suite.server.rpartition(":")[2]
    same_port = adlro("up", "--port", port, "--data-dir", str(tmp_path))
    assert same_port.returncode == 2
    assert f"port {port}" in same_port.stderr
    assert len(same_data.stderr.splitlines()) == len(same_port.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_killed_is_started_again_at_its_address(own_suite: RunningSuite, name: str) -> None:
    with Client(own_suite.server, patience_s=60) as client:
        before = client.submit(JobSpec(f"before {name}", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(0.2)))
        client.wait([before.job_id], timeout_s=60)
        pid = own_suite.status["pids"][name]
        os.kill(pid, signal.SIGKILL)
        own_suite.wait_until_said(f"{name} is back")
        assert own_suite.status["pids"][name] not in (pid, None)
        assert client.get(before.job_id).state is JobState.SUCCEEDED
        after = client.submit(JobSpec(f"after {name}", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(0.2)))
        (job,) = client.wait([after.job_id], timeout_s=60)
        assert job.state is JobState.SUCCEEDED


def test_up_keeps_its_jobs_and_ends_all_it_started(tmp_path: Path) -> None:
    options = ["--clock", "virtual", "--policy", "fcfs", "--cluster", "paper_roomy"]
    first = start_suite(tmp_path / "data", "--port", "0", *options)
    try:
        with Client(first.server) as client:
            assert client.clock().mode is ClockMode.VIRTUAL
            assert client.status().policy == "fcfs"
            assert client.cluster().nodes[0].cpu_cores == 32
            job = client.submit(JobSpec("kept", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(3)))
            client.wait([job.job_id], timeout_s=60)
    finally:
        assert first.end() == 0, first.text
    assert marked_pids(first.mark) == []
    assert not (tmp_path / "data" / "up.json").exists()

    second = start_suite(tmp_path / "data", "--port", "0")
    try:
        with Client(second.server) as client:
            assert client.get(job.job_id).state is JobState.SUCCEEDED
            assert client.status().policy == "fcfs"
    finally:
        assert second.end() == 0, second.text
    assert (tmp_path / "data" / "log" / "ingest.log.1").exists()


def test_a_cluster_of_ones_own_and_its_name_are_known_to_every_service(tmp_path: Path) -> None:
    lab = tmp_path / "a lab.toml"
    lab.write_text(LAB)

    def shown(running: RunningSuite) -> tuple[str, int]:
        with Client(running.server) as client:
            job = client.submit(
                JobSpec("one", "ada", JobType.SIMULATION, cpu_cores=12, simulated_work=SimulatedWork(1))
            )
            (done,) = client.wait([job.job_id], timeout_s=60)
            assert done.state is JobState.SUCCEEDED
            wait_until(lambda: client.telemetry().latest.gpu_ids, 60.0, "telemetry")
            cluster, seen = client.cluster(), client.cluster_state()
            assert client.describe_cluster().cluster == cluster
            assert [gpu.gpu_id for gpu in seen.gpus] == [gpu.gpu_id for _, gpu in cluster.gpus()]
            return cluster.name, len(seen.gpus)

    # By the option, then by the environment, then none at all: on the same data, where the former are described too.
    for options, variables, expected in (
        (["--cluster", str(lab)], {}, ("lab", 2)),
        ([], {"ADLRO_SIMCLUSTER_CLUSTER": "gavel"}, ("gavel", 24)),
        ([], {}, ("default", 16)),
    ):
        running = start_suite(tmp_path / "data", "--port", "0", "--clock", "virtual", *options, **variables)
        try:
            assert shown(running) == expected
        finally:
            assert running.end() == 0, running.text


def test_a_killed_up_leaves_no_service_and_can_be_started_again(tmp_path: Path) -> None:
    first = start_suite(tmp_path / "data", "--port", "0")
    services = [pid for name, pid in first.pids.items() if name != "valkey"]
    with Client(first.server) as client:
        job = client.submit(JobSpec("kept", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(0.1)))
    first.process.kill()
    first.process.wait()
    wait_until(lambda: not any(map(is_alive, services)), 60.0, "the services to end with their parent")
    second = start_suite(tmp_path / "data", "--port", "0")
    try:
        with Client(second.server, patience_s=60) as client:
            (kept,) = client.wait([job.job_id], timeout_s=60)
            assert kept.state is JobState.SUCCEEDED
            assert [each.job_id for each in client.list(JobFilter(user="ada"))] == [job.job_id]
    finally:
        assert second.end() == 0, second.text


def test_demo_compares_two_policies_on_256_jobs(tmp_path: Path) -> None:
    done = adlro("demo", "--fast", "-o", "json", env=environment(TMPDIR=str(tmp_path)), timeout_s=240.0)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["jobs"] == 256
    first, reference = report["policies"].values()
    assert reference["policy"] == "fcfs"
    for each in (first, reference):
        assert each["jobs"]["succeeded"] == each["jobs"]["total"] == 256
        assert set(each["by_job_type"]) == {"simulation", "machine_learning", "data_processing"}
        assert set(each["utilization"]["by_gpu_model"]) == {"v100_sxm2", "rtx_2080_ti", "radeon_vii"}
    assert first["jct_s"]["mean"] < reference["jct_s"]["mean"]
    assert list(tmp_path.iterdir()) == []


def test_demo_for_people_shows_how_things_get_on_and_what_came_of_it() -> None:
    # Under a minute on a quiet machine, most of it the pace at which a person can follow; not a matter of tests.
    done = adlro("demo", timeout_s=240.0)
    assert done.returncode == 0, done.stderr
    for part in ("machine learning", "p95 JCT", "throughput, jobs/h", "utilization of 8 v100_sxm2", "under fcfs"):
        assert part in done.stdout
    assert "256/256 finished" in done.stderr
    assert re.search(r"watch it live: http://127\.0\.0\.1:\d+/", done.stderr)
    assert "\x1b" not in done.stdout + done.stderr
