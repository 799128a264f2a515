"""The steady stream of jobs: it goes on, however short the time between two jobs is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from typer.testing import CliRunner

from adlro.cli import workload
from adlro.cli.app import app
from adlro.cli.replay import TraceFormat, read_trace
from adlro.cli.replaying import replay_specs
from adlro.client import Clock, ClockMode
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec, Preemptible
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import SCENARIO_NAMES, load_scenario


@dataclass
class Suite:
    """A clock that goes on by itself, and by what a look at it takes. In cluster seconds."""

    scale: float
    look_takes_s: float
    time_s: float = 0.0
    looks: int = 0
    submitted_s: list[float] = field(default_factory=list)

    async def clock(self) -> Clock:
        self.looks += 1
        assert self.looks < 50_000, f"stopped after {len(self.submitted_s)} jobs"
        self.time_s += self.look_takes_s
        return Clock(ClockMode.SCALED, self.scale, False, self.time_s)

    async def submit(self, spec: JobSpec) -> Job:
        self.submitted_s.append(self.time_s)
        return Job(f"job-{len(self.submitted_s)}", spec)

    async def sleep(self, wall_s: float) -> None:
        self.time_s += wall_s * self.scale


@pytest.mark.parametrize("look_takes_s", [0.001, 0.05, 2.0])
async def test_a_gap_shorter_than_a_look_at_the_clock_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, look_takes_s: float
) -> None:
    suite = Suite(5.0, look_takes_s)
    monkeypatch.setattr(asyncio, "sleep", suite.sleep)
    stream = workload.JobStream(cast(Any, suite), "paper", 0.95, 1000, seed=0)
    await stream.run()
    assert len(suite.submitted_s) == 1000
    # About as often as it should be, where looks are quick.
    jobs = workload.drawn("paper", 0.95, 0)
    asked_s = [next(jobs).submit_s for _ in range(1000)][-1]
    if look_takes_s < 0.01:
        assert suite.submitted_s[-1] == pytest.approx(asked_s, rel=0.05)


@pytest.mark.parametrize("scenario", [each for each in workload.ScenarioChoice if not each.startswith("paper")])
def test_jobs_are_submitted_with_what_the_scenario_is_about(scenario: workload.ScenarioChoice) -> None:
    jobs = workload.drawn(str(scenario), 0.5, 0)
    specs = [next(jobs).spec("a") for _ in range(300)]
    assert {spec.gpu_count for spec in specs} == ({1} if scenario.startswith("shared") else {1, 2, 4, 8})
    assert {spec.shareable for spec in specs} == {scenario.startswith("shared")}
    costs = {20: 0.1, 60: 0.3, 240: 1.2, 600: 3.0}  # seconds by those of a job of an hour
    hour_s = int(scenario.rpartition("_")[2][:-1]) if scenario.endswith("0s") else 60
    stops = Preemptible(costs[hour_s]) if scenario.startswith("preemptive") else None
    assert {spec.preemptible for spec in specs} == {stops}


def test_the_scenarios_offered_are_those_whose_jobs_come_one_by_one() -> None:
    others = {"batch", "surge", "diurnal", "heavy_tails", "gavel", "trace"}
    assert {str(each) for each in workload.ScenarioChoice} == set(SCENARIO_NAMES) - others


def test_a_list_is_written_for_replays(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    asked = ["workload", "--scenario", "preemptive", "--load", "0.9", "--seed", "7", "--write", str(file)]
    written = CliRunner().invoke(app, asked)
    assert written.exit_code == 0, written.output
    assert "256 jobs of preemptive at load 0.9, seed 7" in written.output
    jobs, source, notes = read_trace(file, TraceFormat.AUTO, None, 0)
    assert jobs == draw_jobs(load_scenario("preemptive"), load=0.9, rng=np.random.default_rng(7))
    assert (source["format"], notes) == ("paper", [])
    specs = replay_specs(jobs)
    assert {spec.preemptible for spec in specs} == {Preemptible(0.3)}
    assert specs[0].expected_runtime == ExpectedRuntime("v100_sxm2", jobs[0].work_s)
    for wrong, named in ((["--write", "jobs.txt"], "--write"), (["--write", "a.csv", "--load", "0"], "--load")):
        refused = CliRunner().invoke(app, ["workload", *wrong])
        assert refused.exit_code == 2
        assert named in refused.stderr


async def test_a_clock_that_has_gone_back_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another suite at the same address, started anew, has a cluster time near 0."""
    suite = Suite(5.0, 0.001, time_s=50_000.0)
    monkeypatch.setattr(asyncio, "sleep", suite.sleep)

    async def submit(spec: JobSpec) -> Job:
        if len(suite.submitted_s) == 10:
            suite.time_s = 0.0
        return await Suite.submit(suite, spec)

    client = type("Client", (), {"clock": suite.clock, "submit": staticmethod(submit)})()
    stream = workload.JobStream(cast(Any, client), "paper", 0.95, 100, seed=0)
    await stream.run()
    assert len(suite.submitted_s) == 100
    assert suite.time_s < 1_000.0
