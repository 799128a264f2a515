"""`adlro usage`: GPU hours, waits and failures by user, GPU model, type or week; what the learned policy gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli.completing import offered_policies
from adlro.cli.documents import document
from adlro.cli.gain import Gain, compared, gain_of, gain_text, replayed
from adlro.cli.listing.columns import Column, Kind, Listing, no_such
from adlro.cli.listing.options import with_view
from adlro.cli.listing.view import Reading, View
from adlro.cli.reading import bound_s, certain_wall, described, patience_s
from adlro.cli.render import TYPE_SHORT
from adlro.cli.shell import ServerOption, connect
from adlro.cli.times import WallClock, iso_text, time_text
from adlro.cli.units_text import UNKNOWN, seconds
from adlro.cli.usage_figures import Key, UsageRow, Weeks, earliest_s, usage_rows
from adlro.cli.when import MOMENTS, WHEN, When, when
from adlro.records.jobs import Job
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client

_BASELINE = "fcfs"
_TOTAL = "total"


def key_names(incomplete: str) -> list[str]:
    """What rows can be by, for the shell's completion."""
    return [each.value for each in Key if each.value.startswith(incomplete)]


def _figures(values: Sequence[Any]) -> list[str]:
    """Numbers of one column with equally many decimals: fewer where the greatest is large, more where it is small."""
    greatest = max((abs(each) for each in values if each is not None), default=0.0)
    digits = next((digits for digits, least in ((0, 100_000.0), (1, 1000.0), (2, 1.0)) if greatest >= least), 4)
    return [UNKNOWN if each is None else f"{each:.{digits}f}" for each in values]


def _short_types(values: Sequence[Any]) -> list[str]:
    labels = {each.label: text for each, text in TYPE_SHORT.items()}
    return [UNKNOWN if each is None else labels.get(each, each) for each in values]


def _key_column(key: Key, about: str) -> Column[UsageRow]:
    def value(row: UsageRow) -> str | None:
        return (row.names[key] or None) if key in row.names else ""

    texts = _short_types if key is Key.TYPE else None
    return Column(key.value, about, value, texts=texts, floors=(24, 16, 11), only_if=lambda row: key in row.names)


def record(row: UsageRow) -> dict[str, Any]:
    """A row's JSON document."""
    return {key.value: name or None for key, name in row.names.items()} | {
        "job_count": row.job_count,
        "gpu_hours": row.gpu_hours,
        "mean_gpus": row.mean_gpus,
        "mean_wait_s": row.mean_wait_s,
        "ended_count": row.ended_count,
        "failed_count": row.failed_count,
    }


_NAMES = (*(each.value for each in Key), "jobs", "gpu_hours", "mean_gpus", "mean_wait", "ended", "failed")

USAGE: Listing[UsageRow] = Listing(
    "usage",
    (
        _key_column(Key.USER, "submitting user"),
        _key_column(Key.MODEL, "GPU model"),
        _key_column(Key.TYPE, "job type"),
        _key_column(Key.APPLICATION, "application"),
        _key_column(Key.WEEK, "week of the calendar, or of the cluster's clock"),
        Column("jobs", "jobs that ran, or ended without", lambda row: row.job_count, Kind.NUMBER, "job_count"),
        Column(
            "gpu_hours",
            "GPU hours of all attempts",
            lambda row: row.gpu_hours,
            Kind.NUMBER,
            head="GPU HOURS",
            texts=_figures,
        ),
        Column(
            "mean_gpus",
            "GPUs held on average over the range",
            lambda row: row.mean_gpus,
            Kind.NUMBER,
            head="MEAN GPUS",
            texts=_figures,
        ),
        Column(
            "mean_wait",
            "mean wait from submission to the first start",
            lambda row: row.mean_wait_s,
            Kind.DURATION,
            key="mean_wait_s",
            head="MEAN WAIT",
        ),
        Column("ended", "jobs that ended", lambda row: row.ended_count, Kind.NUMBER, "ended_count"),
        Column("failed", "of them those that failed", lambda row: row.failed_count, Kind.NUMBER, "failed_count"),
    ),
    narrow=_NAMES,
    standard=_NAMES,
    broad=_NAMES,
    wide=_NAMES,
    row_id=lambda row: ",".join(row.names.values()),
    record=record,
    example=UsageRow(dict.fromkeys(Key, ""), 0, 0.0, None, None, 0, 0),
)


def keys_named(names: Sequence[str] | None) -> list[Key]:
    """The keys of --by, each once; without names, by user.

    Raises:
        BadParameter: there is none of that name.
    """
    found: list[Key] = []
    for name in (part.strip().lower() for each in names or (Key.USER,) for part in each.split(",")):
        if name not in set(Key):
            raise typer.BadParameter(no_such(f"--by: no {name!r}", name, [each.value for each in Key], "keys"))
        found.append(Key(name))
    return list(dict.fromkeys(found))


