"""What `adlro submit` sends: arrays, dependencies, holds, begin times, files of several jobs; and what it tells."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from adlro.errors import InvalidInput
from adlro.records.arrays import ArrayIndexes, read_array_indexes
from adlro.records.dependencies import DependencyCondition, JobDependency
from adlro.records.events import Clock, ClockMode
from adlro.records.fair_share import FairShare
from adlro.records.jobs import PendingReason
from tests.unit.client.fake_suite import FakeSuite

Run = Callable[..., Any]
OK, ENDED, FAILED = DependencyCondition.SUCCEEDED, DependencyCondition.ENDED, DependencyCondition.NOT_SUCCEEDED

FILE = """\
defaults:
  cores: 2
  labels: {team: vision}
jobs:
  report:
    after: [sweep:any, job-99]
    command: ./report
  prepare:
    cores: 4
    command: [python, prepare.py]
  sweep:
    after: prepare
    array: 0-8:4%2
    command: python sweep.py
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(FILE)
    return path


# ---- arrays


@pytest.mark.parametrize(
    ("text", "indexes", "most"),
    [
        ("0-3", (0, 1, 2, 3), 0),
        ("7", (7,), 0),
        ("1,5,7%2", (1, 5, 7), 2),
        ("0-10:5", (0, 5, 10), 0),
        (" 3-4, 1 ", (1, 3, 4), 0),
        ("0-3,2-5", (0, 1, 2, 3, 4, 5), 0),
    ],
)
def test_indexes_are_written_as_slurm_does(text: str, indexes: tuple[int, ...], most: int) -> None:
    assert read_array_indexes(text) == ArrayIndexes(indexes, most)


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "0-3%", "0-3%0", "0-3%x", "0-9:0", "1,,2", "0-10000", "-1", "0-99999999999"]
)
def test_what_is_no_array_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"0-99|FIRST-LAST|10,000"):
        read_array_indexes(text)


def test_an_array_prints_its_id_first(suite: FakeSuite, adlro: Run) -> None:
    result = adlro("submit", "--array", "2-4%2", "--", "true")
    assert (result.exit_code, result.stdout) == (0, "array-1  job-1 to job-3\n")
    assert [job.spec.array.index for job in suite.jobs.values() if job.spec.array] == [2, 3, 4]
    again = adlro("submit", "--array", "1", "--request-id", "r", "--", "true")
    assert adlro("submit", "--array", "1", "--request-id", "r", "--", "true").stdout == again.stdout
    document = json.loads(adlro("submit", "--array", "1-2", "-o", "json", "--", "true").stdout)
    assert [each["job_id"] for each in document["jobs"]] == ["job-5", "job-6"]
    assert document["arrays"] == ["array-5"]


@pytest.mark.parametrize("command", [["submit", "--count", "2"], ["run"]])
def test_an_array_goes_with_no_count_and_no_run(suite: FakeSuite, adlro: Run, command: list[str]) -> None:
    result = adlro(*command, "--array", "1-2", "--", "true")
    assert result.exit_code == 2
    assert not suite.jobs


# ---- when it starts


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["--after", "job-3"], [("job-3", OK)]),
        (["--after", "3:any"], [("job-3", ENDED)]),
        (["--after", "array-4:fail,job-5:ok"], [("array-4", FAILED), ("job-5", OK)]),
        (["--after", "3:afterany", "--after", "4:AFTERNOTOK"], [("job-3", ENDED), ("job-4", FAILED)]),
    ],
)
def test_dependencies(suite: FakeSuite, adlro: Run, words: list[str], after: list[Any]) -> None:
    assert adlro("submit", *words, "--hold", "--", "true").exit_code == 0
    spec = suite.jobs["job-1"].spec
    assert spec.after == tuple(JobDependency(*each) for each in after)
    assert spec.held


