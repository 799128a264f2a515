"""The demo's live view: progress, the queue by job type, every GPU. Drawn on a terminal only."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from adlro.cli import render
from adlro.cli.gpus import GpuView, gpu_views
from adlro.cli.progress import ReplayProgress
from adlro.cli.replaying import RUNNING, Board
from adlro.client import AsyncClient, Telemetry
from adlro.errors import AdlroError
from adlro.records.cluster import Cluster
from adlro.records.jobs import KINDS_OF_WORK, JobState, JobType
from adlro.terminal import escape

_REFRESH_S = 0.2
_GPU_COLUMNS = 2
_BAR_WIDTH = 8
_QUEUE_DRAWN = 60


class DemoView:
    """A live view of one replay; call it with the board. Off a terminal it prints plain lines of progress."""

    def __init__(self, console: Console, title: str, client: AsyncClient, cluster: Cluster) -> None:
        self._console = console
        self._title = title
        self._client = client
        self._cluster = cluster
        self._board: Board | None = None
        self._telemetry: Telemetry | None = None
        self._plain = ReplayProgress(console, title)

    def __call__(self, board: Board) -> None:
        """Stores the replay's board."""
        self._board = board
        if not self._console.is_terminal:
            self._plain(board)

    async def show(self) -> None:
        """Draws until cancelled, then removes the drawing: the report follows."""
        if not self._console.is_terminal:
            return
        with Live(self._drawn(), console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                with contextlib.suppress(AdlroError):
                    self._telemetry = await self._client.telemetry()
                live.update(self._drawn(), refresh=True)
                await asyncio.sleep(_REFRESH_S)

    def _drawn(self) -> RenderableType:
        board = self._board
        if board is None:
            return Text(f"{self._title}: submitting ...")
        running = [job for job in board.jobs.values() if job.state is JobState.RUNNING]
        parts: list[RenderableType] = [self._head(board)]
        parts += [Text(), self._types(board), Text()]
        parts.append(gpu_grid(gpu_views(self._cluster, running, self._telemetry)))
        return Group(*parts)

    def _head(self, board: Board) -> RenderableType:
        done = board.finished if board.phase == RUNNING else len(board.jobs)
        grid = Table.grid(padding=(0, 1))
        grid.add_row(
            f"[bold]{escape(self._title)}[/]",
            ProgressBar(total=board.total, completed=done, width=24),
            f"{done}/{board.total}" if board.phase == RUNNING else f"{done}/{board.total} {board.phase}",
            f"[dim]cluster time[/] {render.seconds(board.cluster_time_s - board.begin_s)}",
        )
        return grid

    def _types(self, board: Board) -> RenderableType:
        counts: dict[JobType, Counter[str]] = {each: Counter() for each in KINDS_OF_WORK}
        for job in board.jobs.values():
            counts.setdefault(job.spec.job_type, Counter())[job.state.name] += 1
        grid = Table.grid(padding=(0, 2))
        for job_type, count in counts.items():
            finished = sum(count[state.name] for state in JobState if state.final)
            grid.add_row(
                job_type.label.replace("_", " "),
                f"[cyan]{count['RUNNING']:>3} running[/]",
                f"[green]{finished:>3} finished[/]",
            )
        more = "…" if board.waiting > _QUEUE_DRAWN else ""
        queue = f"queue {board.waiting:>3}  [yellow]{'▪' * min(board.waiting, _QUEUE_DRAWN)}{more}[/]"
        return Group(grid, queue)


def gpu_grid(views: Sequence[GpuView]) -> RenderableType:
    """All GPUs in two columns, so that sixteen fit on a small screen."""
    rows = -(-len(views) // _GPU_COLUMNS)
    grid = Table.grid(padding=(0, 1))
    for row in range(rows):
        cells: list[str] = []
        for column in range(_GPU_COLUMNS):
            index = row + column * rows
            cells += _gpu_cells(views[index]) if index < len(views) else []
            cells.append("")
        grid.add_row(*cells)
    return grid


def _gpu_cells(view: GpuView) -> list[str]:
    return [
        escape(view.gpu_id),
        render.bar(view.utilization_ratio, _BAR_WIDTH),
        f"{render.percent(view.utilization_ratio):>4}",
        f"[cyan]{escape(view.job_id):<8}[/]" if view.job_id else f"[dim]{view.state:<8}[/]",
        f"[dim]{render.number(view.temperature_c, '°'):>4}[/]",
    ]
