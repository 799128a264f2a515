"""The suite as users start it: `adlro up` as a process, and `adlro` commands as processes beside it.

Every process that a test starts bears a mark in its environment, and so do its children: what is left is found by it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adlro.client import Client, JobFilter
from adlro.errors import Conflict
from adlro.kit.testing import ROOT
from adlro.records.events import ClockMode
from adlro.records.jobs import JobState

ADLRO = (sys.executable, "-m", "adlro.cli")
MARK = "E2E_MARK"
# `adlro up` itself gives up where a start stands still; one that gets on may take long on a loaded machine.
START_TIMEOUT_S = 240.0
END_TIMEOUT_S = 120.0


def environment(mark: str = "", **more: str) -> dict[str, str]:
    """This process's environment without ADLRO_ keys, and without a terminal's size: messages stay on one line."""
    sizes = ("COLUMNS", "LINES")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ADLRO_") and key not in sizes}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": path, MARK: mark, **more}


def new_mark() -> str:
    """A mark that no other process bears."""
    return f"e2e-{uuid.uuid4()}"


def marked_pids(mark: str) -> list[int]:
    """The processes that bear a mark, zombies left out. Linux only; elsewhere none are found."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
        except OSError:  # it has ended, or is not ours
            continue
    return found


def wait_until(condition: Callable[[], Any], timeout_s: float, what: str) -> None:
    """Returns when the condition holds; an AssertionError that says what was waited for where it does not in time."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    shown = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=60
    )
    return shown.returncode == 0 and not shown.stdout.startswith("Z")


def adlro(
    *arguments: str, server: str | None = None, timeout_s: float = 120.0, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs an `adlro` command to its end."""
    named = () if server is None else ("--server", server)
    return subprocess.run(
        [*ADLRO, *arguments, *named],
        cwd=ROOT,
        env=dict(env) if env is not None else environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def adlro_json(*arguments: str, server: str, timeout_s: float = 120.0) -> Any:
    """What an `adlro` command says with `-o json`; it must succeed."""
    ended = adlro(*arguments, "-o", "json", server=server, timeout_s=timeout_s)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@dataclass
class RunningSuite:
    """`adlro up`, running.

    Attributes:
        process: of `adlro up` itself.
        data_dir: its data directory.
        mark: borne by all its processes.
        said: lines on its stdout and stderr so far.
    """

    process: subprocess.Popen[str]
    data_dir: Path
    mark: str
    said: list[str] = field(default_factory=list)
    _readers: list[threading.Thread] = field(default_factory=list)

    @property
    def status(self) -> dict[str, Any]:
        """up.json: addresses and pids."""
        found: dict[str, Any] = json.loads((self.data_dir / "up.json").read_text(encoding="utf-8"))
        return found

    @property
    def server(self) -> str:
        """ingest's address."""
        return str(self.status["server"])

    @property
    def pids(self) -> dict[str, int]:
        """Of all services and of Valkey."""
        return dict(self.status["pids"])

    @property
    def text(self) -> str:
        """All that it said."""
        return "\n".join(self.said)

    def wait_until_said(self, text: str, timeout_s: float = 60.0) -> None:
        """Returns when it has said that."""
        wait_until(
            lambda: text in self.text or self.process.poll() is not None, timeout_s, f"{text!r} in:\n{self.text}"
        )
        assert text in self.text, f"`adlro up` ended ({self.process.poll()}) without {text!r}:\n{self.text}"

    def error_lines(self) -> list[str]:
        """What the services logged as an error."""
        found = []
        for log in sorted((self.data_dir / "log").glob("*.log")):
            for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    level = json.loads(line).get("level")
                except ValueError:
                    level = "error"  # not structured: a traceback
                if level in ("error", "critical"):
                    found.append(f"{log.name}: {line}")
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, and waits for the end; kills what does not end. Its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()  # its children see that, and end
        code = self.process.wait()
        for reader in self._readers:
            reader.join(30.0)
        return code


def start_suite(data_dir: Path, *options: str, command: Sequence[str] = ADLRO, **env: str) -> RunningSuite:
    """Starts `adlro up` and returns when it says that it is ready."""
    mark = new_mark()
    process = subprocess.Popen(
        [*command, "up", "--data-dir", str(data_dir), *options],
        cwd=ROOT,
        env=environment(mark, **env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    suite = RunningSuite(process, data_dir, mark)
    for stream in (process.stdout, process.stderr):
        reader = threading.Thread(target=_read, args=(stream, suite.said), daemon=True)
        reader.start()
        suite._readers.append(reader)
    try:
        suite.wait_until_said("Ready in", START_TIMEOUT_S)
    except BaseException:
        suite.end()
        raise
    return suite


def _read(stream: Any, lines: list[str]) -> None:
    with stream:
        lines.extend(line.rstrip("\n") for line in stream)


def clear(client: Client, clock: tuple[ClockMode, float], policy: str) -> None:
    """Leaves a suite to the next test without open jobs, its clock and policy as they were."""
    left = [job.job_id for job in client.list(JobFilter(states=(JobState.PENDING, JobState.RUNNING)))]
    client.set_clock(paused=False)
    for job_id in left:
        with contextlib.suppress(Conflict):  # it has just ended by itself
            client.cancel(job_id)
    client.wait(left, timeout_s=60.0)
    client.set_clock(clock[0], scale=clock[1])
    if client.status().policy != policy:
        client.set_policy(policy)
