"""`adlro fair-share`: the shares and groups of users, by which fair share measures GPU time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli.completing import users
from adlro.cli.shell import Output, OutputOption, ServerOption, connect, emit_json, plain_table, say, stdout
from adlro.errors import AdlroError
from adlro.records.fair_share import GROUP, FairShare
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client


def fair_share(
    user: Annotated[
        str | None,
        typer.Argument(
            help="Whose shares or group to set; a group is written @NAME. Without: all are listed.",
            autocompletion=users,
            metavar="[USER|@GROUP]",
        ),
    ] = None,
    shares: Annotated[
        float | None, typer.Option("--shares", "-s", min=0.001, help="His GPU time counts divided by them; first 1.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="The group that he is in; '' for none.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="One share and no group, as at first.")] = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List shares with the GPU time that counts, or set them: who has had less for each share goes first.

    They matter where the suite has a rule of precedence with fair share (ADLRO_ORCHESTRATOR_PRECEDENCE), and under the
    policy las. The members of a group count as one.

    Examples: adlro fair-share ada --shares 2; adlro fair-share ada --group vision; adlro fair-share @vision --shares 3
    """
    sets = shares is not None or group is not None
    if (user is None) == (sets or none):
        raise typer.BadParameter("USER goes with --shares, --group or --none", param_hint="USER")
    if none and sets:
        raise typer.BadParameter("--none goes with neither --shares nor --group", param_hint="--none")
    with connect(server) as client:
        if output is Output.TABLE:
            _tell_whether_they_count(client)
        if user is not None:
            now = client.set_fair_share(
                user, shares=shares, group=None if group is None else group.removeprefix(GROUP), remove=none
            )
            if output is Output.TABLE:
                stdout().print(f"{escape(now.account)}: {_text(now)}")
                return
        known = client.fair_shares()
    if output is Output.JSON:
        emit_json({"fair_shares": known})
        return
    if not known:
        say("nobody has had GPU time or has shares set; adlro fair-share USER --shares N sets them")
        return
    figures = ("SHARES", "GPU HOURS", "PER SHARE")
    table = plain_table("ACCOUNT", "GROUP", *figures, right=figures)
    for each in known:
        hours = each.gpu_s / 3600.0
        table.add_row(
            escape(each.account),
            escape(each.group),
            f"{each.shares:g}",
            "" if each.group else f"{hours:,.2f}",
            "" if each.group else f"{hours / each.shares:,.2f}",
        )
    stdout().print(table)


def _tell_whether_they_count(client: Client) -> None:
    with contextlib.suppress(AdlroError):  # a submitter may not ask for it
        if not client.status().precedence:
            say(
                "No rule of precedence is in force: shares matter under the policy las alone. "
                "The suite takes one at its start, such as ADLRO_ORCHESTRATOR_PRECEDENCE=fair_share=1"
            )


def _text(now: FairShare) -> str:
    return f"{now.shares:g} {'share' if now.shares == 1.0 else 'shares'}" + (
        f", in the group {escape(now.group)}" if now.group else ""
    )
