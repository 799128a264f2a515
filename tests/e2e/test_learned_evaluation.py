"""`adlro evaluate --runtime learned` as a command, with a Valkey and a decompose of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from adlro.kit.settings import with_password
from adlro.lab.evaluate.cases import build_cases
from adlro.lab.evaluate.request import Request
from adlro.store.keys import OUTCOMES
from tests.contract.test_decompose_in_evaluation import InProcess, jct_s

JOBS, LOAD = 50, 1.1
COMMAND = [sys.executable, "-m", "adlro.cli", "evaluate", "--runtime", "learned", "--policies", "mct"]
COMMAND += ["--load", f"{LOAD:g}", "--jobs", str(JOBS), "--processes", "1"]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    # Settings of a suite that runs here are none of an evaluation's: a memory file least of all.
    environment = {
        **os.environ,
        "ADLRO_DECOMPOSE_MEMORY_PATH": str(folder / "memory"),
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def children(pid: int) -> list[int]:
    """All processes below one, as far as they are still there."""
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
                    found += [child, *children(child)]
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def until(found: Callable[[], object], timeout_s: float = 120.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not found():
        assert time.monotonic() < end_s, "it did not come to that in time"
        time.sleep(0.02)


def left_by(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "cache")


def decompose_of(pid: int) -> list[int]:
    return [child for child in children(pid) if "adlro.services.decompose" in command_of(child)]


def has_learned(pid: int) -> bool:
    """Whether outcomes have come to the evaluation's own Valkey."""
    for child in children(pid):
        address = re.search(r"valkey-server (127\.0\.0\.1:\d+)|--port (\d+)", command_of(child))
        if address is not None:
            with contextlib.suppress(redis.RedisError, ValueError):
                url = with_password(f"redis://{address[1]}/0", f"/proc/{child}/cwd/password")
                with redis.Redis.from_url(url) as client:
                    return int(client.xlen(OUTCOMES)) >= 5
    return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
async def test_the_command_gives_what_decompose_learns_in_process_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    process = start(tmp_path, "--seeds", "1", "--json", str(out))
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    (row,) = json.loads(out.read_text())["rows"]
    request = Request(policies=("mct",), loads=(LOAD,), jobs=JOBS, lists=1, runtime="learned")
    ((case,), _) = build_cases(request)
    in_process_s = await jct_s(case.job_list(0), InProcess())
    assert row["mean_jct_s"] == pytest.approx(in_process_s.mean(), rel=1e-9)
    assert row["late_jct_s"] == pytest.approx(in_process_s[JOBS // 2 :].mean(), rel=1e-9)
    assert left_by(tmp_path) == ["out.json"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_killed_decompose_ends_the_command_and_a_killed_command_ends_its_processes(tmp_path: Path) -> None:
    process = start(tmp_path, "--seeds", "20")
    until(lambda: has_learned(process.pid))
    for pid in decompose_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 1, stderr
    assert re.search(r"error: decompose at 127\.0\.0\.1:\d+ does not answer: .*It ended \(exit code -9", stderr), stderr
    assert left_by(tmp_path) == []

    process = start(tmp_path, "--seeds", "20")
    until(lambda: has_learned(process.pid))
    left = children(process.pid)
    assert len(left) >= 3  # the store's process, its Valkey, decompose
    process.kill()
    process.communicate(timeout=240)
    until(lambda: not any(command_of(pid) for pid in left))
    assert left_by(tmp_path) == []
