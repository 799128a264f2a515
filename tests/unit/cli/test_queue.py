"""`adlro queue` and `adlro history`: columns, formats, orders, filters by time, and what is fetched."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import grpc
import pytest
import yaml

from adlro.errors import PermissionDenied
from adlro.placement import Placement
from adlro.records.events import Capabilities, Clock, ClockMode
from adlro.records.jobs import JobSpec, JobState, JobType, PendingReason
from adlro.records.watching import JobOrder, JobView
from tests.unit.client.fake_suite import FakeSuite

Run = Callable[..., Any]

SPEC = JobSpec("train", "ada", JobType.MACHINE_LEARNING)
NOW_S = 100_000.0


@pytest.fixture
def lived(suite: FakeSuite) -> FakeSuite:
    """A real cluster with six ended jobs, job-1 .. job-6, which ended in another order, and one that runs."""
    suite.capabilities = Capabilities(stop=True)
    suite.clock = Clock(ClockMode.REAL, 1.0, False, NOW_S)
    for number, end_s in enumerate((99_000.0, 50_000.0, 98_000.0, 10_000.0, 97_000.0, 96_000.0), start=1):
        suite.add(replace(SPEC, name=f"run-{number}", user="ada" if number % 2 else "bob", labels={"n": str(number)}))
        state = JobState.FAILED if number == 3 else JobState.SUCCEEDED
        suite.change(
            f"job-{number}", state=state, pending_reason=PendingReason.NONE, message="out of memory" * (number == 3),
            submit_s=1_000.0, start_s=2_000.0, end_s=end_s, placement=Placement.on("volta-0/0"), gpu_model="v100_sxm2",
            created_unix_s=time.time() - NOW_S + 1_000.0,
        )  # fmt: skip
    suite.add(SPEC)
    suite.change("job-7", state=JobState.RUNNING, pending_reason=PendingReason.NONE, message="", submit_s=1.0,
                 start_s=90_000.0, placement=Placement.on("volta-0/1"))  # fmt: skip
    return suite


def ids(result: Any) -> list[str]:
    assert result.exit_code == 0, result.output
    return [str(line) for line in result.stdout.split()]


def test_history_has_the_last_end_first(lived: FakeSuite, adlro: Run) -> None:
    assert ids(adlro("history", "-o", "name")) == ["job-1", "job-3", "job-5", "job-6", "job-2", "job-4"]
    assert lived.job_lists[-1].order_by == JobOrder.ENDED


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--since", "97000s"], "135"),
        (["--until", "97000s"], "624"),
        (["--since", "now-1h"], "135"),
        (["--since", "now-1h", "--until", "now-25m"], "35"),
        (["--user", "bob"], "624"),
        (["--state", "failed"], "3"),
        (["--state", "failed,cancelled"], "3"),
        (["--name", "RUN-5"], "5"),
        (["--label", "n=6"], "6"),
        (["--type", "sim"], ""),
        (["--sort", "job"], "123456"),
        (["--sort=-job"], "654321"),
        (["--sort", "-job"], "654321"),
    ],
)
def test_history_is_filtered_and_sorted(lived: FakeSuite, adlro: Run, options: list[str], found: str) -> None:
    assert "".join(each.removeprefix("job-") for each in ids(adlro("history", "-o", "name", *options))) == found


def test_history_since_a_wall_time(lived: FakeSuite, adlro: Run) -> None:
    # An hour ago, as a date with a time: the two clocks run together.
    since = datetime.fromtimestamp(time.time() - 3600).astimezone().isoformat(timespec="seconds")
    assert ids(adlro("history", "-o", "name", "--since", since)) == ["job-1", "job-3", "job-5"]
    lived.clock = Clock(ClockMode.VIRTUAL, 0.0, False, NOW_S)
    result = adlro("history", "--since", "2026-11-01")
    assert result.exit_code == 1
    assert "--since" in result.stderr
    assert "the cluster's clock is virtual" in result.stderr


def test_history_fetches_no_more_pages_than_needed(lived: FakeSuite, adlro: Run) -> None:
    result = adlro("history", "--limit", "2", "--format", "job,user,ended")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["JOB", "job-1", "job-3"]
    assert "the newest 2; --limit 0 lists all" in result.stderr
    (request,) = lived.job_lists
    assert (request.page_size, request.view) == (3, JobView.BASIC)
    for output in ("json", "csv", "name", "yaml"):
        assert "the newest 2" in adlro("history", "-n", "2", "-o", output).stderr, "nothing is left out unsaid"
    assert "the newest" not in adlro("history", "--limit", "6").stderr
    adlro("history", "--format", "job,exit")
    assert lived.job_lists[-1].view == JobView.FULL


def test_history_has_wall_times_where_the_clock_is_real(lived: FakeSuite, adlro: Run) -> None:
    told = adlro("history", "--iso", "--limit", "1", "--format", "job,ended,end").stdout.splitlines()
    assert told[0].split() == ["JOB", "ENDED", "END"]
    _, ended, *end = told[1].split()
    assert datetime.fromisoformat(ended).timestamp() == pytest.approx(time.time() - 1000, abs=30)
    assert " ".join(end) == "1d 3h 30m"
    job = json.loads(adlro("history", "--limit", "1", "-o", "json").stdout)["jobs"][0]
    assert datetime.fromisoformat(job["ended"]).timestamp() == pytest.approx(time.time() - 1000, abs=30)
    assert job["end_s"] == 99_000.0
    assert "ENDED" in adlro("history").stdout
    lived.clock = Clock(ClockMode.VIRTUAL, 0.0, False, NOW_S)
    head = adlro("history").stdout.splitlines()[0].split()
    assert "END" in head
    assert "ENDED" not in head
    assert json.loads(adlro("history", "-o", "json").stdout)["jobs"][0]["ended"] is None


def test_history_without_jobs_says_what_to_do(suite: FakeSuite, adlro: Run) -> None:
    result = adlro("history")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No jobs have ended yet. adlro queue" in result.stderr
    assert "No ended jobs match" in adlro("history", "--user", "eve").stderr


def test_queue_without_jobs_says_what_to_do(suite: FakeSuite, adlro: Run) -> None:
    result = adlro("queue")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No jobs. adlro submit --help" in result.stderr
    assert "No jobs match" in adlro("queue", "--user", "eve").stderr
    assert json.loads(adlro("queue", "-o", "json").stdout) == {"jobs": []}


def test_queue_goes_without_the_clusters_clock(lived: FakeSuite, adlro: Run) -> None:
    lived.fail("DescribeCluster", *[grpc.StatusCode.UNAVAILABLE] * 50)
    result = adlro("queue")
    assert result.exit_code == 0
    assert "job-7" in result.stdout


def test_formats_of_queue(lived: FakeSuite, adlro: Run) -> None:
    jobs = json.loads(adlro("queue", "-o", "json").stdout)["jobs"]
    as_yaml = yaml.safe_load(adlro("queue", "-o", "yaml").stdout)["jobs"]
    for job in (*jobs, *as_yaml):
        del job["started"]  # the fake's clock stands, and the wall's goes on between the two
    assert as_yaml == jobs
    (row,) = csv.DictReader(io.StringIO(adlro("queue", "-o", "csv").stdout))
    assert (row["job_id"], row["user"], row["run_s"], row["jct_s"]) == ("job-7", "ada", "10000.0", "")
    (row,) = csv.DictReader(io.StringIO(adlro("queue", "-o", "csv", "--format", "job,wait").stdout))
    assert row == {"job_id": "job-7", "wait_s": "89999.0"}
    assert adlro("queue", "-o", "csv", "--no-header", "--format", "job").stdout == "job-7\n"
    assert adlro("queue", "-o", "ID=job_id,WHO=user").stdout.splitlines() == ["ID     WHO", "job-7  ada"]
    assert "LABELS" in adlro("queue", "-o", "wide").stdout
    assert adlro("queue", "--no-header").stdout.startswith("job-7")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["-o", "jsn"], ["no format 'jsn'", "did you mean json"]),
        (["--format", "job,usr"], ["no column 'usr'", "user"]),
        (["--sort", "waits"], ["no column 'waits'", "wait"]),
        (["-o", "json", "--format", "job"], ["--format", "-o json"]),
        (["-o", "csv", "--watch"], ["--watch", "-o csv"]),
        (["--watch", "0.01"], ["100ms"]),
        (["--state", "asleep"], ["asleep", "pending, running"]),
    ],
)
def test_wrong_choices_name_the_way_out(suite: FakeSuite, adlro: Run, options: list[str], told: list[str]) -> None:
    result = adlro("queue", *options)
    assert result.exit_code == 2
    text = " ".join(result.stderr.replace("│", " ").split())
    assert all(part in text for part in told), text


def test_an_ended_state_is_no_choice_of_history(suite: FakeSuite, adlro: Run) -> None:
    result = adlro("history", "--state", "running")
    assert result.exit_code == 2
    assert "succeeded, failed, cancelled" in result.stderr


def test_describe_and_decisions_tell_wall_times_where_the_clock_is_real(lived: FakeSuite, adlro: Run) -> None:
    shown = adlro("describe", "job", "job-1", "--iso").stdout
    (line,) = (each for each in shown.splitlines() if each.split()[:1] == ["ended"])
    assert "(1d 3h 30m of cluster time), ran 1d 2h 56m" in line
    assert datetime.fromisoformat(line.split()[1]).timestamp() == pytest.approx(time.time() - 1000, abs=30)
    row = adlro("decisions", "--iso", "-n", "1").stdout.splitlines()
    assert row[0].split()[:3] == ["DECISION", "MADE", "TIME"]
    made = datetime.fromisoformat(row[1].split()[1]).timestamp()
    assert made == pytest.approx(time.time() - NOW_S + 101, abs=30)
    assert ", at 2" not in adlro("describe", "decision", "d-1", "--iso").stdout
    assert "of cluster time), 2 waiting" in " ".join(adlro("describe", "decision", "d-1", "--iso").stdout.split())
    lived.clock = Clock(ClockMode.VIRTUAL, 0.0, False, NOW_S)
    assert "MADE" not in adlro("decisions").stdout
    assert "at 1d 3h 30m of cluster time, ran" in adlro("describe", "job", "job-1").stdout


def test_decisions_since_a_time_from_now(lived: FakeSuite, adlro: Run) -> None:
    assert adlro("decisions", "--since", "now-1h").exit_code == 0
    assert lived.decision_lists[-1].filter.from_s == NOW_S - 3600
    found = adlro("decisions", "-o", "D=decision_id,R=runner_up.job_id,M=made").stdout.splitlines()
    assert found[1].split()[:2] == ["d-1-1", "job-7"]
    assert adlro("decisions", "--follow", "-o", "csv").exit_code == 2
    assert "the newest 3" in adlro("decisions", "-n", "3").stderr
    assert "the newest" not in adlro("decisions", "-n", "4").stderr


@pytest.mark.parametrize("command", ["queue", "history", "nodes", "gpus", "decisions", "usage"])
def test_the_examples_of_help_are_columns_and_fields(suite: FakeSuite, adlro: Run, command: str) -> None:
    shown = " ".join(adlro(command, "--help").stdout.replace("│", " ").split())
    own = re.search(r"of your own: (A=\w+,B=\w+)", shown)
    columns = re.search(r"The columns, such as ([\w,:]+)", shown)
    order = re.search(r"Sort by columns, such as ([\w,-]+):", shown)
    assert own is not None
    assert columns is not None
    assert order is not None
    for options in (["-o", own[1]], ["--format", columns[1]], ["--sort", order[1]]):
        assert adlro(command, *options).exit_code == 0, options


def test_a_simulated_clock_that_was_real_since_the_first_job_tells_of_decisions(lived: FakeSuite, adlro: Run) -> None:
    lived.capabilities = Capabilities(virtual_clock=True)
    assert "MADE" in adlro("decisions").stdout
    lived.change("job-1", created_unix_s=time.time() - 500.0)
    assert "MADE" not in adlro("decisions").stdout, "it has stood, or run at another speed, since then"


def test_a_submitter_is_told_the_clusters_time_by_the_orchestrator(lived: FakeSuite, adlro: Run) -> None:
    refused = PermissionDenied("DescribeCluster needs the role operator or reader")
    lived.fail("DescribeCluster", *[refused] * 50)
    assert ids(adlro("history", "--since", "now-1h", "-o", "name")) == ["job-1", "job-3", "job-5"]
    assert ids(adlro("history", "--since", "97000s", "-o", "name")) == ["job-1", "job-3", "job-5"]
    assert adlro("history", "--since", "today").exit_code == 0


def test_wide_has_both_times(lived: FakeSuite, adlro: Run) -> None:
    heads = adlro("history", "-o", "wide").stdout.splitlines()[0].split()
    assert {"SUBMITTED", "STARTED", "ENDED", "SUBMIT", "START", "END", "EXIT", "GPUS"} <= set(heads)
