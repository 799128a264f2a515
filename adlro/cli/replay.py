"""`adlro replay FILE`: a trace through the running services, with a progress bar and a report."""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli.completing import offered_policies
from adlro.cli.documents import document
from adlro.cli.option_types import TIME, duration
from adlro.cli.replay_load import brought_to_load
from adlro.cli.shell import (
    Output,
    OutputOption,
    ServerOption,
    cancel_on_sigterm,
    connect_async,
    emit_json,
    say,
    stderr,
    stdout,
)
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.cli.replaying import ReplayOptions, ReplayResult
    from adlro.records.cluster import Cluster
    from adlro.records.jobs import JobSpec
    from adlro.workload.job_lists import WorkloadJob


LOWEST_LOAD, HIGHEST_LOAD = 1e-6, 1e6
"""As in `adlro evaluate`: beyond these, times of submission lose their precision."""


class TraceFormat(enum.StrEnum):
    """Formats of job lists."""

    AUTO = "auto"
    SWF = "swf"
    PHILLY = "philly"
    ALIBABA = "alibaba"
    GAVEL = "gavel"
    PAPER = "paper"


class MultiGpu(enum.StrEnum):
    """What becomes of a trace's jobs of several GPUs."""

    AUTO = "auto"
    GANG = "gang"
    ONE = "one"


class ReplayTime(enum.StrEnum):
    """How cluster time passes during a replay."""

    VIRTUAL = "virtual"
    SCALED = "scaled"


class EstimateChoice(enum.StrEnum):
    """The jobs' expected runtimes."""

    EXACT = "exact"
    TRACE = "trace"


def _checked_load(value: float | None) -> float | None:
    if value is not None and not LOWEST_LOAD <= value <= HIGHEST_LOAD:
        raise typer.BadParameter(f"must be from {LOWEST_LOAD:g} to {HIGHEST_LOAD:g}, not {value:g}")
    return value


