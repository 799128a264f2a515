"""`adlro up --cluster local`: its tokens, who finds them, and who gets nothing. A stand-in runs the programs."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis

from adlro.cli.secrets import make_secrets
from adlro.client import Client, Credentials
from adlro.errors import Unauthenticated
from adlro.kit.channel import open_blocking_channel
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.settings import with_password
from adlro.kit.testing import ROOT
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobState, JobType
from adlro.v1 import cluster_service_pb2, cluster_service_pb2_grpc
from tests.e2e.running_suite import RunningSuite, adlro, environment, is_alive, marked_pids, start_suite, wait_until
from tests.unit.local.bench import users_map

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]

UP = (sys.executable, "-m", "tests.e2e.up_with_stand_in")
NOBODY = 65534


def a_job(runtime_s: float = 0.2) -> JobSpec:
    return JobSpec("job", "ada", JobType.SIMULATION, expected_runtime=ExpectedRuntime("v100_sxm2", runtime_s))


def as_whom(folder: Path) -> tuple[str, ...]:
    """Options of `adlro up`."""
    mapped = users_map(folder)
    return ("--users-map", mapped) if mapped else ()


@dataclass
class LocalSuite:
    """The running suite, and the home of the user who started it."""

    running: RunningSuite
    home: Path

    @property
    def server(self) -> str:
        return self.running.server

    @property
    def token(self) -> str:
        return (self.running.data_dir / "secrets/operator.token").read_text().strip()

    def own(self, *arguments: str) -> Any:
        """A command of the same user, with nothing but the address."""
        return adlro(*arguments, server=self.server, env=environment(XDG_STATE_HOME=str(self.home)))

    def client(self) -> Client:
        return Client(self.server, credentials=Credentials(token=self.token), patience_s=60.0)


def start(data_dir: Path, home: Path, *options: str, **env: str) -> LocalSuite:
    options = (*options, *as_whom(data_dir.parent))
    options = ("--cluster", "local", "--fake-gpus", "v100_sxm2:4", "--port", "0", *options)
    return LocalSuite(start_suite(data_dir, *options, command=UP, XDG_STATE_HOME=str(home), **env), home)


@pytest.fixture(scope="module")
def suite() -> Iterator[LocalSuite]:
    # Not pytest's folder, which is closed to other users: what they can't reach here, the suite itself closes.
    with tempfile.TemporaryDirectory(prefix="adlro-local-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        made = start(folder / "data", folder / "home")
        try:
            yield made
        finally:
            code = made.running.end()
        assert code == 0, made.running.text
        assert made.running.error_lines() == []
        assert marked_pids(made.running.mark) == []


def launch(credentials: Credentials, address: str) -> None:
    """LaunchJob; the error is gRPC's."""
    with open_blocking_channel(address, credentials) as channel:
        stub = cluster_service_pb2_grpc.ClusterServiceStub(channel)
        request = cluster_service_pb2.LaunchJobRequest(job_id="job-1", attempt=1, fencing_token=1)
        stub.LaunchJob(request, timeout=30.0)


def test_the_commands_of_its_user_need_nothing_but_the_address(suite: LocalSuite) -> None:
    submitted = suite.own("submit", "--type", "sim", "--runtime", "0.2", "--wait", "--label", "t=way")
    assert submitted.returncode == 0, submitted.stderr
    queue = suite.own("queue", "--all", "--label", "t=way", "-o", "json")
    assert [job["state"] for job in json.loads(queue.stdout)["jobs"]] == ["succeeded"]
    status = suite.own("status", "-o", "json")
    assert status.returncode == 0, status.stderr
    assert [(each["service"], each["serving"]) for each in json.loads(status.stdout)["services"]] == [
        (name, True) for name in ("ingest", "decompose", "orchestrator", "cluster")
    ]
    code = "from adlro.client import connect\nwith connect() as client:\n    print(len(list(client.list())))"
    script = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(XDG_STATE_HOME=str(suite.home), ADLRO_SERVER=suite.server),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (script.returncode, script.stdout.strip()) == (0, "1"), script.stderr


def test_it_names_its_cluster_and_its_files(suite: LocalSuite) -> None:
    status = suite.running.status
    assert set(status["pids"]) == {"ingest", "decompose", "orchestrator", "local", "valkey", "web"}
    assert set(status["addresses"]) == set(status["pids"]) - {"valkey", "web"}
    assert status["page"].startswith("http://127.0.0.1:")
    assert "simcluster" not in suite.running.text
    data = suite.running.data_dir
    assert {"secrets", "valkey-local", "local", "log"} <= {path.name for path in data.iterdir()}
    assert (data / "log/local.log").exists()
    assert not (data / "valkey").exists()


