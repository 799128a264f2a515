"""A service that runs programs starts only where no stranger reaches it or its store."""

from __future__ import annotations

import contextlib
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from adlro.clusterside.settings import ClusterSettings
from adlro.errors import InvalidInput, Unavailable
from adlro.kit.closed import require_closed, require_closed_store
from adlro.kit.embedded_redis import EmbeddedRedis, find_server
from adlro.kit.identity import Role, new_token, users_line

Make = Callable[..., ClusterSettings]


@pytest.fixture
def settings(tmp_path: Path) -> Make:
    """Settings that are closed, but for the given ones."""
    tmp_path.chmod(0o700)
    service, other = new_token("suite"), new_token("ada")
    for name, text in (
        ("users", f"{users_line(service, [Role.SERVICE])}\n{users_line(other, [Role.OPERATOR])}\n"),
        ("service.token", service),
        ("other.token", other),
        ("strange.token", new_token("suite")),
    ):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o600)

    def make(**given: str) -> ClusterSettings:
        files = {"users_file": str(tmp_path / "users"), "service_token_file": str(tmp_path / "service.token")}
        return ClusterSettings.model_validate({"redis_url": "redis://:secret@127.0.0.1:1/0", **files, **given})

    return make


def test_what_is_closed_is_accepted(settings: Make, tmp_path: Path) -> None:
    require_closed(settings())
    require_closed(settings(redis_url="unix:///run/redis.sock?password=secret"))
    tmp_path.chmod(0o1777)  # as /tmp: only owners replace their files there
    require_closed(settings())


def test_what_is_missing_is_named(settings: Make, tmp_path: Path) -> None:
    for given, field, says in (
        ({"users_file": ""}, "ADLRO_USERS_FILE", "any caller could run programs"),
        ({"users_file": str(tmp_path / "none")}, "ADLRO_USERS_FILE", "can't read"),
        ({"service_token_file": ""}, "ADLRO_SERVICE_TOKEN_FILE", "is not set"),
        ({"service_token_file": str(tmp_path / "other.token")}, "ADLRO_SERVICE_TOKEN_FILE", "the role `service`"),
        ({"service_token_file": str(tmp_path / "strange.token")}, "ADLRO_SERVICE_TOKEN_FILE", "the role `service`"),
        ({"redis_url": "redis://127.0.0.1:1/0"}, "ADLRO_REDIS_PASSWORD_FILE", "redis://127.0.0.1:1/0"),
        ({"redis_url": "redis://user@127.0.0.1:1/0"}, "ADLRO_REDIS_PASSWORD_FILE", "is not set"),
    ):
        with pytest.raises(InvalidInput, match=says) as refused:
            require_closed(settings(**given))
        assert refused.value.field == field
        assert field in refused.value.message


@pytest.mark.parametrize(
    ("name", "mode", "says"),
    [
        ("users", 0o620, "can be changed by other users"),
        ("users", 0o602, "can be changed by other users"),
        (".", 0o777, "can be changed by other users"),
        ("service.token", 0o640, "chmod 600"),
        ("service.token", 0o604, "chmod 600"),
    ],
)
def test_files_that_others_reach_are_refused(settings: Make, tmp_path: Path, name: str, mode: int, says: str) -> None:
    (tmp_path / name).chmod(mode)
    with pytest.raises(InvalidInput, match=says):
        require_closed(settings())


@pytest.fixture
def open_redis(tmp_path: Path) -> Iterator[int]:
    """The port of a server that everybody may use; it listens at a socket too."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = {"port": port, "bind": "127.0.0.1", "save": "", "unixsocket": tmp_path / "s", "dir": tmp_path}
    process = subprocess.Popen(
        [str(find_server()), *(str(each) for key, value in arguments.items() for each in (f"--{key}", value))],
        stdout=subprocess.DEVNULL,
    )
    try:
        end_s = time.monotonic() + 60.0
        with redis.Redis(port=port) as client:
            while True:
                with contextlib.suppress(redis.ConnectionError):
                    client.ping()
                    break
                assert time.monotonic() < end_s
                time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


async def test_a_store_that_answers_everybody_is_refused(open_redis: int, tmp_path: Path) -> None:
    address = f"127.0.0.1:{open_redis}/0"
    with redis.Redis(port=open_redis) as client:
        # A password that nobody needs: clients with it are served, and so are those without.
        client.execute_command("ACL", "SETUSER", "ada", "on", ">secret", "allcommands", "allkeys")
        for url in (
            f"redis://{address}",
            f"redis://ada:secret@{address}",
            f"unix://ada:secret@{tmp_path}/s",
            f"unix://{tmp_path}/s?username=ada&password=secret",
        ):
            with pytest.raises(InvalidInput, match="answers without a password") as refused:
                await require_closed_store(url)
            assert "secret" not in refused.value.message
        # Strangers may still do something.
        client.execute_command("ACL", "SETUSER", "default", "-ping")
        with pytest.raises(InvalidInput, match="answers without a password"):
            await require_closed_store(f"redis://ada:secret@{address}")
        client.execute_command("ACL", "SETUSER", "default", "resetpass", ">another")
        await require_closed_store(f"redis://ada:secret@{address}")
        await require_closed_store(f"unix://ada:secret@{tmp_path}/s")
    with redis.Redis(port=open_redis, username="ada", password="secret") as client:
        client.execute_command("ACL", "SETUSER", "default", "off")
    await require_closed_store(f"redis://ada:secret@{address}")


async def test_our_own_store_is_closed(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "data") as store:
        await require_closed_store(store.url)
        assert store.socket is not None
        assert stat.S_IMODE(store.socket.stat().st_mode) == 0o600
        await require_closed_store(f"unix://{store.socket}")
    with pytest.raises(Unavailable, match="does not answer") as away:
        await require_closed_store(store.url)
    assert store.url not in away.value.message
