"""The pages of the screen: jobs, GPUs, decisions, one job, one decision, help, and the question before a cancel."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen, Screen
from textual.widgets import Input

from adlro.cli.top import explaining, feeds
from adlro.cli.top.explaining import Explanation
from adlro.cli.top.gpu_cells import GpuCell, legend, strip
from adlro.cli.top.head import head_lines
from adlro.cli.top.job_rows import JobSearch, cells_of, columns_for, row_text
from adlro.cli.top.lines import Line, cut, fitted, wrapped
from adlro.cli.top.once import row_look
from adlro.cli.top.screen.drawn_lines import LineBlock, LineTable
from adlro.cli.top.tables import decision_head, decision_row, gpu_head, gpu_row
from adlro.errors import AdlroError
from adlro.records.decisions import Decision
from adlro.records.jobs import Job, JobState

if TYPE_CHECKING:
    from adlro.cli.top.screen.app import TopApp

_LOOK_S = 0.5
_REREAD_LOOKS = 10
_DECISIONS = 500
_HISTORY = 100

Hint = tuple[str, str, str]
"""A key, what it does, and the app's action."""

BACK: Hint = ("Esc", "back", "app.back")
QUIT: Hint = ("q", "quit", "app.quit")
PAUSE: Hint = ("p", "pause", "app.pause")
HELP: Hint = ("?", "help", "app.help")


class Page(Screen[None]):
    """A page: what it shows, and its keys at the bottom."""

    HINTS: ClassVar[tuple[Hint, ...]] = ()

    @property
    def top(self) -> TopApp:
        """The program."""
        from adlro.cli.top.screen.app import TopApp

        assert isinstance(self.app, TopApp)
        return self.app

    def draw(self) -> None:
        """Shows what is known now."""
        lines, actions = hint_lines(self.HINTS, self.size.width)
        self.query_one("#hints", LineBlock).show(lines, actions)

    def title_line(self, text: str) -> Line:
        """The first line of a page: where one is, and the state of the sources."""
        from adlro.cli.top.head import feed_line

        line: Line = [("ADLRO ", "bold"), (f"> {text}   ", "accent")]
        return cut([*line, *feed_line(self.top.head, self.top.paused)], self.size.width)

    def on_screen_resume(self) -> None:
        """Shows what came while another page was on top."""
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        """Lays the lines out anew."""
        self.call_after_refresh(self.draw)


def hint_lines(hints: Sequence[Hint], width: int) -> tuple[list[Line], list[list[tuple[int, int, str]]]]:
    """The keys as lines, and where a click does what."""
    lines: list[Line] = [[]]
    actions: list[list[tuple[int, int, str]]] = [[]]
    x = 0
    for key, label, action in hints:
        size = len(key) + 1 + len(label)
        if x and x + size > width:
            lines.append([])
            actions.append([])
            x = 0
        lines[-1] += [(key, "bold"), (f" {label}", "dim"), ("  ", "")]
        actions[-1].append((x, x + size, action))
        x += size + 2
    return lines, actions


