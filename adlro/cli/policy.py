"""`adlro policy`: the policies with what each is for, and the choice of the acting and the shadow policy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli.completing import offered_policies
from adlro.cli.listing.columns import Column, Listing
from adlro.cli.listing.options import with_view
from adlro.cli.listing.view import Format, Reading, View
from adlro.cli.listing.yaml_text import to_yaml
from adlro.cli.reading import patience_s
from adlro.cli.shell import ServerOption, connect, emit_json, plain_table, stdout
from adlro.records.status import BUILT_IN, OfferedPolicy
from adlro.terminal import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from adlro.client import Client

# Widest table of policies: longer lines are hard to read.
_POLICY_WIDTH = 100


def _role(policy: OfferedPolicy) -> str:
    return "acting" if policy.acting else "shadow" if policy.shadow else ""


_NAMES = ("role", "policy", "advice")

POLICIES: Listing[OfferedPolicy] = Listing(
    "policies",
    (
        Column("policy", "its name", lambda row: row.name, key="name", floors=(40, 24)),
        Column("role", "acting, shadow, or neither", _role, style=lambda row: "green" if row.acting else "dim"),
        Column("advice", "what it is for", lambda row: row.advice or row.description, floors=(60, 30)),
        Column("description", "what it chooses, by which score", lambda row: row.description, floors=(60, 30)),
        Column("source", "ADLRO, a package or a file", lambda row: row.source, floors=(40, 24)),
        Column("version", "of its checkpoint, or of its code", lambda row: row.version),
        Column("problem", "why it can't decide", lambda row: row.problem, floors=(40, 24)),
    ),
    narrow=_NAMES,
    standard=_NAMES,
    broad=_NAMES,
    wide=("role", "policy", "version", "source", "problem", "advice", "description"),
    row_id=lambda row: row.name,
    record=lambda row: row,
    example=OfferedPolicy("", "", acting=False),
)


@with_view(POLICIES)
def policy(
    view: View[OfferedPolicy],
    name: Annotated[
        str,
        typer.Argument(
            help="The policy to act. Without a name: list the policies.",
            show_default=False,
            autocompletion=offered_policies,
        ),
    ] = "",
    shadow: Annotated[
        str | None,
        typer.Option(
            "--shadow",
            metavar="NAME",
            help="Run this policy beside the acting one, without placing jobs, and count its differences; none: stop.",
            autocompletion=offered_policies,
        ),
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Also say what each policy chooses, and what its score means.")
    ] = False,
    server: ServerOption = None,
) -> None:
    """List the policies and what each is for, or set the acting policy or the shadow policy.

    The setting applies from the next decision on, and after later starts. The policy marked * acts.
    """
    sets = bool(name) or shadow is not None
    if sets and view.every_s is not None:
        raise typer.BadParameter("goes with the list of policies, not with a choice of one", param_hint="--watch")
    with connect(server, patience_s=patience_s(view.every_s)) as client:
        if sets:
            _set_policies(client, name, shadow, view.format)
            return
        view.show(lambda: _read(client, view, long=long))


def _read(client: Client, view: View[OfferedPolicy], *, long: bool) -> Reading[OfferedPolicy]:
    explained = view.header and not view.chosen
    return Reading(
        client.policies(),
        lambda rows: {"policies": rows},
        findings=["[dim]JCT: job completion time, from the submission of a job to its end.[/]"] if explained else (),
        drawn=lambda rows: policy_table(rows, stdout().width, long=long, header=view.header),
    )


def policy_table(found: Sequence[OfferedPolicy], width: int, *, long: bool, header: bool = True) -> Table:
    """The policies with what each is for; at most 100 columns, so that lines stay readable.

    Args:
        found: the policies.
        width: of the screen, in columns.
        long: also says what each chooses.
        header: with a line of headings.
    """
    table = plain_table("", "POLICY", "FOR WHAT", wrapped=("POLICY", "FOR WHAT"))
    table.width, table.show_header = min(width, _POLICY_WIDTH), header
    for each in found:
        mark = "[green]*[/]" if each.acting else "[dim]shadow[/]" if each.shadow else ""
        own = each.source not in ("", BUILT_IN)
        lines = [escape(each.advice or each.description)] if each.advice or each.description else []
        if long and each.advice and each.description:
            lines.append(f"[dim]{escape(each.description)}[/]")
        if own:
            lines.append(
                f"[dim]from {escape(each.source)}{f', version {escape(each.version)}' if each.version else ''}[/]"
            )
        elif each.version and (long or each.acting or each.shadow):
            lines.append(f"[dim]checkpoint {escape(each.version)}[/]")
        if each.problem:
            lines.append(f"[yellow]{escape(each.problem)}[/]")
        # A file that can't be used has told no name: its class stands for it.
        table.add_row(mark, escape(each.name.rpartition(":")[2]), "\n".join(lines))
    return table


def _set_policies(client: Client, name: str, shadow: str | None, output: Format) -> None:
    told: dict[str, str] = {}
    if name:
        told |= {"policy": name, "previous_policy": client.set_policy(name)}
    if shadow is not None:
        wanted = "" if shadow == "none" else shadow
        told |= {"shadow_policy": wanted, "previous_shadow_policy": client.set_shadow_policy(wanted)}
    if output is Format.JSON:
        emit_json(told)
        return
    if output is Format.YAML:
        sys.stdout.write(to_yaml(told))
        return
    if name:
        stdout().print(f"{escape(name)} acts now, in place of {escape(told['previous_policy'])}")
    if shadow is not None:
        beside = f"{escape(told['shadow_policy'])} runs" if told["shadow_policy"] else "no policy runs"
        instead = f", in place of {escape(before)}" if (before := told["previous_shadow_policy"]) else ""
        stdout().print(f"{beside} in the shadow now{instead}; adlro status shows how often it agrees")
