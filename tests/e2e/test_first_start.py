"""The first start on a machine that makes it hard: nothing is compiled, and nowhere can anything be kept."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from adlro.client import Client
from adlro.kit.testing import ROOT
from adlro.records.jobs import JobSpec, JobState, JobType, SimulatedWork
from tests.e2e.running_suite import START_TIMEOUT_S, marked_pids, start_suite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * START_TIMEOUT_S)]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh copy of the sources at a path with a space, in which no code can be kept, not even by root."""
    copied = tmp_path / "a fresh checkout"
    for package in ("adlro", "services"):
        shutil.copytree(ROOT / package, copied / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for source in copied.rglob("*.py"):
        (source.parent / "__pycache__").touch()
    return copied


def test_up_works_where_nothing_is_compiled_and_nothing_can_be_kept_and_says_what_it_does(
    checkout: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    running = start_suite(
        tmp_path / "data",
        "--port",
        "0",
        PYTHONPATH=str(checkout),
        PYTHONSAFEPATH="1",  # the working directory has sources too
        PYTHONDONTWRITEBYTECODE="1",
        NUMBA_CACHE_DIR=str(file / "numba"),
        XDG_CACHE_HOME="",
        NUMBA_OPT="0",  # half of the time; optimized code is a matter of other tests
        HOME=str(file),
    )
    try:
        assert "orchestrator: compiling, at every start: there is no folder to keep compiled code in" in running.text
        assert "NUMBA_CACHE_DIR" in running.text
        with Client(running.server) as client:
            job = client.submit(JobSpec("first", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(0.2)))
            assert client.wait([job.job_id], timeout_s=60)[0].state is JobState.SUCCEEDED
    finally:
        code = running.end(signal.SIGINT)
    assert code == 0, running.text
    assert running.error_lines() == []
    assert marked_pids(running.mark) == []
    assert not list(checkout.rglob("*.nbi")), "the sources that ran were others"
