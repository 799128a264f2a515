"""The steady stream of jobs: it goes on, however short the time between two jobs is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from adlro.cli import workload
from adlro.client import Clock, ClockMode
from adlro.records.jobs import Job, JobSpec


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


@pytest.mark.parametrize("scenario", [each for each in workload.ScenarioChoice if each.startswith("gangs")])
def test_jobs_of_several_gpus_are_submitted_as_such(scenario: workload.ScenarioChoice) -> None:
    jobs = workload.drawn(str(scenario), 0.5, 0)
    drawn = [next(jobs) for _ in range(300)]
    assert {job.gpu_count for job in drawn} == {1, 2, 4, 8}
    assert [job.spec("j").gpu_count for job in drawn] == [job.gpu_count for job in drawn]
