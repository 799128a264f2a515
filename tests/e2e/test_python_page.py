"""docs/python.md and examples/ do what they say: each block and each program is run."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.kit.testing import ROOT
from tests.e2e.running_suite import RunningSuite, environment, start_suite
from tests.unit.local.bench import users_map

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="adlro-python-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def local(folder: Path) -> Iterator[RunningSuite]:
    mapped = users_map(folder)
    options = ("--users-map", mapped) if mapped else ()
    options = ("--cluster", "local", "--fake-gpus", "v100_sxm2:2", "--port", "0", *options)
    running = start_suite(folder / "data", *options, XDG_STATE_HOME=str(folder / "home"))
    try:
        yield running
    finally:
        assert running.end() == 0, running.text


def run(program: Path, suite: RunningSuite, *arguments: str, **more: str) -> str:
    ended = subprocess.run(
        [sys.executable, str(program), *arguments],
        env=environment(ADLRO_SERVER=suite.server, **more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_all_blocks_of_the_page_run_one_after_the_other(local: RunningSuite, folder: Path) -> None:
    assert len(BLOCKS) == 6
    program = folder / "page.py"
    program.write_text("\n".join(BLOCKS))
    said = run(program, local, XDG_STATE_HOME=str(folder / "home"))
    for line in (
        r"^job-\d+ pending \(submitted\): python, of \S+$",
        r"^succeeded \S+/\d [\d.]+$",
        r"^hello$",
        r"^\{'rate': 0\.5, 'loss': 0\.25\}$",
        r"^ID +NAME +USER +TYPE +STATE",
        r"^GPU +NODE +MODEL",
        r"^\[\{'rate': 0\.1, .*\{'rate': 0\.3, ",
        r"^7200\.0 16384$",
        r"^job-\d+ True$",
        r"^sh\[0\] succeeded$",
        r"^true succeeded$",
        r"^time_limt: JobSpec has no such field; do you mean time_limit\?$",
        r"^job-\d+ \(5, '\S+/0,\S+/1'\)$",
        r"^a wrong rate RemoteTraceback$",
        r"^\d+ (succeeded|failed) ID +NAME",
    ):
        assert re.search(line, said, re.MULTILINE), f"{line} in:\n{said}"


def test_the_thirty_lines_are_no_more() -> None:
    assert len(BLOCKS[0].splitlines()) <= 32


def test_functions_are_swept(local: RunningSuite, folder: Path) -> None:
    said = run(ROOT / "examples/sweep_functions.py", local, XDG_STATE_HOME=str(folder / "home"))
    assert re.search(r"^job-\d+ failed: the loss is \S+ at a rate of 1\.5$", said, re.MULTILINE)
    assert re.search(r"^best: rate 0\.1, loss \S+, on \S+/\d$", said, re.MULTILINE)


def test_one_job_is_submitted_and_explained(scaled_suite: RunningSuite) -> None:
    said = run(ROOT / "examples/submit_and_wait.py", scaled_suite)
    assert re.search(r"^job-\d+ succeeded on \S+/\d: hello, of \S+$", said, re.MULTILINE)
    assert "s from its submission to its end" in said


def test_a_batch_is_submitted_once(scaled_suite: RunningSuite) -> None:
    for _ in range(2):
        said = run(ROOT / "examples/submit_many.py", scaled_suite, BATCH="monday")
        assert sum(int(each) for each in re.findall(r"^ *(\d+) jobs on \S+$", said, re.MULTILINE)) == 40


def test_jobs_and_gpus_are_watched(scaled_suite: RunningSuite) -> None:
    assert "GPUs, " in run(ROOT / "examples/watch_cluster.py", scaled_suite, "4")
