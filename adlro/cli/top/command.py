"""`adlro top`: its options; imports the screen, and with it Textual, only to draw it."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Annotated

import typer

from adlro.cli.extras import require_textual
from adlro.cli.option_types import TIME, interval
from adlro.cli.shell import (
    Output,
    OutputOption,
    ServerOption,
    connect_async,
    emit_json,
    report,
    stdout,
)
from adlro.errors import InvalidInput

_PREDICTED_ONCE = 200
"""Running jobs whose expected runtimes one picture asks for."""


def _orders(incomplete: str) -> list[str]:
    from adlro.cli.top.job_rows import RowOrder

    return [each for each in RowOrder if each.startswith(incomplete)]


def top(
    search: Annotated[
        str,
        typer.Option(
            "--filter",
            "-f",
            metavar="WORDS",
            help="Start with this filter of the jobs: words that must all occur, user:ada in one field, !word not.",
        ),
    ] = "",
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="ORDER",
            help="state (waiting first), wait, priority, runtime, user or job.",
            autocompletion=_orders,
        ),
    ] = "state",
    interval_s: Annotated[
        float,
        typer.Option("--interval", "--interval-s", parser=interval, metavar=TIME, help="Time between updates."),
    ] = 0.5,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and return; also in a pipe.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="With --once: largest number of jobs; 0: all.")
    ] = 0,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the cluster and its jobs on one screen: who decides, every GPU, what waits and why.

    Keys: / filter, s sort, Enter why, g GPUs, d decisions, c cancel, ? all of them, q quit.

    Needs the extra `top`; --once does not.
    """
    from adlro.cli.top.job_rows import order_named

    try:
        order = order_named(sort)
    except InvalidInput as error:
        raise typer.BadParameter(error.message, param_hint="--sort") from None
    if once:
        raise typer.Exit(asyncio.run(_once(server, search, str(order), limit, output)))
    if output is Output.JSON:
        raise typer.BadParameter("needs --once: a screen is no document", param_hint="-o json")
    if limit:
        raise typer.BadParameter("needs --once", param_hint="--limit")
    require_textual()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("draws on a terminal, and this is none; --once prints one picture", param_hint="top")
    from adlro.cli.top.screen.run import run_screen

    raise typer.Exit(run_screen(server, search, order, interval_s))


async def _once(server: str | None, search: str, sort: str, limit: int, output: Output) -> int:
    from adlro.cli.top.asking import read_expected, read_once
    from adlro.cli.top.feeds import STALE_AFTER_S
    from adlro.cli.top.head import head_of
    from adlro.cli.top.job_rows import JobSearch, RowOrder, ordered
    from adlro.cli.top.model import TopModel
    from adlro.cli.top.once import once_document, print_once

    model = TopModel()
    async with connect_async(server) as client:
        errors = await read_once(client, model)
        if not model.jobs_complete:
            return report(errors[0])  # without ingest there are no jobs
        found = ordered(model.entries.values(), JobSearch(search), RowOrder(sort))
        shown = found[:limit] if limit else found
        await read_expected(client, model, [each.job.job_id for each in shown][:_PREDICTED_ONCE])
    now_s, unix_s = time.monotonic(), time.time()
    head = head_of(model, now_s, unix_s, STALE_AFTER_S)
    now = model.moment(now_s, unix_s)
    if output is Output.JSON:
        emit_json(once_document(model, head, shown, now, left_out=len(found) - len(shown)))
    else:
        print_once(stdout(), model, head, shown, now, left_out=len(found) - len(shown))
    return 0
