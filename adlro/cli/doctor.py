"""`adlro doctor`: what this machine offers for real programs, what is wrong, and the command that mends it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from adlro.cli import machine_checks as checks
from adlro.cli.machine_checks import Finding, Level
from adlro.cli.shell import EXIT_ERROR, Output, OutputOption, emit_json, plain_table, stdout
from adlro.errors import AdlroError
from adlro.kit.running_suites import default_data_dir
from adlro.terminal import escape

_MARKS = {Level.OK: "[green]ok[/]", Level.NOTE: "[yellow]note[/]", Level.FAULT: "[bold red]fault[/]"}


def doctor(
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="The data directory of `adlro up`.", show_default=False, file_okay=False),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65532, help="The first port of `adlro up`.")] = 7701,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look at this machine: GPUs, limits, container engine, disk, clock, ports, live page, versions, store.

    Each fault comes with the command that mends it. Exit code 1 if there is a fault; notes are no faults.
    """
    findings = list(_findings((data_dir or default_data_dir()).absolute(), port))
    if output is Output.JSON:
        emit_json({"findings": findings})
    else:
        table = plain_table("", "PART", "FOUND", wrapped=("FOUND",))
        for each in findings:
            mend = f"\n[dim]mend:[/] {escape(each.mend)}" if each.mend and each.level is not Level.OK else ""
            table.add_row(_MARKS[each.level], escape(each.about), escape(each.text) + mend)
        stdout().print(table)
    if any(each.level is Level.FAULT for each in findings):
        raise typer.Exit(EXIT_ERROR)


def _findings(data_dir: Path, port: int) -> Iterator[Finding]:
    yield from checks.system()
    for about, check in (
        ("gpu", checks.gpus),
        ("limits", checks.supervision),
        ("containers", checks.engine),
        ("disk", lambda: checks.disk(data_dir)),
        ("files", checks.limits),
        ("clock", checks.clock),
        ("ports", lambda: checks.ports(port)),
    ):
        yield from _guarded(about, check)
    url, password_file = os.environ.get("ADLRO_REDIS_URL", ""), os.environ.get("ADLRO_REDIS_PASSWORD_FILE", "")
    yield from asyncio.run(checks.page(port))
    yield from asyncio.run(checks.store(url, password_file))
    yield from checks.packages()


def _guarded(about: str, check: Callable[[], Iterable[Finding]]) -> Iterable[Finding]:
    """The findings of a check; its own failure is a finding, and hides no other check."""
    try:
        return list(check())
    except AdlroError as error:
        return [Finding(about, Level.FAULT, error.message)]
    except Exception as error:
        return [Finding(about, Level.FAULT, f"it can't be looked at: {type(error).__name__}: {error}")]