def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The trace.", exists=True, dir_okay=False, readable=True)
    ],
    trace_format: Annotated[
        TraceFormat,
        typer.Option(
            "--format",
            "--trace-format",
            help="swf: Standard Workload Format; philly, alibaba (openb_pod_list), gavel: their CSV files; paper: CSV "
            "with submit_s,user,application,...; auto: by the name, and a CSV file's header.",
        ),
    ] = TraceFormat.AUTO,
    count: Annotated[int | None, typer.Option("--jobs", "-n", min=1, help="Number of jobs, from the first on.")] = None,
    passing: Annotated[
        ReplayTime,
        typer.Option("--time", help="virtual: exact, from event to event; scaled: --scale seconds a second."),
    ] = ReplayTime.VIRTUAL,
    scale: Annotated[
        float | None,
        typer.Option(
            "--scale",
            min=0.0,
            help="Cluster seconds a second: with virtual time the most (default: no limit), with scaled time 60.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            "-p",
            help="The policy during the replay; adlro policy lists the policies.",
            autocompletion=offered_policies,
        ),
    ] = None,
    estimates: Annotated[
        EstimateChoice,
        typer.Option(help="The jobs' expected runtimes: exact, the true ones; trace, those of the trace, if any."),
    ] = EstimateChoice.EXACT,
    multi_gpu: Annotated[
        MultiGpu,
        typer.Option(
            "--multi-gpu",
            help="Jobs of several GPUs: gang, they keep them, and those too large for the cluster are left out; one, "
            "each gets one GPU; auto: gang, and one for swf, which counts processors.",
        ),
    ] = MultiGpu.AUTO,
    load: Annotated[
        float | None,
        typer.Option(
            "--load",
            callback=_checked_load,
            help="Let the jobs come faster or slower, so that they offer this load: 0.9 is 90 % of what the cluster "
            "can carry of such jobs. Default: the recorded times.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed for values that the trace lacks.")] = 0,
    report_file: Annotated[
        Path | None,
        typer.Option("--report", metavar="OUT.json", help="Also write the report, with each job's times, to a file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replay even if other jobs are queued or running.")] = False,
    patience_s: Annotated[
        float,
        typer.Option(
            "--patience", parser=duration, metavar=TIME, help="How long to retry while a service does not answer."
        ),
    ] = 60.0,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay a trace through the running services, and report on it.

    The command pauses the (simulated) cluster's clock, submits all jobs with their begin times, and resumes the
    clock. At the end it restores clock and policy. Services may be killed and restarted meanwhile. Ctrl-C
    cancels the jobs.
    """
    from adlro.cli.progress import ReplayProgress
    from adlro.cli.replaying import ReplayOptions, replay_specs
    from adlro.cli.report import build_report, placements, print_report
    from adlro.client import ClockMode

    workload, source, notes = read_trace(file, trace_format, count, seed, multi_gpu)
    if load is not None or any(job.gpu_count > 1 for job in workload):
        # What is too large depends on the cluster; a file that can't be read is told without it.
        cluster = asyncio.run(_cluster(server))
        workload, source, notes = read_trace(file, trace_format, count, seed, multi_gpu, cluster)
        if load is not None:
            workload, brought, warnings = brought_to_load(workload, cluster, load)
            source["load"] = document(brought)
            notes += [brought.sentence, *warnings]
            say(f"[dim]{escape(brought.sentence)}[/]")
    if estimates is EstimateChoice.EXACT:
        notes.append("expected runtimes are the true ones (--estimates trace uses those of the trace)")
    if force:
        notes.append("replayed with --force: other jobs may have held GPUs meanwhile")
    if passing is ReplayTime.SCALED and scale == 0:
        raise typer.BadParameter("scaled time needs a scale above 0", param_hint="--scale")
    options = ReplayOptions(
        policy=policy,
        mode=ClockMode.VIRTUAL if passing is ReplayTime.VIRTUAL else ClockMode.SCALED,
        scale=scale if scale is not None else (0.0 if passing is ReplayTime.VIRTUAL else 60.0),
        force=force,
        patience_s=patience_s,
    )
    if report_file is not None and not report_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {report_file.absolute().parent}", param_hint="--report")
    specs = replay_specs(workload, exact_runtimes=estimates is EstimateChoice.EXACT)
    progress = ReplayProgress(stderr(), f"{file.name}")
    try:
        with progress:
            result = asyncio.run(_replay(server, specs, options, progress))
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("[yellow]interrupted; the replay's jobs are cancelled, clock and policy are restored[/]")
        raise
    report = build_report(result, source, notes)
    if report_file is not None:
        whole = document({**report, "placements": placements(result.jobs)})
        report_file.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    if output is Output.JSON:
        emit_json(report)
        return
    print_report(stdout(), report)
    if report_file is not None:
        say(f"[dim]report with each job's times: {escape(str(report_file))}[/]")


async def _cluster(server: str | None) -> Cluster:
    cancel_on_sigterm()
    async with connect_async(server) as client:
        return await client.cluster()


async def _replay(server: str | None, specs: Sequence[JobSpec], options: ReplayOptions, progress: Any) -> ReplayResult:
    from adlro.cli.replaying import replay as run_replay

    cancel_on_sigterm()
    # Few retries until the first answer: a missing suite should be reported at once.
    async with connect_async(server) as client:
        await client.status()
    async with connect_async(server, patience_s=options.patience_s) as client:
        return await run_replay(client, specs, options, progress)


def read_trace(
    file: Path,
    trace_format: TraceFormat,
    count: int | None,
    seed: int,
    multi_gpu: MultiGpu = MultiGpu.AUTO,
    cluster: Cluster | None = None,
) -> tuple[list[WorkloadJob], dict[str, Any], list[str]]:
    """The jobs of a file, a document about the reading, and notes for the report.

    Without a cluster, jobs that are too large for it are not left out.
    """
    from adlro.workload.traces import TRACE_FORMATS, format_of
    from adlro.workload.traces import read_trace as read_jobs

    chosen = format_of(file) if trace_format is TraceFormat.AUTO else str(trace_format)
    if chosen is None:
        raise typer.BadParameter(
            f"{file.name}: name a --format ({', '.join(TRACE_FORMATS)}); the file's name does not show it",
            param_hint="FILE",
        )
    chosen_way = None if multi_gpu is MultiGpu.AUTO else str(multi_gpu)
    jobs, trace_notes = read_jobs(file, chosen, seed=seed, limit=count, multi_gpu=chosen_way, cluster=cluster)
    notes = list(trace_notes.sentences)
    details: dict[str, Any] = document(trace_notes)
    source = {"file": str(file), "format": chosen, "jobs": len(jobs), "seed": seed, "trace": details}
    return jobs, source, notes
