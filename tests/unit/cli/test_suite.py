"""Starting and watching over processes, as far as it goes without the services themselves."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adlro.cli import given_redis, ports, suite
from adlro.cli.app import app
from adlro.cli.data_dir import take_lock
from adlro.cli.page import PORT_OFFSET
from adlro.cli.ports import ClaimedPorts, port_is_free
from adlro.cli.processes import ServiceProcess, exit_text, log_tail, rotate
from adlro.cli.starting import StartFailed
from adlro.cli.up import few_cores
from adlro.errors import Conflict
from adlro.kit.running_suites import default_data_dir, running_suite
from adlro.records.cluster import Gpu, Node
from tests.unit.client.fake_suite import until

ECHO = """
import os, signal, sys, time
print("started", os.environ["GREETING"], flush=True)
if os.environ["GREETING"] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ignoring", flush=True)
if os.environ["GREETING"] == "short":
    sys.exit(3)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "echo_service.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


async def said(service: ServiceProcess, text: str) -> None:
    await until(lambda: service.log.exists() and text in service.log.read_text())


async def test_a_process_is_started_logged_and_ended(folder: Path) -> None:
    service = ServiceProcess("echo", "echo_service", {"GREETING": "hello"}, folder / "log")
    await service.start()
    await said(service, "started hello")
    assert service.pid is not None
    assert await service.stop(60)
    assert service.pid is None


async def test_one_that_ignores_sigterm_is_killed_and_told(folder: Path) -> None:
    service = ServiceProcess("echo", "echo_service", {"GREETING": "stubborn"}, folder / "log")
    await service.start()
    await said(service, "ignoring")
    assert not await service.stop(0.2)
    assert service.pid is None


