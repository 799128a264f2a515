"""Container jobs through the whole suite: `adlro up --cluster local` on a container engine of the tests' own."""

from __future__ import annotations

import http.server
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adlro.client import Client, Credentials, Job, Mount, program_spec
from adlro.errors import InvalidInput
from adlro.records.jobs import JobSpec, JobState
from adlro.records.payloads import EndReason
from tests.e2e.private_engine import IMAGE, PrivateEngine, private_engine
from tests.e2e.running_suite import RunningSuite, adlro, environment, marked_pids, start_suite, wait_until

pytestmark = [pytest.mark.compose, pytest.mark.slow]

NOBODY = 65534
VALUE = "hunter2-of-ada"
STAGING = Path("/run/adlro/mounts")
END_S = 180.0
JOBS = 50


@dataclass
class Site:
    """A running suite and its engine. The directory `shared` is below the allowed prefix, and everybody's."""

    folder: Path
    engine: PrivateEngine
    suite: RunningSuite
    client: Client
    registry: str

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def spec(self, script: str, image: str = IMAGE, command: Sequence[str] = (), **more: Any) -> JobSpec:
        """A shell program of ada's in a container, on one core."""
        given = {"user": "ada", "memory_mib": 64, "stop_grace_s": 1.0, **more}
        return program_spec(command or ("sh", "-c", script), image=image, **given)

    def submit(self, script: str, **more: Any) -> Job:
        return self.client.submit(self.spec(script, **more))

    def ended(self, job: Job, timeout_s: float = END_S) -> Job:
        (done,) = self.client.wait([job.job_id], timeout_s=timeout_s)
        return done

    def running(self, job: Job, attempt: int = 1) -> None:
        """Returns when its program runs."""

        def runs() -> bool:
            attempts = self.client.get(job.job_id).attempts
            return len(attempts) >= attempt and attempts[attempt - 1].run_s is not None

        wait_until(runs, END_S, f"attempt {attempt} of {job.job_id} runs")

    def kill_local(self) -> None:
        """Returns when there is another process of the cluster's service."""
        before = self.suite.pids["local"]
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.suite.pids["local"] not in (before, None), 60.0, "another process of local")

    def output(self, job: Job, stream: str = "stdout") -> str:
        return b"".join(each.data for each in self.client.logs(job, stream)).decode()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """An `adlro` command of the suite's own user."""
        home = str(self.folder / "home")
        return adlro(*arguments, env=environment(ADLRO_SERVER=self.suite.server, XDG_STATE_HOME=home))


class Registry(http.server.BaseHTTPRequestHandler):
    """An image registry that has nothing."""

    def do_GET(self) -> None:
        found = self.path == "/v2/"
        error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
        body = json.dumps({} if found else error).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(30.0)


