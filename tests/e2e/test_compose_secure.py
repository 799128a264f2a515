"""compose.secure.yaml: TLS, tokens and Redis' password, made by a container; no secret where it is not needed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.client import Client
from adlro.errors import AdlroError, NotFound, PermissionDenied, Unauthenticated
from adlro.kit.credentials import Credentials
from adlro.kit.testing import ROOT
from adlro.records.jobs import JobSpec, JobState, JobType, SimulatedWork
from tests.e2e.compose_suite import ComposeSuite, engine, running
from tests.e2e.running_suite import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.compose, pytest.mark.timeout(900)]  # the first one builds the images

OWN_KEYS = ("ingest", "decompose", "orchestrator", "simcluster", "web", "notify")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def suite(images: float, secrets: Path) -> Iterator[ComposeSuite]:
    made = ComposeSuite(settings={"SECRETS_DIR": str(secrets)}, files=(ROOT / "compose.secure.yaml",))
    with running(made) as started:
        said = started.run("run", "--rm", "secrets")
        before = {path.name: path.read_bytes() for path in secrets.iterdir()}
        started.run("run", "--rm", "secrets")  # once more changes nothing
        assert {path.name: path.read_bytes() for path in secrets.iterdir()} == before, said.stdout
        started.up()
        yield started


def client(suite: ComposeSuite, secrets: Path, token: str = "") -> Client:
    token_file = str(secrets / token) if token else ""
    return Client(suite.server, credentials=Credentials.from_files(str(secrets / "ca.pem"), token_file=token_file))


def texts(secrets: Path) -> list[str]:
    """The secret part of each token, of the password, and of each key."""
    found = [path.read_text().strip().rpartition(".")[2] for path in secrets.glob("*.token")]
    found += ["".join(path.read_text().split("-----")[2].split())[:60] for path in secrets.glob("*.key")]
    return [*found, (secrets / "redis.password").read_text().strip()]


def test_who_has_a_token_submits_and_others_are_refused(suite: ComposeSuite, secrets: Path) -> None:
    spec = JobSpec("mine", "user", JobType.SIMULATION, simulated_work=SimulatedWork(2.0))
    with Client(suite.server) as plain, pytest.raises(AdlroError):
        plain.submit(spec)
    with client(suite, secrets) as nobody, pytest.raises(Unauthenticated):
        nobody.submit(spec)
    with client(suite, secrets, "user.token") as user, client(suite, secrets, "operator.token") as operator:
        job = user.submit(spec)
        assert user.wait([job.job_id], timeout_s=60.0)[0].state is JobState.SUCCEEDED
        with pytest.raises(PermissionDenied):
            user.set_policy("fcfs")
        # The workload's jobs, which come by its own token: an operator sees them, the user doesn't.
        wait_until(lambda: len(list(operator.list())) > 1, 60.0, "jobs of the workload")
        other = next(each for each in operator.list() if each.spec.user != "user")
        with pytest.raises(NotFound):
            user.get(other.job_id)
        assert {each.spec.user for each in user.list()} == {"user"}


def test_the_command_in_a_container_and_the_demo_have_their_token(suite: ComposeSuite) -> None:
    assert '"jobs"' in suite.run("run", "--rm", "--no-deps", "adlro", "queue", "--all", "-o", "json").stdout
    demo = suite.run("run", "--rm", "--no-deps", "demo", "demo", "--running", "--jobs", "8", "--fast", timeout_s=120)
    assert "8 jobs at load 0.9" in demo.stdout


def test_each_container_has_the_secrets_that_it_needs_as_files_and_no_others(
    suite: ComposeSuite, secrets: Path
) -> None:
    for container in suite.containers():
        name = container.labels["com.docker.compose.service"]
        config = str(container.attrs["Config"]) + str(container.attrs["Args"])
        assert not [text for text in texts(secrets) if text in config]
        if name == "gateway":
            continue
        code, listed = container.exec_run(["sh", "-c", "cat /run/secrets/*"])
        assert code == 0
        held = "".join(listed.decode().split())
        keys = {other for other in OWN_KEYS if "".join((secrets / f"{other}.key").read_text().split()) in held}
        assert keys == ({name} & set(OWN_KEYS))
        assert "".join((secrets / "ca.key").read_text().split()) not in held
        assert ((secrets / "operator.token").read_text().strip() in held) == (name == "demo")


def test_redis_asks_for_its_password(suite: ComposeSuite) -> None:
    (redis,) = suite.containers("redis")
    _, said = redis.exec_run(["redis-cli", "keys", "*"])
    assert b"NOAUTH" in said


def test_nothing_secret_is_in_a_log(suite: ComposeSuite, secrets: Path) -> None:
    time.sleep(1.0)  # what was just said is on its way
    logs = "".join(each.logs().decode("utf-8", "replace") for each in suite.containers())
    assert '"event": "listening"' in logs
    assert [text for text in texts(secrets) if text in logs] == []
    assert engine().ping()
