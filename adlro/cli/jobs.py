"""Commands on jobs: submit, queue, watch, cancel (`describe` has a file of its own)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli import render
from adlro.cli.job_command import FileOption, ProgramArgument, program, with_job_options
from adlro.cli.job_options import JobOptions, spec_of
from adlro.cli.job_options import job_type as job_type_named
from adlro.cli.job_options import labels as label_pairs
from adlro.cli.places import at_of, placement_text, reservation_text
from adlro.cli.shell import (
    EXIT_ERROR,
    Output,
    OutputOption,
    ServerOption,
    connect,
    emit_json,
    emit_json_line,
    report,
    say,
    stderr,
    stdout,
)
from adlro.cli.stops import short_stops_text
from adlro.errors import AdlroError
from adlro.records.jobs import Job, JobState
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import JobFilter, Rejection

_LISTED_AT_ONCE = 500
_STATES = {each.name.lower(): each for each in JobState}

LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Only with this label; repeatable.")
]
UserOption = Annotated[str, typer.Option("--user", help="Only of this user.")]
TypeFilterOption = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", help="Only of this job type; repeatable."),
]


def _filter(
    *,
    states: Sequence[JobState] = (),
    types: Sequence[str] | None = None,
    user: str = "",
    labels: Sequence[str] | None = None,
    job_ids: Sequence[str] = (),
) -> JobFilter:
    from adlro.client import JobFilter

    return JobFilter(
        states=tuple(states),
        job_types=tuple(job_type_named(each) for each in types or ()),
        user=user,
        labels=label_pairs(labels),
        job_ids=tuple(job_ids),
    )


@with_job_options
def submit(
    ctx: typer.Context,
    options: JobOptions,
    command: ProgramArgument = None,
    file: FileOption = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Number of jobs of this kind.")] = 1,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="An id by which a repeated submission returns the same job.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Return when the job has ended; exit code 1 unless it succeeded.")
    ] = (False),
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a job and print its id.

    A job whose id is printed is recorded, even if the command is interrupted then. With -o json the ids of
    --count and --wait go to stderr. Exit code 1 if a job was refused.

    A program: adlro submit --cores 4 --gpu-memory 20GiB --time-limit 4h -- python train.py

    A script with lines #ADLRO --cores 4: adlro submit train.sh

    On a simulated cluster: adlro submit --type ml --application resnet50_fp16 --runtime 30
    """
    spec = spec_of(options, program(ctx), server)
    rejected: Sequence[Rejection] = ()
    with connect(server) as client:
        if count == 1:
            jobs = [client.submit(spec, request_id)]
            job_ids: Sequence[str] = [jobs[0].job_id]
            if wait or output is Output.TABLE:
                _tell_ids(job_ids, output)
        else:
            # Printed at once: no user can cancel a job with an unknown id.
            answer = client.submit_many(
                [spec] * count, request_id, on_answer=lambda part: _tell_ids(part.accepted_ids, output)
            )
            rejected = answer.rejected
            if rejected:
                say(f"[bold red]error:[/] {len(rejected)} of {count} jobs were refused: {escape(rejected[0].message)}")
            job_ids, jobs = answer.accepted_ids, []
            if output is Output.JSON and not wait:
                for start in range(0, len(job_ids), _LISTED_AT_ONCE):
                    jobs += client.list(_filter(job_ids=job_ids[start : start + _LISTED_AT_ONCE]))
        if wait:
            jobs = list(client.wait(job_ids)) if job_ids else []
    if output is Output.JSON:
        emit_json(jobs[0] if count == 1 else {"jobs": jobs, "rejected": rejected})
    elif wait and jobs:
        console = stdout()
        console.print(render.job_table(jobs, width=console.width))
    if rejected or (wait and any(job.state is not JobState.SUCCEEDED for job in jobs)):
        raise typer.Exit(EXIT_ERROR)


