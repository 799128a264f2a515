"""Commands about recorded jobs: cancel, hold, release, update. They take ids of jobs and arrays, or filters."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from adlro.cli.completing import OPEN, jobs_in
from adlro.cli.job_filters import LabelOption, UserOption, job_filter
from adlro.cli.option_types import TIME, duration, job_id
from adlro.cli.shell import (
    EXIT_ERROR,
    Output,
    OutputOption,
    ServerOption,
    connect,
    emit_json,
    say,
    stderr,
    stdout,
)
from adlro.records.job_requests import JobRequestKind, JobUpdate
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.records.watching import JobView
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client, RequestResult

_OPEN = (JobState.PENDING, JobState.RUNNING)
_WAITING = (JobState.PENDING,)
_APPLIED_WITHIN_S = 5.0
"""A request asks for an event of the cluster, at which it is applied: usually in some hundredths of a second."""
_LOOK_EVERY_S = 0.05
_LOOKED_AT_ONCE = 500

JobsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Ids of jobs or arrays, such as job-17, 17 or array-20.",
        parser=job_id,
        autocompletion=jobs_in(OPEN),
        metavar="[JOB]...",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


def cancel(
    job: JobsArgument = None,
    label: LabelOption = None,
    user: UserOption = "",
    everything: Annotated[bool, typer.Option("--all", help="Every job that has not ended; asks first.")] = False,
    yes: YesOption = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel jobs, by id, array, label or user.

    A job that waits ends at once; the program of one that runs gets SIGTERM, and SIGKILL after its grace.
    """
    with connect(server) as client:
        chosen = _chosen(client, job, label, user, everything, _OPEN)
        if everything and not label and not user and chosen and not yes:
            _ask(f"cancel every job that has not ended ({len(chosen)})?")
        results = client.cancel_many(chosen)
        # Cancelled already, perhaps by a try of this very call whose answer was lost.
        again = [each.job_id for each in results if each.reason == "JOB_FINAL"]
        whole = [each.job_id for each in results if each.accepted] if output is Output.JSON else []
        found = {each.job_id: each for each in _listed(client, [*again, *whole])}
    done = {each for each in again if each in found and found[each].state is JobState.CANCELLED}
    results = tuple(
        replace(each, job=found.get(each.job_id, each.job)) if each.accepted or each.job_id in done else each
        for each in results
    )

    def said(each: Job) -> Said:
        return Said("cancelled" if each.state.final else "being cancelled")

    _tell(results, output, said, "no job to cancel")


