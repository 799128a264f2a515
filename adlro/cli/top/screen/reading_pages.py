"""Pages of lines to read: one job, one decision, help."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult

from adlro.cli.top import explaining
from adlro.cli.top.explaining import Explanation
from adlro.cli.top.lines import Line, wrapped
from adlro.cli.top.screen.drawn_lines import LineBlock, LineTable
from adlro.cli.top.screen.page import BACK, HELP, PAUSE, QUIT, Hint, Page
from adlro.errors import AdlroError
from adlro.records.decisions import Decision
from adlro.records.jobs import Job

_LOOK_S = 0.5
_REREAD_LOOKS = 10


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

    def show_known(self) -> None:
        """Fills the page's parts."""
        super().show_known()
        self.query_one("#head", LineBlock).show([self.title_line(self.name_of_page())])
        table = self.query_one("#lines", LineTable)
        self._lines = [[], *self.content(max(table.width - 2, 10))]
        table.show([str(number) for number in range(len(self._lines))])


class OneJobPage(LinesPage):
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
            known = replace(known, job=self.job)
        clock = self.top.head.clock
        lines = explaining.explanation_lines(known, self.top.cells, self.top.moment, clock, width)
        if self.known is None:
            lines += [[], [("asking the services ...", "dim")]]
        return lines


class DecisionPage(LinesPage):
    """One decision; the orchestrator is asked for what its summary lacks.

    Args:
        decision: to show, perhaps a summary.
    """

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        self.decision = decision
        self._note = ""

    def on_mount(self) -> None:
        """Asks for the candidates, once."""
        super().on_mount()
        if not self.decision.candidates:
            self._note = "asking the orchestrator for its candidates ..."
            self.run_worker(self._read())

    async def _read(self) -> None:
        try:
            self.decision = await self.top.client.explain(decision_id=self.decision.decision_id)
            self._note = ""
        except AdlroError as error:
            self._note = f"no candidates: {error.message}"
        self.draw()

    def name_of_page(self) -> str:
        """For the first line."""
        return f"decision {self.decision.decision_id}"

    def content(self, width: int) -> list[Line]:
        """The lines."""
        lines = explaining.decision_lines(self.decision, width)
        return [*lines, [], *wrapped(self._note, width, "dim")] if self._note else lines


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
                lines += [*([[]] if lines else []), [(text, "bold")]]
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
    ("refused", "your token's role may not read it; a submitter sees his own jobs, when they are expected to "
     "start, and what is free"),
)  # fmt: skip
