"""Who listens on a port, as the kernel reports it; and a token that goes to no other user's process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import grpc
import pytest

from adlro.client import NO_ANSWER, Client
from adlro.errors import Unavailable
from adlro.kit import credentials, listeners
from adlro.kit.credentials import Credentials
from adlro.kit.identity import new_token
from adlro.kit.listeners import listener_uid
from adlro.kit.settings import ServiceSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc/net")

NOBODY = 65534
LISTEN_AS = """
import os, socket, sys
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
server = socket.socket()
server.bind((sys.argv[1], int(sys.argv[2])))
server.listen()
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def other_user_listens(host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """A process of another user listens; the value is its port."""
    command = [sys.executable, "-c", LISTEN_AS.format(uid=NOBODY), host, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture(params=["netlink", "proc"], autouse=True)
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked; the other one must not be needed."""

    def none(port: int) -> NoReturn:
        if request.param == "netlink":
            pytest.fail("netlink does not work here")
        raise PermissionError

    monkeypatch.setattr(listeners, "_by_proc" if request.param == "netlink" else "_by_netlink", none)


@pytest.mark.parametrize(
    ("family", "host"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0"),
        (socket.AF_INET6, "::ffff:127.0.0.1"),
    ],
)
def test_own_listeners_are_found(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as server:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((host, 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert listener_uid(address) is None
        server.listen()
        with socket.create_connection(server.getsockname()[:2]):
            assert listener_uid(address) == os.geteuid()
    assert listener_uid(address) is None


def test_a_server_of_grpc_is_found() -> None:
    from concurrent import futures

    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert listener_uid(f"127.0.0.1:{port}") == os.geteuid()
    finally:
        server.stop(None).wait()


def test_a_token_for_ones_own_processes_is_shown_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    uids = {"127.0.0.1:1": os.geteuid(), "127.0.0.1:2": os.geteuid() + 1}
    monkeypatch.setattr(credentials, "listener_uid", uids.get)
    shown = Credentials(token="ada.secret", own_user=True, only_for=frozenset(f"127.0.0.1:{n}" for n in (1, 2, 3)))
    assert shown.token_for("127.0.0.1:1") == "ada.secret"
    for address in ("127.0.0.1:4", "localhost:1", "[::1]:1"):
        assert shown.token_for(address) == "", "not of the suite"
    with pytest.raises(Unavailable, match=r"another user .* the token was not sent"):
        shown.token_for("127.0.0.1:2")
    with pytest.raises(Unavailable, match="no process of this user listens") as away:
        shown.token_for("127.0.0.1:3")
    assert away.value.reason == NO_ANSWER
    assert Credentials(token="ada.secret").token_for("127.0.0.1:2") == "ada.secret"
    assert Credentials(token="ada.secret", only_for=frozenset({"a:1"})).token_for("a:1") == "ada.secret"


@pytest.mark.parametrize("address", ["localhost:1", "[::1]:1", "unix:/a", "ipv4:127.0.0.1:1,127.0.0.1:2"])
def test_where_the_listener_is_not_known_no_token_is_shown(address: str) -> None:
    with pytest.raises(Unavailable, match="no process of this user"):
        Credentials(token="ada.secret", own_user=True).token_for(address)


def test_a_service_shows_its_token_to_its_own_user_only_where_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(new_token("suite"))
    token = str(tmp_path / "token")
    assert not Credentials.of_service(ServiceSettings(service_token_file=token)).own_user
    assert Credentials.of_service(ServiceSettings(service_token_file=token, token_to_own_user=True)).own_user


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process of another user")
def test_nothing_is_sent_to_another_users_listener() -> None:
    """He has bound the port of a suite that has ended, and sees neither the token nor a connection."""
    with other_user_listens() as port:
        address = f"127.0.0.1:{port}"
        assert listener_uid(address) == NOBODY
        shown = Credentials(token="ada.secret", own_user=True, only_for=frozenset({address}))
        with (
            Client(address, credentials=shown, patience_s=0.0) as client,
            pytest.raises(Unavailable, match="uid 65534"),
        ):
            client.get("job-1")
        with (
            Client(address, credentials=shown, patience_s=0.0) as client,
            pytest.raises(Unavailable, match="uid 65534"),
        ):
            list(client.watch())
        assert f":{port:04X} " not in "".join(
            line for line in Path("/proc/net/tcp").read_text().splitlines(keepends=True) if " 0A " not in line
        )