def hold(
    job: JobsArgument = None,
    label: LabelOption = None,
    user: UserOption = "",
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Hold waiting jobs: they start only after adlro release.

    What runs can't be held. A job that an operator holds, only an operator releases.
    """
    _request(JobRequestKind.HOLD, job, label, user, server, output, _held)


def release(
    job: JobsArgument = None,
    label: LabelOption = None,
    user: UserOption = "",
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Release held jobs. Their completion time counts from then."""
    _request(JobRequestKind.RELEASE, job, label, user, server, output, _released)


def update(
    job: JobsArgument = None,
    label: LabelOption = None,
    user: UserOption = "",
    priority: Annotated[
        float | None, typer.Option("--priority", "-p", min=0.0, max=1.0, help="0 (least) to 1 (most urgent).")
    ] = None,
    time_limit_s: Annotated[
        float | None,
        typer.Option("--time-limit", parser=duration, metavar=TIME, help="The longest time to run; 0: no limit."),
    ] = None,
    set_label: Annotated[
        list[str] | None,
        typer.Option("--set-label", metavar="KEY=VALUE", help="A label to add or to change; repeatable."),
    ] = None,
    remove_label: Annotated[
        list[str] | None, typer.Option("--remove-label", metavar="KEY", help="A label to remove; repeatable.")
    ] = None,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change waiting jobs: their priority, time limit and labels.

    Example: adlro update job-17 --priority 0.9 --time-limit 8h
    """
    from adlro.cli.job_options import labels

    changes = JobUpdate(priority, time_limit_s, labels(set_label), tuple(remove_label or ()))
    if changes == JobUpdate():
        raise typer.BadParameter("name a change: --priority, --time-limit, --set-label or --remove-label")
    _request(JobRequestKind.UPDATE, job, label, user, server, output, lambda each: _updated(each, changes), changes)


# ---- what became of them


class Said(NamedTuple):
    """What is said of a job, and whether that is what was asked for."""

    text: str
    done: bool = True


def _held(job: Job) -> Said:
    return Said("held") if job.hold is not None else _not(job, "held")


def _released(job: Job) -> Said:
    if job.hold is None:
        return Said("released")
    return Said("not released: an operator holds it", False) if job.hold.by_operator else _not(job, "released")


def _updated(job: Job, changes: JobUpdate) -> Said:
    return Said("updated") if changes.applied_to(job.spec) == job.spec else _not(job, "updated")


def _not(job: Job, done: str) -> Said:
    """Why a job is not what was asked for: the request is not applied yet, or came too late."""
    if job.state.final:
        return Said(f"not {done}: it has ended", False)
    if job.state is JobState.RUNNING or job.pending_reason is PendingReason.LAUNCHING:
        return Said(f"not {done}: it was launched before", False)
    return Said(f"to be {done}") if job.requests else Said(f"not {done}", False)


def _request(
    kind: JobRequestKind,
    job: Sequence[str] | None,
    label: Sequence[str] | None,
    user: str,
    server: str | None,
    output: Output,
    said: Callable[[Job], Said],
    changes: JobUpdate | None = None,
) -> None:
    with connect(server) as client:
        chosen = _chosen(client, job, label, user, False, _WAITING)
        match kind:
            case JobRequestKind.HOLD:
                results = client.hold(chosen)
            case JobRequestKind.RELEASE:
                results = client.release(chosen)
            case JobRequestKind.UPDATE:
                results = client.update(chosen, changes or JobUpdate())
        results = _applied(client, results)
    _tell(results, output, said, "no waiting job")


def _applied(client: Client, results: Sequence[RequestResult]) -> tuple[RequestResult, ...]:
    """The results with the jobs as they are once the orchestrator has applied the requests, or after a while."""
    numbers = {each.job_id: each.job.requests[-1].number for each in results if each.job and each.job.requests}
    known = {each.job_id: each.job for each in results if each.job is not None}
    ends, open_ids = time.monotonic() + _APPLIED_WITHIN_S, list(numbers)
    while open_ids:
        known |= {each.job_id: each for each in _listed(client, open_ids)}
        open_ids = [
            each for each in open_ids if not known[each].state.final and known[each].applied_request < numbers[each]
        ]
        if open_ids and time.monotonic() > ends:
            say("[yellow]not all of it is applied yet; the orchestrator does so when it acts[/]")
            break
        time.sleep(_LOOK_EVERY_S if open_ids else 0.0)
    return tuple(replace(each, job=known.get(each.job_id)) for each in results)


def _listed(client: Client, job_ids: Sequence[str]) -> list[Job]:
    found: list[Job] = []
    for start in range(0, len(job_ids), _LOOKED_AT_ONCE):
        found += client.list(job_filter(job_ids=job_ids[start : start + _LOOKED_AT_ONCE]))
    return found


def _chosen(
    client: Client,
    job: Sequence[str] | None,
    label: Sequence[str] | None,
    user: str,
    everything: bool,
    states: Sequence[JobState],
) -> list[str]:
    """The ids of the chosen jobs; of an array those that are in these states."""
    from adlro.client import JobFilter

    named = list(job or ())
    if bool(named) == bool(label or user or everything):
        others = "--label, --user or --all" if states is _OPEN else "--label or --user"
        raise typer.BadParameter(f"name jobs, or choose them by {others}")
    if not named:
        chosen = job_filter(states=states, user=user, label=label)
        return [each.job_id for each in client.list(chosen, view=JobView.BASIC)]
    ids: list[str] = []
    for each in named:
        if not each.startswith("array-"):
            ids.append(each)
            continue
        tasks = list(client.list(JobFilter(array_id=each), view=JobView.BASIC))
        if not tasks:
            raise typer.BadParameter(f"there is no array {each!r}", param_hint="JOB")
        ids += [task.job_id for task in tasks if task.state in states]
    return ids


def _ask(question: str) -> None:
    """Asks on a terminal; elsewhere --yes must stand on the command line."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Nobody can be asked here: add --yes", param_hint="--all")
    typer.confirm(question, abort=True, err=True)


def _tell(results: Sequence[RequestResult], output: Output, said: Callable[[Job], Said], nothing: str) -> None:
    """Tells what became of each job; exit code 1 unless all that was asked for is done, or will be."""
    refused = [each for each in results if each.job is None]
    jobs = [each.job for each in results if each.job is not None]
    told = {job.job_id: said(job) for job in jobs}
    if output is Output.JSON:
        emit_json({"jobs": jobs, "refused": [_refusal(each) for each in refused]})
    else:
        for job_id, each in told.items():
            stdout().print(f"{escape(job_id)}  {each.text}")
        if not results:
            say(nothing)
    for result in refused:
        stderr().print(f"[bold red]error:[/] {escape(result.message)}")
    if refused or not all(each.done for each in told.values()):
        raise typer.Exit(EXIT_ERROR)


def _refusal(result: RequestResult) -> dict[str, str]:
    return {"job_id": result.job_id, "code": result.code, "reason": result.reason, "message": result.message}