async def test_lines_are_echoed_and_logged(folder: Path) -> None:
    lines: list[tuple[str, str]] = []
    service = ServiceProcess(
        "echo", "echo_service", {"GREETING": "short"}, folder / "log", lambda name, line: lines.append((name, line))
    )
    await service.start()
    assert await service.ended() == 3
    await said(service, "started short")
    await service.stop(1)
    assert lines == [("echo", "started short")]
    assert service.log.read_text() == "started short\n"


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to end the child with its parent")
async def test_a_killed_parent_leaves_nothing(folder: Path) -> None:
    code = (
        "import asyncio, sys, pathlib\n"
        "from adlro.cli.processes import ServiceProcess\n"
        "async def main():\n"
        "    service = ServiceProcess('echo', 'echo_service', {'GREETING': 'x'}, pathlib.Path(sys.argv[1]))\n"
        "    await service.start()\n"
        "    print(service.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(folder / "log"), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(await asyncio.wait_for(parent.stdout.readline(), 60))
    parent.kill()
    await parent.wait()
    await until(lambda: not _alive(child))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_logs_are_rotated_and_the_oldest_dropped(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    for start in range(6):
        rotate(log, kept=2)
        log.write_text(f"{start}")
    assert sorted((path.name, path.read_text()) for path in tmp_path.iterdir()) == [
        ("x.log", "5"),
        ("x.log.1", "4"),
        ("x.log.2", "3"),
    ]


def test_the_tail_of_a_log_is_what_went_wrong(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(
        '{"level": "info", "event": "starting"}\n'
        '{"level": "error", "event": "cannot listen", "error": "port 7 is in use"}\n'
        "ingest: unknown setting ADLRO_X\n"
        '{"level": "error", "event": "can\'t start", "exception": "Traceback:\\n  File x\\nNameError: name"}\n'
    )
    assert log_tail(log) == [
        "cannot listen: port 7 is in use",
        "ingest: unknown setting ADLRO_X",
        "can't start: NameError: name",
    ]
    assert log_tail(tmp_path / "none.log") == []


def test_exit_codes_in_words() -> None:
    codes = (2, -signal.SIGKILL, -signal.SIGTERM, -200)
    assert [exit_text(code) for code in codes] == ["exit code 2", "SIGKILL", "SIGTERM", "signal 200"]


def test_free_ports_come_in_a_row(taken_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not port_is_free("127.0.0.1", taken_port)
    # Other processes take ports too: which are free, the test says itself.
    monkeypatch.setattr(ports, "port_is_free", lambda _, port: port % 7 != 1)
    chosen = [ClaimedPorts() for _ in range(10)]
    assert {each.base % 7 for each in chosen} == {2}
    assert {each.base for each in chosen} <= set(ports.FREE_PORTS)
    for each in chosen:
        each.release()


def test_two_suites_that_start_at_once_choose_other_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    # No service listens yet.
    monkeypatch.setattr(ports, "port_is_free", lambda *_: True)
    first = ClaimedPorts()
    size = PORT_OFFSET + 2  # with notify
    shared = [first.base + step for step in range(1 - size, size)]
    monkeypatch.setattr(random, "sample", lambda *_: shared)
    with pytest.raises(Conflict, match="consecutive free ports"):
        ClaimedPorts()
    first.release()
    again = ClaimedPorts()
    assert again.base in shared
    again.release()


def test_gpus_that_cores_leave_idle_are_told_of() -> None:
    gpus = tuple(Gpu(f"vm/{index}", "v100_sxm2", 16384) for index in range(4))
    nodes = [Node("vm", cores, 4096, gpus=gpus) for cores in (4, 2, 1)]
    assert not few_cores(nodes[:1])
    assert [line.partition(":")[0] for line in few_cores(nodes)] == [
        "vm has 4 GPUs and 2 cores",
        "vm has 4 GPUs and 1 core",
    ]


async def test_commands_find_their_token_during_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = suite.Suite(suite.SuitePlan(tmp_path / "data", 0, closed=True, own_secrets=True, page=False), print)
    waits, ends = asyncio.Event(), asyncio.Event()

    async def until_serving(*_: object) -> None:
        waits.set()
        await ends.wait()
        raise StartFailed("it never serves")

    monkeypatch.setattr(suite, "until_serving", until_serving)
    start = asyncio.create_task(made.start())
    await asyncio.wait_for(waits.wait(), 60)
    found = running_suite(made.server)
    ready = json.loads((tmp_path / "data" / "up.json").read_text())["ready"]
    ends.set()
    with pytest.raises(StartFailed, match="it never serves"):
        await asyncio.wait_for(start, 60)
    assert found is not None
    assert found.data_dir == tmp_path / "data"
    assert ready is False
    assert running_suite(made.server) is None


def test_up_says_which_port_is_in_use(taken_port: int, tmp_path: Path) -> None:
    base = taken_port - 2
    result = CliRunner().invoke(app, ["up", "--port", str(base), "--data-dir", str(tmp_path / "data")])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    named = re.search(r"port (\d+)", result.stderr)
    assert named is not None
    assert int(named[1]) in range(base, base + 4)
    assert "--port" in result.stderr
    assert not (tmp_path / "data" / "up.json").exists()


def test_up_says_who_uses_the_data_directory(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "lock").open("w") as lock:
        lock.write(str(os.getpid()))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = CliRunner().invoke(app, ["up", "--port", "0", "--data-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert f"pid {os.getpid()}" in result.stderr
    assert "--data-dir" in result.stderr


def test_up_says_that_its_data_directory_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.touch()  # a file: not even root can make a folder in it
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    result = CliRunner().invoke(app, ["up", "--port", "0"])
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert f"the data directory {home}/.local/state/adlro can't be written" in result.stderr
    assert "--data-dir" in result.stderr


@pytest.mark.parametrize(("passable", "mode"), [(False, 0o700), (True, 0o711)])
def test_files_of_programs_are_left_as_they_are(tmp_path: Path, passable: bool, mode: int) -> None:
    """They may be of other users, whom the rest of the data directory keeps out."""
    data = tmp_path / "data"
    for name in ("local/job-1.1", "log", "secrets"):
        (data / name).mkdir(parents=True)
    for each in (data, *data.rglob("*")):
        each.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(data / "local/job-1.1", 65534, 65534)
    (data / "up.json").write_text("{}")
    with take_lock(data, passable=passable):
        found = {str(path.relative_to(data)): path.stat().st_mode & 0o777 for path in (data, *data.rglob("*"))}
        assert found == {
            ".": mode,
            "local": 0o755,
            "local/job-1.1": 0o755,
            "log": 0o700,
            "secrets": 0o700,
            "lock": 0o600,
        }


def test_data_goes_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "adlro"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / ".local" / "state" / "adlro"


def test_up_says_that_a_redis_of_ones_own_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_redis, "REDIS_TIMEOUT_S", 0.2)
    for url in ("redis://127.0.0.1:1/0", "http://example.org"):
        environment = {"ADLRO_REDIS_URL": url}
        result = CliRunner().invoke(app, ["up", "--port", "0", "--data-dir", str(tmp_path)], env=environment)
        assert result.exit_code == 1
        assert "ADLRO_REDIS_URL" in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert "Traceback" not in result.output
