"""`adlro decisions`: past decisions from the store, newest last, and with --follow new ones as they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from adlro.cli import render
from adlro.cli.option_types import TIME, duration
from adlro.cli.places import placement_text
from adlro.cli.shell import (
    Output,
    OutputOption,
    ServerOption,
    connect,
    emit_json,
    emit_json_line,
    plain_table,
    say,
    stdout,
)
from adlro.records.decisions import Decision, DecisionBasis, DecisionFilter, DecisionView
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client

_LIMIT = 20
# Decisions that are not listed yet when the watch begins: more than a second has.
_GAP = 1000
_FOLLOW_PATIENCE_S = 60.0


def decisions(
    since_s: Annotated[
        float | None,
        typer.Option(
            "--since", parser=duration, metavar=TIME, help="From this time of the cluster's clock on (adlro clock)."
        ),
    ] = None,
    until_s: Annotated[
        float | None,
        typer.Option("--until", parser=duration, metavar=TIME, help="Before this time of the cluster's clock."),
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
    output: OutputOption = Output.TABLE,
) -> None:
    """List decisions: which job started where, on what basis, and what the shadow policy would have done.

    Also those of earlier orchestrators, as far as they are stored. adlro describe decision ID shows one in full.
    With --follow -o json: one decision a line.
    """
    wanted = DecisionFilter(since_s, until_s, job, gpu, _basis(basis), differs)
    with connect(server) as client:
        found = list(islice(client.decisions(wanted), limit or None))[::-1]
        if not follow:
            if output is Output.JSON:
                emit_json({"decisions": found})
            elif found:
                stdout().print(decision_table(found))
            else:
                say("no decisions" + ("" if wanted == DecisionFilter() else " that match"))
            return
    if output is Output.TABLE and found:
        stdout().print(decision_table(found))
    elif output is Output.JSON:
        for each in found:
            emit_json_line(each)
    with connect(server, patience_s=_FOLLOW_PATIENCE_S) as client:
        for each in _new(client, wanted, found):
            if output is Output.JSON:
                emit_json_line(each)
            else:
                stdout().print(_line(each))


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


def decision_table(found: Sequence[Decision]) -> Table:
    """One decision per line, in the given order."""
    columns = ("DECISION", "TIME", "JOB", "GPU", "EXPECTED", "WAITING", "POLICY", "SHADOW")
    table = plain_table(*columns, right=("TIME", "EXPECTED", "WAITING"))
    for each in found:
        table.add_row(*_cells(each))
    return table


def _line(decision: Decision) -> str:
    return "  ".join(cell for cell in _cells(decision) if cell)


def _cells(decision: Decision) -> list[str]:
    expected = decision.prediction
    return [
        escape(decision.decision_id),
        render.seconds(decision.time_s),
        f"[cyan]{escape(decision.job_id)}[/]",
        escape(placement_text(decision.placement)),
        "" if expected is None else render.seconds(expected.median_s),
        str(decision.queue_length),
        render.policy_text(decision.policy, decision.deciding_policy, decision.basis)
        + (" [dim](its base)[/]" if decision.basis is DecisionBasis.MARGIN else ""),
        _shadow(decision),
    ]


def _shadow(decision: Decision) -> str:
    shadow = decision.shadow
    if shadow is None:
        return ""
    if shadow.agrees:
        return f"[dim]{escape(shadow.policy)} agrees[/]"
    other = f"{shadow.job_id} on {placement_text(shadow.placement)}" if shadow.job_id else "holds"
    return f"[yellow]{escape(shadow.policy)}: {escape(other)}[/]"
