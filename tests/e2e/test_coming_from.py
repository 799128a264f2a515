"""docs/coming_from.md: each command of its tables is run as it stands there, and what it does is looked at.

17 and array-20 in a command stand for a job and an array that the row's check has made; NODE for the machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from adlro.cli.app import app
from adlro.client import Client, Job, JobState
from adlro.kit.testing import ROOT
from tests.e2e.real_suite import OPTIONS, RealSuite
from tests.e2e.running_suite import adlro, marked_pids, start_suite
from tests.unit.local.bench import users_map

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]

PAGE = ROOT / "docs" / "coming_from.md"
_ROW = re.compile(r"^\| (?P<what>[^|]+) \| (?P<there>[^|]+) \| `(?P<here>[^`]+)`", re.MULTILINE)
HERE = [match["here"] for match in _ROW.finditer(PAGE.read_text())]
WAIT_S = 60.0


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSuite]:
    folder = tmp_path_factory.mktemp("coming_from")
    mapped = users_map(folder)
    options = (*OPTIONS, *(("--users-map", mapped) if mapped else ()))
    running = start_suite(folder / "data", *options, XDG_STATE_HOME=str(folder / "home"))
    yield RealSuite(running, folder / "home")
    assert running.end() == 0, running.text
    assert marked_pids(running.mark) == []


@dataclass
class Said:
    """What a command has said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Shell:
    """The user's shell: runs commands as they stand on the page, with its own ids in place of 17 and array-20."""

    def __init__(self, suite: RealSuite, folder: Path, here: str) -> None:
        self.suite, self.folder, self.here = suite, folder, here
        self.client: Client = suite.client()

    def row(self, job: str = "", array: str = "", node: str = "") -> Said:
        """The command of the row."""
        text = self.here
        if job:
            text = re.sub(r"\b17\b", job.removeprefix("job-"), text)
        if array:
            text = text.replace("array-20", array)
        return self.adlro(*shlex.split(text.replace("NODE", node))[1:])

    def adlro(self, *words: str, code: int | None = None) -> Said:
        """Another command; in this process, as the command's own tests run it."""
        environment = {**self.suite.environment(), "ADLRO_SERVER": self.suite.server, "COLUMNS": "120"}
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            result = CliRunner().invoke(app, list(words), env=environment)
        finally:
            os.chdir(before)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        said = Said(result.exit_code, result.stdout, result.stderr)
        assert code is None or said.code == code, said
        return said

    def submit(self, *words: str) -> str:
        """A job of the check's own; its id."""
        return self.adlro("submit", *words, code=0).lines[-1].split()[0]

    def job(self, job_id: str) -> Job:
        return self.client.get(job_id)

    def ended(self, job_id: str) -> Job:
        (job,) = self.client.wait([job_id], timeout_s=WAIT_S)
        return job

    def log(self, job_id: str) -> str:
        return self.suite.log(job_id)[1].decode()


@pytest.fixture
def shell(suite: RealSuite, tmp_path: Path, here: str) -> Iterator[Shell]:
    made = Shell(suite, tmp_path, here)
    with made.client:
        yield made
        for job in made.client.list():
            if not job.state.final:
                made.client.cancel(job.job_id)


Check = Callable[[Shell], None]
CHECKS: dict[str, Check] = {}


def row(here: str) -> Callable[[Check], Check]:
    """The check of the row with this command."""

    def add(check: Check) -> Check:
        assert here not in CHECKS
        CHECKS[here] = check
        return check

    return add


def test_every_row_has_its_check() -> None:
    assert len(HERE) == len(set(HERE)) >= 40
    assert set(HERE) == set(CHECKS)
    assert sum(" -- " in here or here.endswith("job.sh") for here in HERE) >= 10, "real programs"


@pytest.mark.parametrize("here", HERE)
def test_a_row_does_what_it_says(shell: Shell, here: str) -> None:
    CHECKS[here](shell)


# ---- submitting


@row("adlro submit -- echo hi")
def _(shell: Shell) -> None:
    (job_id,) = shell.row().lines
    assert shell.ended(job_id).state is JobState.SUCCEEDED
    assert shell.log(job_id) == "hi\n"


