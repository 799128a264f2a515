"""The program behind the screen: what is shown of the model, the keys, and the feeds in the background."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.worker import Worker, WorkerState

from adlro.cli.top.feeds import STALE_AFTER_S, Feeds
from adlro.cli.top.gpu_cells import GpuCell, StripMetric
from adlro.cli.top.head import Head, head_of
from adlro.cli.top.job_rows import JobEntry, JobSearch, Moment, RowOrder, ordered
from adlro.cli.top.model import TopModel
from adlro.cli.top.screen.drawn_lines import BACKGROUND, LineTable
from adlro.cli.top.screen.jobs_page import JobsPage
from adlro.cli.top.screen.page import Page
from adlro.cli.top.screen.question import CancelQuestion
from adlro.cli.top.screen.reading_pages import HelpPage, OneJobPage
from adlro.cli.top.screen.table_pages import DecisionsPage, GpusPage
from adlro.errors import AdlroError
from adlro.text import visible

if TYPE_CHECKING:
    from adlro.client import AsyncClient

_BY_COLUMN = {
    "JOB": RowOrder.JOB,
    "USER": RowOrder.USER,
    "STATE": RowOrder.STATE,
    "WAIT": RowOrder.WAIT,
    "PRIO": RowOrder.PRIORITY,
    "RUN/EXP": RowOrder.RUNTIME,
}
_NOTE_S = 6.0


class TopApp(App[int]):
    """`adlro top`.

    Args:
        client: asks once and does not retry.
        search: filter of the jobs at the start.
        order: of the jobs at the start.
        interval_s: between two updates of the screen.
    """

    TITLE = "adlro top"
    ENABLE_COMMAND_PALETTE = False
    CSS = f"""
    Screen {{ background: {BACKGROUND}; layout: vertical; overflow: hidden; }}
    Screen:nocolor {{ background: ansi_default; }}
    CancelQuestion {{ align: center middle; background: {BACKGROUND} 60%; }}
    CancelQuestion > Vertical {{ width: 64; max-width: 90%; height: auto; border: round #f0c05a; }}
    CancelQuestion > Vertical {{ background: {BACKGROUND}; padding: 0 1; }}
    #filter {{ height: 1; background: #2b3a55; border: none; padding: 0 1; }}
    #filter:nocolor {{ background: ansi_default; text-style: underline; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", show=False),
        Binding("s", "sort", show=False),
        Binding("S", "reverse", show=False),
        Binding("g", "gpus", show=False),
        Binding("d", "decisions", show=False),
        Binding("w", "waiting", show=False),
        Binding("m", "metric", show=False),
        Binding("c", "cancel", show=False),
        Binding("p", "pause", show=False),
        Binding("question_mark", "help", show=False),
        Binding("q", "quit", show=False),
        Binding("escape", "back", show=False, priority=True),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(
        self,
        client: AsyncClient,
        search: JobSearch | None = None,
        order: RowOrder = RowOrder.STATE,
        interval_s: float = 0.5,
        model: TopModel | None = None,
    ) -> None:
        # Without colours the terminal's own stay.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.client = client
        self.search = search or JobSearch()
        self.order = order
        self.reverse = False
        self.waiting_only = False
        self.metric = StripMetric.STATE
        self.paused = False
        self.model = model or TopModel()
        self.head: Head = Head()
        self.cells: list[GpuCell] = []
        self.rows: list[JobEntry] = []
        self.moment = Moment(None, time.time())
        self._interval_s = interval_s
        self._entries: dict[str, JobEntry] = {}
        self._sorted: tuple[object, ...] | None = None
        self.jobs_page = JobsPage()

    # Life

    async def on_mount(self) -> None:
        """Opens the first page and the sources."""
        self.look()
        await self.push_screen(self.jobs_page)
        self.set_interval(self._interval_s, self.tick)
        feeds = Feeds(self.client, self.model, self._interval_s, self.jobs_on_screen)
        self.run_worker(feeds.run(), name="feeds", exit_on_error=True)

    def jobs_on_screen(self) -> Sequence[str]:
        """The ids of the jobs that are seen; on a busy machine the page may have no table yet."""
        tables = self.jobs_page.query("#jobs").results(LineTable)
        return next((each.visible_keys for each in tables), ())

    async def on_unmount(self) -> None:
        """Closes the connections."""
        with contextlib.suppress(Exception):  # the screen goes, whatever becomes of them
            async with asyncio.timeout(1.0):
                await self.client.close()

    def tick(self) -> None:
        """Shows what has come since the last look, unless the screen is paused."""
        if not self.paused:
            self.look()
            self.draw()

    def look(self) -> None:
        """Takes a picture of the model."""
        now_s, unix_s = time.monotonic(), time.time()
        self.head = head_of(self.model, now_s, unix_s, STALE_AFTER_S)
        self.moment = self.model.moment(now_s, unix_s)
        self.cells = self.model.cells()
        self.sort_rows()

    def sort_rows(self) -> None:
        """Chooses and orders the rows anew where something changed."""
        made_of = (self.model.jobs_version, self.search, self.order, self.reverse, self.waiting_only)
        if made_of == self._sorted:
            return
        self._sorted = made_of
        self._entries = dict(self.model.entries)
        self.rows = ordered(
            self._entries.values(), self.search, self.order, reverse=self.reverse, waiting_only=self.waiting_only
        )

    def entry(self, job_id: str) -> JobEntry | None:
        """A job of the picture."""
        return self._entries.get(job_id)

    def draw(self) -> None:
        """Draws the page on top."""
        # At its end, a last tick may find no page any more.
        if self.is_running and isinstance(self.screen, Page):
            self.screen.draw()

    # What the user sets

    def set_search(self, search: JobSearch) -> None:
        """Shows the jobs that match."""
        self.search = search
        self._rows_changed()

    def _rows_changed(self) -> None:
        self.sort_rows()
        self.draw()

    def sort_by_column(self, head: str) -> None:
        """Sorts by a column; the same one again: reversed."""
        order = _BY_COLUMN.get(head)
        if order is None:
            return
        self.reverse = not self.reverse if order is self.order else False
        self.order = order
        self._rows_changed()

    def action_filter(self) -> None:
        """Lets the user type a filter."""
        if self.screen is self.jobs_page:
            self.jobs_page.open_filter()

    def action_sort(self) -> None:
        """The next order."""
        if self.screen is self.jobs_page:
            self.order, self.reverse = self.order.next, False
            self._rows_changed()

    def action_reverse(self) -> None:
        """The order the other way round."""
        if self.screen is self.jobs_page:
            self.reverse = not self.reverse
            self._rows_changed()

    def action_waiting(self) -> None:
        """Waiting jobs only, or all."""
        if self.screen is self.jobs_page:
            self.waiting_only = not self.waiting_only
            self._rows_changed()

    def action_metric(self) -> None:
        """The next metric of the strip."""
        self.metric = self.metric.next
        self.draw()

    def action_pause(self) -> None:
        """Stops what is shown, or goes on."""
        self.paused = not self.paused
        if not self.paused:
            self.look()
        self.draw()

    # Pages

    def action_open(self) -> None:
        """What is selected, in full."""
        if isinstance(self.focused, LineTable):
            self.focused.action_open()

    def explain(self, job_id: str) -> None:
        """One job in full."""
        entry = self._entries.get(job_id)
        if entry is not None:
            self.push_screen(OneJobPage(entry.job))

    def action_gpus(self) -> None:
        """All GPUs."""
        self._go(GpusPage)

    def action_decisions(self) -> None:
        """The decisions."""
        self._go(DecisionsPage)

    def action_help(self) -> None:
        """All keys."""
        self._go(HelpPage)

    def _go(self, kind: type[Page]) -> None:
        if not isinstance(self.screen, CancelQuestion) and not isinstance(self.screen, kind):
            self.push_screen(kind())

    async def action_back(self) -> None:
        """To the page before; on the first one the filter goes."""
        if isinstance(self.screen, CancelQuestion):
            self.screen.dismiss(False)
        elif self.screen is not self.jobs_page:
            self.pop_screen()
        else:
            self.jobs_page.close_filter()
            self.set_search(JobSearch())

    def action_interrupt(self) -> None:
        """Ends as after Ctrl-C."""
        self.exit(128 + signal.SIGINT)

    # Cancel

    def action_cancel(self) -> None:
        """Asks whether the selected job shall be cancelled."""
        job_id = ""
        if isinstance(self.screen, OneJobPage):
            job_id = self.screen.job.job_id
        elif self.screen is self.jobs_page:
            job_id = self.jobs_page.table.selected
        entry = self.model.entries.get(job_id)
        if entry is None:
            return

        def answered(sure: bool | None) -> None:
            if sure:
                self.run_worker(self._cancel(job_id))

        self.push_screen(CancelQuestion(entry.job), answered)

    async def _cancel(self, job_id: str) -> None:
        try:
            job = await self.client.cancel(job_id)
        except AdlroError as error:
            self.note(f"{job_id} is not cancelled: {error.message}", bad=True)
        else:
            self.note(f"{job_id} is {'cancelled' if job.state.final else 'being cancelled'}")

    def note(self, text: str, *, bad: bool = False) -> None:
        """Tells the user something for some seconds."""
        self.notify(visible(text), severity="error" if bad else "information", timeout=_NOTE_S, markup=False)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """The feeds never end by themselves."""
        if event.worker.name == "feeds" and event.state is WorkerState.SUCCESS:
            self.exit(1)
