"""`adlro top` on running services: one document, and the screen on a terminal of its own, also while services die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adlro.client import Client, ClockMode
from adlro.client.endpoints import ServiceName
from adlro.client.health import wait_until_serving
from adlro.kit.testing import ROOT
from adlro.records.jobs import JobSpec, JobState, JobType, SimulatedWork
from tests.e2e.running_suite import ADLRO, RunningSuite, adlro, adlro_json, environment, start_suite, wait_until
from tests.pty_screen import PtyProgram

pytestmark = pytest.mark.slow

SHOWS_POLICY = "decided by"
SERVICES = {
    "ingest": ServiceName.INGEST,
    "orchestrator": ServiceName.ORCHESTRATOR,
    "decompose": ServiceName.DECOMPOSE,
    "simcluster": ServiceName.CLUSTER,
}
ENDS_S = 10.0
"""From a signal, or from the terminal's end, on; also on a busy machine."""
RESTART_S = 60.0
RIGHT_AGAIN_S = 10.0
"""From a service's health check on, also on a busy machine."""


def spec(name: str, work_s: float = 3000.0) -> JobSpec:
    return JobSpec(name=name, user="ada", job_type=JobType.MACHINE_LEARNING, simulated_work=SimulatedWork(work_s))


@pytest.fixture(scope="module")
def own_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    """`adlro up` as a user starts it, in real time, with more jobs than GPUs; these tests kill parts of it."""
    running = start_suite(tmp_path_factory.mktemp("top") / "data", "--port", "0")
    with Client(running.server) as client:
        client.submit_many([spec(f"train-{number}") for number in range(20)])
    yield running
    assert running.end() == 0, running.text


@contextmanager
def top(
    suite: RunningSuite, *arguments: str, size: tuple[int, int] = (140, 40), **options: Any
) -> Iterator[PtyProgram]:
    program = PtyProgram([*ADLRO, "top", "--server", suite.server, *arguments], environment(), ROOT, size, **options)
    try:
        program.wait_for(SHOWS_POLICY)
        yield program
    finally:
        program.close()


def test_one_document_of_the_running_suite(suite: RunningSuite) -> None:
    with Client(suite.server) as client:
        client.set_clock(ClockMode.REAL)
        client.submit_many([spec(f"train-{number}") for number in range(18)])
        wait_until(lambda: client.status().running_count == 16, 60.0, "16 running jobs")
        found = adlro_json("top", "--once", server=suite.server)
        assert {each["state"] for each in found["feeds"].values()} == {"live"}
        assert (found["policy"], found["deciding"], found["running"]) == ("fcfs", "fcfs", 16)
        assert (sum(found["waiting"].values()), found["gpu_count"], found["allocated"]) == (2, 16, 16)
        assert {each["job_id"]: each["gpu_ids"] for each in found["jobs"] if each["state"] == "running"} == {
            each["job_ids"][0]: [each["gpu_id"]] for each in found["gpus"]
        }
        assert {each["state"] for each in found["jobs"]} == {"pending", "running"}
        assert isinstance(found["event_lag"], int)
        assert all(each["wait_s"] is not None for each in found["jobs"])
        assert any(each["expected_runtime_s"] for each in found["jobs"])
        waiting = adlro_json("top", "--once", "--filter", "state:waiting", "-n", "1", server=suite.server)
        assert ([each["state"] for each in waiting["jobs"]], waiting["jobs_left_out"]) == (["pending"], 1)
        text = adlro("top", "--once", server=suite.server).stdout
        assert "decided by fcfs" in text
        assert "16/16 GPUs" in text
        assert "\x1b" not in text


def test_the_screen_shows_explains_and_leaves_the_terminal_as_it_was(own_suite: RunningSuite) -> None:
    with top(own_suite) as program:
        program.wait_for("16/16 GPUs")
        assert program.settings_now != program.settings
        program.press(b"\r")
        program.wait_for("Why it waits")
        program.wait_for("16 busy")
        program.wait_for("by submission")  # its place, and before that the expected start
        program.wait_for("expected")
        after = len(program.written)
        program.press(b"\x1b")
        program.wait_for("waiting first", after=after)
        after = len(program.written)
        program.press(b"g")
        program.wait_for("POWER", after=after)
        after = len(program.written)
        program.resize(80, 24)
        program.wait_for("volta-0/0", after=after)
        program.press(b"d")
        program.wait_for("SHADOW")
        program.press(b"q")
        assert program.end() == 0
        assert program.settings_now == program.settings
        assert program.written.rstrip().endswith(b"l")  # modes are taken back; nothing is written after that
        assert b"\x1b[?1049l" in program.written


