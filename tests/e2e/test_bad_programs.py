"""What can't be run, as its user meets it: refused with the field and the way out, while others' programs go on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adlro.errors import InvalidInput
from adlro.kit.testing import ROOT
from adlro.records.jobs import JobState
from adlro.records.payloads import EndReason
from tests.e2e.real_programs import MEMORY_MIB, PROGRAM, RealProgram
from tests.e2e.real_suite import RealSuite, start_real_suite
from tests.e2e.running_suite import ADLRO, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]

USAGE, ERROR = 2, 1


@pytest.fixture(scope="module")
def suite() -> Iterator[RealSuite]:
    """A suite on which somebody else's program runs, from the first bad input to the last."""
    with tempfile.TemporaryDirectory(prefix="adlro-programs-") as name:
        started = start_real_suite(Path(name) / "data", Path(name) / "home", "--policy", "fcfs")
        try:
            with started.client() as client:
                other = RealProgram("other", (*PROGRAM, "forever"), JobState.CANCELLED, time_limit_s=None)
                job = client.submit(other.spec(started.user))
                wait_until(lambda: client.get(job.job_id).state is JobState.RUNNING, 60.0, "the other program runs")
                yield started
                job = client.get(job.job_id)
                assert (job.state, job.attempt_count) == (JobState.RUNNING, 1), "it was disturbed"
                client.cancel(job.job_id)
                (job,) = client.wait([job.job_id], timeout_s=60.0)
                assert job.state is JobState.CANCELLED
            code = started.running.end()
            started.check_end(code)
        finally:
            started.end_all()


def submit(suite: RealSuite, *words: str | bytes) -> subprocess.CompletedProcess[str]:
    """`adlro submit`, with words that need be no text."""
    at = words.index("--") if "--" in words else len(words)
    return subprocess.run(
        [*ADLRO, "submit", *words[:at], "--server", suite.server, *words[at:]],
        cwd=ROOT,
        env=suite.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        timeout=120,
    )


def jobs(suite: RealSuite) -> int:
    with suite.client() as client:
        return len(list(client.list()))


