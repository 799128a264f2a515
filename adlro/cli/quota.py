"""`adlro quota`: the most GPUs that the jobs of a user may hold at once."""

from __future__ import annotations

from typing import Annotated

import typer

from adlro.cli.completing import users
from adlro.cli.shell import Output, OutputOption, ServerOption, connect, emit_json, plain_table, say, stdout
from adlro.records.quotas import EVERYONE
from adlro.terminal import escape


def quota(
    user: Annotated[
        str | None,
        typer.Argument(
            help="Whose quota to set, with --gpus or --none. Without: the quotas are listed.",
            autocompletion=users,
            metavar="[USER]",
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", "-g", help="GPUs that his jobs may hold at once; 0: none of them starts.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="No quota of his own any more.")] = False,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="Set the quota of each user who has none of his own.")
    ] = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List quotas, or set one: the GPUs that a user's jobs may hold at once.

    Jobs over a quota wait, with the reason quota; what runs when a quota is lowered runs on. A job that shares its GPU
    counts as one GPU.

    Examples: adlro quota ada --gpus 4; adlro quota --everyone --gpus 8; adlro quota ada --none
    """
    if everyone and user is not None:
        raise typer.BadParameter("name a user, or give --everyone", param_hint="USER")
    whose = EVERYONE if everyone else user
    if (whose is None) != (gpus is None and not none):
        raise typer.BadParameter("USER or --everyone goes with --gpus or --none", param_hint="USER")
    if gpus is not None and gpus < 0:
        raise typer.BadParameter(f"must be at least 0, not {gpus}; --none takes the quota away", param_hint="--gpus")
    if gpus is not None and none:
        raise typer.BadParameter("--gpus and --none don't go together", param_hint="--none")
    with connect(server) as client:
        if whose is not None:
            before = client.set_quota(whose, gpus)
            name = "everyone" if whose == EVERYONE else whose
            if output is Output.TABLE:
                stdout().print(f"{escape(name)}: {_gpus(gpus)} (before: {_gpus(before)})")
                return
        quotas = client.quotas()
    if output is Output.JSON:
        emit_json({"quotas": quotas})
        return
    if not quotas:
        say("no quotas; adlro quota USER --gpus N sets one")
        return
    table = plain_table("USER", "QUOTA", "HELD", right=("QUOTA", "HELD"))
    for each in quotas:
        is_everyone = each.user == EVERYONE
        table.add_row(
            "everyone" if is_everyone else escape(each.user),
            str(each.gpu_count),
            "" if is_everyone else str(each.held_gpu_count),
        )
    stdout().print(table)


def _gpus(count: int | None) -> str:
    return "no quota" if count is None else f"{count} GPU{'s' if count != 1 else ''}"
