"""How commands choose jobs: the argument JOB; the options user, type, state, label, and the filter of their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli.completing import jobs_in, users
from adlro.cli.job_options import job_type, labels
from adlro.cli.option_types import job_id
from adlro.records.jobs import JobState

if TYPE_CHECKING:
    from adlro.client import JobFilter

_STATES = {each.name.lower(): each for each in JobState}
FINAL_STATES = tuple(each for each in JobState if each.final)
"""The states of jobs that have ended."""


def state_names(incomplete: str) -> list[str]:
    """The states whose names begin so, for the shell's completion."""
    return [name for name in _STATES if name.startswith(incomplete.lower())]


def job_argument(states: Sequence[JobState] = ()) -> Any:
    """The argument JOB of commands about one job.

    Args:
        states: those of the jobs that the shell completes; empty: of all.
    """
    return typer.Argument(metavar="JOB", parser=job_id, autocompletion=jobs_in(states), help="Such as job-17, or 17.")


LabelOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Only with this label; repeatable.")
]
UserOption = Annotated[str, typer.Option("--user", "-u", autocompletion=users, help="Only of this user.")]
TypeFilterOption = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TYPE", help="Only of this job type; repeatable."),
]
NameOption = Annotated[
    str, typer.Option("--name", metavar="TEXT", help="Only jobs with this text in their name, in any case.")
]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=0, help="Largest number of jobs; 0: all.")]


def states_named(names: Sequence[str] | None, allowed: Sequence[JobState] = tuple(JobState)) -> list[JobState]:
    """The states of names; several may stand in one word, with commas.

    Raises:
        BadParameter: there is none of that name, or it is not allowed here.
    """
    known = {each.name.lower(): each for each in allowed}
    found = []
    for name in (part.strip() for each in names or () for part in each.split(",")):
        if name.lower() not in known:
            raise typer.BadParameter(f"{name!r}: there are {', '.join(known)}", param_hint="--state")
        found.append(known[name.lower()])
    return found


def job_filter(
    *,
    states: Sequence[JobState] = (),
    types: Sequence[str] | None = None,
    user: str = "",
    label: Sequence[str] | None = None,
    job_ids: Sequence[str] = (),
    name: str = "",
    application: str = "",
    active_after_s: float | None = None,
    ended_before_s: float | None = None,
) -> JobFilter:
    """The filter of options' values.

    Raises:
        BadParameter: of a type or a label.
    """
    from adlro.client import JobFilter

    return JobFilter(
        states=tuple(states),
        job_types=tuple(job_type(each) for each in types or ()),
        user=user,
        application=application,
        labels=labels(label),
        job_ids=tuple(job_ids),
        name_contains=name,
        active_after_s=active_after_s,
        ended_before_s=ended_before_s,
    )
