"""Replays through a fake suite: what is submitted and when the clock goes, what survives, what is reported."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from adlro.cli import replaying
from adlro.cli.replay import TraceFormat, read_trace
from adlro.cli.replaying import LABEL, Board, ReplayOptions, ReplayResult, replay, replay_specs
from adlro.cli.report import build_report, placements
from adlro.client import AsyncClient
from adlro.errors import Conflict, DeadlineExceeded, InvalidInput, Unavailable
from adlro.placement import Placement
from adlro.records.events import ClockMode
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType, PendingReason
from adlro.workload.capacity import offered_load
from adlro.workload.job_lists import WorkloadJob
from tests.unit.client.fake_suite import CLUSTER, FakeSuite, until

Run = Callable[..., Any]

PAPER = """submit_s,user,application,job_type,work_s,gpu_memory_mib,cpu_cores,memory_mib,priority
0.5,user-13,stream_triad,data_processing,4.5,4000,4,16384,0.5
2.0,user-04,neutral,simulation,10.0,12000,4,16384,1.0
3.0,user-06,gnmt_fp16,machine_learning,5.0,10000,8,32768,1.0
"""
SWF = """; Version: 2
1    100 -1   60  16 -1 -1 -1 -1 -1 1 -1 -1 -1 0 -1 -1 -1
2    170 -1    2   1 -1 -1 -1  9 -1 1 -1 -1 -1 0 -1 -1 -1
3    200 -1    5   1 -1 -1 -1 -1 -1 1 -1 -1 -1 0 -1 -1 -1
"""


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    file = tmp_path / "jobs.csv"
    file.write_text(PAPER)
    return file


@pytest.fixture
def swf(tmp_path: Path) -> Path:
    file = tmp_path / "trace.swf"
    file.write_text(SWF)
    return file


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "_CLOCK_LOOK_S", 0.1)


def specs(count: int = 3, work_s: float = 5.0) -> list[JobSpec]:
    job = WorkloadJob(0.0, "ada", "neutral", JobType.SIMULATION, work_s, 4000, 2, 8192, 0.5)
    return replay_specs([replace(job, submit_s=float(index)) for index in range(count)])


def test_a_list_begins_at_a_whole_second(suite: FakeSuite, adlro: Run, paper: Path) -> None:
    suite.clock = replace(suite.clock, time_s=6617.458239511468)
    result = adlro("replay", str(paper), "-o", "json")
    assert result.exit_code == 0, result.output
    assert [job.spec.begin_time_s for job in suite.jobs.values()] == [6618.5, 6620.0, 6621.0]


def test_a_replay_submits_the_list_and_reports(suite: FakeSuite, adlro: Run, paper: Path) -> None:
    result = adlro("replay", str(paper), "-o", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    jobs = list(suite.jobs.values())
    # The fake's clock stood at 100; it runs the jobs one after the other.
    assert [job.spec.begin_time_s for job in jobs] == [100.5, 102.0, 103.0]
    assert [job.spec.simulated_work.work_s for job in jobs if job.spec.simulated_work] == [4.5, 10, 5]
    assert [job.spec.expected_runtime.runtime_s for job in jobs if job.spec.expected_runtime] == [4.5, 10, 5]
    assert {job.spec.labels[LABEL] for job in jobs} == {report["replay_id"]}
    assert set(suite.requests) == {f"replay-{report['replay_id']}-{index}" for index in range(3)}
    assert report["jobs"] == {
        "total": 3,
        "succeeded": 3,
        "failed": 0,
        "cancelled": 0,
        "several_attempts": 0,
        "stops": 0,
    }
    # Ends: 105, 115, 120.
    assert report["jct_s"]["mean"] == pytest.approx((4.5 + 13 + 17) / 3)
    assert report["makespan_s"] == pytest.approx(19.5)
    assert report["throughput_jobs_per_h"] == pytest.approx(3 * 3600 / 19.5)
    assert report["utilization"]["by_gpu_model"]["v100_sxm2"] == {
        "gpus": 2,
        "utilization": pytest.approx(19.5 / (2 * 19.5)),
    }
    assert report["source"]["format"] == "paper"


def test_a_replay_is_brought_to_a_load(suite: FakeSuite, adlro: Run, paper: Path) -> None:
    jobs, _, _ = read_trace(paper, TraceFormat.PAPER, None, 0)
    recorded = offered_load(CLUSTER, jobs)
    result = adlro("replay", str(paper), "--load", "0.5", "-o", "json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    load = told["source"]["load"]
    assert load == {
        "recorded": pytest.approx(recorded),
        "replayed": 0.5,
        "factor": pytest.approx(recorded / 0.5),
    }
    begins = sorted(job.spec.begin_time_s or 0.0 for job in suite.jobs.values())
    assert begins[2] - begins[0] == pytest.approx(2.5 * load["factor"], abs=2e-3)
    assert any("the list offers a load of 0.5; as recorded it offers" in note for note in told["notes"])
    assert "submission times are multiplied by" in " ".join(result.stderr.split())


def test_a_load_that_no_cluster_carries_is_warned_of(suite: FakeSuite, adlro: Run, paper: Path) -> None:
    told = json.loads(adlro("replay", str(paper), "--load", "2", "-o", "json").stdout)
    assert any("more than the cluster can carry" in note for note in told["notes"])


@pytest.mark.parametrize("load", ["0", "-1", "nan", "inf"])
def test_an_impossible_load_is_refused(suite: FakeSuite, adlro: Run, paper: Path, load: str) -> None:
    result = adlro("replay", str(paper), f"--load={load}")
    assert result.exit_code == 2
    assert "must be from 1e-06 to 1e+06" in " ".join(result.stderr.split())
    assert not suite.jobs


def test_jobs_that_all_come_at_once_have_no_rate(suite: FakeSuite, adlro: Run, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(PAPER.replace("2.0,", "0.5,").replace("3.0,", "0.5,"))
    result = adlro("replay", str(file), "--load", "0.9")
    assert result.exit_code != 0
    assert "there is no rate to bring to a load" in " ".join(result.stderr.split())
    assert not suite.jobs


def test_the_clock_goes_only_when_all_jobs_are_taken_up(suite: FakeSuite, adlro: Run, paper: Path) -> None:
    suite.takes_up = False

    def take_up() -> None:
        for job_id in ("job-1", "job-2", "job-3"):
            suite.change(job_id, pending_reason=PendingReason.BEGIN_TIME)

    def wait_and_look() -> None:
        with suite.condition:
            suite.condition.wait_for(lambda: len(suite.jobs) == 3, 60)
            seen.append([(clock.mode, clock.paused) for clock in suite.clock_calls])
        take_up()

    seen: list[Any] = []
    watcher = threading.Thread(target=wait_and_look)
    watcher.start()
    result = adlro("replay", str(paper), "-o", "json")
    watcher.join()
    assert result.exit_code == 0, result.output
    assert seen == [[(ClockMode.REAL, True)]]
    assert [(clock.mode, clock.paused) for clock in suite.clock_calls] == [
        (ClockMode.REAL, True),
        (ClockMode.VIRTUAL, False),
        (ClockMode.REAL, False),
    ]


def test_clock_and_policy_are_left_as_they_were(suite: FakeSuite, adlro: Run, paper: Path) -> None:
    suite.clock = replace(suite.clock, mode=ClockMode.SCALED, scale=7.0)
    report = json.loads(adlro("replay", str(paper), "--policy", "fcfs", "-o", "json").stdout)
    assert report["policy"] == "fcfs"
    assert suite.policy == "sjf"
    assert (suite.clock.mode, suite.clock.scale, suite.clock.paused) == (ClockMode.SCALED, 7.0, False)


def test_an_unknown_policy_changes_nothing(suite: FakeSuite, adlro: Run, paper: Path) -> None:
    result = adlro("replay", str(paper), "--policy", "magic")
    assert result.exit_code == 1
    assert "there are fcfs and sjf" in result.stderr
    assert suite.jobs == {}
    assert not suite.clock.paused


def test_it_refuses_to_mix_with_other_jobs_unless_forced(suite: FakeSuite, adlro: Run, paper: Path) -> None:
    suite.add(JobSpec("other", "bob", JobType.SIMULATION))
    result = adlro("replay", str(paper))
    assert result.exit_code == 1
    assert "job-1" in result.stderr
    assert "--force" in result.stderr
    assert suite.clock_calls == []
    assert len(suite.jobs) == 1
    assert adlro("replay", str(paper), "--force").exit_code == 0


def test_swf_is_known_by_its_name_and_what_it_lacks_is_said(suite: FakeSuite, adlro: Run, swf: Path) -> None:
    result = adlro("replay", str(swf), "--jobs", "2", "--seed", "3", "-o", "json")
    report = json.loads(result.stdout)
    assert (report["source"]["format"], report["jobs"]["total"], report["source"]["seed"]) == ("swf", 2, 3)
    assert [job.spec.begin_time_s for job in suite.jobs.values()] == [100, 170]
    text = " ".join(report["notes"])
    assert "1 of 2 lines: ran on several processors; each became a job of one GPU" in text
    assert "seed 3" in text


def test_a_csv_trace_is_known_by_its_header(suite: FakeSuite, adlro: Run, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("job_type,total_steps,arrival_s,scale_factor\nA3C,1000,7.5,1\nCycleGAN,10,9.5,2\n")
    report = json.loads(adlro("replay", str(file), "--multi-gpu", "one", "-o", "json").stdout)
    assert (report["source"]["format"], report["jobs"]["total"]) == ("gavel", 2)
    assert report["source"]["trace"]["counts"] == {"several_gpus": 1}
    assert {job.spec.gpu_count for job in suite.jobs.values()} == {1}
    assert [job.spec.application for job in suite.jobs.values()] == ["A3C", "CycleGAN"]
    result = adlro("replay", str(file), "--trace-format", "philly")
    assert result.exit_code == 1
    assert "line 1: header must be timestamp,duration" in " ".join(result.stderr.split())


def test_jobs_of_several_gpus_keep_them_where_the_cluster_can_hold_them(
    suite: FakeSuite, adlro: Run, tmp_path: Path
) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("job_type,total_steps,arrival_s,scale_factor\nA3C,1000,7.5,1\nA3C,9,8.5,3\nCycleGAN,10,9.5,2\n")
    report = json.loads(adlro("replay", str(file), "-o", "json").stdout)
    # The fake's cluster has two GPUs.
    assert [job.spec.gpu_count for job in suite.jobs.values()] == [1, 2]
    assert report["source"]["trace"]["counts"]["too_large"] == 1
    assert "1 of 3 lines (the first: line 3): ask for more GPUs of one model" in " ".join(report["notes"])


def test_estimates_of_the_trace(suite: FakeSuite, adlro: Run, swf: Path) -> None:
    adlro("replay", str(swf), "--estimates", "trace")
    expected = [job.spec.expected_runtime for job in suite.jobs.values()]
    assert [each.runtime_s if each else None for each in expected] == [None, 9, None]


def test_a_name_that_tells_no_format_needs_one(adlro: Run, tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"
    file.write_text(PAPER)
    result = adlro("replay", str(file))
    assert (result.exit_code, "--format" in result.stderr) == (2, True)
    assert adlro("replay", str(file), "--format", "paper").exit_code == 0


def test_a_broken_file_is_an_error_that_names_line_and_field(adlro: Run, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(PAPER.replace("10.0", "-3"))
    result = adlro("replay", str(file))
    assert result.exit_code == 1
    assert "line 3" in result.stderr
    assert "work_s" in result.stderr


def test_the_report_file_has_each_job(suite: FakeSuite, adlro: Run, paper: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    result = adlro("replay", str(paper), "--report", str(out))
    assert "3 jobs under sjf" in result.stdout
    report = json.loads(out.read_text())
    assert [each["job_id"] for each in report["placements"]] == ["job-1", "job-2", "job-3"]
    assert [each["jct_s"] for each in report["placements"]] == pytest.approx([4.5, 13, 17])
    missing = adlro("replay", str(paper), "--report", str(tmp_path / "no" / "x.json"))
    assert missing.exit_code == 2


def test_off_a_terminal_progress_is_plain_lines_on_stderr(adlro: Run, paper: Path) -> None:
    result = adlro("replay", str(paper))
    assert "3/3 finished" in result.stderr
    assert "\x1b" not in result.output
    assert "finished" not in result.stdout.splitlines()[0]


async def test_services_may_be_away_at_every_step(suite: FakeSuite) -> None:
    for method in ("ListJobs", "GetStatus", "DescribeCluster", "SetPolicy", "SetClock", "SubmitJobs", "WatchJobs"):
        suite.fail(method, grpc.StatusCode.UNAVAILABLE, Unavailable("Redis does not answer"))
    suite.fail("GetCluster", grpc.StatusCode.UNAVAILABLE)
    async with AsyncClient(endpoints=suite.endpoints, patience_s=60) as client:
        result = await replay(client, specs(), ReplayOptions(policy="fcfs", patience_s=60))
    assert [job.state for job in result.jobs] == [JobState.SUCCEEDED] * 3
    assert len(suite.jobs) == 3
    assert suite.policy == "sjf"


async def test_a_watch_that_breaks_in_the_middle_goes_on(suite: FakeSuite) -> None:
    suite.hold_jobs = True
    seen: list[int] = []

    def on_change(board: Board) -> None:
        if board.phase == replaying.RUNNING and not seen:
            seen.append(board.finished)
            suite.break_streams()
            suite.fail("WatchJobs", grpc.StatusCode.UNAVAILABLE)
            threading.Timer(0.1, suite.run_jobs).start()

    async with AsyncClient(endpoints=suite.endpoints, patience_s=60) as client:
        task = asyncio.create_task(replay(client, specs(), ReplayOptions(patience_s=60), on_change))
        await until(lambda: suite.clock.mode is ClockMode.VIRTUAL)
        suite.change("job-1", message="still waiting")
        result = await task
    assert seen == [0]
    assert [job.state for job in result.jobs] == [JobState.SUCCEEDED] * 3


async def test_a_clock_that_was_reset_is_set_again(suite: FakeSuite) -> None:
    suite.hold_jobs = True
    async with AsyncClient(endpoints=suite.endpoints) as client:
        task = asyncio.create_task(replay(client, specs(), ReplayOptions(scale=50.0)))
        await until(lambda: suite.clock.mode is ClockMode.VIRTUAL)
        with suite.condition:  # as after a restart of the cluster; the call that set it has ended
            suite.hold_jobs = False
            suite.clock = replace(suite.clock, mode=ClockMode.REAL, scale=1.0, paused=True)
        await asyncio.wait_for(task, 60)
    assert [(clock.mode, clock.scale, clock.paused) for clock in suite.clock_calls].count(
        (ClockMode.VIRTUAL, 50.0, False)
    ) >= 2


async def test_jobs_that_fit_nowhere_are_cancelled(suite: FakeSuite) -> None:
    original = suite.add

    def add(spec: JobSpec) -> Job:
        job = original(spec)
        if spec.name == "replay-1":
            job = suite.change(job.job_id, pending_reason=PendingReason.NO_FITTING_GPU)
        return job

    suite.add = add  # type: ignore[method-assign]  # one of the jobs fits nowhere
    async with AsyncClient(endpoints=suite.endpoints) as client:
        result = await replay(client, specs(), ReplayOptions())
    assert [job.state.name for job in result.jobs] == ["SUCCEEDED", "CANCELLED", "SUCCEEDED"]


async def test_a_standstill_is_an_error_that_cleans_up(suite: FakeSuite) -> None:
    suite.hold_jobs = True
    async with AsyncClient(endpoints=suite.endpoints) as client:
        with pytest.raises(DeadlineExceeded, match="nothing has moved"):
            await replay(client, specs(), ReplayOptions(policy="fcfs", patience_s=0.2))
    assert [job.state for job in suite.jobs.values()] == [JobState.CANCELLED] * 3
    assert suite.policy == "sjf"
    assert (suite.clock.mode, suite.clock.paused) == (ClockMode.REAL, False)


async def test_an_interrupted_replay_cancels_its_jobs_and_sets_the_clock_back(suite: FakeSuite) -> None:
    suite.hold_jobs = True
    async with AsyncClient(endpoints=suite.endpoints) as client:
        task = asyncio.create_task(replay(client, specs(), ReplayOptions()))
        await until(lambda: suite.clock.mode is ClockMode.VIRTUAL)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [job.state for job in suite.jobs.values()] == [JobState.CANCELLED] * 3
    assert (suite.clock.mode, suite.clock.paused) == (ClockMode.REAL, False)


async def test_a_refused_job_is_named_and_nothing_runs(suite: FakeSuite) -> None:
    bad = [*specs(2), replace(specs(1)[0], priority=3)]
    async with AsyncClient(endpoints=suite.endpoints) as client:
        with pytest.raises(InvalidInput, match="job 2 of the list"):
            await replay(client, bad, ReplayOptions())
        with pytest.raises(InvalidInput, match="empty"):
            await replay(client, [], ReplayOptions())
        suite.hold_jobs = True
        suite.add(specs(1)[0])
        with pytest.raises(Conflict):
            await replay(client, specs(), ReplayOptions())
    assert JobState.SUCCEEDED not in {job.state for job in suite.jobs.values()}


def test_figures_of_a_report_worked_by_hand() -> None:
    def job(number: int, job_type: JobType, submit_s: float, start_s: float, end_s: float, gpu_id: str) -> Job:
        model = {gpu.gpu_id: gpu.gpu_model for _, gpu in CLUSTER.gpus()}[gpu_id]
        return Job(
            f"job-{number}",
            JobSpec("x", "ada", job_type),
            state=JobState.SUCCEEDED,
            pending_reason=PendingReason.NONE,
            submit_s=submit_s,
            start_s=start_s,
            end_s=end_s,
            placement=Placement.on(gpu_id),
            gpu_model=model,
            attempts=(JobAttempt(1, Placement.on(gpu_id), model, start_s, end_s, "succeeded"),),
        )

    first = job(1, JobType.SIMULATION, 10, 10, 30, "volta-0/0")
    second = job(2, JobType.SIMULATION, 20, 30, 50, "volta-0/0")
    lost = JobAttempt(1, Placement.on("turing-0/0"), "rtx_2080_ti", 20, 30, "lost: its GPU was lost")
    third = job(3, JobType.MACHINE_LEARNING, 20, 35, 60, "turing-0/0")
    third = replace(third, attempts=(lost, replace(third.attempts[0], attempt=2)))
    never = Job("job-4", JobSpec("x", "ada", JobType.SIMULATION), state=JobState.CANCELLED)
    result = ReplayResult("r", "fcfs", CLUSTER, (first, second, third, never), 10.0, 1.0)
    report = build_report(result, {}, [])
    assert report["makespan_s"] == 50
    assert report["jct_s"]["mean"] == pytest.approx((20 + 30 + 40) / 3)
    assert report["wait_s"]["mean"] == pytest.approx((0 + 10 + 15) / 3)
    assert report["jct_s"]["median"] == 30
    assert report["by_job_type"]["simulation"]["jct_s"]["mean"] == 25
    assert report["by_job_type"]["simulation"]["jobs"] == 3
    assert report["throughput_jobs_per_h"] == pytest.approx(3 * 3600 / 50)
    assert report["jobs"] == {
        "total": 4,
        "succeeded": 3,
        "failed": 0,
        "cancelled": 1,
        "several_attempts": 1,
        "stops": 0,
    }
    models = report["utilization"]["by_gpu_model"]
    assert models["v100_sxm2"]["utilization"] == pytest.approx(40 / (2 * 50))
    assert models["rtx_2080_ti"]["utilization"] == pytest.approx(35 / 50)
    assert report["utilization"]["overall"] == pytest.approx(75 / 150)
    # Little's law: mean number in the system x makespan = sum of JCTs.
    assert report["throughput_jobs_per_h"] / 3600 * report["jct_s"]["mean"] * 50 == pytest.approx(90)
    assert placements(result.jobs)[2]["attempts"] == 2