@row("adlro submit job.sh")
def _(shell: Shell) -> None:
    (shell.folder / "job.sh").write_text("#!/bin/sh\n#ADLRO --cores 2 --name script\necho from $0\n")
    (job_id,) = shell.row().lines
    job = shell.ended(job_id)
    assert (job.state, job.spec.cpu_cores, job.spec.name) == (JobState.SUCCEEDED, 2, "script")


@row("adlro run -- sh -c 'echo out; exit 3'")
def _(shell: Shell) -> None:
    # A process of its own: it handles signals.
    ended = adlro(*shell.suite.words(*shlex.split(shell.here)[1:]), env=shell.suite.environment())
    assert (ended.returncode, ended.stdout) == (3, "out\n")


@row("adlro submit -- true")
def _(shell: Shell) -> None:
    assert re.fullmatch(r"job-\d+\n", shell.row().out)


@row("adlro submit --wait -- true")
def _(shell: Shell) -> None:
    said = shell.row()
    assert said.code == 0
    assert shell.job(said.lines[0]).state is JobState.SUCCEEDED
    assert shell.adlro("submit", "--wait", "--", "false").code == 1


@row("adlro submit --gpus 2 -- sh -c 'echo $CUDA_VISIBLE_DEVICES'")
def _(shell: Shell) -> None:
    job = shell.ended(shell.row().lines[0])
    assert len(job.placement.gpus) == 2
    assert job.state is JobState.SUCCEEDED


@row("adlro submit --gpu-model rtx_2080_ti -- true")
def _(shell: Shell) -> None:
    assert shell.ended(shell.row().lines[0]).gpu_model == "rtx_2080_ti"


@row("adlro submit --cores 2 --memory 2GiB -- true")
def _(shell: Shell) -> None:
    spec = shell.ended(shell.row().lines[0]).spec
    assert (spec.cpu_cores, spec.memory_mib) == (2, 2048)


@row("adlro submit --exclusive -- sleep 1")
def _(shell: Shell) -> None:
    alone, other = shell.row().lines[0], shell.submit("--", "true")
    first, second = shell.ended(alone), shell.ended(other)
    assert first.spec.exclusive
    assert first.state is second.state is JobState.SUCCEEDED
    assert (second.start_s or 0) >= (first.end_s or 0) or (first.start_s or 0) >= (second.end_s or 0)


@row("adlro submit --exclude NODE -- true")
def _(shell: Shell) -> None:
    said = shell.row(node=node(shell))  # the only one
    assert said.code == 1
    assert "no node with GPUs is left" in said.err


@row("adlro submit --nodelist NODE -- true")
def _(shell: Shell) -> None:
    there = node(shell)
    job = shell.ended(shell.row(node=there).lines[0])
    assert (job.state, job.spec.node_ids) == (JobState.SUCCEEDED, (there,))
    said = shell.adlro("submit", "--nodelist", "nowhere", "--", "true", code=1)
    assert "no node 'nowhere'" in said.err


@row("adlro submit --time-limit 00:00:01 -- sleep 60")
def _(shell: Shell) -> None:
    job = shell.ended(shell.row().lines[0])
    assert job.state is JobState.FAILED
    assert "time limit" in job.message


@row("adlro submit --env LR=0.1 -- sh -c 'echo $LR'")
def _(shell: Shell) -> None:
    job_id = shell.row().lines[0]
    shell.ended(job_id)
    assert shell.log(job_id) == "0.1\n"


@row("adlro submit --array 0-3%2 -- sh -c 'echo $ADLRO_ARRAY_INDEX'")
def _(shell: Shell) -> None:
    array, *_ = shell.row().lines[0].split()
    first = int(array.removeprefix("array-"))
    jobs = [shell.ended(f"job-{first + index}") for index in range(4)]
    assert [shell.log(job.job_id) for job in jobs] == ["0\n", "1\n", "2\n", "3\n"]
    for job in jobs:
        assert sum((each.start_s or 0) <= (job.start_s or 0) < (each.end_s or 0) for each in jobs) <= 2


