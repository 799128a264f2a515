"""The progress of a replay, drawn live on a terminal, as plain lines elsewhere. On stderr: stdout has the report."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from adlro.cli import render
from adlro.cli.replaying import RUNNING, Board
from adlro.terminal import escape

_PLAIN_LINE_EVERY_S = 5.0


class ReplayProgress:
    """A bar on a terminal; otherwise a line every few seconds, and one for each phase. Call it with the board."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._phase = ""
        self._next_line_s = 0.0
        self._task: TaskID | None = None
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("[bold]{task.description}[/]"),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
                refresh_per_second=8,
            )

    def __enter__(self) -> ReplayProgress:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, board: Board) -> None:
        """Shows the replay's progress."""
        if self._progress is not None:
            if self._task is None:
                self._task = self._progress.add_task(escape(self._title), total=None, text="")
            # Before the clock runs there is no finished share: a bar that was full once would stop its stopwatch.
            total = board.total if board.phase == RUNNING else None
            self._progress.update(self._task, total=total, completed=board.finished, text=progress_text(board))
            return
        now_s = time.monotonic()
        if board.phase != self._phase or now_s >= self._next_line_s or board.done:
            self._phase = board.phase
            self._next_line_s = now_s + _PLAIN_LINE_EVERY_S
            self._console.print(f"{escape(self._title)}: {progress_text(board)}")


def progress_text(board: Board) -> str:
    """One line about a replay's progress."""
    if board.phase != RUNNING:
        return f"{len(board.jobs)}/{board.total} {board.phase}"
    return (
        f"{board.finished}/{board.total} finished, {board.running} running, {board.waiting} waiting,"
        f" after {render.seconds(board.cluster_time_s - board.begin_s)} of cluster time"
    )
