"""`adlro decisions`: past decisions from the store, newest last, and with --follow new ones as they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from adlro.cli import render
from adlro.cli.listing.columns import Column, Kind, Listing
from adlro.cli.listing.options import with_view
from adlro.cli.listing.view import Format, Reading, View
from adlro.cli.places import placement_text
from adlro.cli.reading import bound_s, certain_wall, described, patience_s
from adlro.cli.shell import ServerOption, connect, emit_json_line, stdout
from adlro.cli.times import WallClock
from adlro.cli.when import MOMENTS, WHEN, When, when
from adlro.placement import NOWHERE
from adlro.records.decisions import Decision, DecisionBasis, DecisionFilter, DecisionView
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client

_LIMIT = 20
# Decisions that are not listed yet when the watch begins: more than a second has.
_GAP = 1000
_FOLLOW_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision in a table, with the wall time at which it was made; None: not known."""

    decision: Decision
    unix_s: float | None = None


def _policy(row: DecisionRow) -> str:
    decision = row.decision
    text = render.policy_text(decision.policy, decision.deciding_policy, decision.basis)
    return Text.from_markup(text).plain + (" (its base)" if decision.basis is DecisionBasis.MARGIN else "")


def _shadow(row: DecisionRow) -> str:
    shadow = row.decision.shadow
    if shadow is None:
        return ""
    if shadow.agrees:
        return f"{shadow.policy} agrees"
    other = f"{shadow.job_id} on {placement_text(shadow.placement)}" if shadow.job_id else "holds"
    return f"{shadow.policy}: {other}"


def _shadow_style(row: DecisionRow) -> str:
    return "dim" if row.decision.shadow is None or row.decision.shadow.agrees else "yellow"


_NAMES = ("decision", "made", "time", "job", "gpu", "expected", "waiting", "policy", "shadow")

DECISIONS: Listing[DecisionRow] = Listing(
    "decisions",
    (
        Column("decision", "id", lambda row: row.decision.decision_id, key="decision_id"),
        Column(
            "made",
            "when it was made, by the wall clock",
            lambda row: row.unix_s,
            Kind.MOMENT,
            only_if=lambda row: row.unix_s is not None,
        ),
        Column("time", "when it was made, cluster time", lambda row: row.decision.time_s, Kind.DURATION, "time_s"),
        Column("job", "the job that it started", lambda row: row.decision.job_id, key="job_id", style=lambda _: "cyan"),
        Column("gpu", "where", lambda row: placement_text(row.decision.placement), floors=(28, 18, 12), cut_after=1),
        Column(
            "expected",
            "the runtime that was expected there",
            lambda row: None if row.decision.prediction is None else row.decision.prediction.median_s,
            Kind.DURATION,
            "expected_s",
        ),
        Column("waiting", "jobs in the queue", lambda row: row.decision.queue_length, Kind.NUMBER, "queue_length"),
        Column("policy", "who decided", _policy, floors=(30, 17, 10)),
        Column(
            "shadow",
            "what the shadow policy would have done",
            _shadow,
            floors=(24, 12, 8),
            cut_after=2,
            style=_shadow_style,
            only_if=lambda row: row.decision.shadow is not None,
        ),
        Column("attempt", "the job's attempt that it started", lambda row: row.decision.attempt, Kind.NUMBER),
        Column("basis", "on what basis", lambda row: row.decision.basis),
        Column("version", "the learned policy's checkpoint", lambda row: row.decision.policy_version),
        Column("summary", "the decision in a sentence", lambda row: row.decision.summary, floors=(40, 24, 12)),
    ),
    narrow=tuple(each for each in _NAMES if each != "waiting"),
    standard=_NAMES,
    broad=_NAMES,
    wide=(*_NAMES, "attempt", "basis", "version", "summary"),
    row_id=lambda row: row.decision.decision_id,
    record=lambda row: row.decision,
    example=DecisionRow(Decision("", "", NOWHERE, "", 0.0, 0, (), (), "", 0.0, 0)),
)


def _rows(found: Sequence[Decision], wall: WallClock | None) -> list[DecisionRow]:
    return [DecisionRow(each, None if wall is None else wall.unix_s(each.time_s)) for each in found]