@row("adlro submit --after 17 -- true")
def _(shell: Shell) -> None:
    first = shell.submit("--", "sleep", "1")
    second = shell.ended(shell.row(first).lines[0])
    assert (second.start_s or 0) >= (shell.job(first).end_s or 0)
    failed = shell.submit("--", "false")
    assert shell.ended(shell.row(failed).lines[0]).state is JobState.CANCELLED


@row("adlro submit --after 17:any -- true")
def _(shell: Shell) -> None:
    assert shell.ended(shell.row(shell.submit("--", "false")).lines[0]).state is JobState.SUCCEEDED


@row("adlro submit --after 17:fail -- true")
def _(shell: Shell) -> None:
    assert shell.ended(shell.row(shell.submit("--", "false")).lines[0]).state is JobState.SUCCEEDED
    assert shell.ended(shell.row(shell.submit("--", "true")).lines[0]).state is JobState.CANCELLED


@row("adlro submit --begin now+1h -- true")
def _(shell: Shell) -> None:
    before_s = shell.client.clock().time_s
    begin_s = shell.job(shell.row().lines[0]).spec.begin_time_s
    assert begin_s is not None
    assert before_s + 3600 <= begin_s <= shell.client.clock().time_s + 3600


@row("adlro submit --hold -- true")
def _(shell: Shell) -> None:
    job_id = shell.row().lines[0]
    assert shell.job(job_id).hold is not None
    shell.adlro("release", job_id, code=0)
    assert shell.ended(job_id).state is JobState.SUCCEEDED


@row("adlro submit --once -f jobs.yaml")
def _(shell: Shell) -> None:
    (shell.folder / "jobs.yaml").write_text(
        "jobs:\n  second:\n    after: first\n    command: echo two\n  first:\n    command: echo one\n"
    )
    said = shell.row()
    assert [line.split()[1] for line in said.lines] == ["first", "second"]
    assert shell.row().out == said.out, "submitted twice, they are there once"
    last = shell.ended(said.lines[1].split()[0])
    assert last.state is JobState.SUCCEEDED


@row("adlro.submit(f, 3).result()")
def _(shell: Shell) -> None:
    program = (
        "import adlro\n"
        "def f(number):\n    return number * 14\n"
        f"print({shell.here.replace('result()', 'result(timeout=60)')})\n"
    )
    path = shell.folder / "function.py"
    path.write_text(program)
    import subprocess

    environment = {**shell.suite.environment(), "ADLRO_SERVER": shell.suite.server}
    ended = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert ended.stdout == "42\n", ended.stderr


# ---- reading


@row("adlro queue")
def _(shell: Shell) -> None:
    job_id = shell.submit("--name", "long one", "--", "sleep", "60")
    said = shell.row()
    assert any(line.split()[0] == job_id and "long one" in line for line in said.lines)
    assert said.lines[0].split()[:3] == ["JOB", "NAME", "USER"]


@row("adlro queue --user ada")
def _(shell: Shell) -> None:
    mine, adas = shell.submit("--hold", "--", "true"), shell.submit("--hold", "--user", "ada", "--", "true")
    said = shell.row().out
    assert adas in said
    assert f"{mine} " not in said


@row("adlro queue --state pending")
def _(shell: Shell) -> None:
    runs, waits = shell.submit("--", "sleep", "60"), shell.submit("--hold", "--", "true")
    until(lambda: shell.job(runs).state is JobState.RUNNING)
    said = shell.row().out
    assert waits in said
    assert f"{runs} " not in said


@row("adlro queue --format job,name,state")
def _(shell: Shell) -> None:
    job_id = shell.submit("--hold", "--name", "n", "--", "true")
    assert [line.split() for line in shell.row().lines] == [["JOB", "NAME", "STATE"], [job_id, "n", "pending"]]


@row("adlro queue -o ID=job_id")
def _(shell: Shell) -> None:
    job_id = shell.submit("--hold", "--", "true")
    assert [line.strip() for line in shell.row().lines] == ["ID", job_id]


@row("adlro queue -o yaml")
def _(shell: Shell) -> None:
    job_id = shell.submit("--hold", "--", "true")
    assert [each["job_id"] for each in yaml.safe_load(shell.row().out)["jobs"]] == [job_id]


