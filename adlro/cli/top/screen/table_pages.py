"""The GPUs, and the decisions as they are made."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import aclosing
from typing import ClassVar

from textual import on
from textual.app import ComposeResult

from adlro.cli.top import asking
from adlro.cli.top.gpu_cells import GpuCell
from adlro.cli.top.lines import Line, cut
from adlro.cli.top.screen.drawn_lines import LineBlock, LineTable
from adlro.cli.top.screen.page import BACK, HELP, PAUSE, QUIT, Hint, Page
from adlro.cli.top.screen.reading_pages import DecisionPage
from adlro.cli.top.tables import decision_head, decision_row, gpu_head, gpu_row
from adlro.errors import AdlroError
from adlro.records.decisions import Decision

_DECISIONS = 500
_HISTORY = 100


class GpusPage(Page):
    """Every GPU."""

    HINTS: ClassVar[tuple[Hint, ...]] = (
        ("Enter", "its job", "app.open"),
        ("d", "decisions", "app.decisions"),
        BACK,
        PAUSE,
        HELP,
        QUIT,
    )

    def __init__(self) -> None:
        super().__init__()
        self._cells: dict[str, GpuCell] = {}

    def compose(self) -> ComposeResult:
        """Its parts, from top to bottom."""
        yield LineBlock(id="head")
        yield LineTable(self._row, gpu_head, id="gpus")
        yield LineBlock(id="hints")

    def on_mount(self) -> None:
        """Begins at the table."""
        self.query_one("#gpus", LineTable).focus()

    def show_known(self) -> None:
        """Fills the page's parts."""
        super().show_known()
        top = self.top
        lines = [self.title_line("GPUs")]
        if not top.cells:
            why = (
                "your token shows only your own jobs; what is free stands on the first page"
                if top.head.own_jobs_only
                else "not known yet"
            )
            lines.append([(f"GPUs: {why}", "warn")])
        self.query_one("#head", LineBlock).show(lines)
        self._cells = {each.gpu_id: each for each in top.cells}
        self.query_one("#gpus", LineTable).show(list(self._cells))

    def _row(self, gpu_id: str, width: int) -> Line:
        cell = self._cells.get(gpu_id)
        return [] if cell is None else gpu_row(cell, width)

    @on(LineTable.Opened)
    def _opened(self, event: LineTable.Opened) -> None:
        cell = self._cells.get(event.key)
        if cell is not None and cell.job_ids:
            self.top.explain(cell.job_ids[0])


class DecisionsPage(Page):
    """Decisions as they are made. They are watched only while this page is open: they cost the orchestrator work."""

    HINTS: ClassVar[tuple[Hint, ...]] = (
        ("Enter", "candidates", "app.open"),
        ("g", "GPUs", "app.gpus"),
        BACK,
        PAUSE,
        HELP,
        QUIT,
    )

    def __init__(self) -> None:
        super().__init__()
        self._decisions: OrderedDict[str, Decision] = OrderedDict()
        self._problem = "connecting"

    def compose(self) -> ComposeResult:
        """Its parts, from top to bottom."""
        yield LineBlock(id="head")
        yield LineTable(self._row, decision_head, id="decisions")
        yield LineBlock(id="hints")

    def on_mount(self) -> None:
        """Watches until the page is closed."""
        self.query_one("#decisions", LineTable).focus()
        self.run_worker(self._watch())

    async def _watch(self) -> None:
        while True:
            try:
                async with aclosing(asking.decisions(self.top.client, _HISTORY)) as found:
                    self._problem = ""
                    async for decision in found:
                        self._decisions[decision.decision_id] = decision
                        while len(self._decisions) > _DECISIONS:
                            self._decisions.popitem(last=False)
            except AdlroError as error:
                self._problem = error.message
            self.draw()
            await asyncio.sleep(1.0)

    def show_known(self) -> None:
        """Fills the page's parts."""
        super().show_known()
        lines = [self.title_line("decisions")]
        if self._problem:
            lines += [cut([(self._problem, "warn")], self.size.width)]
        self.query_one("#head", LineBlock).show(lines)
        self.query_one("#decisions", LineTable).show(list(reversed(self._decisions)))

    def _row(self, decision_id: str, width: int) -> Line:
        decision = self._decisions.get(decision_id)
        return [] if decision is None else decision_row(decision, width)

    @on(LineTable.Opened)
    def _opened(self, event: LineTable.Opened) -> None:
        decision = self._decisions.get(event.key)
        if decision is not None:
            self.app.push_screen(DecisionPage(decision))
