"""Every command against a fake suite: what it prints, what it sends, its exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from adlro.cli import shell
from adlro.cli.app import app
from adlro.cli.page import PageState
from adlro.client import transport
from adlro.errors import FieldViolation, InternalError, InvalidInput, Unavailable
from adlro.placement import Placement
from adlro.records.events import Capabilities, ClockMode
from adlro.records.jobs import Job, JobSpec, JobState, JobType, PendingReason
from adlro.records.matrices import DriftSummary, GpuDrift, MixDrift
from adlro.v1 import job_pb2, orchestrator_service_pb2
from adlro.wire import PlanesNow
from tests.unit.client.fake_suite import FakeSuite

Run = Callable[..., Any]

READING = [
    ["status"],
    ["queue"],
    ["queue", "--all"],
    ["gpus"],
    ["describe", "job", "job-1"],
    ["policy"],
    ["clock"],
]
NOWHERE = {"ADLRO_SERVER": "127.0.0.1:1"}

RUNNING = {"state": JobState.RUNNING, "pending_reason": PendingReason.NONE, "placement": Placement.on("volta-0/0")}


def spec(name: str = "train", **fields: Any) -> JobSpec:
    return JobSpec(name=name, user="ada", job_type=JobType.MACHINE_LEARNING, **fields)


@pytest.mark.parametrize("arguments", [*READING, ["submit", "--type", "ml"], ["cancel", "job-1"], ["drain", "volta-0"]])
def test_where_nothing_runs_it_says_what_to_do(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than the commands' patience, so that each tries once; below, one tries as often as it does for people.
    monkeypatch.setattr(transport, "_FIRST_DELAY_S", 2 * shell.PATIENCE_S)
    result = CliRunner().invoke(app, arguments, env=NOWHERE)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "no service answers at 127.0.0.1:" in result.stderr
    assert "adlro up" in result.stderr
    assert "--server" in result.stderr
    assert "Traceback" not in result.output


def test_server_option_names_the_suite() -> None:
    result = CliRunner().invoke(app, ["queue", "--server", "127.0.0.1:2"], env=NOWHERE)
    assert (result.exit_code, "no service answers at 127.0.0.1:2" in result.stderr) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["queue", "--server", "nonsense"], "--server"),
        (["queue", "--state", "asleep"], "asleep"),
        (["submit", "--type", "poetry"], "machine_learning"),
        (["submit", "--type", "ml", "--label", "x"], "KEY=VALUE"),
        (["submit"], "--type"),
        (["cancel"], "--label"),
        (["cancel", "job-1", "--all"], "--all"),
        (["replay", "no-such-file.swf"], "no-such-file.swf"),
        (["describe", "job"], "JOB"),
        (["frobnicate"], "frobnicate"),
        (["up", "--port", "70000"], "--port"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_it(adlro: Run, arguments: list[str], named: str) -> None:
    result = adlro(*arguments)
    assert result.exit_code == 2
    assert named in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("arguments", READING)
def test_every_reading_command_gives_one_json_document_and_nothing_else(
    suite: FakeSuite, adlro: Run, arguments: list[str]
) -> None:
    suite.add(spec())
    result = adlro(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    assert isinstance(json.loads(result.stdout), dict)
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", READING)
def test_every_reading_command_prints_plain_text_off_a_terminal(
    suite: FakeSuite, adlro: Run, arguments: list[str]
) -> None:
    suite.add(spec())
    result = adlro(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()
    assert "\x1b" not in result.output


def test_submit_sends_what_was_asked_for(suite: FakeSuite, adlro: Run) -> None:
    result = adlro(
        *["submit", "--type", "ml", "--name", "train", "--user", "ada", "--application", "bert_base_fp16"],
        *["--priority", "0.75", "--cores", "4", "--memory-mib", "9000", "--gpu-memory-mib", "8000"],
        *["--runtime", "30", "--on", "rtx_2080_ti", "--time-limit", "90", "--begin", "5", "--work", "20"],
        *["--label", "team=vision", "--label", "empty="],
    )
    assert (result.exit_code, result.stdout) == (0, "job-1\n")
    sent = suite.jobs["job-1"].spec
    assert sent.expected_runtime is not None
    assert sent.simulated_work is not None
    assert (sent.name, sent.user, sent.application, sent.priority) == ("train", "ada", "bert_base_fp16", 0.75)
    assert (sent.cpu_cores, sent.memory_mib, sent.gpu_memory_mib) == (4, 9000, 8000)
    assert (sent.expected_runtime.gpu_model, sent.expected_runtime.runtime_s) == ("rtx_2080_ti", 30)
    assert (sent.time_limit_s, sent.begin_time_s, sent.simulated_work.work_s) == (90, 5, 20)
    assert sent.labels == {"team": "vision", "empty": ""}


def test_submit_leaves_defaults_to_the_services(suite: FakeSuite, adlro: Run) -> None:
    assert adlro("submit", "--type", "data", "--cores", "2").exit_code == 0
    sent = suite.jobs["job-1"].spec
    assert (sent.name, sent.memory_mib, sent.priority) == ("data_processing", 2 * 4096, 0.5)
    assert sent.user
    assert (sent.expected_runtime, sent.time_limit_s, sent.begin_time_s) == (None, None, None)


def test_submit_many_and_the_same_request_id(suite: FakeSuite, adlro: Run) -> None:
    assert adlro("submit", "--type", "sim", "--count", "3").stdout.split() == ["job-1", "job-2", "job-3"]
    first = adlro("submit", "--type", "sim", "--request-id", "r", "-o", "json")
    again = adlro("submit", "--type", "sim", "--request-id", "r", "-o", "json")
    assert json.loads(first.stdout)["job_id"] == json.loads(again.stdout)["job_id"] == "job-4"


def test_submit_and_wait_exits_by_what_became_of_it(suite: FakeSuite, adlro: Run) -> None:
    def end(state: JobState) -> Any:
        original = suite.add

        def add_and_end(spec: JobSpec) -> Job:
            job = original(spec)
            return suite.change(job.job_id, state=state, pending_reason=PendingReason.NONE)

        suite.add = add_and_end  # type: ignore[method-assign]  # a suite in which jobs end at once
        try:
            return adlro("submit", "--type", "ml", "--wait")
        finally:
            suite.add = original  # type: ignore[method-assign]

    assert end(JobState.SUCCEEDED).exit_code == 0
    failed = end(JobState.FAILED)
    assert failed.exit_code == 1
    assert "failed" in failed.stdout


def test_a_refused_field_is_named(adlro: Run) -> None:
    result = adlro("submit", "--type", "ml", "--priority", "1.5")
    assert result.exit_code == 1
    assert "job.priority" in result.stderr
    assert "at most 1" in result.stderr


def test_several_refused_fields_are_all_named(suite: FakeSuite, adlro: Run) -> None:
    wrong = (FieldViolation("job.name", "must not be empty"), FieldViolation("job.user", "must not be empty"))
    suite.fail("SubmitJob", InvalidInput("two fields are wrong", violations=wrong))
    result = adlro("submit", "--type", "ml")
    assert "job.name: must not be empty" in result.stderr
    assert "job.user: must not be empty" in result.stderr


def test_a_bug_in_a_service_is_one_line_with_its_id(suite: FakeSuite, adlro: Run) -> None:
    suite.fail("ListJobs", InternalError("something went wrong", metadata={"error_id": "e-123"}))
    result = adlro("queue")
    assert result.exit_code == 1
    assert "e-123" in result.stderr


def test_a_service_that_cannot_serve_is_not_nothing_running(suite: FakeSuite, adlro: Run) -> None:
    suite.fail("ListJobs", *[Unavailable("Redis does not answer")] * 50)
    result = adlro("queue")
    assert result.exit_code == 1
    assert "Redis does not answer" in result.stderr


def test_queue_lists_what_is_asked_for(suite: FakeSuite, adlro: Run) -> None:
    for name in ("first", "second", "third"):
        suite.add(spec(name, labels={"name": name}))
    suite.change("job-1", state=JobState.SUCCEEDED, pending_reason=PendingReason.NONE, submit_s=1.0, end_s=9.5)
    suite.change(
        "job-2",
        state=JobState.RUNNING,
        pending_reason=PendingReason.NONE,
        placement=Placement.on("volta-0/0"),
        message="",
    )

    def ids(*arguments: str) -> list[str]:
        return [job["job_id"] for job in json.loads(adlro("queue", *arguments, "-o", "json").stdout)["jobs"]]

    assert ids() == ["job-2", "job-3"]
    assert ids("--all") == ["job-1", "job-2", "job-3"]
    assert ids("--all", "--limit", "2") == ["job-1", "job-2"]
    assert ids("--state", "succeeded", "--state", "running") == ["job-1", "job-2"]
    assert ids("--label", "name=third") == ["job-3"]
    assert ids("--user", "nobody") == []
    first = json.loads(adlro("queue", "--all", "-o", "json").stdout)["jobs"][0]
    assert (first["state"], first["pending_reason"], first["jct_s"]) == ("succeeded", None, 8.5)
    assert first["spec"]["job_type"] == "machine_learning"


def test_queue_says_why_a_job_waits(suite: FakeSuite, adlro: Run) -> None:
    suite.add(spec())
    suite.change("job-1", message="needs 8 cores, 3 free on [volta-0]")
    assert "resources: needs 8 cores, 3 free on [volta-0]" in adlro("queue").stdout


def test_queue_does_without_the_orchestrator(suite: FakeSuite, adlro: Run) -> None:
    suite.add(spec())
    suite.fail("GetStatus", *[grpc.StatusCode.UNAVAILABLE] * 50)
    result = adlro("queue")
    assert result.exit_code == 0
    assert "job-1" in result.stdout


def test_describe_shows_prediction_and_decision(suite: FakeSuite, adlro: Run) -> None:
    suite.add(spec(application="bert"))
    text = adlro("describe", "job", "job-1").stdout
    for part in ("job-1", "train", "bert", "v100_sxm2", "8.0 s .. 13.0 s (80%)", "job-900", "busy with job-12", "d-1"):
        assert part in text
    found = json.loads(adlro("describe", "job", "job-1", "-o", "json").stdout)
    assert found["predictions"][0]["evidence"][0]["job_id"] == "job-900"
    assert found["decision"]["candidates"][0]["gpu_id"] == "volta-0/0"


def test_describe_asks_for_evidence_without_the_job_itself(suite: FakeSuite, adlro: Run) -> None:
    suite.add(spec())
    adlro("describe", "job", "job-1")
    assert suite.predicted_ids == ["job-1"]


def test_describe_shows_the_job_where_other_services_are_away(suite: FakeSuite, adlro: Run) -> None:
    suite.add(spec())
    suite.fail("PredictRuntime", InternalError("a bug"))
    suite.fail("ExplainDecision", InternalError("another"))
    result = adlro("describe", "job", "job-1")
    assert result.exit_code == 0
    assert "no prediction: a bug" in result.stdout
    assert "no decision: another" in result.stdout


def test_an_unknown_job_is_an_error_in_one_line(adlro: Run) -> None:
    result = adlro("describe", "job", "job-7")
    assert (result.exit_code, result.stderr) == (1, "error: there is no job job-7\n")


def test_watch_until_done(suite: FakeSuite, adlro: Run) -> None:
    suite.add(spec())
    suite.change("job-1", state=JobState.SUCCEEDED, pending_reason=PendingReason.NONE)
    text = adlro("watch", "--until-done").stdout
    assert "job-1" in text
    assert "succeeded" in text
    lines = [json.loads(line) for line in adlro("watch", "--until-done", "-o", "json").stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["snapshot", "snapshot_end"]


def test_cancel_by_id_and_by_label(suite: FakeSuite, adlro: Run) -> None:
    for group in ("a", "b", "b"):
        suite.add(spec(labels={"group": group}))
    assert adlro("cancel", "job-1").exit_code == 0
    result = adlro("cancel", "--label", "group=b", "-o", "json")
    assert [job["job_id"] for job in json.loads(result.stdout)["jobs"]] == ["job-2", "job-3"]
    assert all(job.state is JobState.CANCELLED for job in suite.jobs.values())
    assert "no job to cancel" in adlro("cancel", "--all").stderr


def test_cancel_goes_on_after_a_job_that_cannot_be_cancelled(suite: FakeSuite, adlro: Run) -> None:
    suite.add(spec())
    result = adlro("cancel", "job-9", "job-1")
    assert result.exit_code == 1
    assert "there is no job job-9" in result.stderr
    assert suite.jobs["job-1"].state is JobState.CANCELLED


def test_gpus_shows_what_each_reports_and_what_is_not_known(suite: FakeSuite, adlro: Run) -> None:
    suite.add(spec())
    suite.change("job-1", **RUNNING)
    suite.drained.append("turing-0")
    rows = {line.split()[0]: line for line in adlro("gpus").stdout.splitlines()}
    assert "job-1" in rows["volta-0/0"]
    assert "97%" in rows["volta-0/0"]
    assert "61 °C" in rows["volta-0/0"]
    assert "7.8/15.8 GiB" in rows["volta-0/0"]
    assert "idle" in rows["volta-0/1"]
    assert "drained" in rows["turing-0/0"]
    gpus = json.loads(adlro("gpus", "-o", "json").stdout)["gpus"]
    assert gpus[0]["utilization_ratio"] == pytest.approx(0.97)
    assert gpus[2]["utilization_ratio"] is None


def test_policy_is_shown_and_set(suite: FakeSuite, adlro: Run) -> None:
    assert adlro("policy", "fcfs").exit_code == 0
    assert suite.policy == "fcfs"
    found = json.loads(adlro("policy", "-o", "json").stdout)["policies"]
    assert [each["name"] for each in found if each["acting"]] == ["fcfs"]
    result = adlro("policy", "magic")
    assert result.exit_code == 1
    assert "there are fcfs and sjf" in result.stderr


def test_policies_have_the_formats_of_lists(suite: FakeSuite, adlro: Run) -> None:
    assert adlro("policy", "-o", "name").stdout.split() == ["fcfs", "sjf"]
    assert adlro("policy", "--format", "role,policy", "--no-header", "--sort", "-policy").stdout.split() == [
        *("acting", "sjf"),
        "fcfs",
    ]
    assert adlro("policy", "-o", "A=name,B=acting").stdout.splitlines() == ["A     B", "fcfs  no", "sjf   yes"]
    assert adlro("policy", "-o", "csv").stdout.startswith("role,name,version,source,problem,advice,description\n")
    assert "DESCRIPTION" in adlro("policy", "-o", "wide").stdout
    assert "name: fcfs\n" in adlro("policy", "-o", "yaml").stdout
    assert "policy: fcfs\nprevious_policy: sjf\n" in adlro("policy", "fcfs", "-o", "yaml").stdout
    assert "--watch: goes with the list" in adlro("policy", "sjf", "--watch").stderr
    assert suite.policy == "fcfs"


def test_the_status_has_the_formats_of_lists(adlro: Run) -> None:
    names = ["ingest", "decompose", "orchestrator", "cluster"]
    assert adlro("status", "-o", "name").stdout.split() == names
    rows = [line.split(",") for line in adlro("status", "-o", "csv").stdout.splitlines()]
    assert [(row[0], row[2]) for row in rows] == [("service", "state"), *((name, "serving") for name in names)]
    assert adlro("status", "-o", "A=service,B=serving", "--no-header").stdout.splitlines()[0].split() == [
        "ingest",
        "yes",
    ]
    shown = adlro("status", "--format", "state,service", "--sort", "service").stdout.splitlines()
    assert [line.split()[-1] for line in shown] == ["SERVICE", *sorted(names)]
    assert "policy: sjf\n" in adlro("status", "-o", "yaml").stdout


def test_a_policy_in_the_shadow_is_set_and_shown(suite: FakeSuite, adlro: Run) -> None:
    result = adlro("policy", "--shadow", "fcfs")
    assert result.exit_code == 0
    assert "fcfs runs in the shadow now" in result.stdout
    assert (suite.policy, suite.shadow) == ("sjf", "fcfs")
    assert "fcfs would have done the same in 75% of 40 decisions" in adlro("status").stdout.replace("\n", " ")
    found = json.loads(adlro("policy", "-o", "json").stdout)["policies"]
    assert [each["name"] for each in found if each["shadow"]] == ["fcfs"]
    told = json.loads(adlro("policy", "fcfs", "--shadow", "none", "-o", "json").stdout)
    assert told == {"policy": "fcfs", "previous_policy": "sjf", "shadow_policy": "", "previous_shadow_policy": "fcfs"}
    assert suite.shadow == ""
    assert adlro("policy", "--shadow", "magic").exit_code == 1


def test_status_says_where_the_policy_does_not_decide(suite: FakeSuite, adlro: Run) -> None:
    suite.add(spec())
    assert "decisions" not in adlro("status").stdout
    assert "fallbacks" not in adlro("status").stdout
    assert "policy sjf\n" in adlro("queue").stderr
    suite.policy_problem = "sjf is not used: 3 figures are outside the range of its training"
    suite.fallbacks = {
        orchestrator_service_pb2.DECISION_BASIS_LATE: 3,
        orchestrator_service_pb2.DECISION_BASIS_OUT_OF_RANGE: 12,
    }
    shown = " ".join(adlro("status").stdout.split())
    assert "policy sjf (out of range: hold_gang decides) 0123456789ab" in shown
    assert "sjf is not used: 3 figures are outside the range of its training" in shown
    assert "policy sjf (out of range: hold_gang decides)" in " ".join(adlro("queue").stderr.split())
    assert "fallbacks 3 late, 12 out of range" in shown
    assert json.loads(adlro("status", "-o", "json").stdout)["orchestrator"]["fallbacks"] == {
        "late": 3,
        "out_of_range": 12,
    }


def test_status_and_queue_name_who_decides_and_how_often(suite: FakeSuite, adlro: Run) -> None:
    suite.add(spec())
    suite.decisions_by_basis = {orchestrator_service_pb2.DECISION_BASIS_POLICY: 40}
    assert "decisions 40 by sjf in this session" in " ".join(adlro("status").stdout.split())
    suite.decisions_by_basis = {
        orchestrator_service_pb2.DECISION_BASIS_POLICY: 900,
        orchestrator_service_pb2.DECISION_BASIS_MARGIN: 73,
        orchestrator_service_pb2.DECISION_BASIS_OVERDUE: 12,
        orchestrator_service_pb2.DECISION_BASIS_LATE: 3,
        orchestrator_service_pb2.DECISION_BASIS_OUT_OF_RANGE: 12,
    }
    suite.fallbacks = {orchestrator_service_pb2.DECISION_BASIS_LATE: 99}
    suite.deciding_basis = orchestrator_service_pb2.DECISION_BASIS_OVERDUE
    shown = " ".join(adlro("status").stdout.split())
    assert "policy sjf (overdue: the limit on waits decides) 0123456789ab" in shown
    assert (
        "decisions 1000 in this session: 973 by sjf (97%), 12 by the limit on waits (1.2%), 15 by hold_gang "
        "(1.5%: 12 out of range, 3 late)"
    ) in shown
    assert not re.search(r"\b99\b", shown), "of the whole process, and of other policies"
    assert "policy sjf (overdue: the limit on waits decides)" in " ".join(adlro("queue").stderr.split())
    found = json.loads(adlro("status", "-o", "json").stdout)["orchestrator"]
    assert found["decisions_by_basis"] == {"policy": 900, "margin": 73, "overdue": 12, "late": 3, "out_of_range": 12}


def test_gpus_says_which_are_slower_and_what_is_chance(suite: FakeSuite, adlro: Run) -> None:
    assert "drift" not in adlro("gpus").stdout, "of a decompose of an earlier release"
    gpus = tuple((f"volta-0/{number}", "volta-0", "v100_sxm2") for number in range(4))
    drifts = {1: GpuDrift(1.0, True, 0.8, 40), 2: GpuDrift(0.995, False, 0.97, 40)}
    suite.planes = PlanesNow("default", 1, None, gpus, {}, {}, drifts, DriftSummary(MixDrift(), 1, 2, 0.04))
    shown = " ".join(adlro("gpus").stdout.split())
    assert "drift 1 slower than their model: volta-0/1 (80%) of its speed; 1 suspected, about 0.04 by chance" in shown
    suite.planes = replace(suite.planes, drifts={}, summary=DriftSummary())
    assert "drift" not in adlro("gpus").stdout


def test_status_says_in_words_how_far_it_is_behind_and_what_jobs_wait_for(suite: FakeSuite, adlro: Run) -> None:
    assert "behind" not in adlro("status").stdout
    suite.event_lag = orchestrator_service_pb2.EventLag(unapplied_count=40, oldest_unapplied_s=1.5, newest_revision=100)
    assert "behind" not in adlro("status").stdout, "a moment's lag is nothing to tell of"
    suite.event_lag.unapplied_count, suite.event_lag.oldest_unapplied_s = 2700, 93.0
    suite.waiting_by_reason = {job_pb2.PENDING_REASON_NO_FITTING_GPU: 2, job_pb2.PENDING_REASON_RESOURCES: 638}
    suite.gpu_models = [
        orchestrator_service_pb2.GpuModelFigures(
            gpu_model="v100_sxm2", gpu_count=512, usable_count=508, allocated_count=500, lost_count=4, running_count=500
        )
    ]
    shown = " ".join(adlro("status").stdout.split())
    assert "2700 events behind the cluster, the oldest of 93.0 s ago: these figures are old" in shown
    assert "waiting for: 2 no fitting gpu, 638 resources" in shown
    assert "GPUs allocated: 500 of 512 v100_sxm2 (4 lost)" in shown
    found = json.loads(adlro("status", "-o", "json").stdout)["orchestrator"]
    assert found["event_lag"] == {"unapplied_count": 2700, "oldest_unapplied_s": 93.0, "newest_revision": 100}
    assert found["waiting_by_reason"] == {"no_fitting_gpu": 2, "resources": 638}
    assert found["gpu_models"][0]["usable_count"] == 508


def test_status_counts_records_that_cannot_be_read(suite: FakeSuite, adlro: Run) -> None:
    assert "can't be read" not in adlro("status").stdout
    suite.unreadable_job_count = 3
    assert "3 more have records that can't be read" in adlro("status").stdout


def test_status_says_whether_jobs_may_be_stopped_for_others(suite: FakeSuite, adlro: Run) -> None:
    assert "preemption  off\n" in adlro("status").stdout
    found = json.loads(adlro("status", "-o", "json").stdout)["orchestrator"]
    assert (found["preemption"], found["preemption_min_run_s"]) == (False, 0.0)
    suite.preemption_min_run_s = 600.0
    assert "preemption  on, of jobs that can be stopped and have run 10m 0s\n" in adlro("status").stdout
    found = json.loads(adlro("status", "-o", "json").stdout)["orchestrator"]
    assert (found["preemption"], found["preemption_min_run_s"]) == (True, 600.0)


def test_a_decision_is_described_with_what_it_rests_on(suite: FakeSuite, adlro: Run) -> None:
    shown = " ".join(adlro("describe", "decision", "d-1").stdout.split())
    for text in (
        "rests on its base's choice: within the margin",
        "checkpoint 0123456789ab",
        "runner-up job-7 on volta-0/1, score -11",
        "to hold score -3",
        "shadow fcfs would have held",
        "busy with job-12",
    ):
        assert text in shown
    found = json.loads(adlro("describe", "decision", "d-1", "-o", "json").stdout)["decision"]
    assert (found["basis"], found["runner_up"]["job_id"], found["hold_score"]) == ("margin", "job-7", -3)
    assert "policy sjf, at" in shown
    suite.policy_problem = "sjf is not used"
    shown = " ".join(adlro("describe", "decision", "d-1").stdout.split())
    assert "policy sjf (out of range: hold_gang decides), at" in shown


def test_decisions_are_listed_oldest_first_with_what_was_asked_for(suite: FakeSuite, adlro: Run) -> None:
    shown = adlro("decisions").stdout
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["d-1-1", "d-1-2", "d-1-3", "d-1-4"]
    line = " ".join(shown.splitlines()[1].split())
    assert line == "d-1-1 1m 41s job-1 volta-0/0 11.5 s 2 sjf (its base) fcfs: holds"
    found = json.loads(adlro("decisions", "-n", "3", "-o", "json").stdout)["decisions"]
    assert [each["decision_id"] for each in found] == ["d-1-2", "d-1-3", "d-1-4"]
    assert found[0]["prediction"]["median_s"] == 11.5
    adlro("decisions", "--since", "2m", "--until", "5m", "--job", "job-2", "--gpu", "volta-0/1", "--basis", "overdue",
          "--differs")  # fmt: skip
    wanted = suite.decision_lists[-1].filter
    assert (wanted.from_s, wanted.to_s, wanted.job_id, wanted.gpu_id) == (120.0, 300.0, "job-2", "volta-0/1")
    assert wanted.differs_only
    assert orchestrator_service_pb2.DecisionBasis.Name(wanted.basis) == "DECISION_BASIS_OVERDUE"
    assert suite.decision_lists[-1].view == orchestrator_service_pb2.DECISION_VIEW_SUMMARY


def test_an_unknown_basis_is_refused_with_those_that_are(adlro: Run) -> None:
    result = adlro("decisions", "--basis", "luck")
    assert result.exit_code == 2
    assert "there are policy, margin, overdue" in " ".join(result.stderr.split())


def test_drain_and_undrain(suite: FakeSuite, adlro: Run) -> None:
    assert "volta-0 drains" in adlro("drain", "volta-0", "--reason", "a fan").stdout
    assert suite.drained == ["volta-0"]
    assert adlro("undrain", "volta-0").exit_code == 0
    assert suite.drained == []
    assert adlro("drain", "nowhere").exit_code == 1


def test_clock_is_set_only_where_asked(suite: FakeSuite, adlro: Run) -> None:
    assert json.loads(adlro("clock", "-o", "json").stdout)["clock"]["mode"] == "real"
    assert suite.clock_calls == []
    assert "scaled, 30 x, paused" in adlro("clock", "--mode", "scaled", "--scale", "30", "--pause").stdout
    adlro("clock", "--resume")
    assert (suite.clock.mode, suite.clock.scale, suite.clock.paused) == (ClockMode.SCALED, 30, False)


def test_a_clock_of_real_time_is_shown_and_not_set(suite: FakeSuite, adlro: Run) -> None:
    suite.capabilities = Capabilities(stop=True)
    assert adlro("clock").exit_code == 0
    refused = adlro("clock", "--pause")
    assert refused.exit_code == 1
    assert "keeps real time: its clock can be shown, but not set" in " ".join(refused.stderr.split())
    assert suite.clock_calls == []


def test_status_names_the_service_that_is_away(suite: FakeSuite) -> None:
    env = {**suite.environment(), "ADLRO_DECOMPOSE_SERVER": "127.0.0.1:1"}
    result = CliRunner().invoke(app, ["status", "-o", "json"], env=env)
    serving = {each["service"]: each["serving"] for each in json.loads(result.stdout)["services"]}
    assert result.exit_code == 1
    assert serving == {"ingest": True, "decompose": False, "orchestrator": True, "cluster": True}


def test_status_has_the_live_page_whose_absence_is_no_problem(
    suite: FakeSuite, adlro: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: PageState | None = PageState("http://127.0.0.1:7705/", serving=False)

    async def told(_: str) -> PageState | None:
        return found

    monkeypatch.setattr("adlro.cli.page.page_of", told)
    shown = adlro("status")
    assert shown.exit_code == 0
    assert re.search(r"web +http://127.0.0.1:7705/ +away", shown.stdout)
    assert json.loads(adlro("status", "-o", "json").stdout)["page"] == {
        "link": "http://127.0.0.1:7705/",
        "serving": False,
    }
    found = None
    assert json.loads(adlro("status", "-o", "json").stdout)["page"] is None
    assert "7705" not in adlro("status").stdout


def test_help_of_every_command_says_what_it_is_for() -> None:
    from typer.main import get_command

    group: Any = get_command(app)
    for name, command in group.commands.items():
        assert command.get_short_help_str(200).rstrip(".").count(" ") >= 2, name
        for parameter in command.params:
            assert getattr(parameter, "help", None), (name, parameter.name)


def test_the_module_and_a_closed_pipe() -> None:
    """`python -m adlro.cli --help | head -1` ends well, and quickly enough to be used."""
    process = subprocess.Popen(
        [sys.executable, "-m", "adlro.cli", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(60) in (0, 1)
    process.stderr.close()


def test_submit_of_many_prints_the_ids_of_those_that_were_taken_before_what_was_refused(
    suite: FakeSuite, adlro: Run
) -> None:
    suite.room = 3
    result = adlro("submit", "--type", "ml", "--count", "5")
    assert result.exit_code == 1
    assert result.stdout.split() == list(suite.jobs)
    assert len(suite.jobs) == 3
    assert "2 of 5 jobs were refused" in result.stderr
    assert result.output.index("job-3") < result.output.index("refused")
    suite.room = 4
    result = adlro("submit", "--type", "ml", "--count", "2", "-o", "json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert ([each["job_id"] for each in told["jobs"]], len(told["rejected"])) == (["job-4"], 1)
    assert "job-4" in result.stderr


def test_an_id_is_printed_before_anything_is_waited_for(
    suite: FakeSuite, adlro: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("adlro.client.Client.wait", interrupted)
    result = adlro("submit", "--type", "ml", "--wait")
    assert (result.exit_code, result.stdout) == (130, "job-1\n")
    result = adlro("submit", "--type", "ml", "--wait", "--count", "2")
    assert (result.exit_code, result.stdout) == (130, "job-2\njob-3\n")
    result = adlro("submit", "--type", "ml", "--wait", "-o", "json")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "job-4\n")


def test_ids_of_what_is_on_record_are_printed_though_the_rest_fails(
    suite: FakeSuite, adlro: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adlro.client.calls.SUBMIT_CHUNK", 2)
    suite.fail("SubmitJobs", None, InternalError("something went wrong"))
    result = adlro("submit", "--type", "ml", "--count", "6")
    assert result.exit_code == 1
    assert result.stdout.split() == ["job-1", "job-2"]


def test_a_watch_of_a_job_that_is_not_there_says_so(suite: FakeSuite, adlro: Run) -> None:
    result = adlro("watch", "job-77")
    assert result.exit_code == 1
    assert "job-77" in result.stderr


def test_why_a_node_is_drained_is_shown(suite: FakeSuite, adlro: Run) -> None:
    assert adlro("drain", "turing-0", "--reason", "a fan [red]").exit_code == 0
    assert "turing-0 (a fan [red])" in adlro("status").stdout
    (row,) = (line for line in adlro("gpus").stdout.splitlines() if line.startswith("turing-0/0"))
    assert "drained a fan [red]" in row
    assert json.loads(adlro("gpus", "-o", "json").stdout)["gpus"][2]["drain_reason"] == "a fan [red]"
    told = json.loads(adlro("status", "-o", "json").stdout)
    assert told["orchestrator"]["drain_reasons"] == {"turing-0": "a fan [red]"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("quota ada --gpus -1", "--gpus: must be at least 0, not -1; --none takes the quota away"),
        ("quota ada --gpus many", "'--gpus' / '-g': must be a whole number, not many"),
        ("queue --limit -3", "'--limit' / '-n': must be at least 0, not -3"),
        ("submit --gpus 1.5 -- true", "'--gpus' / '-g': must be a whole number, not 1.5"),
        ("submit --gpus 0 -- true", "'--gpus' / '-g': must be at least 1, not 0"),
        ("up --port 70000", "'--port': must be at most 65532, not 70000"),
        ("up --scale fast", "'--scale': must be a number, not fast"),
        ("up --clock fast", "'--clock': 'fast' is not one of 'real', 'scaled', 'virtual'"),
        ("describe decision job-1 x", "unexpected extra argument"),
    ],
)
def test_wrong_values_are_told_in_plain_words(adlro: Run, arguments: str, said: str) -> None:
    refused = adlro(*arguments.split())
    told = " ".join(refused.stderr.replace("│", " ").split())
    assert (refused.exit_code, said in told) == (2, True), told
    assert "nput should" not in told
