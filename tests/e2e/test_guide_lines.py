"""The lines of the guides, and of the pages about reading and jobs, run as they stand there, with real programs.

What differs: 17, 18, array-20, volta-0 and ada are jobs, the node and the user of this suite; `top` shows one picture
(--once), and lines with --watch are left to test_reading.py.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adlro.cli.app import app
from adlro.client import Client, JobState, program_spec
from adlro.kit.testing import ROOT
from tests.e2e.real_suite import OPTIONS, RealSuite
from tests.e2e.running_suite import marked_pids, start_suite
from tests.unit.docs.shell_lines import split
from tests.unit.local.bench import users_map

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]

WAITING = (
    "hold",
    "release",
    "update",
    "cancel",
    "why",
)  # commands about a job that waits; others are about one that ended


def section(page: str, heading: str = "") -> list[str]:
    """The lines of a section's first fence of a shell."""
    text = (ROOT / "docs" / page).read_text()
    text = text.partition(f"\n## {heading}\n")[2] if heading else text
    (found,) = re.findall(r"^```sh\n(.*?)^```", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    return [line for line in str(found).splitlines() if line.strip()]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSuite]:
    folder = tmp_path_factory.mktemp("guides")
    mapped = users_map(folder)
    options = (*OPTIONS, "--no-page", *(("--users-map", mapped) if mapped else ()))
    enough = {"ADLRO_LOCAL_CPU_CORES": "64", "ADLRO_LOCAL_MEMORY_MIB": "262144"}  # for what the lines ask for
    running = start_suite(folder / "data", *options, XDG_STATE_HOME=str(folder / "home"), **enough)
    yield RealSuite(running, folder / "home")
    assert running.end() == 0, running.text
    assert marked_pids(running.mark) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the programs and files that the lines name."""
    scripts = ("train.sh", "part.sh", "report", "nightly", "prepare", "collect")
    for name in scripts:
        (tmp_path / name).write_text("#!/bin/sh\n#ADLRO --time-limit 1m\necho done\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "sweep.py").write_text("print('swept')\n")
    (tmp_path / "torchrun").write_text("#!/bin/sh\nexec python $1\n")
    (tmp_path / "torchrun").chmod(0o755)
    (tmp_path / "jobs.yaml").write_text("jobs:\n  a: {command: [echo, a]}\n  b: {after: a, command: [echo, b]}\n")
    return tmp_path


class Reader:
    """Somebody who types what a guide says."""

    def __init__(self, suite: RealSuite, client: Client, folder: Path) -> None:
        self.suite, self.client, self.folder = suite, client, folder

    def job(self, *, waiting: bool) -> str:
        """The number of a job that waits, or of one that has ended."""
        job = self.client.submit(command=["echo", "done"], held=waiting)
        if not waiting:
            (job,) = self.client.wait([job.job_id], timeout_s=60.0)
            assert job.state is JobState.SUCCEEDED, job.message
        return job.job_id.removeprefix("job-")

    def array(self, *, waiting: bool) -> str:
        """An array that waits, or that has ended."""
        made = self.client.submit_array(program_spec(["echo", "done"], held=waiting), [0, 1])
        if not waiting:
            self.client.wait(list(made.job_ids), timeout_s=60.0)
        return made.array_id

    def type(self, line: str) -> str:
        """Runs a line's commands; its output. Each must succeed."""
        waiting = any(f"adlro {word} " in line for word in WAITING)
        for named in ("17", "18"):
            if re.search(rf"\b{named}\b", line):
                line = re.sub(rf"\b{named}\b", self.job(waiting=waiting), line)
        if "array-20" in line:
            line = line.replace("array-20", self.array(waiting=waiting))
        line = line.replace("volta-0", "vm").replace("adlro top", "adlro top --once")
        line = re.sub(r"\bada\b", self.suite.user, line).replace(
            "~/.local/state/adlro", str(self.suite.running.data_dir)
        )
        path = f"{self.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**self.suite.environment(PATH=path), "ADLRO_SERVER": self.suite.server, "COLUMNS": "120"}
        said = ""
        for words in split(line):
            assert words[0] == "adlro", line
            if words[1] == "compare":  # becomes another program
                ended = self.suite.command(*words[1:])
                assert ended.returncode == 0, ended.stderr
                said += ended.stdout
                continue
            result = CliRunner().invoke(app, list(words[1:]), env=environment)
            assert result.exit_code == 0, f"{shlex.join(words)}\n{result.stdout}\n{result.stderr}\n{result.exception!r}"
            said += result.stdout
        return said


@pytest.fixture
def reader(suite: RealSuite, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(folder)
    with suite.client() as client:
        yield Reader(suite, client, folder)
        open_jobs = [job.job_id for job in client.list() if not job.state.final]
        client.cancel_many(open_jobs)  # some end by the cancellation of others
        client.wait(open_jobs, timeout_s=60.0)
        client.set_policy("dqn")


def test_the_lines_of_the_users_guide(reader: Reader) -> None:
    failed = reader.client.submit(command=["false"])
    reader.client.wait([failed.job_id], timeout_s=60.0)
    said = {line.partition("#")[0].strip(): reader.type(line) for line in section("users_guide.md")}
    assert len(said) > 20
    assert said["adlro run -- python train.py"] == "trained\n"
    assert said["adlro submit --array 0-99%10 -- ./part.sh"].startswith("array-")
    assert len(said["adlro submit --file jobs.yaml"].splitlines()) == 2
    assert said["adlro why job-17"].startswith("job-")
    assert "v100_sxm2" in said["adlro gpus"]
    assert [line for line, text in said.items() if not text.strip()] == []


@pytest.mark.parametrize("heading", ["Limits and quotas", "Jobs of others", "Policies", "Maintenance of a node"])
def test_the_lines_of_the_operators_guide(reader: Reader, heading: str) -> None:
    text = (ROOT / "docs" / "operators_guide.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = section("operators_guide.md", heading) if "```sh" in text else re.findall(r"`(adlro [^`]+)`", text)
    assert len(lines) >= 3
    for line in lines:
        reader.type(line)


@pytest.mark.parametrize("heading", ["When a job starts", "Arrays"])
def test_the_lines_of_the_page_of_jobs(reader: Reader, heading: str) -> None:
    for line in section("jobs.md", heading):
        reader.type(line)


@pytest.mark.parametrize("heading", ["Jobs", "Nodes and GPUs", "The suite and its policies", "Usage"])
def test_the_lines_of_the_page_of_reading(reader: Reader, heading: str) -> None:
    reader.job(waiting=False)
    lines = [line for line in section("reading.md", heading) if "--watch" not in line]
    assert len(lines) >= 3
    for line in lines:
        reader.type(line)
