"""Commands on jobs: requeue and watch; submit, requests about jobs, and lists have files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli import render
from adlro.cli.completing import ENDED, OPEN, jobs_in
from adlro.cli.job_filters import LabelOption, TypeFilterOption, UserOption, job_filter
from adlro.cli.option_types import job_id as read_job_id
from adlro.cli.places import placement_text
from adlro.cli.shell import (
    EXIT_ERROR,
    Output,
    OutputOption,
    ServerOption,
    connect,
    emit_json,
    emit_json_line,
    report,
    stderr,
    stdout,
)
from adlro.cli.stops import short_stops_text
from adlro.errors import AdlroError
from adlro.records.jobs import Job
from adlro.terminal import escape

if TYPE_CHECKING:
    pass

_LISTED_AT_ONCE = 500


def _tell_ids(job_ids: Sequence[str], output: Output) -> None:
    """Prints ids on stdout, one per line; on stderr if stdout must have one document."""
    console = stdout() if output is Output.TABLE else stderr()
    for job_id in job_ids:
        console.print(job_id)


def requeue(
    job: Annotated[
        list[str],
        typer.Argument(
            help="Ids of ended jobs.",
            parser=read_job_id,
            autocompletion=jobs_in(ENDED),
            metavar="JOB...",
        ),
    ],
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit ended jobs again, as new jobs with the same request, and print their ids.

    A new job has the label requeued-from=JOB. A job that has not ended is refused: cancel it first.
    """
    again: list[Job] = []
    failed = 0
    with connect(server) as client:
        for job_id in job:
            try:
                again.append(client.requeue(job_id))
            except AdlroError as error:
                failed = report(error)
                if failed != EXIT_ERROR:
                    raise typer.Exit(failed) from None
            else:
                if output is Output.TABLE:
                    _tell_ids([again[-1].job_id], output)
    if output is Output.JSON:
        emit_json({"jobs": again})
    if failed:
        raise typer.Exit(failed)


def watch(
    job: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only these jobs.",
            parser=read_job_id,
            autocompletion=jobs_in(OPEN),
            metavar="[JOB]...",
        ),
    ] = None,
    user: UserOption = "",
    job_type: TypeFilterOption = None,
    label: LabelOption = None,
    after: Annotated[
        int | None, typer.Option("--after", help="Start after this revision, instead of with all jobs.")
    ] = None,
    until_done: Annotated[bool, typer.Option("--until-done", help="Return when all listed jobs have ended.")] = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow jobs: their present state, then every change in order.

    Runs until Ctrl-C, also through outages of a service. With -o json: one event a line.
    """
    from adlro.client import JobEventKind

    seen_open: set[str] = set()
    complete = after is not None
    console = stdout()
    with connect(server) as client:
        for job_id in job or ():
            client.get(job_id)  # a missing job is an error, not an endless wait
        events = client.watch(
            after, job_filter(types=job_type, user=user, label=label, job_ids=job or ()), patience_s=60.0
        )
        for event in events:
            if output is Output.JSON:
                emit_json_line(event)
            if event.job is None:
                complete = True
                if output is Output.TABLE:
                    console.print(f"[dim]{_now()}  now following changes (revision {event.revision})[/]")
            else:
                if output is Output.TABLE:
                    mark = "now" if event.kind is JobEventKind.SNAPSHOT else _now()
                    console.print(f"{mark:8}  {_event_line(event.job)}")
                (seen_open.discard if event.job.state.final else seen_open.add)(event.job.job_id)
            if until_done and complete and not seen_open:
                return


def _event_line(job: Job) -> str:
    facts = [f"{escape(job.job_id):10} {render.state(job)}"]
    if job.placement.gpus:
        facts.append(f"on {escape(placement_text(job.placement))}")
    if job.attempt_count > 1:
        facts.append(f"attempt {job.attempt_count}")
    if job.jct_s is not None:
        facts.append(f"JCT {render.seconds(job.jct_s)}")
    reason = render.why(job)
    if (stops := short_stops_text(job)) and "preempted" not in reason:  # else the job's message tells of it
        facts.append(stops)
    return "  ".join(facts) + f"  [dim]{escape(job.spec.name)}[/]" + (f"  {reason}" if reason else "")


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
