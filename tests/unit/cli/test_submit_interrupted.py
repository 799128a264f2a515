"""Ctrl-C in `adlro submit`, as a process: what is recorded is told, and the same command goes on from there."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.running_suite import environment, wait_until
from tests.unit.client.fake_suite import FakeSuite

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-m", "adlro.cli", "submit")


def start(suite: FakeSuite, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "--server", suite.endpoints.ingest, *words],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def interrupted(process: subprocess.Popen[str]) -> tuple[list[str], str]:
    """Its stdout and stderr; Ctrl-C comes with the first id."""
    assert process.stdout is not None
    assert process.stderr is not None
    lines = [process.stdout.readline()]
    process.send_signal(signal.SIGINT)
    # Not by `communicate`: it would leave out the lines that came with the first one and are in this stream's buffer.
    lines += process.stdout.readlines()
    err = process.stderr.read()
    assert process.wait(60) == 130, err
    return [line.rstrip("\n") for line in lines], err


def test_many_jobs(suite: FakeSuite) -> None:
    ids, told = interrupted(start(suite, "--count", "40000", "--type", "ml"))
    assert 0 < len(ids) < 40_000
    assert ids == list(suite.jobs), "each recorded job is told"
    found = re.search(r"--request-id (\S+)", told)
    assert found is not None
    again = start(suite, "--count", str(len(ids) + 10), "--type", "ml", "--request-id", found[1])
    out, _ = again.communicate(timeout=60)
    assert out.split()[: len(ids)] == ids
    assert len(suite.jobs) == len(ids) + 10


def test_a_file_of_jobs(suite: FakeSuite, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("jobs:\n" + "".join(f"  job{number}: {{command: x}}\n" for number in range(300)))
    lines, told = interrupted(start(suite, "-f", str(file)))
    assert [line.split()[0] for line in lines] == list(suite.jobs)
    assert 0 < len(lines) < 300
    found = re.search(r"--request-id (\S+)", told)
    assert found is not None
    start(suite, "-f", str(file), "--request-id", found[1]).communicate(timeout=60)
    assert len(suite.jobs) == 300


def test_one_job_for_a_program(suite: FakeSuite) -> None:
    """Its id stands in the document alone, and there is none after a Ctrl-C."""
    with suite.condition:  # the fake answers nobody meanwhile
        process = start(suite, "-o", "json", "--type", "ml")
        wait_until(lambda: suite.calls["SubmitJob"], 60.0, "the call")
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.split()) == (130, "", list(suite.jobs))