BAD: dict[str, tuple[tuple[str | bytes, ...], int, tuple[str, ...]]] = {
    "a megabyte of arguments": (("--", "echo", *["x" * 16_384] * 64), ERROR, ("argv", "131072", "in a file")),
    "an argument that is not UTF-8": (("--", "echo", b"\xff\xfe"), ERROR, ("argv", "UTF-8")),
    "a variable without a name": (("--env", "=x", "--", "true"), ERROR, ("environment", "''")),
    "a blank in a variable's name": (("--env", "A B=x", "--", "true"), ERROR, ("environment", "A B", "letters")),
    "escape sequences in a variable's name": (("--env", "\x1b[31m=x", "--", "true"), ERROR, ("environment", "letters")),
    "a variable of the node": (("--env", "ADLRO_TOKEN=x", "--", "true"), ERROR, ("environment", "ADLRO_TOKEN")),
    "a choice of GPUs": (("--env", "CUDA_VISIBLE_DEVICES=7", "--", "true"), ERROR, ("CUDA_VISIBLE_DEVICES", "node")),
    "code before the program's": (("--env", "LD_PRELOAD=/x.so", "--", "true"), ERROR, ("LD_PRELOAD", "node")),
    "a variable that is not set": (("--env", "NO_SUCH_VARIABLE", "--", "true"), USAGE, ("--env", "NO_SUCH_VARIABLE=")),
    "a name with escape sequences": (("--name", "\x1b[31mred", "--", "true"), ERROR, ("job.name",)),
    "escape sequences in a working directory": (("--workdir", "/x\x1b]0;x\x07", "--", "true"), ERROR, ("workdir",)),
    "a size that is none": (("--log-limit", "much", "--", "true"), USAGE, ("--log-limit", "GiB")),
    "no room for a log": (("--log-limit", "0", "--", "true"), ERROR, ("log_limit_mib", "from 1")),
    "a very long grace": (("--stop-grace", "2h", "--", "true"), ERROR, ("stop_grace_s", "3600")),
    "a mount without an image": (("--mount", "/tmp:/tmp", "--", "true"), USAGE, ("--mount", "--image")),
    "neither a program nor a type": ((), USAGE, ("--type", "program")),
    "a job file that is not there": (("--file", "/no/such/job.yaml"), USAGE, ("/no/such/job.yaml", "No such file")),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_its_field_and_the_way_out(suite: RealSuite, name: str) -> None:
    words, code, says = BAD[name]
    before = jobs(suite)
    refused = submit(suite, *words)
    said = " ".join(refused.stderr.replace("│", " ").split())
    assert refused.returncode == code, refused.stderr
    assert [each for each in says if each not in said] == [], refused.stderr
    assert "\x1b" not in refused.stdout + refused.stderr
    assert "\x07" not in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr
    assert jobs(suite) == before


BAD_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "an equals sign in a name": ({"environment": {"A=B": "x"}}, "environment"),
    "NUL in a value": ({"environment": {"A": "x\0y"}}, "NUL"),
    "NUL in an argument": ({"command": ["echo", "a\0b"]}, "NUL"),
    "no program": ({"command": []}, "command"),
    "an empty program": ({"command": [""]}, "argv"),
    "a command line instead of a list": ({"command": "echo hello"}, "list"),
    "a megabyte in one argument": ({"command": ["echo", "x" * (1 << 20)]}, "131071"),
    "half of a character": ({"command": ["echo", "\ud800"]}, "UTF-8"),
    "a secret with a path": ({"secret_names": ["../../etc/passwd"]}, "secret_names"),
    "a grace that is no number": ({"stop_grace_s": float("nan")}, "stop_grace_s"),
    "an endless time limit": ({"time_limit_s": float("inf")}, "time_limit"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_CALLS)
def test_python_calls_are_refused_alike(suite: RealSuite, name: str) -> None:
    fields, says = BAD_CALLS[name]
    before = jobs(suite)
    with suite.client() as client, pytest.raises(InvalidInput) as refused:
        client.submit(**{"command": ["true"], "user": suite.user, **fields})
    assert says in refused.value.message
    assert jobs(suite) == before


@pytest.mark.parametrize(("fields", "says"), [
    ({"cpu_cores": 4096}, "4096 CPU cores"),
    ({"gpu_memory_mib": 1 << 20}, "MiB"),
    ({"memory_mib": 1 << 24}, "MiB"),
])  # fmt: skip
def test_what_no_machine_of_the_cluster_has_is_refused_with_what_there_is(
    suite: RealSuite, fields: dict[str, Any], says: str
) -> None:
    with suite.client() as client, pytest.raises(InvalidInput) as refused:
        client.submit(command=["true"], user=suite.user, **fields)
    assert f"job.{next(iter(fields))}: " in refused.value.message
    assert says in refused.value.message


def test_a_secret_that_the_node_does_not_have_is_named(suite: RealSuite) -> None:
    with suite.client() as client:
        job = client.submit(command=["true"], user=suite.user, memory_mib=MEMORY_MIB, secret_names=["NO_SUCH_SECRET"])
        (job,) = client.wait([job.job_id], timeout_s=60.0)
    assert job.state is JobState.FAILED
    assert "NO_SUCH_SECRET" in job.message
    end = job.attempts[-1].exit
    assert end is None or end.reason is EndReason.NOT_STARTED


@pytest.mark.parametrize(("words", "says"), [
    (("logs", "job-999999"), "job-999999"),
    (("logs", "\x1b[31m"), "job"),
    (("cancel", "job-999999"), "job-999999"),
    (("describe", "job", "job-999999"), "job-999999"),
])  # fmt: skip
def test_commands_about_no_job_name_it(suite: RealSuite, words: tuple[str, ...], says: str) -> None:
    ended = suite.command(*words)
    assert ended.returncode != 0
    assert says in ended.stderr
    assert "\x1b" not in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def test_programs_are_refused_without_the_token_of_the_suite(suite: RealSuite) -> None:
    environment = {**suite.environment(), "XDG_STATE_HOME": os.devnull}
    refused = subprocess.run(
        [*ADLRO, "run", "--server", suite.server, "--", "true"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert refused.returncode != 0
    assert "token" in refused.stderr