@with_view(DECISIONS)
def decisions(
    view: View[DecisionRow],
    since: Annotated[
        When | None, typer.Option("--since", "-S", parser=when, metavar=WHEN, help=f"Made then or later: {MOMENTS}.")
    ] = None,
    until: Annotated[
        When | None, typer.Option("--until", "-E", parser=when, metavar=WHEN, help="Made before then.")
    ] = None,
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Only about this job.")] = "",
    gpu: Annotated[str, typer.Option("--gpu", metavar="GPU", help="Only starts on this GPU, such as volta-0/1.")] = "",
    basis: Annotated[
        str,
        typer.Option("--basis", metavar="BASIS", help=f"Only of this basis: {', '.join(DecisionBasis)}."),
    ] = "",
    differs: Annotated[
        bool, typer.Option("--differs", help="Only those in which the shadow policy decided differently.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="The newest so many; 0: all.")] = _LIMIT,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then new decisions, until Ctrl-C.")] = False,
    server: ServerOption = None,
) -> None:
    """List decisions: which job started where, on what basis, and what the shadow policy would have done.

    Also those of earlier orchestrators, as far as they are stored. adlro describe decision ID shows one in full.
    With --follow -o json: one decision a line.
    """
    if follow and (view.every_s is not None or not (view.format.is_table or view.format is Format.JSON)):
        raise typer.BadParameter("--follow goes with tables and with -o json, and without --watch")
    known_basis = _basis(basis)

    def asked(client: Client) -> DecisionFilter:
        since_s, until_s = bound_s(client, since, "--since"), bound_s(client, until, "--until")
        return DecisionFilter(since_s, until_s, job, gpu, known_basis, differs)

    def read() -> Reading[DecisionRow]:
        wanted = asked(client)
        # One more than asked for tells whether there are more.
        newest = list(islice(client.decisions(wanted), limit + 1 if limit else None))
        found = newest[: limit or None][::-1]
        empty = "No decisions" + (" match." if wanted != DecisionFilter() else " yet: they come with jobs.")
        wall = (
            None if view.whole_records and view.format is not Format.CUSTOM else certain_wall(client, described(client))
        )
        left_out = f"the newest {limit}; --limit 0 lists all" if len(newest) > len(found) else ""
        return Reading(
            _rows(found, wall),
            lambda rows: {"decisions": [row.decision for row in rows]},
            left_out=left_out,
            empty=empty,
        )

    with connect(server, patience_s=patience_s(view.every_s)) as client:
        if not follow:
            view.show(read)
            return
        wanted, first = asked(client), read()
        if view.format.is_table and first.rows:
            view.show(lambda: first)
        elif view.format is Format.JSON:
            for row in first.rows:
                emit_json_line(row.decision)
    with connect(server, patience_s=_FOLLOW_PATIENCE_S) as client:
        for each in _new(client, wanted, [row.decision for row in first.rows]):
            if view.format is Format.JSON:
                emit_json_line(each)
            else:
                stdout().print(escape(_line(view, each)), soft_wrap=True)


def _line(view: View[DecisionRow], decision: Decision) -> str:
    row = DecisionRow(decision)
    cells = (column.cells([column.value(row)])[0] for column in view.columns(stdout().width, [row]))
    return "  ".join(cell for cell in cells if cell not in ("", render.UNKNOWN))


def _basis(name: str) -> DecisionBasis | None:
    if not name:
        return None
    try:
        return DecisionBasis(name.lower())
    except ValueError:
        raise typer.BadParameter(f"{name!r}: there are {', '.join(DecisionBasis)}", param_hint="--basis") from None


def _new(client: Client, wanted: DecisionFilter, shown: Sequence[Decision]) -> Iterator[Decision]:
    """Matching decisions that are newer than those that were shown."""
    newest = _order(shown[-1]) if shown else ()
    for each in client.watch_decisions(_GAP, view=DecisionView.SUMMARY):
        if wanted.matches(each) and _order(each) > newest:
            newest = _order(each)
            yield each


def _order(decision: Decision) -> tuple[int, ...]:
    """Rises with each decision: the lease's token, and the number of the decision."""
    return tuple(int(part) for part in decision.decision_id.split("-")[1:] if part.isdecimal())