@pytest.mark.parametrize(
    ("way", "code"), [("ctrl-c", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_each_way_out_restores_the_terminal(own_suite: RunningSuite, way: Any, code: int) -> None:
    with top(own_suite) as program:
        if way == "ctrl-c":
            program.press(b"\x03")
        else:
            program.process.send_signal(way)
        assert program.end() == code
        assert program.settings_now == program.settings
        assert b"\x1b[?1049l" in program.written


@pytest.mark.parametrize("keys", [b"", b"p", b"c"], ids=["drawing", "paused", "question"])
def test_a_vanished_terminal_ends_the_screen_unasked(own_suite: RunningSuite, keys: bytes) -> None:
    with top(own_suite) as program:
        if keys:
            after = len(program.written)
            program.press(keys)
            program.wait_for("PAUSED" if keys == b"p" else "keep it", after=after)
        program.vanish()
        assert program.end(ENDS_S) == 129


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_screen_of_a_vanished_terminal(own_suite: RunningSuite, way: signal.Signals) -> None:
    with top(own_suite) as program:
        program.vanish()
        program.process.send_signal(way)
        assert program.end(ENDS_S) in (129, 128 + way)


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_screen_though_nobody_takes_its_output(own_suite: RunningSuite, way: signal.Signals) -> None:
    with top(own_suite, size=(250, 100)) as program:
        program.stop_reading()
        for _ in range(40):  # each answer repaints all of it: a terminal holds only some of them
            program.press(b"g\x1b")
            time.sleep(0.1)
        program.process.send_signal(way)
        assert program.end(ENDS_S) == 128 + way
        assert program.settings_now == program.settings
        after = len(program.written)
        program.read_again()
        wait_until(lambda: b"\x1b[?1049l" in program.written[after:], 10.0, "the modes, taken back")


def test_a_signal_ends_the_screen_of_another_users_terminal(own_suite: RunningSuite, tmp_path: Path) -> None:
    """After `sudo -u` the terminal can't be opened anew, and a write to it may wait in the kernel."""
    (tmp_path / "refused.py").write_text(
        "import os\ndef refuse(_): raise OSError('planted')\nos.ttyname = refuse\nfrom adlro.cli import main\nmain()\n"
    )
    command = [sys.executable, str(tmp_path / "refused.py"), "top", "--server", own_suite.server]
    program = PtyProgram(command, environment(), ROOT, (250, 100))
    try:
        program.wait_for(SHOWS_POLICY)
        program.stop_reading()
        for _ in range(40):
            program.press(b"g\x1b")
            time.sleep(0.1)
        program.process.send_signal(signal.SIGTERM)
        assert program.end(ENDS_S) == 143
        assert program.settings_now == program.settings
    finally:
        program.close()


def test_a_slow_terminal_is_waited_for(own_suite: RunningSuite) -> None:
    with top(own_suite, size=(250, 100)) as program:
        program.stop_reading()
        for _ in range(40):
            program.press(b"g\x1b")
            time.sleep(0.1)
        after = len(program.written)
        program.read_again()
        # Esc and a key that are read at once are another key: what was pressed is answered first.
        program.wait_for("busy", after=after)
        time.sleep(0.5)
        program.press(b"d")
        program.wait_for("SHADOW", after=after)
        program.press(b"q")
        assert program.end() == 0


@pytest.mark.parametrize("vanished", [False, True])
def test_a_signal_ends_the_screen_while_services_stand_still(own_suite: RunningSuite, vanished: bool) -> None:
    with top(own_suite) as program:
        pids = [own_suite.pids[name] for name in SERVICES]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            program.wait_for("away", 30.0)
            if vanished:
                program.vanish()
            else:
                program.process.send_signal(signal.SIGTERM)
            assert program.end(ENDS_S) == (129 if vanished else 143)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


def test_a_signal_ends_the_screen_while_it_asks(own_suite: RunningSuite) -> None:
    with top(own_suite) as program:
        program.press(b"c")
        program.wait_for("keep it")
        program.process.send_signal(signal.SIGTERM)
        assert program.end(ENDS_S) == 143
        assert program.settings_now == program.settings


def test_a_signal_ends_a_screen_that_hangs(own_suite: RunningSuite, tmp_path: Path) -> None:
    """Whatever holds it up: the terminal is put back, and the process ends."""
    (tmp_path / "hanging.py").write_text(
        "import time\n"
        "from adlro.cli.top.screen.app import TopApp\n"
        "def hang(self): time.sleep(600)\n"
        "TopApp.action_metric = hang\n"
        "from adlro.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, str(tmp_path / "hanging.py"), "top", "--server", own_suite.server]
    program = PtyProgram(command, environment(), ROOT)
    try:
        program.wait_for(SHOWS_POLICY)
        program.press(b"m")
        time.sleep(1.0)
        program.process.send_signal(signal.SIGTERM)
        assert program.end(ENDS_S) == 143
        assert program.settings_now == program.settings
        wait_until(lambda: b"\x1b[?1049l" in program.written, 10.0, "the modes, taken back")
    finally:
        program.close()


@pytest.mark.parametrize("blocked", [False, True])
def test_sigterm_ends_the_table_that_is_drawn_again_and_again(own_suite: RunningSuite, blocked: bool) -> None:
    """`adlro gpus --watch`, which needs no extra: it hides the cursor."""
    command = [*ADLRO, "gpus", "--watch", "--interval", "100ms", "--server", own_suite.server]
    program = PtyProgram(command, environment(), ROOT)
    try:
        program.wait_for("\x1b[?25l")
        program.wait_for("volta-0/0")
        if blocked:
            program.stop_reading()
            time.sleep(3.0)
        program.process.send_signal(signal.SIGTERM)
        assert program.end(ENDS_S) == 143
        if not blocked:
            wait_until(lambda: b"\x1b[?25h" in program.written, 10.0, "the cursor")
    finally:
        program.close()


def test_a_crash_restores_the_terminal_and_says_what_happened(own_suite: RunningSuite, tmp_path: Path) -> None:
    (tmp_path / "crashing.py").write_text(
        "import sys\n"
        "from adlro.cli.top.screen.app import TopApp\n"
        "def crash(self): raise RuntimeError('planted')\n"
        "TopApp.action_metric = crash\n"
        "from adlro.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, str(tmp_path / "crashing.py"), "top", "--server", own_suite.server]
    program = PtyProgram(command, environment(), ROOT)
    try:
        program.wait_for(SHOWS_POLICY)
        program.press(b"m")
        assert program.end() == 1
        assert program.settings_now == program.settings
        left = program.written.index(b"\x1b[?1049l")
        wait_until(lambda: b"planted" in program.written[left:], 10.0, "the error, on the restored terminal")
    finally:
        program.close()


def test_a_redirected_stderr_gets_nothing_of_the_screen(own_suite: RunningSuite, tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    with log.open("wb") as stderr, top(own_suite, stderr=stderr) as program:
        program.press(b"g")
        program.wait_for("POWER")
        program.press(b"q")
        assert program.end() == 0
    assert b"\x1b" not in log.read_bytes()
    assert b"GPU" not in log.read_bytes()


@pytest.mark.parametrize("arguments", [[], ["--filter", "user:ada"]])
def test_off_a_terminal_it_says_what_to_do(own_suite: RunningSuite, arguments: list[str]) -> None:
    ended = adlro("top", *arguments, server=own_suite.server)
    assert ended.returncode == 2
    assert "--once" in ended.stderr


@pytest.mark.parametrize("service", list(SERVICES))
def test_a_killed_service_is_told_and_forgotten_when_it_is_back(own_suite: RunningSuite, service: str) -> None:
    """The restart is the suite's time, and has its own bound; from then on the screen has a few seconds.

    benchmarks/top_recovery.py measures both: the screen took 2 s at most, on two cores that other work shared.
    """
    with Client(own_suite.server) as client:
        address = client.endpoints.address(SERVICES[service])
    with top(own_suite) as program:
        program.wait_for("16/16 GPUs")
        after = len(program.written)
        os.kill(own_suite.pids[service], signal.SIGKILL)
        program.wait_for("away", 30.0, after=after)
        after = len(program.written)
        asyncio.run(wait_until_serving(address, RESTART_S))
        program.wait_for("mlive\x1b", RIGHT_AGAIN_S, after=after)  # all of them: of some it says `others live`
        program.press(b"q")
        assert program.end() == 0


def test_cancel_from_the_screen(own_suite: RunningSuite) -> None:
    with Client(own_suite.server) as client:
        job = client.submit(spec("to be cancelled"))
        with top(own_suite, "--filter", f"id:{job.job_id}") as program:
            program.wait_for("to be cancelled")
            program.press(b"c")
            program.wait_for("keep it")
            program.press(b"y")
            wait_until(lambda: client.get(job.job_id).state is JobState.CANCELLED, 60.0, "the cancel")
            program.press(b"q")
            assert program.end() == 0


def test_the_document_needs_no_terminal_and_no_textual(own_suite: RunningSuite) -> None:
    code = "import sys; sys.modules['textual'] = None; from adlro.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, "top", "--once", "-o", "json", "--server", own_suite.server],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["gpu_count"] == 16