@with_view(USAGE)
def usage(
    view: View[UsageRow],
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="KEY,...",
            help="user, model, type, application or week; several make a row for each combination. Default: user.",
            autocompletion=key_names,
        ),
    ] = None,
    since: Annotated[
        When | None,
        typer.Option("--since", "-S", parser=when, metavar=WHEN, help=f"From then on: {MOMENTS}. Default: all jobs."),
    ] = None,
    until: Annotated[
        When | None, typer.Option("--until", "-E", parser=when, metavar=WHEN, help="Until then. Default: now.")
    ] = None,
    user: Annotated[str, typer.Option("--user", "-u", help="Only of this user.")] = "",
    gain: Annotated[
        bool,
        typer.Option(
            "--gain",
            help="Also replay the finished jobs in the simulator: by how much the learned policy shortens completion "
            "times, with a 95 % interval. Takes a while (extra evaluate).",
        ),
    ] = False,
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline",
            metavar="POLICY",
            help="With --gain: the policy to compare the learned one with.",
            autocompletion=offered_policies,
        ),
    ] = _BASELINE,
    server: ServerOption = None,
) -> None:
    """Show how much GPU time was used by whom, how long jobs waited, and how many failed.

    GPU hours are those of all attempts in the range, also of lost and preempted ones; of a shared GPU, by share.

    adlro usage --by user,model --since 2026-11-01
    """
    if gain and view.every_s is not None:
        raise typer.BadParameter("--gain goes without --watch: each replay takes a while")
    keys = keys_named(by)

    def read() -> Reading[UsageRow]:
        cluster = described(client)
        from_s, to_s = (bound_s(client, each, name, cluster) for each, name in ((since, "--since"), (until, "--until")))
        now_s = (client.clock() if cluster is None else cluster.clock).time_s
        end_s = now_s if to_s is None else min(to_s, now_s)
        jobs = _jobs(client, user, from_s, to_s)
        begin_s = from_s if from_s is not None else earliest_s(jobs)
        begin_s = end_s if begin_s is None else min(begin_s, end_s)
        known = certain_wall(client, cluster)
        rows, total = usage_rows(jobs, keys, begin_s, end_s, Weeks.of(begin_s, end_s, known))
        found = _gain(client, baseline, from_s, to_s, server) if gain and rows else None
        return Reading(
            rows,
            _document(keys, begin_s, end_s, known, total, found),
            findings=[] if found is None else [escape(gain_text(found))],
            notes=[f"[dim]{_range_text(begin_s, end_s, known, iso=view.iso)}; GPU hours of all attempts[/]"]
            if rows
            else (),
            empty="No jobs ran"
            + (" in this range." if since or until or user else " yet. adlro queue lists those that wait."),
            total=replace(total, names={keys[0]: _TOTAL}) if len(rows) > 1 else None,
        )

    with connect(server, patience_s=patience_s(view.every_s)) as client:
        view.show(read)


def _jobs(client: Client, user: str, from_s: float | None, to_s: float | None) -> list[Job]:
    """All jobs that can have run in a range, each once."""
    from adlro.client import JobFilter

    wanted = JobFilter(user=user, active_after_s=from_s, submitted_before_s=to_s)
    return list({job.job_id: job for job in client.list(wanted, page_size=1000)}.values())


def _gain(client: Client, baseline: str, from_s: float | None, to_s: float | None, server: str | None) -> Gain:
    policy, other = compared(client.policies(), baseline)
    return gain_of(replayed(other, from_s, to_s, server), policy, baseline)


def _document(
    keys: Sequence[Key], from_s: float, to_s: float, wall: WallClock | None, total: UsageRow, gain: Gain | None
) -> Callable[[Sequence[UsageRow]], dict[str, Any]]:
    begin, end = (iso_text(None if wall is None else wall.unix_s(each)) for each in (from_s, to_s))
    return lambda rows: {
        "by": [each.value for each in keys],
        "from_s": from_s,
        "to_s": to_s,
        "from": begin,
        "to": end,
        "usage": [record(row) for row in rows],
        "total": record(total),
        "gain": document(gain),
    }


def _range_text(from_s: float, to_s: float, wall: WallClock | None, *, iso: bool) -> str:
    if wall is None:
        return f"from {seconds(from_s)} to {seconds(to_s)} of cluster time"
    return f"from {time_text(from_s, wall, iso=iso)} to {time_text(to_s, wall, iso=iso)}"
