"""Jobs that run programs, on the command line: submit, run, logs, requeue, and how ends are shown."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adlro.cli import following
from adlro.cli.log_writer import LogWriter
from adlro.cli.logs import _start_of_last_lines
from adlro.cli.run import exit_code
from adlro.client import AsyncClient
from adlro.errors import Conflict, NotFound, Unavailable
from adlro.placement import Placement
from adlro.records.events import GpuCondition
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType, Preemptible
from adlro.records.payloads import Container, EndReason, ExitStatus, LogChunk, LogStream, Mount, Payload, Process
from adlro.records.predictions import PredictionBasis
from tests.unit.client import fake_suite
from tests.unit.client.fake_suite import FakeSuite

Run = Callable[..., Any]
DONE = ExitStatus(EndReason.EXITED)
SPEC = JobSpec("train", "ada", JobType.UNSPECIFIED, payload=Payload(process=Process(("true",))))


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sent(suite: FakeSuite, job_id: str = "job-1") -> JobSpec:
    return suite.jobs[job_id].spec


def program(suite: FakeSuite) -> Payload:
    payload = sent(suite).payload
    assert payload is not None
    return payload


# Submission


def test_submit_sends_a_program_with_all_that_was_asked_for(
    suite: FakeSuite, adlro: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_MINE", "from here")
    result = adlro(
        *["submit", "--cores", "4", "--memory", "16GiB", "--gpu-memory", "20G", "--time-limit", "1-12:00:00"],
        *["--env", "A=b", "-e", "EMPTY=", "--env", "TOKEN_OF_MINE", "--env", "A=c=d", "--secret", "API_KEY"],
        *["--stop-grace", "2m", "--log-limit", "1GiB", "--runtime", "1.5h"],
        *["--", "python", "train.py", "--cores", "9", "--", "x"],
    )
    assert (result.exit_code, result.stdout) == (0, "job-1\n"), result.output
    spec = sent(suite)
    assert (spec.cpu_cores, spec.memory_mib, spec.gpu_memory_mib) == (4, 16384, 20480)
    assert (spec.time_limit_s, spec.name, spec.application, spec.job_type) == (129600, "python:train.py", "", 0)
    assert spec.expected_runtime is not None
    assert spec.expected_runtime.runtime_s == 5400
    assert program(suite) == Payload(
        process=Process(("python", "train.py", "--cores", "9", "--", "x"), str(tmp_path)),
        environment={"A": "c=d", "EMPTY": "", "TOKEN_OF_MINE": "from here", "PATH": os.environ["PATH"]},
        secret_names=("API_KEY",),
        stop_grace_s=120.0,
        log_limit_mib=1024,
    )


def test_submit_asks_for_several_gpus(suite: FakeSuite, adlro: Run) -> None:
    several = ["--gpus", "4", "--max-nodes", "2", "--gpu-model", "v100_sxm2", "--gpu-model", "t4", "--cores", "2"]
    assert adlro("submit", *several, "--", "torchrun", "--gpus", "9").exit_code == 0
    spec = sent(suite)
    assert (spec.gpu_count, spec.max_node_count, spec.gpu_models) == (4, 2, ("v100_sxm2", "t4"))
    assert (spec.cpu_cores, program(suite).argv) == (2, ("torchrun", "--gpus", "9"))
    assert adlro("submit", "--type", "ml").exit_code == 0
    plain = suite.jobs["job-2"].spec
    assert (plain.gpu_count, plain.max_node_count, plain.gpu_models) == (1, 0, ())


def test_files_ask_for_several_gpus(suite: FakeSuite, adlro: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("gpus: 4\nmax_nodes: 2\ngpu_models: [v100_sxm2, t4]\ncommand: [train]\n")
    (tmp_path / "one.yaml").write_text("gpus: 2\ngpu_models: t4\ncommand: [train]\n")
    (tmp_path / "train.sh").write_text("#!/bin/sh\n#ADLRO --gpus 8 --max-nodes 1 --gpu-model t4\ntrain\n")
    for given in (["--file", "job.yaml"], ["--file", "job.yaml", "--gpus", "3"], ["-f", "one.yaml"], ["train.sh"]):
        assert adlro("submit", *given).exit_code == 0
    asked = [(job.spec.gpu_count, job.spec.max_node_count, job.spec.gpu_models) for job in suite.jobs.values()]
    both = ("v100_sxm2", "t4")
    assert asked == [(4, 2, both), (3, 2, both), (2, 0, ("t4",)), (8, 1, ("t4",))]


def test_submit_files_and_scripts_say_which_nodes(suite: FakeSuite, adlro: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("exclusive: true\nexclude: [n1, n2]\nnodelist: n3\ncommand: [train]\n")
    (tmp_path / "train.sh").write_text("#!/bin/sh\n#ADLRO --exclusive -x n1,n2 --nodelist n3\ntrain\n")
    given = (
        ["--exclusive", "-x", "n1,n2", "--nodelist", "n3", "--", "train", "-x", "n9"],
        ["--exclude", "n1", "--exclude", "n2", "--exclude", "n1", "--", "train"],
        ["--file", "job.yaml"],
        ["--file", "job.yaml", "--no-exclusive", "--nodelist", "n4,n5"],
        ["train.sh"],
        ["--", "train"],
    )
    for words in given:
        result = adlro("submit", *words)
        assert result.exit_code == 0, result.output
    specs = [job.spec for job in suite.jobs.values()]
    all_of_it = (True, ("n3",), ("n1", "n2"))
    assert [(spec.exclusive, spec.node_ids, spec.excluded_node_ids) for spec in specs] == [
        all_of_it,
        (False, (), ("n1", "n2")),
        all_of_it,
        (False, ("n3", "n4", "n5"), ("n1", "n2")),  # repeatable ones add up, as models do
        all_of_it,
        (False, (), ()),
    ]


def test_submit_says_what_a_stop_costs_and_whether_the_gpu_may_be_shared(suite: FakeSuite, adlro: Run) -> None:
    costs = ["--preemptible", "--restart", "60s", "--lost", "10m", "--preempt-grace", "2m"]
    for given in (costs, ["--preemptible"], ["--shareable"], ["--no-preemptible", "--restart", "1m"], []):
        assert adlro("submit", *given, "--", "train", "--restart").exit_code == 0
    asked = [(job.spec.preemptible, job.spec.shareable) for job in suite.jobs.values()]
    assert asked == [
        (Preemptible(60.0, 600.0, 120.0), False),
        (Preemptible(), False),
        (None, True),
        (None, False),
        (None, False),
    ]


def test_files_say_what_a_stop_costs_and_the_command_line_counts_before_them(
    suite: FakeSuite, adlro: Run, tmp_path: Path
) -> None:
    stops = "preemptible: {restart: 60s, lost: 10m, grace: 2m}\n"
    (tmp_path / "job.yaml").write_text(f"{stops}shareable: true\ncommand: [train]\n")
    (tmp_path / "train.sh").write_text("#!/bin/sh\n#ADLRO --preemptible --restart 5s --shareable\ntrain\n")
    file = ["--file", "job.yaml"]
    for given in (file, [*file, "--restart", "1s", "--no-shareable"], [*file, "--no-preemptible"], ["train.sh"]):
        result = adlro("submit", *given)
        assert result.exit_code == 0, result.output
    asked = [(job.spec.preemptible, job.spec.shareable) for job in suite.jobs.values()]
    assert asked == [
        (Preemptible(60.0, 600.0, 120.0), True),
        (Preemptible(1.0, 600.0, 120.0), False),
        (None, True),
        (Preemptible(5.0), True),
    ]


def test_submit_sends_a_container(suite: FakeSuite, adlro: Run, tmp_path: Path) -> None:
    result = adlro(
        *["submit", "-t", "ml", "--image", "team/net:1", "--mount", "data:/data", "--mount", "/out:/out:rw"],
        *["--shm", "8GiB", "--workdir", "/w", "--", "python", "train.py"],
    )
    assert result.exit_code == 0, result.output
    assert program(suite).container == Container(
        "team/net:1",
        ("python", "train.py"),
        "/w",
        (Mount(str(tmp_path / "data"), "/data"), Mount("/out", "/out", writable=True)),
        8192,
    )
    assert sent(suite).name == "team/net:1 python:train.py"


def test_a_relative_working_directory_is_below_the_current_one(suite: FakeSuite, adlro: Run, tmp_path: Path) -> None:
    assert adlro("submit", "--workdir", "runs/../a", "--", "x").exit_code == 0
    assert program(suite).process == Process(("x",), str(tmp_path / "a"))


def test_sizes_of_the_older_options_are_mib(suite: FakeSuite, adlro: Run) -> None:
    assert adlro("submit", "-t", "ml", "--memory-mib", "9000", "--gpu-memory-mib", "8GiB").exit_code == 0
    assert (sent(suite).memory_mib, sent(suite).gpu_memory_mib) == (9000, 8192)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--runtime", "ten", "-t", "ml"], "is no duration"),
        (["--memory", "4000", "-t", "ml"], "has no unit: write 4000MiB"),
        (["--memory", "1G", "--memory-mib", "1", "-t", "ml"], "older name"),
        (["--env", "NOT_SET_HERE", "--", "x"], "is not set in your environment"),
        (["--env", "A=b", "-t", "ml"], "needs a program"),
        (["--workdir", "/", "-t", "ml"], "needs a program"),
        (["--mount", "/a:/b", "--", "x"], "needs an --image"),
        (["--mount", "/a", "--image", "i"], "SRC:DST"),
        (["--mount", "/a:/b:rx", "--image", "i"], "SRC:DST"),
        (["--restart", "60s", "--", "x"], "belongs to --preemptible: add that, or leave it out"),
        (["--preempt-grace", "0", "-t", "ml"], "--preempt-grace"),
        (["job.yaml"], "--file job.yaml"),
        (["--file", "not-there.yaml"], "not-there.yaml"),
        ([], "needs a type"),
    ],
)
def test_wrong_usage_of_submit_is_named(suite: FakeSuite, adlro: Run, arguments: list[str], named: str) -> None:
    result = adlro("submit", *arguments)
    assert result.exit_code == 2, result.output
    assert named in " ".join(result.stderr.replace("│", " ").split())
    assert not suite.jobs


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--env", "ADLRO_JOB=1", "--", "x"], "payload.environment"),
        (["--env", "CUDA_VISIBLE_DEVICES=1", "--", "x"], "the node sets"),
        (["--secret", "a-b", "--", "x"], "payload.secret_names"),
        (["--", "x" * 140_000], "the kernel accepts"),
        (["--image", "i", "--workdir", "w"], "must be an absolute path"),
    ],
)
def test_a_program_that_no_node_runs_is_refused(suite: FakeSuite, adlro: Run, arguments: list[str], named: str) -> None:
    result = adlro("submit", *arguments)
    assert result.exit_code == 1, result.output
    assert named in result.stderr
    assert not suite.jobs


def test_a_job_file_is_submitted_and_the_command_line_counts_before_it(
    suite: FakeSuite, adlro: Run, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(
        "name: from the file\ncores: 4\ntime_limit: 01:00:00\nenv: {A: file, B: '2'}\nlabels: {team: vision}\n"
        "command: [python, train.py]\n"
    )
    result = adlro("submit", "--file", "job.yaml", "--cores", "8", "--env", "A=here")
    assert (result.exit_code, result.stdout) == (0, "job-1\n"), result.output
    spec = sent(suite)
    assert (spec.name, spec.cpu_cores, spec.time_limit_s, spec.labels) == (
        *("from the file", 8, 3600),
        {"team": "vision"},
    )
    assert program(suite).environment == {"A": "here", "B": "2", "PATH": os.environ["PATH"]}
    assert program(suite).argv == ("python", "train.py")
    assert adlro("submit", "-f", "job.yaml", "--", "other", "program").exit_code == 0
    assert suite.jobs["job-2"].spec.payload == Payload(
        process=Process(("other", "program"), str(tmp_path)),
        environment={"A": "file", "B": "2", "PATH": os.environ["PATH"]},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\ncoers: 4", "job.yaml:2: there is no key 'coers'; do you mean cores?"),
        ("name: a\ncores: four", "job.yaml:2: Invalid value for '--cores'"),
        ("gpus: 0", "job.yaml:1: Invalid value for '--gpus' / '-g': must be at least 1, not 0"),
        ("gpu_models: {a: b}", "job.yaml:1: gpu_models: must be one value, or a list"),
        ("\npreemptible:\n  lost: ten", "job.yaml:2: Invalid value for '--lost': 'ten' is no duration"),
        ("time_limit: soon", "job.yaml:1: Invalid value for '--time-limit': 'soon' is no duration"),
        ("{", "job.yaml:1: is no YAML"),
    ],
)
def test_a_wrong_line_of_a_job_file_is_named(
    suite: FakeSuite, adlro: Run, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    result = adlro("submit", "--file", "job.yaml", "--", "x")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert not suite.jobs


def test_a_scripts_lines_are_options_and_the_command_line_counts_before_them(
    suite: FakeSuite, adlro: Run, tmp_path: Path
) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash -e\n#ADLRO --cores 4 --name 'a job'\n#ADLRO --env A=b\necho $1\n#ADLRO --cores 9\n")
    result = adlro("submit", "--name", "mine", "train.sh", "--lr", "0.1")
    assert (result.exit_code, result.stdout) == (0, "job-1\n"), result.output
    assert "train.sh:5: this line is not read" in result.stderr
    assert (sent(suite).name, sent(suite).cpu_cores) == ("mine", 4)
    assert program(suite).process == Process(("/bin/bash", "-e", str(script), "--lr", "0.1"), str(tmp_path))
    assert program(suite).environment == {"A": "b", "PATH": os.environ["PATH"]}
    # After -- a script is a program like any other.
    assert adlro("submit", "--", "./train.sh").exit_code == 0
    assert suite.jobs["job-2"].spec.cpu_cores == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("#ADLRO --coers 4", "train.sh:2: No such option: --coers"),
        ("#ADLRO --cores four", "train.sh:2: Invalid value for '--cores'"),
        ("#ADLRO --server here:1", "train.sh:2: only a job's options may stand here, not --server"),
        ("#ADLRO --help", "train.sh:2: only a job's options may stand here, not --help"),
        ("#ADLRO --cores 4 more", "train.sh:2: has words that belong to no option"),
        ("#ADLRO --name 'a", "train.sh:2: no closing quotation"),
    ],
)
def test_a_wrong_line_of_a_script_is_named(
    suite: FakeSuite, adlro: Run, tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "train.sh").write_text(f"#!/bin/sh\n{line}\ntrue\n")
    result = adlro("submit", "train.sh")
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert not suite.jobs


def test_a_file_that_is_no_script_is_not_taken_for_one(suite: FakeSuite, adlro: Run, tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(b"\x7fELF\x00")
    result = adlro("submit", "program")
    assert result.exit_code == 2
    assert "names no interpreter" in result.stderr
    (tmp_path / "bad.sh").write_bytes(b"#!/bin/sh\n\xff\n")
    assert "bad.sh:2: is not UTF-8" in adlro("submit", "bad.sh").stderr


def test_a_program_needs_no_dashes_before_it(suite: FakeSuite, adlro: Run) -> None:
    assert adlro("submit", "nvidia-smi", "-L").exit_code == 0
    assert program(suite).argv == ("nvidia-smi", "-L")


# Run


def in_background(suite: FakeSuite, *steps: Callable[[], Any]) -> threading.Thread:
    """Takes steps when the first job is there."""

    def work() -> None:
        wait_until(lambda: "job-1" in suite.jobs and suite.calls["WatchJobs"] > 0)
        for step in steps:
            step()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_run_shows_both_streams_and_exits_with_the_programs_code(suite: FakeSuite, adlro: Run) -> None:
    work = in_background(
        suite,
        lambda: suite.start("job-1"),
        lambda: suite.write("job-1", b"GPU 0\n\x1b[1m\xff"),
        lambda: suite.write("job-1", b"a warning\n", LogStream.STDERR),
        lambda: wait_until(lambda: len(suite.log_requests) >= 2),
        lambda: suite.write("job-1", b"end"),
        lambda: suite.end("job-1", ExitStatus(EndReason.EXITED, 7)),
    )
    result = adlro("run", "--cores", "2", "--", "nvidia-smi", "-L")
    work.join()
    # Not a terminal: bytes as they are.
    assert (result.exit_code, result.stdout_bytes) == (7, b"GPU 0\n\x1b[1m\xffend"), result.output
    assert result.stderr == "a warning\n"
    assert program(suite).argv == ("nvidia-smi", "-L")


def test_run_shows_what_was_written_before_it_looked(suite: FakeSuite, adlro: Run) -> None:
    def at_once() -> None:
        with suite.condition:
            suite.start("job-1")
            suite.write("job-1", b"x" * 5000)
            suite.end("job-1", DONE)

    work = in_background(suite, at_once)
    result = adlro("run", "x")
    work.join()
    assert (result.exit_code, result.stdout, result.stderr) == (0, "x" * 5000, "")


def test_run_goes_on_through_outages(suite: FakeSuite, adlro: Run) -> None:
    suite.log_breaks = [1, 2, -1, 1]
    work = in_background(
        suite,
        lambda: suite.start("job-1"),
        lambda: suite.write("job-1", b"x" * 5000),
        lambda: suite.fail("WatchJobs", Unavailable("away")),
        suite.break_streams,
        lambda: suite.write("job-1", b"y" * 5000),
        lambda: suite.end("job-1", DONE),
    )
    result = adlro("run", "x")
    work.join()
    assert (result.exit_code, result.stdout) == (0, "x" * 5000 + "y" * 5000)


def test_run_follows_the_next_attempt(suite: FakeSuite, adlro: Run) -> None:
    work = in_background(
        suite,
        lambda: suite.start("job-1"),
        lambda: suite.write("job-1", b"first\n"),
        lambda: suite.end("job-1", ExitStatus(EndReason.GPU_FAILED), JobState.PENDING),
        lambda: suite.start("job-1"),
        lambda: suite.write("job-1", b"second\n"),
        lambda: suite.end("job-1", DONE),
    )
    result = adlro("run", "x")
    work.join()
    assert (result.exit_code, result.stdout) == (0, "first\nsecond\n")
    assert "attempt 2 of job-1 begins" in result.stderr


def test_run_says_why_a_program_did_not_run(suite: FakeSuite, adlro: Run) -> None:
    def refuse() -> None:
        suite.start("job-1")
        suite.logs.clear()
        suite.end("job-1", ExitStatus(EndReason.NOT_STARTED, detail="there is no program 'x'"))

    work = in_background(suite, refuse)
    result = adlro("run", "x")
    work.join()
    assert (result.exit_code, result.stdout) == (125, "")
    assert "job-1 failed: not started: there is no program 'x'" in result.stderr


def test_a_job_that_never_started_says_why_once(suite: FakeSuite, adlro: Run) -> None:
    suite.fail("ReadJobLogs", *[Conflict("job-1 has no output: no image", reason="NEVER_STARTED")] * 2)
    work = in_background(
        suite, lambda: suite.start("job-1"), lambda: suite.change("job-1", state=JobState.FAILED, message="no image")
    )
    result = adlro("run", "x")
    work.join()
    assert result.exit_code == 125
    assert result.stderr.count("no image") == 1


def test_run_waits_for_the_output_of_a_program_that_begins_late(suite: FakeSuite, adlro: Run) -> None:
    def late() -> None:
        suite.fail("ReadJobLogs", *[NotFound("no output yet")] * 4)
        suite.start("job-1")
        wait_until(lambda: suite.calls["ReadJobLogs"] >= 6)
        suite.write("job-1", b"late")
        suite.end("job-1", DONE)

    work = in_background(suite, late)
    result = adlro("run", "x")
    work.join()
    assert (result.exit_code, result.stdout) == (0, "late")


def test_run_on_a_cluster_without_output_says_so_once(suite: FakeSuite, adlro: Run) -> None:
    suite.fail("ReadJobLogs", *[Conflict("cluster 'paper' runs no programs")] * 2)
    work = in_background(suite, lambda: suite.start("job-1"), lambda: suite.end("job-1", DONE))
    result = adlro("run", "x")
    work.join()
    assert result.exit_code == 0
    assert result.stderr.count("no output: cluster 'paper' runs no programs") == 1


def test_run_gives_up_output_that_does_not_come(suite: FakeSuite, adlro: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_QUIET_S", 0.3)

    def lose() -> None:
        suite.start("job-1")
        suite.write("job-1", b"some")
        job = suite.jobs["job-1"]
        attempt = JobAttempt(1, job.placement, "v100_sxm2", 0.0, 1.0, "lost", exit=ExitStatus(EndReason.NODE_LOST))
        suite.change("job-1", state=JobState.FAILED, attempts=(attempt,))  # no stream ends

    work = in_background(suite, lose)
    result = adlro("run", "x")
    work.join()
    assert (result.exit_code, result.stdout) == (125, "some")
    assert "the rest of the output does not come; adlro logs job-1" in result.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_the_job_and_its_end_is_awaited(suite: FakeSuite, adlro: Run, number: int, code: int) -> None:
    suite.cancels_at_once = False
    work = in_background(
        suite,
        lambda: suite.start("job-1"),
        lambda: os.kill(os.getpid(), number),
        lambda: wait_until(lambda: suite.calls["CancelJob"] > 0),
        lambda: suite.write("job-1", b"saved\n"),
        lambda: suite.end("job-1", ExitStatus(EndReason.STOPPED), JobState.CANCELLED),
    )
    result = adlro("run", "x")
    work.join()
    assert (result.exit_code, result.stdout) == (code, "saved\n"), result.output
    assert "cancelling job-1; Ctrl-C again" in result.stderr


def test_the_second_signal_does_not_wait(suite: FakeSuite, adlro: Run) -> None:
    suite.cancels_at_once = False
    work = in_background(
        suite,
        lambda: suite.start("job-1"),
        lambda: os.kill(os.getpid(), signal.SIGINT),
        lambda: wait_until(lambda: suite.calls["CancelJob"] > 0),
        lambda: os.kill(os.getpid(), signal.SIGINT),
    )
    result = adlro("run", "x")
    work.join()
    assert result.exit_code == 130
    assert "job-1 is being cancelled; adlro logs -f job-1" in result.stderr
    assert not suite.jobs["job-1"].state.final


def test_a_program_that_ends_well_although_it_was_cancelled_succeeded(suite: FakeSuite, adlro: Run) -> None:
    suite.cancels_at_once = False
    work = in_background(
        suite,
        lambda: suite.start("job-1"),
        lambda: os.kill(os.getpid(), signal.SIGINT),
        lambda: wait_until(lambda: suite.calls["CancelJob"] > 0),
        lambda: suite.end("job-1", DONE),
    )
    assert adlro("run", "x").exit_code == 0
    work.join()


@pytest.mark.parametrize(("error", "code"), [(BrokenPipeError(), 141), (OSError(28, "No space left on device"), 1)])
def test_a_job_whose_output_nobody_reads_is_cancelled(
    suite: FakeSuite, adlro: Run, monkeypatch: pytest.MonkeyPatch, error: OSError, code: int
) -> None:
    def closed(self: LogWriter, chunk: LogChunk) -> None:
        raise error

    monkeypatch.setattr(LogWriter, "write", closed)
    monkeypatch.setattr("adlro.cli.run.silence_stdout", lambda: None)  # it is the test's own
    work = in_background(suite, lambda: suite.start("job-1"), lambda: suite.write("job-1", b"x"))
    assert adlro("run", "x").exit_code == code
    work.join()
    assert suite.jobs["job-1"].state is JobState.CANCELLED


@pytest.mark.parametrize("arguments", [[], ["--type", "ml"]])
def test_run_needs_a_program(adlro: Run, arguments: list[str]) -> None:
    result = adlro("run", *arguments)
    assert result.exit_code == 2
    assert "name a program after --" in result.stderr


def test_an_interrupted_submission_leaves_no_job(suite: FakeSuite, adlro: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = AsyncClient.submit

    async def interrupted(self: AsyncClient, *arguments: Any, **options: Any) -> Job:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
        return await submit(self, *arguments, **options)

    monkeypatch.setattr(AsyncClient, "submit", interrupted)
    result = adlro("run", "x")
    assert result.exit_code == 130
    assert "job-1 is cancelled" in result.stderr
    assert suite.jobs["job-1"].state is JobState.CANCELLED


def test_closed_streams_are_no_error(suite: FakeSuite, tmp_path: Path) -> None:
    work = in_background(
        suite, lambda: suite.start("job-1"), lambda: suite.write("job-1", b"x"), lambda: suite.end("job-1", DONE)
    )
    command = [sys.executable, "-m", "adlro.cli", "run", "x"]
    environment = {**os.environ, **suite.environment()}
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    done = subprocess.run(closed, env=environment, timeout=60, check=False)
    work.join()
    assert done.returncode == 0
    assert suite.jobs["job-1"].state is JobState.SUCCEEDED


def ended(state: JobState, status: ExitStatus | None) -> Job:
    attempt = JobAttempt(1, Placement.on("volta-0/0"), "v100_sxm2", exit=status)
    return Job("job-1", SPEC, state=state, attempts=(attempt,))


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        (JobState.SUCCEEDED, DONE, 0),
        (JobState.SUCCEEDED, None, 0),
        (JobState.FAILED, ExitStatus(EndReason.EXITED, 3), 3),
        (JobState.FAILED, ExitStatus(EndReason.EXITED, 255), 255),
        (JobState.FAILED, DONE, 125),
        (JobState.FAILED, ExitStatus(EndReason.SIGNALLED, signal=11), 139),
        (JobState.FAILED, ExitStatus(EndReason.TIME_LIMIT, signal=15), 124),
        (JobState.FAILED, ExitStatus(EndReason.OUT_OF_MEMORY, signal=9), 137),
        (JobState.CANCELLED, ExitStatus(EndReason.STOPPED, signal=15), 143),
        (JobState.CANCELLED, None, 143),
        (JobState.FAILED, ExitStatus(EndReason.NOT_STARTED), 125),
        (JobState.FAILED, ExitStatus(EndReason.GPU_FAILED), 125),
        (JobState.FAILED, ExitStatus(EndReason.NODE_LOST), 125),
        (JobState.FAILED, ExitStatus(EndReason.SUPERVISOR_LOST), 125),
        (JobState.FAILED, None, 125),
    ],
)
def test_exit_codes_of_run(state: JobState, status: ExitStatus | None, code: int) -> None:
    assert exit_code(ended(state, status)) == code


# Logs


@pytest.fixture
def logged(suite: FakeSuite) -> FakeSuite:
    """An ended job with 300 lines on stdout, and two on stderr."""
    suite.add(SPEC)
    suite.start("job-1")
    suite.write("job-1", b"".join(b"line %d\n" % number for number in range(300)))
    suite.write("job-1", b"warning 1\nwarning 2\n", LogStream.STDERR)
    suite.end("job-1", DONE)
    return suite


def test_logs_of_an_ended_job(logged: FakeSuite, adlro: Run) -> None:
    for more in ([], ["-f"], ["--attempt", "1"], ["-f", "--attempt", "1"]):
        result = adlro("logs", *more, "job-1")
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines() == [f"line {number}" for number in range(300)]
        assert result.stderr == "warning 1\nwarning 2\n"


def test_one_stream_goes_to_stdout(logged: FakeSuite, adlro: Run) -> None:
    result = adlro("logs", "--stream", "stderr", "job-1")
    assert (result.stdout, result.stderr) == ("warning 1\nwarning 2\n", "")


@pytest.mark.parametrize("more", [[], ["-f"]])
@pytest.mark.parametrize(
    ("tail", "lines"),
    [("2", ["line 298", "line 299"]), ("0", []), ("18B", ["line 298", "line 299"]), ("5000", 300), ("1GiB", 300)],
)
def test_the_end_of_a_log(logged: FakeSuite, adlro: Run, more: list[str], tail: str, lines: Any) -> None:
    result = adlro("logs", "--stream", "stdout", "--tail", tail, *more, "job-1")
    assert result.exit_code == 0, result.output
    shown = result.stdout.splitlines()
    assert (shown if isinstance(lines, list) else len(shown)) == lines
    assert result.stderr == ""


def test_many_lines_are_found_in_a_long_log(suite: FakeSuite, adlro: Run) -> None:
    suite.chunk_bytes = 1 << 18
    suite.add(SPEC)
    suite.start("job-1")
    suite.write("job-1", b"".join(b"%099d\n" % number for number in range(20_000)))
    shown = adlro("logs", "--tail", "5000", "job-1").stdout.splitlines()
    assert (len(shown), int(shown[0]), int(shown[-1])) == (5000, 15_000, 19_999)
    # It asked for more only when the first part had too few lines.
    assert [each.tail_bytes for each in suite.log_requests] == [65536, 524288, 65536]


@pytest.mark.parametrize(
    ("data", "lines", "kept"),
    [
        (b"", 1, b""),
        (b"a", 1, b"a"),
        (b"a\nb", 1, b"b"),
        (b"a\nb\n", 1, b"b\n"),
        (b"a\n\n", 1, b"\n"),
        (b"a\nb", 9, b"a\nb"),
    ],
)
def test_the_last_lines(data: bytes, lines: int, kept: bytes) -> None:
    assert data[_start_of_last_lines(data, lines) :] == kept


def test_bytes_that_were_deleted_are_told(logged: FakeSuite, adlro: Run) -> None:
    logged.logs["job-1", 1, LogStream.STDOUT].kept = 1000
    result = adlro("logs", "job-1")
    assert "adlro: 1000 bytes of stdout are not there any more: the job's log limit was reached" in result.stderr
    assert "not there any more" not in adlro("logs", "--tail", "1", "job-1").stderr


def test_logs_follow_until_the_job_has_ended(suite: FakeSuite, adlro: Run) -> None:
    suite.add(SPEC)
    suite.change("job-1", message="no GPU is free")
    work = in_background(
        suite,
        lambda: suite.start("job-1"),
        lambda: suite.write("job-1", b"first"),
        lambda: wait_until(lambda: suite.calls["ReadJobLogs"] >= 2),
        lambda: suite.write("job-1", b" second"),
        lambda: suite.end("job-1", ExitStatus(EndReason.EXITED, 3)),
    )
    result = adlro("logs", "-f", "job-1")
    work.join()
    assert (result.exit_code, result.stdout) == (0, "first second")
    assert "job-1 waits (resources: no GPU is free)" in result.stderr


def test_logs_that_are_not_there(suite: FakeSuite, adlro: Run) -> None:
    suite.add(SPEC)
    result = adlro("logs", "job-1")
    assert result.exit_code == 1
    assert "job-1 has no output: it is pending" in result.stderr
    suite.start("job-1")
    assert "job-1 has no attempt 2; its newest one is 1" in adlro("logs", "--attempt", "2", "job-1").stderr
    assert adlro("logs", "job-9").exit_code == 1
    result = adlro("logs", "--tail", "many", "job-1")
    assert (result.exit_code, "--tail" in result.stderr) == (2, True)


@pytest.mark.parametrize("options", [[], ["-f"]])
def test_logs_of_a_program_that_did_not_start_say_why(suite: FakeSuite, adlro: Run, options: list[str]) -> None:
    suite.add(SPEC)
    suite.start("job-1")
    suite.end("job-1", ExitStatus(EndReason.NOT_STARTED, detail="there is no program 'x'"))
    result = adlro("logs", *options, "job-1")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "job-1 has no output: not started: there is no program 'x'" in result.stderr


@pytest.mark.parametrize("options", [[], ["-f"], ["--attempt", "1"], ["--tail", "3"]])
def test_logs_of_an_attempt_that_never_started_say_why(suite: FakeSuite, adlro: Run, options: list[str]) -> None:
    suite.add(SPEC)
    attempt = JobAttempt(1, Placement.on("gpu-0"), "v100_sxm2", None, 1.0, "this node runs no containers")
    suite.change("job-1", state=JobState.FAILED, attempts=(attempt,))
    result = adlro("logs", *options, "job-1")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "adlro: job-1 has no output: this node runs no containers\n"
    assert suite.calls["ReadJobLogs"] == 0


class Terminal(io.TextIOWrapper):
    def __init__(self) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding="utf-8")

    def isatty(self) -> bool:
        return True


def shown_on_terminal(*pieces: bytes, raw: bool = False) -> bytes:
    terminal = Terminal()
    writer = LogWriter(terminal, "stdout", lambda _: None, raw=raw)
    offset = 0
    for piece in pieces:
        writer.write(LogChunk(offset, piece, 0))
        offset += len(piece)
    writer.end()
    return terminal.bytes.getvalue()


def test_a_terminal_gets_no_escape_sequence_of_a_log() -> None:
    assert shown_on_terminal(b"a\x1b]0;title\x07b\x9b\xc2\x9b1m\r\n\t") == b"a\\x1b]0;title\\x07b\\x9b\\x9b1m\r\n\t"
    assert shown_on_terminal("\u202eabc\u200b".encode()) == b"\\u202eabc\\u200b"


def test_a_character_in_two_pieces_is_whole_on_a_terminal() -> None:
    word = "é€😀".encode()
    for cut in range(len(word)):
        assert shown_on_terminal(word[:cut], word[cut:]) == word
    assert shown_on_terminal(b"\xf0\x9f") == b"\\xf0\\x9f"


def test_raw_passes_bytes_on() -> None:
    assert shown_on_terminal(b"\x1b[1m\xff", raw=True) == b"\x1b[1m\xff"


# Ends


def test_how_programs_ended_is_listed(suite: FakeSuite, adlro: Run) -> None:
    statuses = [
        ExitStatus(EndReason.EXITED, 3),
        ExitStatus(EndReason.SIGNALLED, signal=9),
        ExitStatus(EndReason.TIME_LIMIT),
    ]
    assert "EXIT" not in adlro("queue", "--all").stdout
    for number, status in enumerate(statuses, 1):
        suite.add(SPEC)
        suite.start(f"job-{number}")
        suite.end(f"job-{number}", status)
    lines = adlro("queue", "--all").stdout.splitlines()
    assert "EXIT" in lines[0]
    position = lines[0].index("EXIT")
    assert [line[position:].split("  ")[0].strip() for line in lines[1:4]] == ["3", "SIGKILL", "time limit"]
    found = json.loads(adlro("queue", "--all", "-o", "json").stdout)["jobs"][0]
    assert found["attempts"][0]["exit"]["reason"] == "exited"
    assert found["attempts"][0]["exit"]["code"] == 3


def test_describe_shows_program_and_attempts(suite: FakeSuite, adlro: Run) -> None:
    payload = Payload(
        container=Container("team/net:1", ("python", "a b.py"), "/w", (Mount("/data", "/d"),)),
        environment={"A": "hidden value"},
        secret_names=("KEY",),
    )
    suite.add(JobSpec("train", "ada", JobType.UNSPECIFIED, application="team/net:python:a b.py", payload=payload))
    suite.start("job-1")
    suite.end(
        "job-1", ExitStatus(EndReason.OUT_OF_MEMORY, detail="limit 4096 MiB", peak_memory_mib=4000, left_behind=2)
    )
    text = adlro("describe", "job", "job-1").stdout
    for part in (
        *("python 'a b.py'", "team/net:1", "/data:/d:ro", "KEY", "not stated", "out of memory: limit 4096 MiB"),
        *("2 processes were left and ended", "3.9 GiB", "256 MiB of each stream", "team/net:python:a b.py"),
    ):
        assert part in text
    assert "hidden value" not in text
    assert "BEGAN" not in text
    values = [line.removeprefix("  ") for line in text.splitlines() if line.startswith("  ") and line[2] != " "]
    assert "application team/net:python:a b.py" in values
    assert {line[11] for line in values} == {" "}
    attempt = suite.jobs["job-1"].attempts[0]
    suite.change("job-1", attempts=(JobAttempt(1, attempt.placement, "v100_sxm2", 1.0, 9.0, "failed", run_s=2.5),))
    assert "2.5 s" in adlro("describe", "job", "job-1").stdout


def test_describe_of_a_small_program_without_a_type(
    suite: FakeSuite, adlro: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.add(SPEC)
    suite.start("job-1")
    suite.end("job-1", ExitStatus(EndReason.EXITED, peak_memory_mib=0, left_behind=1))
    text = adlro("describe", "job", "job-1").stdout
    assert "< 1 MiB" in text
    assert "1 process was left and ended" in text
    predict = fake_suite._Services.do_PredictRuntime

    def by_type(self: Any, request: Any) -> Any:
        answer = predict(self, request)
        for each in answer.predictions:
            for one in each.predictions:
                one.basis = PredictionBasis.JOB_TYPE
        return answer

    monkeypatch.setattr(fake_suite._Services, "do_PredictRuntime", by_type)
    assert "other jobs without a type" in adlro("describe", "job", "job-1").stdout


def test_requeue_submits_ended_jobs_again(suite: FakeSuite, adlro: Run) -> None:
    suite.add(SPEC)
    suite.start("job-1")
    result = adlro("requeue", "job-1")
    assert result.exit_code == 1
    assert "job-1 is running: cancel it first (adlro cancel job-1)" in result.stderr
    suite.end("job-1", DONE)
    result = adlro("requeue", "job-9", "job-1")
    assert (result.exit_code, result.stdout) == (1, "job-2\n")
    assert "there is no job job-9" in result.stderr
    assert sent(suite, "job-2").labels == {"requeued-from": "job-1"}
    assert json.loads(adlro("requeue", "job-1", "-o", "json").stdout)["jobs"][0]["job_id"] == "job-3"


def test_conditions_of_gpus_are_shown(suite: FakeSuite, adlro: Run) -> None:
    suite.gpu_conditions = (GpuCondition("volta-0/1", "used by pid 4711 of user [bob]"),)
    rows = {line.split()[0]: line for line in adlro("gpus").stdout.splitlines()}
    assert "lost used by pid 4711 of user [bob]" in rows["volta-0/1"]
    assert "used by" not in rows["volta-0/0"]
    assert json.loads(adlro("gpus", "-o", "json").stdout)["gpus"][1]["condition"].startswith("used by pid 4711")


def test_intervals_and_patience_are_durations(adlro: Run) -> None:
    assert "must be between 100ms and 1h" in adlro("gpus", "--watch", "--interval", "2h").stderr
    assert "is no duration" in adlro("gpus", "--watch", "--interval-s", "x").stderr
    assert "is no duration" in adlro("replay", __file__, "--patience", "long").stderr
