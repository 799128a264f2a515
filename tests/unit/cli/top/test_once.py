"""`adlro top` off a terminal: one picture as text or as a document, and what is wrong usage."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from adlro.cli import extras
from adlro.cli.app import app
from adlro.errors import PermissionDenied, Unavailable
from adlro.records.jobs import JobSpec, JobType
from adlro.v1.orchestrator_service_pb2 import EventLag
from tests.unit.client.fake_suite import FakeSuite

Run = Callable[..., Any]


@pytest.fixture
def top(suite: FakeSuite) -> Run:
    def run(*arguments: str, **env: str) -> Any:
        shown = dict.fromkeys(f"ADLRO_{name}_FILE" for name in ("TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN"))
        return CliRunner().invoke(
            app, ["top", *arguments], env={**shown, **suite.environment(), "COLUMNS": "140", **env}
        )

    return run


def spec(name: str = "train", user: str = "ada") -> JobSpec:
    return JobSpec(name=name, user=user, job_type=JobType.MACHINE_LEARNING)


def test_one_picture_as_text(suite: FakeSuite, top: Run) -> None:
    suite.add(spec("[red]\x1b[31mtrain"))
    suite.add(spec("second"))
    suite.start("job-2")
    result = top("--once")
    assert result.exit_code == 0, result.output
    for wanted in ("decided by sjf", "1/3 GPUs", "[red]\\x1b[31mtrain", "running", "v100_sxm2 2", "resources"):
        assert wanted in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 140


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_it_is_as_wide_as_the_screen(suite: FakeSuite, top: Run, columns: str) -> None:
    suite.add(spec("a name that is much longer than any column for it could be on such a screen"))
    result = top("--once", COLUMNS=columns)
    assert max(map(len, result.stdout.splitlines())) <= int(columns)


def test_one_document(suite: FakeSuite, top: Run) -> None:
    suite.add(spec("first"))
    suite.add(spec("second", "bob"))
    suite.start("job-2")
    suite.change("job-2", gpu_model="v100_sxm2")
    suite.event_lag = EventLag(unapplied_count=3, oldest_unapplied_s=0.25, newest_revision=9)
    result = top("--once", "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert {feed: each["state"] for feed, each in found["feeds"].items()} == dict.fromkeys(
        ("jobs", "decider", "cluster", "gpus"), "live"
    )
    assert (found["deciding"], found["running"], found["waiting"]) == ("sjf", 1, {"resources": 1})
    assert [each["state"] for each in found["gpus"]] == ["busy", "idle", "idle"]
    assert [each["job_id"] for each in found["jobs"]] == ["job-1", "job-2"]
    assert found["jobs"][0]["pending_reason"] == "resources"
    assert found["jobs"][1]["expected_runtime_s"] == 10.0
    assert (found["event_lag"], found["event_lag_s"]) == (3, 0.25)
    assert (found["capacity"], found["jobs"][0]["start_in_low_s"]) == (None, None)  # for submitters


def test_filter_sort_and_limit(suite: FakeSuite, top: Run) -> None:
    for number in range(5):
        suite.add(spec(f"train-{number}", "ada" if number % 2 else "bob"))
    found = json.loads(top("--once", "-o", "json", "--filter", "user:bob", "--sort", "job", "-n", "2").stdout)
    assert [each["job_id"] for each in found["jobs"]] == ["job-5", "job-3"]
    assert found["jobs_left_out"] == 1
    assert "and 1 more jobs" in top("--once", "--filter", "user:bob", "-n", "2").stdout


def test_services_that_do_not_answer_are_named_and_the_rest_is_there(suite: FakeSuite, top: Run) -> None:
    suite.add(spec())
    suite.fail("DescribeCluster", *[Unavailable("the cluster is away")] * 100)
    result = top("--once")
    assert result.exit_code == 0
    assert "cluster away" in result.stdout
    assert "! cluster: the cluster is away" in result.stdout
    assert "job-1" in result.stdout
    assert "GPUs" not in result.stdout


def test_a_submitter_sees_his_jobs_and_why_nothing_else(suite: FakeSuite, top: Run) -> None:
    suite.add(spec())
    for method in ("DescribeCluster", "GetStatus", "GetClusterState", "PredictRuntime"):
        suite.fail(method, PermissionDenied("ada is submitter; it needs the role reader", reason="ROLE_MISSING"))
    found = json.loads(top("--once", "-o", "json").stdout)
    assert found["own_jobs_only"]
    assert found["feeds"]["decider"] == {
        "state": "refused",
        "why": "ada is submitter; it needs the role reader",
        "age_s": None,
    }
    assert (found["gpus"], found["allocated"], len(found["jobs"])) == ([], None, 1)
    assert (found["user"], found["roles"]) == ("ada", ["submitter", "reader"])
    assert [(each["gpu_model"], each["free_gpu_count"]) for each in found["capacity"]] == [
        ("v100_sxm2", 1),
        ("rtx_2080_ti", 0),
    ]
    (job,) = found["jobs"]
    assert (job["start_in_low_s"], job["start_in_high_s"]) == (180.0, 540.0)


def test_where_nothing_runs_it_says_what_to_do() -> None:
    result = CliRunner().invoke(app, ["top", "--once"], env={"ADLRO_SERVER": "127.0.0.1:1"})
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "adlro up" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-o", "json"], "--once"),
        (["--limit", "3"], "--once"),
        (["--sort", "size"], "priority"),
        (["--interval", "1ms"], "100ms"),
        ([], "--once"),  # not on a terminal
        (["--once", "--server", "nonsense"], "--server"),
    ],
)
def test_wrong_usage_is_told(top: Run, arguments: list[str], named: str) -> None:
    result = top(*arguments)
    assert result.exit_code == 2
    assert named in result.stderr


def test_without_textual_it_says_what_to_install_and_what_there_is(
    suite: FakeSuite, top: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "textual" else real(name))
    result = top()
    assert result.exit_code == 1
    for wanted in ("pip install '.[top]'", "adlro gpus --watch", "adlro top --once"):
        assert wanted in result.stderr
    suite.add(spec())
    assert top("--once").exit_code == 0
