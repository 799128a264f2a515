"""Whatever the store, the cluster or a server holds: no command prints a character that a terminal obeys or hides."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from adlro.cli.app import app
from adlro.cli.demo_view import gpu_grid
from adlro.cli.gpus import gpu_table, gpu_views
from adlro.cli.machine_checks import Finding, Level
from adlro.cli.shell import stdout
from adlro.errors import Conflict, FieldViolation, InvalidInput, Unavailable
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import GpuCondition
from adlro.records.jobs import (
    AttemptRef,
    ExpectedRuntime,
    Job,
    JobAttempt,
    JobReservation,
    JobSpec,
    JobState,
    JobType,
    PendingReason,
)
from adlro.records.payloads import Container, EndReason, ExitStatus, Mount, Payload
from adlro.terminal import PlainConsole
from adlro.text import is_hidden, to_json, visible, visible_all
from adlro.v1 import job_pb2
from tests.unit.client import fake_suite
from tests.unit.client.fake_suite import FakeSuite

Run = Callable[..., Any]

# A title of the terminal, a line forged, C1's CSI, the text turned round, nothing seen, rich's own markup.
HOSTILE = (
    "a\x1b]0;owned\x07\x1b[2J\nb\r\x00\x7f\x9b31m\u202ec\u200b\u2066\u2028\ufeff\U000e0041\u115f\u3164[/][bold]:bomb:"
)
JOB = f"job-1{HOSTILE}"
GPU = f"g{HOSTILE}0"
ERROR = f"refused: {HOSTILE}"


def seen_through(text: str) -> list[str]:
    """Hidden characters of an output, its line ends apart."""
    return sorted({f"U+{ord(each):04X}" for each in text if is_hidden(each) and each != "\n"})


@pytest.fixture
def hostile(suite: FakeSuite, monkeypatch: pytest.MonkeyPatch) -> FakeSuite:
    """A suite whose every text is hostile."""
    node = Node(
        f"n{HOSTILE}", 20, 262144, tuple(Gpu(f"g{HOSTILE}{number}", f"m{HOSTILE}", 16160) for number in range(3))
    )
    monkeypatch.setattr(fake_suite, "CLUSTER", Cluster("default", (node,)))
    spec = JobSpec(
        HOSTILE,
        HOSTILE,
        JobType.MACHINE_LEARNING,
        application=HOSTILE,
        labels={HOSTILE: HOSTILE, "k": "v"},
        expected_runtime=ExpectedRuntime(f"m{HOSTILE}", 3.0),
        payload=Payload(
            container=Container(HOSTILE, (HOSTILE, "x"), HOSTILE, (Mount(HOSTILE, HOSTILE),)),
            environment={HOSTILE: HOSTILE},
            secret_names=(HOSTILE,),
        ),
    )
    status = ExitStatus(EndReason.NOT_STARTED, detail=HOSTILE)
    attempt = JobAttempt(1, Placement.on(GPU), f"m{HOSTILE}", 1.0, 2.0, HOSTILE, run_s=1.5, exit=status)
    running = Job(
        JOB, spec, JobState.RUNNING, message=HOSTILE, submit_s=0.0, start_s=1.0, placement=Placement.on(GPU),
        gpu_model="m" + HOSTILE,
        attempts=(attempt, replace(attempt, attempt=2, exit=replace(status, reason=EndReason.SIGNALLED, signal=9))),
    )  # fmt: skip
    held = JobReservation(JOB, 1.0, f"m{HOSTILE}", (HOSTILE, f"n{HOSTILE}"), 9.0, 2, 4)
    gang = replace(
        running, job_id=f"job-5{HOSTILE}", spec=replace(spec, gpu_count=2, gpu_models=(HOSTILE,)),
        placement=Placement.on(GPU, HOSTILE), attempts=(replace(attempt, placement=Placement.on(GPU, HOSTILE)),),
    )  # fmt: skip
    stopped = replace(attempt, outcome=f"preempted: for {HOSTILE}", preempted=True)
    instead = replace(attempt, attempt=2, preempts=(AttemptRef(HOSTILE, 1),))
    gang = replace(gang, attempts=(replace(stopped, placement=gang.placement), instead))
    waits = replace(gang, job_id=f"job-6{HOSTILE}", state=JobState.PENDING, pending_reason=PendingReason.RESERVED)
    states = [
        running,
        gang,
        replace(waits, reservation=held, reserved_for_job_id=HOSTILE, reserved_until_s=9.0),
        replace(running, job_id=f"job-2{HOSTILE}", state=JobState.FAILED, end_s=9.0),
        replace(running, job_id=f"job-3{HOSTILE}", state=JobState.PENDING, pending_reason=PendingReason.RESOURCES),
        replace(running, job_id=f"job-4{HOSTILE}", state=JobState.CANCELLED, end_s=9.0, cancel_requested=True),
    ]
    with suite.condition:
        for job in states:
            suite._record(job)
    suite.policy = suite.policy_problem = suite.shadow = suite.user = HOSTILE
    suite.drained = [node.node_id]
    suite.reservations = [held]
    suite.gpu_conditions = (GpuCondition(GPU, HOSTILE),)
    decision = fake_suite._Services._decision

    def hostile_decision(self: Any, job_id: str) -> Any:
        made = decision(self, job_id)
        for field in ("decision_id", "gpu_id", "policy", "summary", "basis_text", "policy_version"):
            setattr(made, field, HOSTILE)
        made.runner_up.job_id = made.runner_up.gpu_id = HOSTILE
        made.shadow.policy = made.shadow.job_id = made.shadow.gpu_id = HOSTILE
        made.reservation.CopyFrom(job_pb2.JobReservation(job_id=HOSTILE, gpu_model=HOSTILE, node_ids=[HOSTILE]))
        made.preempts.add(job_id=HOSTILE, attempt=1)
        made.candidates[0].gpu_id = made.candidates[0].gpu_model = HOSTILE
        made.masked[0].gpu_id = made.masked[0].gpu_model = made.masked[0].reason = HOSTILE
        return made

    def hostile_recollection(self: Any, request: Any) -> Any:
        answer = predict(self, request)
        for each in answer.predictions:
            for one in each.predictions:
                one.gpu_model = HOSTILE
                for evidence in one.evidence:
                    evidence.job_id = evidence.gpu_model = HOSTILE
        return answer

    predict = fake_suite._Services.do_PredictRuntime
    monkeypatch.setattr(fake_suite._Services, "_decision", hostile_decision)
    monkeypatch.setattr(fake_suite._Services, "do_PredictRuntime", hostile_recollection)
    policies = fake_suite._Services.do_ListPolicies

    def hostile_policies(self: Any, request: Any) -> Any:
        answer = policies(self, request)
        for each in answer.policies:
            each.name = each.description = each.version = each.problem = each.advice = each.source = HOSTILE
        return answer

    monkeypatch.setattr(fake_suite._Services, "do_ListPolicies", hostile_policies)
    explained = fake_suite._Services.do_ExplainWaiting

    def hostile_wait(self: Any, request: Any) -> Any:
        answer = explained(self, request)
        told = answer.explanation
        told.sentence = told.changes[0].sentence = told.no_expected_start = HOSTILE
        told.changes[0].gpu_models.append(HOSTILE)
        told.ClearField("expected_start")
        return answer

    monkeypatch.setattr(fake_suite._Services, "do_ExplainWaiting", hostile_wait)
    return suite


SHOWING: dict[str, list[list[str]]] = {
    "status": [["status"]],
    "submit": [["submit", "--type", "ml"], ["submit", "--type", "ml", "--name", HOSTILE, "-o", "json"]],
    "queue": [["queue"], ["queue", "--all"]],
    "history": [["history"]],
    "describe": [
        ["describe", "job", JOB],
        ["describe", "job", JOB.replace("1", "5", 1)],
        ["describe", "job", JOB.replace("1", "6", 1)],
        ["describe", "decision", "d-1"],
    ],
    "decisions": [["decisions"]],
    "why": [["why", JOB.replace("1", "3", 1)]],
    "watch": [["watch", JOB.replace("1", "2", 1), "--until-done"]],
    "cancel": [["cancel", JOB]],
    "hold": [["hold", JOB.replace("1", "3", 1)]],
    "release": [["release", JOB.replace("1", "3", 1)]],
    "update": [["update", JOB.replace("1", "3", 1), "--priority", "0.9"]],
    "quota": [["quota", f"u{HOSTILE}", "--gpus", "2"]],
    "fair-share": [["fair-share", f"u{HOSTILE}", "--shares", "2"], ["fair-share"]],
    "requeue": [["requeue", JOB.replace("1", "2", 1)], ["requeue", JOB, JOB.replace("1", "2", 1)]],
    "nodes": [["nodes"], ["describe", "node", f"n{HOSTILE}"]],
    "usage": [["usage", "--by", "user,model,application"]],
    "gpus": [["gpus"]],
    "top": [["top", "--once"]],
    "policy": [["policy"], ["policy", "sjf"], ["policy", "--shadow", "sjf"]],
    "drain": [["drain", f"n{HOSTILE}", "--reason", HOSTILE]],
    "undrain": [["undrain", f"n{HOSTILE}"]],
    "clock": [["clock"]],
    "whoami": [["whoami"]],
}
# Without -o: tried below, and what they show of logs in test_programs.py.
OUTPUT = {"run", "logs"}
# Without a suite: tried below, and in test_webhooks.py.
ALONE = {"doctor", "webhooks"}
# What these print of others comes through the same consoles: `demo_view`, `report` and errors, tested below.
LONG = {"up", "demo", "replay", "workload", "compare", "evaluate", "learn", "train", "certs", "token"}


def test_every_command_is_tried() -> None:
    assert set(typer.main.get_command(app).commands) == set(SHOWING) | OUTPUT | ALONE | LONG  # type: ignore[attr-defined]


@pytest.mark.parametrize("arguments", [each for several in SHOWING.values() for each in several], ids=lambda a: a[0])
@pytest.mark.parametrize("output", ["table", "json"])
def test_no_command_prints_what_a_terminal_obeys(
    adlro: Run, hostile: FakeSuite, arguments: list[str], output: str
) -> None:
    result = adlro(*arguments, *([] if "-o" in arguments else ["-o", output]))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.output
    assert seen_through(result.output) == []
    if output == "json" and arguments[0] != "watch":
        json.loads(result.stdout)


@pytest.mark.parametrize("output", ["wide", "yaml", "csv", "name", "J=job,L=labels,S=spec"])
def test_no_format_prints_what_a_terminal_obeys(adlro: Run, hostile: FakeSuite, output: str) -> None:
    result = adlro("queue", "--all", "-o", output)
    assert result.exit_code == 0
    assert "\\x1b" in result.stdout or "\\e" in result.stdout
    assert seen_through(result.output) == []
    if output == "yaml":
        jobs = yaml.safe_load(result.stdout)["jobs"]
        assert {job["spec"]["name"] for job in jobs} == {HOSTILE}
        assert jobs[0]["spec"]["labels"] == {HOSTILE: HOSTILE, "k": "v"}


@pytest.mark.parametrize("arguments", [["logs", JOB], ["logs", "-f", JOB.replace("1", "2", 1)], ["run", "x"]])
def test_notes_on_output_are_written_out(adlro: Run, hostile: FakeSuite, arguments: list[str]) -> None:
    hostile.fail("ReadJobLogs", *[Conflict(ERROR)] * 2)
    if arguments[0] == "run":
        hostile.fail("WatchJobs", Conflict(ERROR))
    result = adlro(*arguments)
    assert "refused: a\\x1b]0;owned" in result.stderr
    assert seen_through(result.output) == []


@pytest.mark.parametrize("options", [[], ["-f"]])
def test_why_an_attempt_never_began_is_written_out(adlro: Run, hostile: FakeSuite, options: list[str]) -> None:
    result = adlro("logs", "--attempt", "1", *options, JOB)
    assert "has no output: not started: " in result.stderr
    assert seen_through(result.output) == []


@pytest.mark.parametrize("output", ["table", "json"])
def test_no_finding_of_doctor_is_obeyed(adlro: Run, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    found = Finding(HOSTILE, Level.FAULT, HOSTILE, HOSTILE)
    monkeypatch.setattr("adlro.cli.doctor._findings", lambda *_: [found])
    result = adlro("doctor", "-o", output)
    assert result.exit_code == 1
    assert "owned" in result.stdout
    assert seen_through(result.output) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", f'#!/bin/sh\n#ADLRO --name "{HOSTILE}\n'),  # no closing quotation
        ("a.sh", "#!/bin/sh\n#ADLRO '--x\x1b]0;owned\x07' 1\n"),
        ("a.sh", "#!/bin/sh\n#ADLRO '--type=x\x1b]0;owned\x07'\n"),
        ("\x1b]0;owned\x07.sh", "echo\n"),
    ],
)
def test_no_script_is_obeyed(
    adlro: Run, suite: FakeSuite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text, encoding="utf-8")
    result = adlro("submit", name)
    assert result.exit_code == 2
    assert "owned" in result.stderr
    assert seen_through(result.output) == []


def test_a_record_takes_one_line_of_a_table_whatever_it_holds(adlro: Run, hostile: FakeSuite) -> None:
    lines = adlro("queue", "--all").stdout.splitlines()
    assert len([line for line in lines if line.startswith("job-")]) == len(lines) - 1 == 6


def test_json_keeps_the_text_as_it_is(adlro: Run, hostile: FakeSuite) -> None:
    jobs = json.loads(adlro("queue", "--all", "-o", "json").stdout)["jobs"]
    assert {job["spec"]["name"] for job in jobs} == {HOSTILE}
    assert jobs[0]["spec"]["labels"] == {HOSTILE: HOSTILE, "k": "v"}


@pytest.mark.parametrize(
    "error",
    [
        Conflict(ERROR),
        InvalidInput(ERROR, field=HOSTILE),
        InvalidInput(ERROR, violations=(FieldViolation(HOSTILE, ERROR), FieldViolation(HOSTILE, ERROR))),
        Unavailable(ERROR, reason="NO_ANSWER", metadata={"address": HOSTILE, "service": HOSTILE}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_servers_error_is_obeyed(adlro: Run, suite: FakeSuite, error: Any) -> None:
    suite.fail("ListJobs", *[error] * 20)  # as often as the client tries
    result = adlro("queue")
    assert result.exit_code
    assert seen_through(result.output) == []
    assert "Traceback" not in result.output


def test_the_demos_live_view_and_the_gpu_table_show_no_hostile_name(hostile: FakeSuite) -> None:
    views = gpu_views(fake_suite.CLUSTER, [hostile.jobs[JOB]], None)
    console = stdout()
    with console.capture() as captured:
        console.print(gpu_grid(views))
        console.print(gpu_table(views, 80))
    assert seen_through(captured.get()) == []


def test_a_console_writes_out_what_was_not_escaped() -> None:
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    console = PlainConsole(force_terminal=True, width=60)
    table = Table(box=None)
    table.add_column("x", no_wrap=True)
    table.add_row("a\x1b]0;b\x07c\u202e")
    with console.capture() as captured:
        console.print("one\x9b31m[bold]two[/]\nthree")
        console.print(Text("four\x1b[2J"), table)
        with Live(Text("five\x1b[2J"), console=console, auto_refresh=False):
            pass
    text = captured.get()
    assert "\x1b[1mtwo\x1b[0m\nthree" in text  # our own styles and lines stay
    assert "one\\x9b31m" in text
    assert "four\\x1b[2J" in text
    assert "five\\x1b[2J" in text
    assert "a\\x1b]0;b\\x07c\\u202e" in text


def test_lines_that_up_echoes_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    from adlro.cli.up import _echo

    _echo("ingest", f'{{"event": "{HOSTILE}"}}')
    shown = capsys.readouterr().err
    assert seen_through(shown) == []
    assert shown.count("\n") == 1


def test_text_that_is_seen_stays_as_it_is() -> None:
    for text in ("train", "Schrödinger & 日本語 😀 e\u0301", "a b\xa0c\u3000d", ""):
        assert visible(text) == text
        assert json.loads(to_json(text)) == text
        assert to_json(text) == f'"{text}"'
    assert visible("\u115fa") == "\\u115fa"
    assert visible("a\x1b\u202e\U000e0041\nb") == "a\\x1b\\u202e\\U000e0041\\x0ab"
    assert visible("a\nb", keep="\n") == "a\nb"
    assert visible_all({"k\x00": ["\x9b", 1, None, ("\u200b",)]}) == {"k\\x00": ["\\x9b", 1, None, ["\\u200b"]]}


def test_json_escapes_what_is_hidden_and_reads_back() -> None:
    value = {HOSTILE: [HOSTILE, "\ud800"]}
    text = to_json(value, indent=1)
    assert seen_through(text) == []
    assert json.loads(text) == value


def test_a_services_log_line_holds_no_hidden_character() -> None:
    code = (
        f"from adlro.kit import log; log.configure('x', 'info'); log.get_logger().info({HOSTILE!r}, name={HOSTILE!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert seen_through(done.stderr) == []
    assert json.loads(done.stderr)["name"] == HOSTILE