@row("adlro watch 17 --until-done")
def _(shell: Shell) -> None:
    job_id = shell.submit("--", "sleep", "1")
    said = shell.row(job_id)
    assert said.code == 0
    assert "succeeded" in said.lines[-1]


@row("adlro describe job 17")
def _(shell: Shell) -> None:
    job_id = shell.submit("--cores", "2", "--", "echo", "shown")
    shell.ended(job_id)
    said = shell.row(job_id).out
    assert job_id in said
    assert "echo shown" in said
    assert "2 cores" in said


@row("adlro why 17")
def _(shell: Shell) -> None:
    first = shell.submit("--", "sleep", "60")
    second = shell.submit("--after", first, "--", "true")
    until(lambda: "waits for the end" in shell.job(second).message)
    assert f"waits for the end of {first}" in shell.row(second).out


@row("adlro logs 17")
def _(shell: Shell) -> None:
    job_id = shell.submit("--", "echo", "some output")
    shell.ended(job_id)
    assert shell.row(job_id).out == "some output\n"


@row("adlro logs -f 17")
def _(shell: Shell) -> None:
    job_id = shell.submit("--", "sh", "-c", "echo one; sleep 1; echo two")
    words = shlex.split(shell.here.replace("17", job_id))[1:]
    ended = adlro(*shell.suite.words(*words), env=shell.suite.environment())
    assert ended.stdout == "one\ntwo\n", ended.stderr


@row("adlro history")
def _(shell: Shell) -> None:
    first = shell.submit("--", "true")
    shell.ended(first)
    second = shell.submit("--", "true")
    shell.ended(second)
    ids = [line.split()[0] for line in shell.row().lines[1:]]
    assert ids[:2] == [second, first], "the last end comes first"


@row("adlro history --since now-2h --state failed")
def _(shell: Shell) -> None:
    good, bad = shell.submit("--", "true"), shell.submit("--", "false")
    shell.ended(good)
    shell.ended(bad)
    ids = [line.split()[0] for line in shell.row().lines[1:]]
    assert bad in ids
    assert good not in ids


@row("adlro history -o json")
def _(shell: Shell) -> None:
    job_id = shell.submit("--", "true")
    shell.ended(job_id)
    newest = json.loads(shell.row().out)["jobs"][0]
    assert (newest["job_id"], newest["state"]) == (job_id, "succeeded")
    assert re.match(r"\d{4}-\d\d-\d\dT", newest["ended"])


@row("adlro usage --by user")
def _(shell: Shell) -> None:
    shell.ended(shell.submit("--user", "zoe", "--", "sleep", "1"))
    assert "zoe" in shell.row().out


@row("adlro nodes")
def _(shell: Shell) -> None:
    said = shell.row()
    assert any(line.split()[0] == node(shell) for line in said.lines[1:])


@row("adlro describe node NODE")
def _(shell: Shell) -> None:
    assert shell.row(node=node(shell)).out.startswith(node(shell))


@row("adlro gpus")
def _(shell: Shell) -> None:
    job_id = shell.submit("--", "sleep", "60")
    until(lambda: shell.job(job_id).state is JobState.RUNNING)
    assert sum(f"{node(shell)}/" in line for line in shell.row().lines) >= 4


@row("adlro top --once")
def _(shell: Shell) -> None:
    said = shell.row()
    assert said.code == 0
    assert "v100_sxm2" in said.out


@row("adlro status")
def _(shell: Shell) -> None:
    said = shell.row()
    assert said.code == 0
    assert "dqn" in said.out


# ---- changing


@row("adlro cancel 17")
def _(shell: Shell) -> None:
    job_id = shell.submit("--", "sleep", "60")
    until(lambda: shell.job(job_id).state is JobState.RUNNING)
    assert shell.row(job_id).code == 0
    assert shell.ended(job_id).state is JobState.CANCELLED
    until(lambda: not shell.suite.processes())


@row("adlro cancel --user ada")
def _(shell: Shell) -> None:
    mine, adas = shell.submit("--hold", "--", "true"), shell.submit("--hold", "--user", "ada", "--", "true")
    assert shell.row().code == 0
    assert shell.ended(adas).state is JobState.CANCELLED
    assert not shell.job(mine).state.final


