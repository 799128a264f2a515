"""A client that is given no token finds that of its user's running suite, and shows it to nobody else."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from adlro.cli.secrets import make_secrets
from adlro.client import AsyncClient, Client, Credentials, Endpoints
from adlro.client.found import found_credentials
from adlro.kit.private_files import private_opener
from adlro.kit.running_suites import default_data_dir, forget_suite, note_suite

SERVER = "127.0.0.1:7701"


@dataclass
class Data:
    """The data directory of a suite that seems to run."""

    path: Path
    token: str

    def write_status(self, **changed: object) -> None:
        status = {
            "server": SERVER,
            "addresses": {name: f"127.0.0.1:{7701 + n}" for n, name in enumerate("abcd")},
            "token_file": str(self.path / "secrets/operator.token"),
            **changed,
        }
        with open(self.path / "up.json", "w", opener=private_opener) as file:
            json.dump(status, file)


def found(server: str = SERVER) -> Credentials:
    return found_credentials(Endpoints.resolve(server))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Data]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("ADLRO_TOKEN_FILE", raising=False)
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    made = Data(path, make_secrets(path / "secrets").token_file.read_text().strip())
    made.write_status()
    note_suite(SERVER, path)
    with open(path / "lock", "w", opener=private_opener) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield made


def test_the_token_of_the_running_suite_is_found_for_its_addresses(data: Data) -> None:
    shown = found()
    assert shown.token == data.token
    assert shown.only_for == {f"127.0.0.1:{port}" for port in range(7701, 7705)}
    assert data.token not in repr(shown)
    for other in ("127.0.0.1:7702", "localhost:7701", "[::1]:7701", "127.0.0.2:7701", "example.org:7701"):
        assert found(other) == Credentials(), other


def test_what_is_given_wins(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "given"
    given.write_text("bob.secret\n")
    monkeypatch.setenv("ADLRO_TOKEN_FILE", str(given))
    assert found() == Credentials(token="bob.secret")


def test_both_clients_use_what_is_found(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Credentials] = []
    for module in ("aio", "blocking"):
        channels = "AsyncChannels" if module == "aio" else "Channels"
        monkeypatch.setattr(f"adlro.client.{module}.{channels}", lambda shown, **_: seen.append(shown))

    async def open_async() -> None:
        AsyncClient(SERVER)
        AsyncClient(SERVER, credentials=Credentials())

    Client(SERVER)
    asyncio.run(open_async())
    assert [each.token for each in seen] == [data.token, data.token, ""]


def test_a_suite_that_does_not_run_is_not_believed(data: Data) -> None:
    with open(data.path / "lock") as lock:
        data.path.joinpath("lock").unlink()  # as after a crash: up.json is there, and nobody holds the lock
        data.path.joinpath("lock").touch(mode=0o600)
        assert found() == Credentials()
        assert lock.fileno() >= 0


def test_a_suite_that_has_ended_is_forgotten(data: Data, tmp_path: Path) -> None:
    forget_suite(SERVER, tmp_path / "another")
    assert found().token == data.token
    forget_suite(SERVER, data.path)
    assert found() == Credentials()
    assert not list((default_data_dir() / "suites").iterdir())


@pytest.mark.parametrize("changed", [{"server": "127.0.0.1:7711"}, {"token_file": ""}, {"addresses": None}])
def test_a_status_of_another_suite_is_not_used(data: Data, changed: dict[str, object]) -> None:
    data.write_status(**changed)
    assert found() == Credentials()


@pytest.mark.parametrize("name", ["up.json", "secrets/operator.token", "../state/adlro/suites/7701.json"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_files_that_others_can_open_are_not_read(data: Data, name: str, mode: int) -> None:
    (data.path / name).chmod(mode)
    assert found() == Credentials()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["up.json", "lock", "secrets/operator.token", "../state/adlro/suites/7701.json"])
def test_files_of_another_user_are_not_read(data: Data, name: str) -> None:
    os.chown(data.path / name, 65534, 65534)
    assert found() == Credentials()


def test_what_is_no_file_or_no_json_is_not_read(data: Data) -> None:
    status = data.path / "up.json"
    status.write_text("[]")
    assert found() == Credentials()
    status.write_bytes(b"\xff{")
    assert found() == Credentials()
    status.unlink()
    os.mkfifo(status, 0o600)
    assert found() == Credentials()
    status.unlink()
    status.symlink_to(data.path / "elsewhere")
    assert found() == Credentials()