def _tell_ids(job_ids: Sequence[str], output: Output) -> None:
    """Prints ids on stdout, one per line; on stderr if stdout must have one document."""
    console = stdout() if output is Output.TABLE else stderr()
    for job_id in job_ids:
        console.print(job_id)


def requeue(
    job: Annotated[list[str], typer.Argument(help="Ids of ended jobs.", metavar="JOB...")],
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


def queue(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="pending, running, succeeded, failed or cancelled; repeatable. Default: pending and running.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-A", help="Jobs in every state.")] = False,
    user: UserOption = "",
    job_type: TypeFilterOption = None,
    label: LabelOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Largest number of jobs; 0: all.")] = 0,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List jobs in the order of submission, with the reason of each wait."""
    states: list[JobState] = []
    for name in state or ():
        if name.lower() not in _STATES:
            raise typer.BadParameter(f"{name!r}: there are {', '.join(_STATES)}", param_hint="--state")
        states.append(_STATES[name.lower()])
    if not states and not everything:
        states = [JobState.PENDING, JobState.RUNNING]
    with connect(server) as client:
        jobs = []
        for job in client.list(_filter(states=states, types=job_type, user=user, labels=label)):
            jobs.append(job)
            if limit and len(jobs) >= limit:
                break
        if output is Output.JSON:
            emit_json({"jobs": jobs})
            return
        status, clock = None, None
        # The list does not need the other services: without an answer their columns are left out.
        with contextlib.suppress(AdlroError):
            status = client.status()
        with contextlib.suppress(AdlroError):
            clock = client.clock()
    if jobs:
        console = stdout()
        reservations = None if status is None else {each.job_id: each for each in status.reservations}
        console.print(render.job_table(jobs, clock, console.width, reservations))
        if console.width < render.WIDE and any(job.state is JobState.PENDING for job in jobs):
            say("[dim]reasons in full: adlro describe job ID, or a wider screen[/]")
    else:
        say("no jobs" + ("" if everything else " in these states; adlro queue --all shows the others"))
    if status is not None:
        at = at_of(clock)
        for each in status.reservations:
            say(f"[dim]kept free for {escape(each.job_id)}: {escape(reservation_text(each, at))}[/]")
        later = status.waiting_for_begin_time_count
        say(
            f"[dim]{status.running_count} running, {status.queue_length} waiting"
            + (f", {later} before their begin time" if later else "")
            + f"; policy {render.policy_text(status.policy, status.deciding_policy, status.deciding_basis)}[/]"
        )


def watch(
    job: Annotated[list[str] | None, typer.Argument(help="Only these jobs.", metavar="[JOB]...")] = None,
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
            after, _filter(types=job_type, user=user, labels=label, job_ids=job or ()), patience_s=60.0
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


def cancel(
    job: Annotated[list[str] | None, typer.Argument(help="Ids of jobs.", metavar="[JOB]...")] = None,
    label: LabelOption = None,
    user: UserOption = "",
    everything: Annotated[bool, typer.Option("--all", help="Every job that has not ended.")] = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel jobs, by id, label or user."""
    chosen = list(job or ())
    if bool(chosen) == bool(label or user or everything):
        raise typer.BadParameter("name jobs, or choose them by --label, --user or --all")
    cancelled: list[Job] = []
    failed = 0
    with connect(server) as client:
        if not chosen:
            open_states = (JobState.PENDING, JobState.RUNNING)
            chosen = [each.job_id for each in client.list(_filter(states=open_states, user=user, labels=label))]
        for job_id in chosen:
            try:
                cancelled.append(client.cancel(job_id))
            except AdlroError as error:
                failed = report(error)
                if failed != EXIT_ERROR:
                    raise typer.Exit(failed) from None
    if output is Output.JSON:
        emit_json({"jobs": cancelled})
    else:
        for each in cancelled:
            stdout().print(f"{escape(each.job_id)}  {'cancelled' if each.state.final else 'being cancelled'}")
        if not chosen:
            say("no job to cancel")
    if failed:
        raise typer.Exit(failed)