class JobsPage(Page):
    """Head, GPUs and jobs."""

    HINTS = (
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

    def draw(self) -> None:
        """Shows what is known now."""
        super().draw()
        top, width, height = self.top, self.size.width, self.size.height
        small = height < 30
        self.query_one("#head", LineBlock).show(
            head_lines(top.head, width, paused=top.paused, most_problems=2 if small else 4)
        )
        cells = top.cells
        lines: list[Line] = []
        if cells:
            drawn, fold = strip(cells, top.metric, width, max(height // 6, 3))
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
        texts = row_text(cells_of(entry, self.top.moment, self.top.model.expected.get(job_id)), columns)
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


class LinesPage(Page):
    """A page of lines to read."""

    HINTS: ClassVar[tuple[Hint, ...]] = (BACK, PAUSE, HELP, QUIT)

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []

    def compose(self) -> ComposeResult:
        """Its parts, from top to bottom."""
        yield LineBlock(id="head")
        yield LineTable(self._row, id="lines", selects=False)
        yield LineBlock(id="hints")

    def on_mount(self) -> None:
        """Keys scroll."""
        self.query_one("#lines", LineTable).focus()

    def _row(self, key: str, _width: int) -> Line:
        return self._lines[int(key)]

    def name_of_page(self) -> str:
        """For the first line."""
        raise NotImplementedError

    def content(self, width: int) -> list[Line]:
        """The lines."""
        raise NotImplementedError

    def draw(self) -> None:
        """Shows what is known now."""
        super().draw()
        self.query_one("#head", LineBlock).show([self.title_line(self.name_of_page())])
        table = self.query_one("#lines", LineTable)
        self._lines = [[], *self.content(max(table.width - 2, 10))]
        table.show([str(number) for number in range(len(self._lines))])


class JobPage(LinesPage):
    """Why a job waits, or how it runs.

    Args:
        job: as it is known.
    """

    HINTS = (BACK, ("c", "cancel", "app.cancel"), PAUSE, HELP, QUIT)

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.known: Explanation | None = None

    def on_mount(self) -> None:
        """Asks for the explanation, again and again while the page is open."""
        super().on_mount()
        self.run_worker(self._read())

    async def _read(self) -> None:
        while True:
            models = self.top.model.cluster.gpu_models if self.top.model.cluster is not None else ()
            job = await self._newest()
            self.known = await explaining.read(self.top.client, job, models)
            self.draw()
            revision = self._revision()
            for _ in range(_REREAD_LOOKS):
                await asyncio.sleep(_LOOK_S)
                if self._revision() != revision:
                    break

    def _revision(self) -> int | None:
        entry = self.top.model.entries.get(self.job.job_id)
        return entry.job.revision if entry is not None else None

    async def _newest(self) -> Job:
        entry = self.top.model.entries.get(self.job.job_id)
        if entry is not None:
            self.job = entry.job
        elif not self.job.state.final:
            try:
                self.job = await self.top.client.get(self.job.job_id)
            except AdlroError:
                return self.job
        return self.job

    def name_of_page(self) -> str:
        """For the first line."""
        return self.job.job_id

    def content(self, width: int) -> list[Line]:
        """The lines."""
        known = self.known if self.known is not None else Explanation(self.job)
        if self.job is not known.job:
            known = Explanation(self.job, known.decision, known.predictions, known.log, known.notes)
        clock = self.top.head.clock
        lines = explaining.explanation_lines(known, self.top.cells, self.top.moment, clock, width)
        if self.known is None:
            lines += [[], [("asking the services ...", "dim")]]
        return lines


class DecisionPage(LinesPage):
    """One decision.

    Args:
        decision: to show.
    """

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        self.decision = decision

    def name_of_page(self) -> str:
        """For the first line."""
        return f"decision {self.decision.decision_id}"

    def content(self, width: int) -> list[Line]:
        """The lines."""
        return explaining.decision_lines(self.decision, width)


class HelpPage(LinesPage):
    """All keys."""

    def name_of_page(self) -> str:
        """For the first line."""
        return "help"

    def content(self, width: int) -> list[Line]:
        """The lines."""
        lines: list[Line] = []
        for key, text in HELP_TEXT:
            if not key:
                lines += [[], [(text, "bold")]]
                continue
            for number, each in enumerate(wrapped(text, max(width - 18, 10))):
                lines.append([("  " + (key if number == 0 else "").ljust(16), "accent"), *each])
        return lines


HELP_TEXT = (
    ("", "Jobs"),
    ("/", "filter: words that must all occur; user:ada, state:running, reason:policy, type:ml, gpu:v100, label:team=x "
     "in one field; !word must not occur. Enter keeps it, Esc takes it away."),
    ("s, S", "next order of the table; the same order reversed. A click on a column's head sorts by it."),
    ("Enter", "the selected job: why it waits, or how it runs, its GPU's figures and the end of its output"),
    ("w", "waiting jobs only, or all"),
    ("c", "cancel the selected job; y confirms"),
    ("", "Cluster"),
    ("g", "every GPU with its job and figures"),
    ("d", "decisions as they are made; Enter: one of them with its candidates"),
    ("m", "what a GPU's character shows: state, utilization, memory, bandwidth, temperature, power, speed"),
    ("", "Screen"),
    ("p", "pause: nothing on the screen changes; again: go on"),
    ("arrows, j, k", "select; PgUp, PgDn, Home, End; the mouse wheel scrolls, a double click opens"),
    ("Esc", "back; on the first page: no filter"),
    ("q, Ctrl-C", "quit;  Ctrl-Z stops the program until `fg`"),
    ("", "What is shown of a source"),
    ("connecting", "no data yet, and no figures that could be taken for zeros"),
    ("live, stale", "fresh; or no word for some seconds"),
    ("away", "the service does not answer: the last data stay, with their age"),
    ("refused", "your token's role may not read it; a submitter sees his own jobs"),
)  # fmt: skip


class GpusPage(Page):
    """Every GPU."""

    HINTS = (("Enter", "its job", "app.open"), ("d", "decisions", "app.decisions"), BACK, PAUSE, HELP, QUIT)

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

    def draw(self) -> None:
        """Shows what is known now."""
        super().draw()
        top = self.top
        lines = [self.title_line("GPUs")]
        if not top.cells:
            why = "your token shows only your own jobs" if top.head.own_jobs_only else "not known yet"
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
    """Decisions as they are made. They are watched only while this page is open: each costs the orchestrator work."""

    HINTS = (("Enter", "candidates", "app.open"), ("g", "GPUs", "app.gpus"), BACK, PAUSE, HELP, QUIT)

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
        history = _HISTORY
        while True:
            try:
                async with aclosing(feeds.decisions(self.top.client, history)) as found:
                    self._problem = ""
                    async for decision in found:
                        history = 0
                        self._decisions[decision.decision_id] = decision
                        while len(self._decisions) > _DECISIONS:
                            self._decisions.popitem(last=False)
            except AdlroError as error:
                self._problem = error.message
            self.draw()
            await asyncio.sleep(1.0)

    def draw(self) -> None:
        """Shows what is known now."""
        super().draw()
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


class CancelQuestion(ModalScreen[bool]):
    """Whether a job shall be cancelled: y, or anything else.

    Args:
        job: the job.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job

    def compose(self) -> ComposeResult:
        """Its parts, from top to bottom."""
        with Vertical():
            yield LineBlock(id="question")

    def on_mount(self) -> None:
        """Asks."""
        job, width = self.job, min(58, max(self.app.size.width - 10, 20))
        state = "waiting" if job.state is JobState.PENDING else job.state.name.lower()
        what = f"{job.job_id} ({job.spec.name}, of {job.spec.user}), which is {state}"
        lines = [
            *wrapped(f"Cancel {what}?", width),
            [],
            [("y", "bold"), (" cancel it    ", ""), ("Esc, n", "bold"), (" keep it", "")],
        ]
        row = [(0, 11, "screen.answer(True)"), (15, 30, "screen.answer(False)")]
        self.query_one(LineBlock).show(lines, [[] for _ in lines[:-1]] + [row])

    def action_answer(self, sure: bool) -> None:
        """Takes the answer."""
        self.dismiss(sure)

    def on_key(self, event: Key) -> None:
        """Yes by `y` alone: Enter opened the job before, and is easily pressed twice."""
        event.stop()
        self.dismiss(event.key in ("y", "Y"))
