"""The first page: head, GPUs, and the table of the jobs with its filter."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from adlro.cli.top.gpu_cells import legend, strip
from adlro.cli.top.head import head_lines
from adlro.cli.top.job_rows import JobSearch, cells_of, columns_for, row_text
from adlro.cli.top.lines import Line, cut, fitted
from adlro.cli.top.once import row_look
from adlro.cli.top.screen.drawn_lines import LineBlock, LineTable
from adlro.cli.top.screen.page import HELP, PAUSE, QUIT, Hint, Page


class JobsPage(Page):
    """Head, GPUs and jobs."""

    HINTS: ClassVar[tuple[Hint, ...]] = (
        ("/", "filter", "app.filter"),
        ("s", "sort", "app.sort"),
        ("Enter", "why", "app.open"),
        ("g", "GPUs", "app.gpus"),
        ("d", "decisions", "app.decisions"),
        ("w", "waiting", "app.waiting"),
        ("m", "metric", "app.metric"),
        ("c", "cancel", "app.cancel"),
        PAUSE,
        HELP,
        QUIT,
    )

    def compose(self) -> ComposeResult:
        """Its parts, from top to bottom."""
        yield LineBlock(id="head")
        yield LineBlock(id="strip")
        yield Input(value=self.top.search.text, placeholder="words; user:ada; !word", id="filter", compact=True)
        yield LineBlock(id="shown")
        yield LineTable(self._row, self._head, id="jobs")
        yield LineBlock(id="hints")

    def on_mount(self) -> None:
        """Begins at the table."""
        self.query_one("#filter", Input).display = False
        self.table.focus()

    @property
    def table(self) -> LineTable:
        """The jobs."""
        return self.query_one("#jobs", LineTable)

    def show_known(self) -> None:
        """Fills the page's parts."""
        super().show_known()
        top, width, height = self.top, self.size.width, self.size.height
        small = height < 30
        self.query_one("#head", LineBlock).show(
            head_lines(top.head, width, paused=top.paused, most_problems=2 if small else 4)
        )
        cells = top.cells
        lines: list[Line] = []
        if cells:
            drawn, fold = strip(cells, top.metric, width, max(height // 5, 3))
            lines = [*drawn, cut(legend(top.metric, fold, width), width)]
            if not small:
                lines = [[], *lines, []]
        self.query_one("#strip", LineBlock).show(lines)
        self.query_one("#shown", LineBlock).show([self._shown()])
        self.table.show([each.job.job_id for each in top.rows])

    def _shown(self) -> Line:
        top = self.top
        shown, every = len(top.rows), len(top.model.entries)
        if not top.model.jobs_complete:
            return [("jobs: not known yet", "warn")]
        line: Line = [(f"{shown} jobs" if shown == every else f"{shown} of {every} jobs", "bold")]
        if top.waiting_only:
            line.append(("  waiting only", "warn"))
        if top.search.text:
            line += [("  filter ", "dim"), (fitted(top.search.text, min(len(top.search.text), 40)), "warn")]
        back = ", reversed" if top.reverse else ""
        line += [("  sorted by ", "dim"), (str(top.order), ""), (f" ({top.order.meaning}){back}", "dim")]
        return cut(line, self.size.width)

    def _head(self, width: int) -> Line:
        columns = columns_for(width)
        return [(" ".join(row_text({each.head: each.head for each in columns}, columns)), "dim")]

    def _row(self, job_id: str, width: int) -> Line:
        entry = self.top.entry(job_id)
        if entry is None:
            return []
        columns = columns_for(width)
        model = self.top.model
        cells = cells_of(entry, self.top.moment, model.expected.get(job_id), model.starts.get(job_id))
        texts = row_text(cells, columns)
        return [(text + " ", row_look(entry, column.head)) for text, column in zip(texts, columns, strict=True)]

    # The filter

    def open_filter(self) -> None:
        """Lets the user type a filter."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.value = self.top.search.text
        box.focus()

    def close_filter(self) -> bool:
        """Back to the table; False: it was there."""
        box = self.query_one("#filter", Input)
        if not box.display:
            return False
        box.display = False
        self.table.focus()
        return True

    @on(Input.Changed, "#filter")
    def _typed(self, event: Input.Changed) -> None:
        if self.query_one("#filter", Input).display:
            self.top.set_search(JobSearch(event.value))

    @on(Input.Submitted, "#filter")
    def _typed_all(self) -> None:
        self.close_filter()

    @on(LineTable.Opened)
    def _opened(self, event: LineTable.Opened) -> None:
        self.top.explain(event.key)

    @on(LineTable.HeadClicked)
    def _sort_at(self, event: LineTable.HeadClicked) -> None:
        x = 0
        for column in columns_for(self.table.width):
            x += column.width + 1
            if event.x < x:
                self.top.sort_by_column(column.head)
                return