def test_files_are_for_their_owner_and_hold_no_token_elsewhere(suite: LocalSuite) -> None:
    data = suite.running.data_dir
    found = [data, *(path for path in data.rglob("*") if data / "local" not in (path, *path.parents))]
    found += [*(suite.home / "adlro").rglob("*")]
    assert [f"{path} {path.stat().st_mode:o}" for path in found if path.lstat().st_mode & 0o077] == []
    assert stat.S_IMODE((data / "secrets/operator.token").stat().st_mode) == 0o600
    tokens = [(data / f"secrets/{name}.token").read_text().strip() for name in ("operator", "service")]
    tokens = [token.rpartition(".")[2] for token in tokens]
    arguments = [Path(f"/proc/{pid}/cmdline") for pid in suite.running.pids.values()]
    files = [path for path in found if path.is_file() and path.suffix != ".token"]
    seen = [path for path in [*files, *arguments] for token in tokens if token.encode() in path.read_bytes()]
    assert seen == []
    assert not any(token in suite.running.text for token in tokens)


def test_a_caller_without_a_token_is_refused_by_every_service(suite: LocalSuite) -> None:
    addresses = suite.running.status["addresses"]
    for shown in (Credentials(), Credentials(token=f"root.{'x' * 43}")):
        with Client(suite.server, credentials=shown, patience_s=0.0) as client:
            calls: tuple[Callable[[], object], ...] = (
                lambda: client.submit(a_job()),
                lambda: next(client.list()),
                client.telemetry,
                client.cluster_state,
                client.status,
                lambda: client.set_policy("fcfs"),
                client.describe_cluster,
            )
            for call in calls:
                with pytest.raises(Unauthenticated):
                    call()
        with pytest.raises(grpc.RpcError) as refused:
            launch(shown, addresses["local"])
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    # The operator is no service: programs are launched by the orchestrator alone.
    with pytest.raises(grpc.RpcError) as refused:
        launch(Credentials(token=suite.token), addresses["local"])
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    status = suite.running.status
    with redis.Redis.from_url(status["redis_url"], retry=None) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.incr("adlro:lease")
    with redis.Redis.from_url(with_password(status["redis_url"], status["redis_password_file"])) as own:
        assert own.ping()