@pytest.fixture(scope="module")
def site(registry: str) -> Iterator[Site]:
    staged = set(os.listdir(STAGING)) if STAGING.is_dir() else set()
    with private_engine() as engine, tempfile.TemporaryDirectory(prefix="adlro-jobs-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "shared").mkdir()
        (folder / "shared").chmod(0o777)
        (folder / "secrets" / "ada").mkdir(parents=True)
        secret = folder / "secrets" / "ada" / "TOKEN"
        secret.write_text(f"{VALUE}\n")
        secret.chmod(0o600)
        users = folder / "users.map"
        users.write_text("ada nobody\n* nobody\n")
        users.chmod(0o644)
        options = ("--cluster", "local", "--fake-gpus", "v100_sxm2:2", "--port", "0", "--users-map", str(users))
        suite = start_suite(
            folder / "data",
            *options,
            XDG_STATE_HOME=str(folder / "home"),
            ADLRO_LOCAL_ENGINE=engine.socket,
            ADLRO_LOCAL_CONTAINER_NETWORK="none",
            ADLRO_LOCAL_MOUNT_PREFIXES=str(folder / "shared"),
            ADLRO_LOCAL_SECRETS_DIR=str(folder / "secrets"),
        )
        try:
            token = (suite.data_dir / "secrets/operator.token").read_text().strip()
            with Client(suite.server, credentials=Credentials(token=token), patience_s=120.0) as client:
                yield Site(folder, engine, suite, client, registry)
            wait_until(lambda: engine.containers() == [], 60.0, "all containers are removed")
        finally:
            code = suite.end()
        assert code == 0, suite.text
        assert suite.error_lines() == []
        assert marked_pids(suite.mark) == []
        assert set(os.listdir(STAGING)) <= staged, "mounts were left"
        assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def test_how_containers_end(site: Site) -> None:
    outside = (Mount("/etc", "/etc/of/the/node"),)
    ignores = "trap '' TERM; while :; do sleep 0.05; done"
    unknown = f"{site.registry}/team/nothing:1"
    # What runs, the state of its job, how it ended, and what the job's message has.
    kinds: list[tuple[JobSpec, JobState, EndReason | None, int, int, str]] = [
        (site.spec("exit 0"), JobState.SUCCEEDED, EndReason.EXITED, 0, 0, ""),
        (site.spec("exit 3"), JobState.FAILED, EndReason.EXITED, 3, 0, "exit code 3"),
        (site.spec("kill -9 $$"), JobState.FAILED, EndReason.SIGNALLED, 0, 9, "SIGKILL"),
        (site.spec(ignores, time_limit_s=1.0), JobState.FAILED, EndReason.TIME_LIMIT, 0, 9, "time limit of 1 s"),
        (
            site.spec("dd if=/dev/zero of=/dev/null bs=200M count=1"),
            JobState.FAILED,
            EndReason.OUT_OF_MEMORY,
            0,
            9,
            "memory",
        ),
        (
            site.spec("", command=("/no/such/program",)),
            JobState.FAILED,
            EndReason.NOT_STARTED,
            0,
            0,
            "/no/such/program",
        ),
        (
            site.spec("", image=unknown),
            JobState.FAILED,
            EndReason.NOT_STARTED,
            0,
            0,
            f"the image '{unknown}' is not known: check its name",
        ),
        (
            site.spec("", mounts=outside),
            JobState.FAILED,
            None,
            0,
            0,
            f"mounts[0].source: '/etc' must be below one of {site.shared}",
        ),
        (site.spec("", secret_names=("NONE",)), JobState.FAILED, EndReason.NOT_STARTED, 0, 0, "no secret 'NONE'"),
    ]
    submitted = site.client.submit_many([spec for spec, *_ in kinds], "ends")
    assert not submitted.rejected
    done = site.client.wait(submitted.job_ids, timeout_s=END_S)
    for job, (_, state, reason, code, number, message) in zip(done, kinds, strict=True):
        assert (job.state, len(job.attempts)) == (state, 1), f"{job.spec.payload}: {job.message}"
        assert message in job.message
        end = job.attempts[0].exit
        if reason is None:
            assert end is None
        else:
            assert end is not None
            assert (end.reason, end.code, end.signal) == (reason, code, number), f"{job.spec.payload}: {end}"
    with pytest.raises(InvalidInput, match="image"):
        site.submit("true", image="No Image")


def test_run_has_the_exit_code_and_both_streams(site: Site) -> None:
    ran = site.command("run", "--image", IMAGE, "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (ran.returncode, ran.stdout) == (3, "out\n"), ran.stderr
    assert "err\n" in ran.stderr
    listed = json.loads(site.command("queue", "--all", "-o", "json").stdout)["jobs"]
    job_id = max((each["job_id"] for each in listed), key=lambda each: int(each.rpartition("-")[2]))
    described = site.command("describe", "job", job_id)
    assert f"{IMAGE} sh" in described.stdout, described.stdout
    again = site.command("logs", job_id)
    assert (again.returncode, again.stdout, again.stderr) == (0, "out\n", "err\n")


def test_what_ignores_sigterm_is_cancelled_after_its_grace(site: Site) -> None:
    job = site.submit("trap '' TERM; while :; do sleep 0.05; done")
    site.running(job)
    site.client.cancel(job.job_id)
    done = site.ended(job)
    end = done.attempts[0].exit
    assert done.state is JobState.CANCELLED
    assert end is not None
    assert (end.reason, end.signal) == (EndReason.STOPPED, 9)


def test_it_has_its_user_its_mounts_and_its_environment(site: Site) -> None:
    (site.shared / "input").mkdir()
    (site.shared / "input" / "data").write_text("data of the node\n")
    result = site.shared / "result"
    result.mkdir()
    os.chown(result, NOBODY, NOBODY)
    job = site.submit(
        "id -u; cat /input/data; touch /input/x 2>&1 && echo written; echo made > /result/out; echo $A; env",
        environment={"A": "b c"},
        secret_names=("TOKEN",),
        mounts=(Mount(str(site.shared / "input"), "/input"), Mount(str(result), "/result", writable=True)),
        workdir="/tmp",
    )
    done = site.ended(job)
    lines = site.output(job).splitlines()
    assert done.state is JobState.SUCCEEDED, done.message
    assert lines[:2] == [str(NOBODY), "data of the node"]
    assert "Read-only file system" in lines[2]
    assert lines[3] == "b c"
    given = {f"TOKEN={VALUE}", f"ADLRO_JOB_ID={job.job_id}", "ADLRO_ATTEMPT=1", f"ADLRO_GPU_IDS={done.gpu_id}"}
    assert given | {"PWD=/tmp", "USER=nobody"} <= set(lines)
    assert (result / "out").read_text() == "made\n"
    assert (result / "out").stat().st_uid == NOBODY
    # The value stands in the secret's file and in what the program itself wrote, and nowhere else.
    holds = {path for path in site.folder.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()}
    assert {path.name for path in holds} == {"TOKEN", "stdout"}
    refused = site.submit("true", mounts=(Mount(str(site.shared / "input"), "/input", writable=True),))
    assert "it may not be written to" in site.ended(refused).message


@pytest.mark.timeout(600)
def test_a_long_log_is_bounded_and_its_offsets_stay(site: Site) -> None:
    lines, limit_mib = 1 << 18, 64
    script = f"i=0; while [ $i -lt {lines} ]; do printf '%01023d\\n' $i; i=$((i+1)); done"
    job = site.submit(script, log_limit_mib=limit_mib)
    done = site.ended(job, timeout_s=500.0)
    assert done.state is JobState.SUCCEEDED, done.message
    chunks = list(site.client.logs(job))
    begin, data = chunks[0].offset, b"".join(each.data for each in chunks)
    assert {each.size for each in chunks} == {lines << 10}
    assert begin + len(data) == lines << 10
    assert 0.8 * (limit_mib << 20) <= len(data) <= 1.1 * (limit_mib << 20)
    expected = b"".join(b"%01023d\n" % number for number in range(begin >> 10, lines))
    assert data == expected[begin & 1023 :]
    (log,) = (
        path for path in site.suite.data_dir.glob("local/containers/*/stdout") if path.stat().st_size == lines << 10
    )
    assert log.stat().st_blocks * 512 <= 1.1 * (limit_mib << 20)


def test_a_container_goes_on_while_the_cluster_s_service_is_killed(site: Site) -> None:
    mounts = (Mount(str(site.shared), "/shared", writable=True),)
    job = site.submit(
        "echo started >> /shared/runs; until [ -e /shared/go ]; do sleep 0.05; done; echo over; exit 7", mounts=mounts
    )
    site.running(job)
    (container,) = site.engine.containers()
    site.kill_local()
    assert site.engine.containers() == [container]
    (site.shared / "go").touch()
    done = site.ended(job)
    end = done.attempts[0].exit
    assert (done.state, len(done.attempts)) == (JobState.FAILED, 1), done.message
    assert end is not None
    assert (end.reason, end.code) == (EndReason.EXITED, 7)
    assert (site.shared / "runs").read_text() == "started\n"
    assert site.output(job) == "over\n"


def test_an_engine_that_is_killed_with_live_restore_ends_nothing(site: Site) -> None:
    mounts = (Mount(str(site.shared), "/shared", writable=True),)
    wait = "until [ -e /shared/{} ]; do sleep 0.05; done"
    away, back = wait.format("away"), wait.format("back")
    script = f"echo started >> /shared/restored; {away}; echo away; touch /shared/said; {back}; echo over; exit 9"
    site.engine.end(signal.SIGTERM)
    site.engine.start("--live-restore")
    try:
        job = site.submit(script, mounts=mounts)
        site.running(job)
        site.engine.end(signal.SIGKILL)
        (site.shared / "away").touch()
        wait_until((site.shared / "said").exists, 60.0, "it writes without the engine")
        site.engine.start("--live-restore")
        (site.shared / "back").touch()
        done = site.ended(job)
    finally:
        site.engine.end(signal.SIGTERM)
        site.engine.start()
    end = done.attempts[0].exit
    assert len(done.attempts) == 1, done.message
    assert end is not None
    assert (end.reason, end.code) == (EndReason.EXITED, 9)
    assert (site.shared / "restored").read_text() == "started\n"
    assert site.output(job) == "away\nover\n"


@pytest.mark.timeout(900)
def test_fifty_containers_end_as_they_should_while_the_service_is_killed(site: Site) -> None:
    runs = site.shared / "fifty"
    runs.mkdir()
    runs.chmod(0o777)
    mounts = (Mount(str(runs), "/runs", writable=True),)
    kinds: list[tuple[str, JobState, str, dict[str, Any]]] = [
        ("exit 0", JobState.SUCCEEDED, "", {}),
        ("exit 3", JobState.FAILED, "exit code 3", {}),
        ("sleep 300 & exit 0", JobState.SUCCEEDED, "", {}),
        ("trap '' TERM; while :; do sleep 0.1; done", JobState.FAILED, "time limit of 1 s", {"time_limit_s": 1.0}),
        ("kill -9 $$", JobState.FAILED, "SIGKILL", {}),
    ]
    wanted = [kinds[number % len(kinds)] for number in range(JOBS)]
    specs = [
        site.spec(f"echo started >> /runs/$ADLRO_JOB_ID.$ADLRO_ATTEMPT; {script}", mounts=mounts, **more)
        for script, _, _, more in wanted
    ]
    submitted = site.client.submit_many(specs, "fifty")
    assert not submitted.rejected
    chance = random.Random(5)
    for _ in range(4):
        time.sleep(chance.uniform(1.0, 4.0))
        site.kill_local()
    done = site.client.wait(submitted.job_ids, timeout_s=600.0)
    attempts = {f"{job.job_id}.{each.attempt}": each for job in done for each in job.attempts}
    for job, (script, state, message, _) in zip(done, wanted, strict=True):
        assert (job.state, message in job.message) == (state, True), f"{script}: {job.message}"
    found = {path.name: path.read_text() for path in runs.iterdir()}
    assert set(found.values()) == {"started\n"}, "an attempt ran twice"
    # A kill in the moment of a container's start may lose the attempt, and says so (decision 0017).
    lost = [name for name, each in attempts.items() if each.exit and each.exit.reason is EndReason.SUPERVISOR_LOST]
    assert len(lost) <= 4
    assert set(attempts) - set(lost) <= set(found)
    assert set(found) <= set(attempts)
    wait_until(lambda: site.engine.containers() == [], 60.0, "all containers are removed")


def test_a_restart_of_the_engine_without_live_restore_runs_the_job_again(site: Site) -> None:
    mounts = (Mount(str(site.shared), "/shared", writable=True),)
    script = "echo started >> /shared/again; [ -e /shared/once ] && exit 0; touch /shared/once; sleep 600"
    job = site.submit(script, mounts=mounts)
    site.running(job)
    wait_until((site.shared / "once").exists, 60.0, "its program has begun")
    site.engine.end(signal.SIGTERM)
    site.engine.start()
    done = site.ended(job)
    assert (done.state, len(done.attempts)) == (JobState.SUCCEEDED, 2), done.message
    first = done.attempts[0].exit
    assert first is not None
    assert first.reason is EndReason.SUPERVISOR_LOST
    assert "the container engine was restarted, which ended it" in done.attempts[0].outcome + first.text
    assert (site.shared / "again").read_text() == "started\n" * 2
