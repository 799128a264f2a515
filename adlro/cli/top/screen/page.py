"""What all pages of the screen have: the first line, the keys at the bottom, and what they know of the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from textual.screen import Screen

from adlro.cli.top.gpu_cells import GpuCell, StripMetric
from adlro.cli.top.head import Head, feed_line
from adlro.cli.top.job_rows import JobEntry, JobSearch, Moment, RowOrder
from adlro.cli.top.lines import Line, cut
from adlro.cli.top.model import TopModel
from adlro.cli.top.screen.drawn_lines import LineBlock

if TYPE_CHECKING:
    from adlro.client import AsyncClient

Hint = tuple[str, str, str]
"""A key, what it does, and the app's action."""

BACK: Hint = ("Esc", "back", "app.back")
QUIT: Hint = ("q", "quit", "app.quit")
PAUSE: Hint = ("p", "pause", "app.pause")
HELP: Hint = ("?", "help", "app.help")


class Program(Protocol):
    """What the pages know of the program that shows them."""

    client: AsyncClient
    model: TopModel
    search: JobSearch
    order: RowOrder
    reverse: bool
    waiting_only: bool
    metric: StripMetric
    paused: bool
    head: Head
    cells: list[GpuCell]
    rows: list[JobEntry]
    moment: Moment

    def entry(self, job_id: str) -> JobEntry | None:
        """A job of the picture."""

    def set_search(self, search: JobSearch) -> None:
        """Shows the jobs that match."""

    def sort_by_column(self, head: str) -> None:
        """Sorts by a column."""

    def explain(self, job_id: str) -> None:
        """Opens the page of a job."""


class Page(Screen[None]):
    """A page: what it shows, and its keys at the bottom."""

    HINTS: ClassVar[tuple[Hint, ...]] = ()

    @property
    def top(self) -> Program:
        """The program."""
        return cast("Program", self.app)

    def draw(self) -> None:
        """Shows what is known now, once the page's parts are there."""
        if self.is_attached and self.query("#hints"):
            self.show_known()

    def show_known(self) -> None:
        """Fills the page's parts."""
        lines, actions = hint_lines(self.HINTS, self.size.width)
        self.query_one("#hints", LineBlock).show(lines, actions)

    def title_line(self, text: str) -> Line:
        """The first line of a page: where one is, and the state of the sources."""
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