@pytest.mark.parametrize("text", ["prepare", "job-", "job-3:soon", "job-3:", "", "job-03"])
def test_what_is_no_dependency_is_refused(suite: FakeSuite, adlro: Run, text: str) -> None:
    result = adlro("submit", "--after", text, "--", "true")
    assert result.exit_code == 2
    assert "--after" in result.stderr
    assert not suite.jobs


def test_begin_times(suite: FakeSuite, adlro: Run) -> None:
    suite.clock = Clock(ClockMode.REAL, 1.0, False, 1000.0)
    for begin in ("3600s", "now+1h", "2100-01-01", "00:00"):
        assert adlro("submit", "--begin", begin, "--", "true").exit_code == 0
    plain, later, dated, of_day = [job.spec.begin_time_s for job in suite.jobs.values()]
    assert (plain, later) == (3600.0, 4600.0)
    assert dated is not None
    assert dated > 1e9
    assert of_day is not None
    assert 1000.0 < of_day <= 1000.0 + 86_400.0, "midnight of today is over: it is the next one"


def test_a_wall_time_on_a_virtual_clock_is_refused(suite: FakeSuite, adlro: Run) -> None:
    suite.clock = Clock(ClockMode.VIRTUAL, 0.0, False, 1000.0)
    result = adlro("submit", "--begin", "2100-01-01T10:00", "--", "true")
    assert result.exit_code == 1
    assert "--begin" in result.stderr
    assert not suite.jobs
    assert adlro("submit", "--begin", "now+1h", "--", "true").exit_code == 0


# ---- files of several jobs


def test_each_job_comes_behind_those_that_it_waits_for(suite: FakeSuite, adlro: Run, file: Path) -> None:
    result = adlro("submit", "-f", str(file))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == ["job-1  prepare", "array-2  sweep  job-2 to job-4", "job-5  report"]
    prepare, *sweep, report = [job.spec for job in suite.jobs.values()]
    assert (prepare.cpu_cores, prepare.labels, prepare.after) == (4, {"team": "vision"}, ())
    assert {(each.cpu_cores, each.after) for each in sweep} == {(2, (JobDependency("job-1", OK),))}
    assert report.after == (JobDependency("job-99", OK), JobDependency("array-2", ENDED))


def test_options_of_the_command_line_count_for_all_of_them(suite: FakeSuite, adlro: Run, file: Path) -> None:
    assert adlro("submit", "-f", str(file), "--cores", "9", "--label", "run=7").exit_code == 0
    assert {(job.spec.cpu_cores, job.spec.labels["run"], job.spec.labels["team"]) for job in suite.jobs.values()} == {
        (9, "7", "vision")
    }


def test_the_same_file_is_submitted_once_where_that_is_wanted(suite: FakeSuite, adlro: Run, file: Path) -> None:
    first = adlro("submit", "--once", "-f", str(file))
    assert adlro("submit", "--once", "-f", str(file)).stdout == first.stdout
    assert len(suite.jobs) == 5
    file.write_text(FILE.replace("cores: 2", "cores: 3"))
    assert adlro("submit", "--once", "-f", str(file)).stdout != first.stdout
    assert adlro("submit", "-f", str(file)).exit_code == 0
    assert len(suite.jobs) == 15


def test_a_begin_that_moves_is_not_submitted_once(suite: FakeSuite, adlro: Run, file: Path) -> None:
    file.write_text(FILE + "    begin: now+1h\n")
    for words in (["-f", str(file)], ["--begin", "now+1h", "--", "true"]):
        result = adlro("submit", "--once", *words)
        assert result.exit_code == 2
        assert "3600s" in result.stderr
    assert not suite.jobs
    assert adlro("submit", "--once", "--begin", "3600s", "--", "true").exit_code == 0


