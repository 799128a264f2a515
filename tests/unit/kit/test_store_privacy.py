"""The store that we start is for its owner alone: other users of the machine neither read nor change it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import redis

from adlro.errors import Conflict
from adlro.kit.embedded_redis import EmbeddedRedis, find_server

NOBODY = 65534
ANOTHER_USER = """
import os, socket, sys
"a".encode("idna")  # read now: the other user may not be able to read Python's library
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
data_dir, port = sys.argv[1], int(sys.argv[2])
opened = []
for name in ("", "password", "server.json", "valkey.log", "appendonlydir"):
    try:
        path = os.path.join(data_dir, name)
        opened.append(os.listdir(path) if os.path.isdir(path) else open(path).read())
    except OSError:
        pass
said = b""
with socket.create_connection(("127.0.0.1", port), timeout=60.0) as connection:
    for line in (b"INCR secret", b"GET secret", b"SHUTDOWN", b"CONFIG GET requirepass"):
        connection.sendall(line + b"\\r\\n")
        said += connection.recv(4096)
print(opened, said)
"""


def open_to_others(directory: Path) -> list[str]:
    """What below a directory, itself included, has a bit for group or others."""
    found = [directory, *directory.rglob("*")]
    return [f"{path} {stat.filemode(path.lstat().st_mode)}" for path in found if path.lstat().st_mode & 0o077]


def until_listening(port: int) -> None:
    end_s = time.monotonic() + 60.0
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path / "store"


def test_a_connection_without_the_password_may_do_nothing(data_dir):
    with EmbeddedRedis(data_dir) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60.0) as stranger:
            for command in (b"INCR secret", b"GET secret", b"SHUTDOWN", b"CONFIG GET requirepass"):
                stranger.sendall(command + b"\r\n")
                assert stranger.recv(4096) == b"-NOAUTH Authentication required.\r\n"
        with redis.Redis.from_url(server.url) as own:
            assert own.get("secret") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_of_the_machine_neither_reads_nor_changes_it():
    with contextlib.ExitStack() as stack:
        # pytest's own directories let nobody in; what is above the store must not be what keeps the other one out.
        above = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        above.chmod(0o755)
        data_dir = above / "store"
        server = stack.enter_context(EmbeddedRedis(data_dir))
        own = stack.enter_context(redis.Redis.from_url(server.url))
        own.set("secret", 7)
        done = subprocess.run(
            [sys.executable, "-S", "-c", ANOTHER_USER.format(uid=NOBODY), str(data_dir), str(server.port)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert done.stdout.startswith("[] "), done.stdout
        assert done.stdout.count("-NOAUTH") == 4, done.stdout
        assert own.get("secret") == b"7"


def test_nothing_in_its_directory_is_open_to_others(data_dir):
    old = os.umask(0o022)
    try:
        with EmbeddedRedis(data_dir) as server, redis.Redis.from_url(server.url) as own:
            own.set("key", "value")
            own.bgrewriteaof()
            while own.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.01)
            assert open_to_others(data_dir) == []
        assert open_to_others(data_dir) == []
    finally:
        os.umask(old)


def test_what_an_older_version_left_open_is_closed(data_dir):
    data_dir.joinpath("appendonlydir").mkdir(parents=True)
    data_dir.chmod(0o755)
    for name in ("valkey.log", "owner.lock"):
        data_dir.joinpath(name).write_text("")
        data_dir.joinpath(name).chmod(0o644)
    data_dir.joinpath("elsewhere").symlink_to(data_dir.parent)
    not_ours = data_dir.parent / "not ours"
    not_ours.write_text("")
    not_ours.chmod(0o644)
    with EmbeddedRedis(data_dir):
        assert [each for each in open_to_others(data_dir) if "elsewhere" not in each] == []
    # A link leads out of the directory, and what it leads to is not ours.
    assert data_dir.parent.stat().st_mode & 0o777 == 0o755
    assert not_ours.stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
def test_a_directory_of_another_user_is_refused(data_dir):
    data_dir.mkdir()
    os.chown(data_dir, NOBODY, NOBODY)
    with pytest.raises(Conflict, match="belongs to another user"):
        EmbeddedRedis(data_dir).start()


def test_the_password_is_in_no_argument_environment_log_or_note(data_dir):
    with EmbeddedRedis(data_dir) as server:
        password = data_dir.joinpath("password").read_text().strip()
        assert len(password) >= 32
        assert password in server.url
        shown = [path for path in data_dir.rglob("*") if path.is_file() and path.name != "password"]
        process = Path(f"/proc/{server.pid}")
        if process.is_dir():
            shown += [process / "cmdline", process / "environ"]
        assert not [str(path) for path in shown if password.encode() in path.read_bytes()]
        assert password not in repr(server)


def test_each_owner_has_a_password_of_its_own_and_a_restart_keeps_it(data_dir):
    with EmbeddedRedis(data_dir) as server:
        before = server.url
        server.kill()
        server.start()
        assert server.url == before
    with EmbeddedRedis(data_dir, server.port) as server:
        assert server.url != before


def test_a_server_that_an_older_version_left_without_a_password_is_replaced(data_dir):
    data_dir.mkdir()
    port = EmbeddedRedis(data_dir)
    with port:
        number = port.port
    orphan = subprocess.Popen(
        [find_server(), "--port", str(number), "--bind", "127.0.0.1", "--dir", str(data_dir), "--appendonly", "yes"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until_listening(number)
        with redis.Redis(port=number) as connection:
            connection.set("key", "value")
        note = {"port": number, "pid": orphan.pid}
        data_dir.joinpath("server.json").write_text(json.dumps(note))
        with EmbeddedRedis(data_dir) as server, redis.Redis.from_url(server.url) as connection:
            assert orphan.wait(60) == 0
            assert connection.get("key") == b"value"
    finally:
        if orphan.poll() is None:
            os.kill(orphan.pid, signal.SIGKILL)
            orphan.wait()


def test_a_server_left_behind_that_cannot_be_asked_is_said(data_dir):
    owner = EmbeddedRedis(data_dir)
    with owner:
        note = data_dir.joinpath("server.json").read_text()
        data_dir.joinpath("password").unlink()
        # As after a `kill -9` of its owner.
        data_dir.joinpath("owner.lock").rename(data_dir / "old.lock")
        with pytest.raises(Conflict, match=rf"pid {owner.pid}\).*refuses the known passwords.*server\.json"):
            EmbeddedRedis(data_dir).start()
        data_dir.joinpath("server.json").write_text(note)
