"""`--watch`: a table redrawn in place on a terminal, elsewhere one below the other with the time; until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NoReturn

from rich.console import Group, RenderableType
from rich.live import Live

from adlro.cli.shell import ended_by_sigterm, stdout

DEFAULT_EVERY_S = 2.0
"""Between two updates, where no time is given."""


def watched(
    emit: Callable[[], None] | None,
    every_s: float,
    *,
    draw: Callable[[], tuple[RenderableType, Sequence[RenderableType]]] | None = None,
) -> NoReturn:  # ends by KeyboardInterrupt (exit code 130) or SIGTERM (143), as other commands do
    """Shows something again and again.

    Args:
        emit: prints the whole output of one reading; None: `draw` is given.
        every_s: seconds between two readings.
        draw: a table, or a sentence in its place, and notes below it (rich markup).
    """
    if emit is not None or draw is None:
        while True:
            assert emit is not None
            emit()
            time.sleep(every_s)
    console = stdout()
    if not console.is_terminal:
        while True:
            table, notes = draw()
            console.print(f"[bold]{_now()}[/]")
            for each in (table, *notes, ""):
                console.print(each, soft_wrap=True)
            time.sleep(every_s)
    with ended_by_sigterm(), Live(_picture(*draw()), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(_picture(*draw()), refresh=True)


def _picture(table: RenderableType, notes: Sequence[RenderableType]) -> Any:
    # A console makes texts of markup where they are printed, so that hidden characters are written out.
    return Group(f"[dim]{_now()}  Ctrl-C ends it[/]", table, *notes)


def _now() -> str:
    return datetime.now().astimezone().strftime("%d %b %Y %H:%M:%S")
