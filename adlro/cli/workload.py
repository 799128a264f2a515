"""`adlro workload`: a steady stream of a scenario's jobs into the running services, for demonstrations.

Jobs are submitted in cluster time, and pause for a replay: none while the clock is paused or virtual.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli.shell import ServerOption, cancel_on_sigterm, connect_async, say
from adlro.errors import AdlroError
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import AsyncClient, Clock
    from adlro.workload.job_lists import WorkloadJob

_LOOK_S = 0.5
_AWAY_S = 2.0
_REPORT_S = 10.0
_DRAWN_AT_ONCE = 256


class ScenarioChoice(enum.StrEnum):
    """Scenarios with known loads, and jobs that come one by one."""

    PAPER = "paper"
    PAPER_ROOMY = "paper_roomy"
    GANGS = "gangs"
    GANGS_64 = "gangs_64"
    GANGS_256 = "gangs_256"
    GANGS_PHILLY = "gangs_philly"
    GANGS_PHILLY_64 = "gangs_philly_64"
    GANGS_PHILLY_256 = "gangs_philly_256"
    GANGS_HEAVY = "gangs_heavy"
    GANGS_HEAVY_64 = "gangs_heavy_64"
    GANGS_HEAVY_256 = "gangs_heavy_256"
    PREEMPTIVE = "preemptive"
    PREEMPTIVE_64 = "preemptive_64"
    PREEMPTIVE_256 = "preemptive_256"
    PREEMPTIVE_20S = "preemptive_20s"
    PREEMPTIVE_240S = "preemptive_240s"
    PREEMPTIVE_600S = "preemptive_600s"
    SHARED = "shared"
    SHARED_64 = "shared_64"
    SHARED_256 = "shared_256"


def workload(
    load: Annotated[
        float,
        typer.Option(
            "--load", min=0.0, max=10.0, help="Arrival rate as a share of the cluster's capacity; 0: no jobs."
        ),
    ] = 0.5,
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-n", min=0, help="Number of jobs; after them only the reports continue; 0: no limit."),
    ] = 0,
    scenario: Annotated[
        ScenarioChoice,
        typer.Option(
            "--scenario",
            metavar="NAME",
            help="The scenario of the jobs: paper, paper_roomy, gangs, gangs_philly, gangs_heavy, preemptive, shared. "
            "Those from gangs on also for 64 and 256 GPUs: gangs_64. All: docs/workloads.md.",
        ),
    ] = ScenarioChoice.PAPER,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the job list.")] = 0,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="FILE.csv",
            help="Submit nothing: write the list to a file, for adlro replay and adlro evaluate --trace. Without "
            "--jobs it has as many as the scenario's lists.",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    server: ServerOption = None,
) -> None:
    """Submit a steady stream of jobs, and report the suite's state every 10 s, until Ctrl-C.

    While the simulated cluster's clock is paused or virtual, as during a replay, it submits none. Finished jobs stay
    recorded: an endless stream fills the store.
    """
    if write is not None:
        _write(write, str(scenario), load, jobs, seed)
        return
    # It has no end of its own: SIGTERM is a normal end.
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_stream(server, str(scenario), load, jobs, seed))


def _write(file: Path, scenario: str, load: float, count: int, seed: int) -> None:
    """Writes a list of the scenario's jobs."""
    import numpy as np

    from adlro.workload.job_lists import draw_jobs
    from adlro.workload.scenario import load_scenario
    from adlro.workload.traces import write_paper_csv

    if load <= 0:
        raise typer.BadParameter("a list needs a load above 0", param_hint="--load")
    if file.suffix != ".csv":
        raise typer.BadParameter(
            "name a .csv file: adlro replay and adlro evaluate know it by that", param_hint="--write"
        )
    rules = load_scenario(scenario)
    drawn_jobs = draw_jobs(rules, load=load, rng=np.random.default_rng(seed), count=count or None)
    write_paper_csv(file, drawn_jobs)
    say(f"{len(drawn_jobs)} jobs of {scenario} at load {load:g}, seed {seed}: {escape(str(file))}")
    file_text = escape(str(file))
    say(f"[dim]adlro up --cluster {scenario}, then adlro replay {file_text}[/]")
    say(f"[dim]adlro evaluate --trace {file_text} --cluster {scenario}[/]")


async def _stream(server: str | None, scenario: str, load: float, limit: int, seed: int) -> None:
    cancel_on_sigterm()
    async with connect_async(server, patience_s=_AWAY_S) as client:
        stream = JobStream(client, scenario, load, limit, seed)
        reporting = asyncio.create_task(_report(client, stream))
        try:
            if load > 0:
                await stream.run()
                say(f"all {stream.submitted} jobs are submitted; no more follow")
            await reporting
        finally:
            reporting.cancel()