ANOTHER_USER = """
import json, os, socket, sys
import grpc
from adlro.client import Client, Credentials, JobSpec, JobType
from adlro.client.found import found_credentials
from adlro.errors import AdlroError
from adlro.kit.channel import open_blocking_channel
from adlro.v1 import cluster_service_pb2, cluster_service_pb2_grpc
"a".encode("idna")  # read now: the other user may not be able to read Python's library
uid, server, cluster, store, data_dir, home = json.loads(sys.argv[1])
pids = json.loads(sys.argv[2])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
os.environ["XDG_STATE_HOME"] = home
said = {}

def note(name, call):
    try:
        said[name] = repr(call())
    except AdlroError as error:
        said[name] = error.reason
    except grpc.RpcError as error:
        said[name] = error.code().name
    except OSError as error:
        said[name] = type(error).__name__

with Client(server, patience_s=0.0) as client:
    note("found", lambda: found_credentials(client.endpoints).token)
    note("submit", lambda: client.submit(JobSpec("job", "root", JobType.SIMULATION)))
    note("list", lambda: list(client.list()))
def launch():
    with open_blocking_channel(cluster, Credentials()) as channel:
        stub = cluster_service_pb2_grpc.ClusterServiceStub(channel)
        stub.LaunchJob(cluster_service_pb2.LaunchJobRequest(job_id="job-1", attempt=1), timeout=30.0)
note("launch", launch)
def in_socket():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.path.join(data_dir, "valkey-local/valkey.sock"))
note("socket", in_socket)
def in_store():
    with socket.create_connection(("127.0.0.1", store), timeout=60.0) as connection:
        connection.sendall(b"INCR adlro:x\\r\\n")
        return connection.recv(4096).split()[0].decode()
note("store", in_store)
for name in ("secrets/operator.token", "secrets/service.token", "secrets/users", "valkey-local/password", "up.json",
             "log/local.log"):
    note(name, lambda: open(os.path.join(data_dir, name)).read())
    note("write " + name, lambda: open(os.path.join(data_dir, name), "a"))
for name, pid in pids.items():
    note(f"environ of {name}", lambda: open(f"/proc/{pid}/environ").read())
    note(f"signal to {name}", lambda: os.kill(pid, 15))
note("attempt", lambda: os.mkdir(os.path.join(data_dir, "local", "job-1.1")))
print(json.dumps(said))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process of another user")
def test_another_user_of_the_machine_can_neither_submit_nor_launch(suite: LocalSuite) -> None:
    status = suite.running.status
    data_dir = str(suite.running.data_dir)
    store = json.loads((suite.running.data_dir / "valkey-local/server.json").read_text())["port"]
    what = [NOBODY, suite.server, status["addresses"]["local"], store, data_dir, str(suite.home)]
    ended = subprocess.run(
        [sys.executable, "-c", ANOTHER_USER, json.dumps(what), json.dumps(suite.running.pids)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said.pop("found") == "''"
    assert {name: said.pop(name) for name in ("submit", "list", "launch", "store")} == {
        "submit": "UNAUTHENTICATED",
        "list": "UNAUTHENTICATED",
        "launch": "UNAUTHENTICATED",
        "store": "'-NOAUTH'",
    }
    assert len(suite.running.pids) == 6
    assert len(said) == 1 + 6 * 2 + 6 * 2 + 1
    assert set(said.values()) == {"PermissionError"}, said


def test_programs_and_tokens_outlive_the_suite(tmp_path: Path) -> None:
    first = start(tmp_path / "data", tmp_path / "home")
    try:
        with first.client() as client:
            job = client.submit(a_job(600.0))
            wait_until(lambda: client.get(job.job_id).state is JobState.RUNNING, 60.0, "the program runs")
        attempts = first.running.data_dir / "local"
        wait_until(lambda: [*attempts.glob("*/pid")], 60.0, "its process id")
        (pid_file,) = attempts.glob("*/pid")
        program = int(pid_file.read_text())
        token, server = first.token, first.server
        note = tmp_path / "home/adlro/suites" / f"{server.rpartition(':')[2]}.json"
        assert note.exists()
    finally:
        code = first.running.end(signal.SIGINT)
    second = None
    try:
        assert code == 0, first.running.text
        assert "1 program still runs, and goes on: the next" in first.running.text
        assert "adlro cancel --all" in first.running.text
        assert is_alive(program)
        assert not note.exists()
        assert not (first.running.data_dir / "up.json").exists()
        second = start(tmp_path / "data", tmp_path / "home")
        assert second.token == token
        with second.client() as client:
            found = client.get(job.job_id)
            assert (found.state, len(found.attempts)) == (JobState.RUNNING, 1)
            assert is_alive(program)
        for name in ("valkey", "local", "ingest"):
            os.kill(second.running.pids[name], signal.SIGKILL)
            second.running.wait_until_said(f"{name} is back")
        with pytest.raises(Unauthenticated), Client(second.server, credentials=Credentials(), patience_s=60.0) as none:
            next(none.list())
        assert is_alive(program)
        cancelled = second.own("cancel", "--all", "--yes")
        assert cancelled.returncode == 0, cancelled.stderr
        with second.client() as client:
            client.wait([job.job_id], timeout_s=60.0)
        assert not is_alive(program)
    finally:
        if second is not None:
            assert second.running.end() == 0, second.running.text
        if is_alive(program):
            os.kill(program, signal.SIGKILL)
    assert second is not None
    assert "still run" not in second.running.text


def test_its_service_does_not_start_where_strangers_get_in(tmp_path: Path) -> None:
    made = make_secrets(tmp_path / "secrets")
    with EmbeddedRedis(tmp_path / "store") as store:
        closed = {
            "ADLRO_USERS_FILE": str(made.users_file),
            "ADLRO_SERVICE_TOKEN_FILE": str(made.service_token_file),
            "ADLRO_REDIS_URL": store.url,
            "ADLRO_LOCAL_DATA_DIR": str(tmp_path / "attempts"),
        }

        def ended(**changed: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "tests.e2e.stand_in.local"],
                cwd=ROOT,
                env=environment(**{**closed, **changed}),
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert done.returncode == 1, done.stderr
            return done.stderr

        assert "ADLRO_USERS_FILE: is not set: any caller could run programs" in ended(ADLRO_USERS_FILE="")
        assert "ADLRO_SERVICE_TOKEN_FILE: is not set" in ended(ADLRO_SERVICE_TOKEN_FILE="")
        assert "ADLRO_REDIS_PASSWORD_FILE: is not set" in ended(ADLRO_REDIS_URL=f"redis://{store.address}/0")
        with redis.Redis.from_url(store.url) as own:
            own.execute_command("ACL", "SETUSER", "ada", "on", ">secret", "allcommands", "allkeys", "allchannels")
            own.execute_command("ACL", "SETUSER", "default", "nopass")
            said = ended(ADLRO_REDIS_URL=f"redis://ada:secret@{store.address}/0")
            own.config_set("requirepass", store.url.partition("://:")[2].partition("@")[0])
        assert "answers without a password" in said
        assert "secret" not in said.replace(str(tmp_path), "")


def test_a_store_that_answers_everybody_is_refused(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "store") as closed:
        with redis.Redis.from_url(closed.url) as own:
            own.config_set("requirepass", "")
        refused = subprocess.run(
            [*UP, "up", "--cluster", "local", "--port", "0", "--data-dir", str(tmp_path / "data"), *as_whom(tmp_path)],
            cwd=ROOT,
            env=environment(ADLRO_REDIS_URL=f"redis://{closed.address}/0", XDG_STATE_HOME=str(tmp_path)),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        with redis.Redis(port=closed.port) as own:
            own.config_set("requirepass", closed.url.partition("://:")[2].partition("@")[0])
    assert refused.returncode == 1, refused.stderr
    assert "answers without a password" in refused.stderr
    assert "unset ADLRO_REDIS_URL" in refused.stderr
