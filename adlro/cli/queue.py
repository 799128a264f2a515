"""`adlro queue` and `adlro history`: the jobs that wait and run, as squeue has them, and those that ended, as sacct."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from adlro.cli import render
from adlro.cli.job_filters import (
    FINAL_STATES,
    LabelOption,
    LimitOption,
    NameOption,
    TypeFilterOption,
    UserOption,
    job_filter,
    state_names,
    states_named,
)
from adlro.cli.job_listing import BASIC, HISTORY, QUEUE, JobRow, job_rows, jobs_document
from adlro.cli.listing.columns import BROAD
from adlro.cli.listing.options import with_view
from adlro.cli.listing.view import Format, Reading, View
from adlro.cli.places import at_of, reservation_text
from adlro.cli.reading import bound_s, described, patience_s
from adlro.cli.shell import ServerOption, connect, stdout
from adlro.cli.times import wall_clock
from adlro.cli.when import MOMENTS, WHEN, When, when
from adlro.errors import AdlroError
from adlro.records.events import ClusterDescription
from adlro.records.jobs import Job, JobState
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client, JobFilter, JobView, OrchestratorStatus

T = TypeVar("T")

_OPEN = (JobState.PENDING, JobState.RUNNING)
_PAGE = 500
_HISTORY_LIMIT = 50


def most(found: Iterable[T], limit: int) -> Iterator[T]:
    """The first so many; 0: all."""
    return islice(found, limit or None)


def page_size(limit: int) -> int:
    """Jobs to ask for at once."""
    return min(limit, _PAGE) if limit else _PAGE


def needed_view(view: View[JobRow]) -> JobView:
    """How much of each job the columns of a view need."""
    from adlro.client import JobView

    if view.whole_records:
        return JobView.FULL
    names = {each.name for each in view.columns(stdout().width)} | {column.name for column, _ in view.sort}
    return JobView.BASIC if view.format is Format.NAME or names <= BASIC else JobView.FULL


@with_view(QUEUE)
def queue(
    view: View[JobRow],
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="pending, running, succeeded, failed or cancelled; repeatable. Default: pending and running.",
            autocompletion=state_names,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-A", help="Jobs in every state.")] = False,
    user: UserOption = "",
    name: NameOption = "",
    job_type: TypeFilterOption = None,
    label: LabelOption = None,
    limit: LimitOption = 0,
    server: ServerOption = None,
) -> None:
    """List jobs that wait and run, in the order of submission, with the reason of each wait."""
    states = states_named(state)
    if not states and not everything:
        states = list(_OPEN)
    wanted = job_filter(states=states, types=job_type, user=user, label=label, name=name)
    narrowed = bool(state or user or name or job_type or label)
    with connect(server, patience_s=patience_s(view.every_s)) as client:
        view.show(lambda: _read_queue(client, view, wanted, limit, narrowed=narrowed, everything=everything))


def _read_queue(
    client: Client, view: View[JobRow], wanted: JobFilter, limit: int, *, narrowed: bool, everything: bool
) -> Reading[JobRow]:
    jobs = list(most(client.list(wanted, page_size=page_size(limit), view=needed_view(view)), limit))
    status: OrchestratorStatus | None = None
    cluster: ClusterDescription | None = None
    if view.format is not Format.NAME:
        # The list does not need the other services: without an answer their columns are left out.
        if view.format not in (Format.JSON, Format.YAML):
            with contextlib.suppress(AdlroError):
                status = client.status()
        cluster = described(client)
    clock = None if cluster is None else cluster.clock
    reservations = None if status is None else {each.job_id: each for each in status.reservations}
    rows = job_rows(jobs, clock, wall_clock(cluster), reservations)
    notes = []
    if stdout().width < BROAD and any(job.state is JobState.PENDING for job in jobs):
        notes.append("[dim]reasons in full: adlro why JOB, or a wider screen[/]")
    if status is not None:
        at = at_of(clock)
        notes += [
            f"[dim]kept free for {escape(each.job_id)}: {escape(reservation_text(each, at))}[/]"
            for each in status.reservations
        ]
        others = {
            "before their begin time": status.waiting_for_begin_time_count,
            "held": status.held_count,
            "after other jobs": status.dependent_count,
        }
        notes.append(
            f"[dim]{status.running_count} running, {status.queue_length} waiting"
            + "".join(f", {count} {what}" for what, count in others.items() if count)
            + f"; policy {render.policy_text(status.policy, status.deciding_policy, status.deciding_basis)}[/]"
        )
    return Reading(rows, jobs_document, notes=notes, empty=_no_jobs(narrowed=narrowed, everything=everything))


def _no_jobs(*, narrowed: bool, everything: bool) -> str:
    if narrowed:
        return "No jobs match; adlro queue --all looks at jobs in every state." if not everything else "No jobs match."
    if everything:
        return "No jobs. adlro submit --help shows how to submit one."
    return "No jobs. adlro submit --help shows how to submit one; adlro history lists jobs that have ended."


@with_view(HISTORY)
def history(
    view: View[JobRow],
    since: Annotated[
        When | None,
        typer.Option("--since", "-S", parser=when, metavar=WHEN, help=f"Ended then or later: {MOMENTS}."),
    ] = None,
    until: Annotated[
        When | None, typer.Option("--until", "-E", parser=when, metavar=WHEN, help="Ended before then.")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help="succeeded, failed or cancelled; repeatable. Default: all three.",
            autocompletion=state_names,
        ),
    ] = None,
    user: UserOption = "",
    name: NameOption = "",
    application: Annotated[str, typer.Option("--application", "-a", help="Only of this application.")] = "",
    job_type: TypeFilterOption = None,
    label: LabelOption = None,
    limit: LimitOption = _HISTORY_LIMIT,
    server: ServerOption = None,
) -> None:
    """List jobs that have ended, the last end first.

    adlro history --since now-2h --state failed --format job,name,exit,why
    """
    states = states_named(state, FINAL_STATES) or list(FINAL_STATES)
    narrowed = bool(since or until or state or user or name or application or job_type or label)

    def read() -> Reading[JobRow]:
        cluster = described(client)

        wanted = job_filter(
            states=states,
            types=job_type,
            user=user,
            label=label,
            name=name,
            application=application,
            active_after_s=bound_s(client, since, "--since", cluster),
            ended_before_s=bound_s(client, until, "--until", cluster),
        )
        found, more = _ended(client, wanted, limit, needed_view(view))
        rows = job_rows(found, None if cluster is None else cluster.clock, wall_clock(cluster))
        left_out = f"the newest {limit}; --limit 0 lists all" if more else ""
        return Reading(rows, jobs_document, left_out=left_out, empty=_no_history(narrowed=narrowed))

    with connect(server, patience_s=patience_s(view.every_s)) as client:
        view.show(read)


def _ended(client: Client, wanted: JobFilter, limit: int, shown: JobView) -> tuple[list[Job], bool]:
    """The newest ended jobs, each once, and whether there are more."""
    from adlro.client import JobOrder

    found: dict[str, Job] = {}
    # One more than asked for tells whether there are more. Of a job that comes twice, the first record counts.
    size = page_size(limit + 1) if limit else 1000
    for job in client.list(wanted, page_size=size, order=JobOrder.ENDED, view=shown):
        if limit and len(found) == limit and job.job_id not in found:
            return list(found.values()), True
        found.setdefault(job.job_id, job)
    return list(found.values()), False


def _no_history(*, narrowed: bool) -> str:
    if narrowed:
        return (
            "No ended jobs match. adlro history without options lists the newest; adlro queue those that wait and run."
        )
    return "No jobs have ended yet. adlro queue lists those that wait and run."