def test_one_that_is_refused_leaves_out_what_waits_for_it_and_the_rest_goes_on(
    suite: FakeSuite, adlro: Run, file: Path
) -> None:
    file.write_text(FILE + "  alone:\n    command: ./alone\n")
    suite.fail("SubmitArray", grpc.StatusCode.RESOURCE_EXHAUSTED)
    result = adlro("submit", "-f", str(file), "--request-id", "again")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == ["job-1  prepare", "job-2  alone"]
    assert f"{file}:11: sweep:" in result.stderr
    assert f"{file}:5: report: not submitted: it waits for sweep" in result.stderr
    assert "2 of 4 jobs of the file are recorded" in result.stderr
    assert "--request-id again" in result.stderr
    suite.failures.clear()
    again = adlro("submit", "-f", str(file), "--request-id", "again")
    assert again.stdout.splitlines() == [
        "job-1  prepare",
        "array-3  sweep  job-3 to job-5",
        "job-6  report",
        "job-2  alone",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobs:\n  a:\n    after: b\n    command: x\n", "{file}:2: a: --after: .*'b': write the id of a job"),
        ("jobs:\n  a: {after: b, command: x}\n  b: {after: a, command: x}\n", "{file}:2: a: waits for itself"),
        ("jobs:\n  a: {command: x, priority: 3}\n", "{file}:2: a: job.priority"),
        ("jobs:\n  a: {command: x, corse: 3}\n", "{file}:2: there is no key 'corse'; do you mean cores?"),
        ("jobs:\n  a: {command: x, array: 3-1}\n", "{file}:2"),
        ("jobs:\n  a: {}\n", "{file}:2: a: --type: a job without a program needs a type"),
        ("jobs:\n  a: 3\n", "{file}:2: a: must be a mapping"),
        ("jobs: {}\n", "jobs: has no job"),
        ("jobs: [a]\n", "jobs: must be a mapping of jobs by name"),
        ("default: {}\njobs:\n  a: {command: x}\n", "there is no key 'default' beside jobs; do you mean defaults?"),
        ("jobs:\n  job one: {command: x}\n", "'job one' is no name of a job"),
        ("jobs:\n  a: {command: x}\n  a: {command: y}\n", "'a' is there twice"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line_before_anything_is_sent(
    suite: FakeSuite, adlro: Run, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    result = adlro("submit", "-f", str(file))
    assert result.exit_code == 2
    told = " ".join(result.stderr.replace("│", " ").split())
    assert re.search(message.format(file=re.escape(str(file))).replace("?", r"\?"), told), told
    assert not suite.jobs
    assert not suite.arrays


def test_a_file_of_several_jobs_has_its_commands(suite: FakeSuite, adlro: Run, file: Path) -> None:
    assert adlro("submit", "-f", str(file), "--", "true").exit_code == 2
    assert adlro("run", "-f", str(file)).exit_code == 2
    assert not suite.jobs


# ---- requests about jobs


@pytest.fixture
def three(suite: FakeSuite, adlro: Run) -> FakeSuite:
    adlro("submit", "--count", "2", "--", "true")
    adlro("submit", "--array", "0-1", "--", "true")
    return suite


def test_held_released_and_updated(three: FakeSuite, adlro: Run) -> None:
    assert adlro("hold", "1", "array-3").stdout.splitlines() == ["job-1  held", "job-3  held", "job-4  held"]
    assert three.requests_about == [["job-1", "job-3", "job-4"]]
    assert adlro("release", "job-1").stdout == "job-1  released\n"
    assert adlro("update", "2", "-p", "0.9", "--time-limit", "8h", "--set-label", "a=b").stdout == "job-2  updated\n"
    spec = three.jobs["job-2"].spec
    assert (spec.priority, spec.time_limit_s, spec.labels) == (0.9, 28_800.0, {"a": "b"})
    assert adlro("update", "2", "--time-limit", "0").exit_code == 0
    assert three.jobs["job-2"].spec.time_limit_s is None


def test_a_refusal_is_told_beside_what_was_done(three: FakeSuite, adlro: Run) -> None:
    result = adlro("hold", "job-1", "job-9")
    assert (result.exit_code, result.stdout) == (1, "job-1  held\n")
    assert "there is no job job-9" in result.stderr
    document = json.loads(adlro("hold", "job-1", "job-9", "-o", "json").stdout)
    assert [each["job_id"] for each in document["jobs"]] == ["job-1"]
    assert [(each["job_id"], each["code"]) for each in document["refused"]] == [("job-9", "NOT_FOUND")]


def test_what_comes_too_late_is_said_and_is_no_success(three: FakeSuite, adlro: Run) -> None:
    three.change("job-1", pending_reason=PendingReason.LAUNCHING)
    three.ignores_requests = True
    for command in (["hold", "1"], ["update", "1", "-p", "0.9"]):
        result = adlro(*command)
        assert result.exit_code == 1
        assert "it was launched before" in result.stdout


@pytest.mark.parametrize(
    "command", [["hold"], ["release"], ["update", "job-1"], ["update", "-p", "0.1"], ["hold", "array-9"]]
)
def test_what_is_not_said_is_asked_for(three: FakeSuite, adlro: Run, command: list[str]) -> None:
    assert adlro(*command).exit_code == 2
    assert not three.requests_about


def test_all_are_cancelled_by_one_call_and_only_after_a_yes(three: FakeSuite, adlro: Run) -> None:
    refused = adlro("cancel", "--all")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert not three.requests_about
    assert adlro("cancel", "--all", "--yes").exit_code == 0
    assert three.requests_about == [["job-1", "job-2", "job-3", "job-4"]]
    three.cancels_at_once = True


def test_an_array_is_cancelled_as_a_whole(three: FakeSuite, adlro: Run) -> None:
    assert adlro("cancel", "array-3").exit_code == 0
    assert three.requests_about == [["job-3", "job-4"]]


# ---- quotas


def test_quotas(suite: FakeSuite, adlro: Run) -> None:
    assert adlro("quota").stdout == ""
    assert adlro("quota", "ada", "--gpus", "4").stdout == "ada: 4 GPUs (before: no quota)\n"
    assert adlro("quota", "--everyone", "--gpus", "1").stdout == "everyone: 1 GPU (before: no quota)\n"
    lines = adlro("quota").stdout.splitlines()
    assert [line.split() for line in lines] == [["USER", "QUOTA", "HELD"], ["everyone", "1"], ["ada", "4", "0"]]
    assert adlro("quota", "ada", "--none").stdout == "ada: no quota (before: 4 GPUs)\n"
    assert suite.quotas == {"*": 1}
    for wrong in (["ada"], ["--gpus", "3"], ["ada", "--everyone", "--gpus", "3"], ["ada", "--gpus", "1", "--none"]):
        assert adlro("quota", *wrong).exit_code == 2


# ---- shares


def test_shares(suite: FakeSuite, adlro: Run) -> None:
    assert adlro("fair-share").stdout == ""
    assert adlro("fair-share", "ada", "--shares", "2").stdout == "ada: 2 shares\n"
    assert adlro("fair-share", "ada", "--group", "@vision").stdout == "ada: 2 shares, in the group vision\n"
    suite.fair_shares["bob"] = FairShare("bob", 4.0, gpu_s=9000.0)
    lines = [line.split() for line in adlro("fair-share").stdout.splitlines()]
    assert lines[0] == ["ACCOUNT", "GROUP", "SHARES", "GPU", "HOURS", "PER", "SHARE"]
    assert lines[1:] == [["ada", "vision", "2"], ["bob", "4", "2.50", "0.62"]]
    assert adlro("fair-share", "ada", "--group", "").stdout == "ada: 2 shares\n"
    assert adlro("fair-share", "ada", "--none").stdout == "ada: 1 share\n"
    assert list(suite.fair_shares) == ["bob"]
    for wrong in (["ada"], ["--shares", "3"], ["--none"], ["ada", "--shares", "1", "--none"], ["ada", "--shares", "0"]):
        assert adlro("fair-share", *wrong).exit_code == 2