@row("adlro cancel array-20")
def _(shell: Shell) -> None:
    array = shell.submit("--array", "0-4", "--hold", "--", "true")
    assert len(shell.row(array=array).lines) == 5
    number = int(array.removeprefix("array-"))
    assert {shell.ended(f"job-{number + index}").state for index in range(5)} == {JobState.CANCELLED}


@row("adlro hold 17")
def _(shell: Shell) -> None:
    job_id = shell.submit("--begin", "now+1h", "--", "true")
    assert shell.row(job_id).out == f"{job_id}  held\n"
    assert shell.job(job_id).hold is not None


@row("adlro release 17")
def _(shell: Shell) -> None:
    job_id = shell.submit("--hold", "--", "true")
    assert shell.row(job_id).out == f"{job_id}  released\n"
    assert shell.ended(job_id).state is JobState.SUCCEEDED


@row("adlro update 17 --priority 0.9")
def _(shell: Shell) -> None:
    job_id = shell.submit("--hold", "--", "true")
    assert shell.row(job_id).out == f"{job_id}  updated\n"
    assert shell.job(job_id).spec.priority == 0.9


@row("adlro update 17 --time-limit 8h")
def _(shell: Shell) -> None:
    job_id = shell.submit("--hold", "--", "true")
    assert shell.row(job_id).code == 0
    assert shell.job(job_id).spec.time_limit_s == 28_800.0


@row("adlro requeue 17")
def _(shell: Shell) -> None:
    job_id = shell.submit("--", "echo", "again")
    shell.ended(job_id)
    (again,) = shell.row(job_id).lines
    shell.ended(again)
    assert again != job_id
    assert shell.log(again) == "again\n"


@row("adlro drain NODE --reason 'new disk'")
def _(shell: Shell) -> None:
    assert shell.row(node=node(shell)).code == 0
    try:
        job_id = shell.submit("--", "true")
        until(lambda: "new disk" in shell.job(job_id).message)
        assert "new disk" in shell.adlro("nodes").out
    finally:
        shell.adlro("undrain", node(shell), code=0)
    assert shell.ended(job_id).state is JobState.SUCCEEDED


@row("adlro undrain NODE")
def _(shell: Shell) -> None:
    shell.adlro("drain", node(shell), code=0)
    assert shell.row(node=node(shell)).code == 0
    assert shell.ended(shell.submit("--", "true")).state is JobState.SUCCEEDED


@row("adlro quota ada --gpus 4")
def _(shell: Shell) -> None:
    assert shell.row().out.startswith("ada: 4 GPUs")
    shell.adlro("quota", "ada", "--gpus", "0", code=0)
    try:
        job_id = shell.submit("--user", "ada", "--", "true")
        until(lambda: "may have 0 GPUs" in shell.job(job_id).message)
    finally:
        shell.adlro("quota", "ada", "--none", code=0)
    assert shell.ended(job_id).state is JobState.SUCCEEDED


@row("adlro fair-share ada --shares 2")
def _(shell: Shell) -> None:
    assert shell.row().out == "ada: 2 shares\n"
    assert ["ada", "2", "0.00", "0.00"] in [line.split() for line in shell.adlro("fair-share", code=0).out.splitlines()]
    shell.adlro("fair-share", "ada", "--none", code=0)


@row("adlro fair-share")
def _(shell: Shell) -> None:
    assert shell.ended(shell.submit("--", "true")).state is JobState.SUCCEEDED
    assert shell.row().out.splitlines()[0].split()[:3] == ["ACCOUNT", "GROUP", "SHARES"]


def node(shell: Shell) -> str:
    """The machine's id."""
    (only,) = shell.client.describe_cluster().cluster.nodes
    return only.node_id


def until(condition: Callable[[], Any]) -> None:
    """Returns when the condition holds."""
    over = threading.Event()
    for _ in range(int(WAIT_S / 0.05)):
        if condition():
            return
        over.wait(0.05)
    raise AssertionError(f"waited {WAIT_S:g} s in vain")