class JobStream:
    """Submits jobs at their times.

    Args:
        client: client of the suite.
        scenario: the jobs' scenario.
        load: share of its capacity.
        limit: number of jobs; 0: no end.
        seed: seed of the job list.
    """

    def __init__(self, client: AsyncClient, scenario: str, load: float, limit: int, seed: int) -> None:
        self._client = client
        self._limit = limit
        self._jobs = drawn(scenario, load, seed)
        self.submitted = 0

    async def run(self) -> None:
        """Returns when all jobs are submitted."""
        last_submit_s = 0.0
        due_s: float | None = None  # unknown while the clock did not run
        for job in self._jobs:
            if self._limit and self.submitted >= self._limit:
                return
            gap_s, last_submit_s = job.submit_s - last_submit_s, job.submit_s
            due_s = await self._submit(job, None if due_s is None else due_s + gap_s, gap_s)

    async def _submit(self, job: WorkloadJob, due_s: float | None, gap_s: float) -> float:
        """Submits a job when it is due; returns the cluster time at which it was due.

        Args:
            job: the job.
            due_s: in cluster time; None: `gap_s` after the clock is next found to run.
            gap_s: time since the previous job.
        """
        from adlro.cli.replaying import WORKLOAD_LABEL

        first_look = True
        while True:
            try:
                clock = await self._client.clock()
                if not runs_by_itself(clock):
                    due_s = None
                    await asyncio.sleep(_LOOK_S)
                    continue
                # Missed jobs are not submitted later. Only the first check decides that: during a wait the clock may
                # pass the job's time by more than a gap that is shorter than the time between two checks.
                missed = due_s is not None and first_look and due_s < clock.time_s - gap_s
                # A job is due at most a gap after the one before: the clock has gone back, as that of another suite.
                went_back = due_s is not None and due_s > clock.time_s + gap_s
                if due_s is None or missed or went_back:
                    due_s = clock.time_s + gap_s
                first_look = False
                if clock.time_s < due_s:
                    await asyncio.sleep(min((due_s - clock.time_s) / clock.scale, _LOOK_S))
                    continue
                spec = replace(
                    job.spec(f"workload-{self.submitted}"),
                    begin_time_s=None,
                    labels={WORKLOAD_LABEL: f"{self.submitted}"},
                )
                submitted = await self._client.submit(spec)
                self.submitted += 1
                # A replay may have begun since the check of the clock: it does not expect this job.
                if not runs_by_itself(await self._client.clock()):
                    await self._client.cancel(submitted.job_id)
                return due_s
            except AdlroError as error:
                say(f"[yellow]no job is submitted: {escape(error.message)}[/]")
                await asyncio.sleep(_AWAY_S)


def runs_by_itself(clock: Clock) -> bool:
    """Whether cluster time passes with wall time: neither paused nor controlled by a replay."""
    from adlro.client import ClockMode

    return not clock.paused and clock.mode is not ClockMode.VIRTUAL


def drawn(scenario: str, load: float, seed: int) -> Iterator[WorkloadJob]:
    """The scenario's jobs in an endless stream, one list after the other; their `submit_s` never decreases."""
    import numpy as np

    from adlro.workload.job_lists import draw_jobs
    from adlro.workload.scenario import load_scenario

    rules = load_scenario(scenario)
    rng = np.random.default_rng(seed)
    begin_s = 0.0
    while True:
        jobs = draw_jobs(rules, load=load, rng=rng, count=_DRAWN_AT_ONCE)
        for job in jobs:
            yield replace(job, submit_s=begin_s + job.submit_s)
        begin_s += jobs[-1].submit_s


async def _report(client: AsyncClient, stream: JobStream) -> None:
    """A line every 10 s: jobs submitted and placed since the last one, running and waiting jobs."""
    submitted_before, placed_before = 0, 0
    while True:
        try:
            status = await client.status()
        except AdlroError as error:
            say(f"[yellow]{escape(error.message)}[/]")
        else:
            # A new session of the orchestrator counts from 0.
            placed = status.decision_count - (placed_before if status.decision_count >= placed_before else 0)
            say(
                f"cluster time {status.cluster_time_s:,.0f} s: {stream.submitted - submitted_before} jobs submitted,"
                f" {placed} placed by {escape(status.policy)}; {status.running_count} run, {status.queue_length} wait"
                + (f"; [yellow]{escape(status.problem)}[/]" if status.problem else "")
            )
            submitted_before, placed_before = stream.submitted, status.decision_count
        await asyncio.sleep(_REPORT_S)
