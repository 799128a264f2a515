"""Widgets that draw lines of text and repaint only those that changed. No ADLRO data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from adlro.cli.top.lines import Fragment, Line

COLORS = {
    "": "#d0d5de",
    "dim": "#8b93a3",
    "bold": "#ffffff",
    "accent": "#6fb7ff",
    "good": "#7fc97f",
    "warn": "#f0c05a",
    "bad": "#ff7b72",
}
"""The looks' colours on the dark ground; each has a contrast of at least 5 to 1 there."""
BACKGROUND = "#14171d"
SELECTED = "#2b3a55"
HEADING = "#1e232c"


def style_of(look: str, *, colors: bool, selected: bool = False, heading: bool = False) -> Style:
    """The style of a look; without colours the selected line is told by reversal."""
    bold = look in ("bold", "bad") or heading
    if not colors:
        return Style(bold=bold, reverse=selected, underline=heading)
    ground = SELECTED if selected else HEADING if heading else BACKGROUND
    return Style(color=COLORS[look], bgcolor=ground, bold=bold)


def strip_of(
    line: Sequence[Fragment], width: int, *, colors: bool, selected: bool = False, heading: bool = False
) -> Strip:
    """A line as Textual draws it, filled to a width."""
    segments = [
        Segment(text, style_of(look, colors=colors, selected=selected, heading=heading)) for text, look in line if text
    ]
    return Strip(segments).adjust_cell_length(width, style_of("", colors=colors, selected=selected, heading=heading))


class LineBlock(Widget):
    """A few lines, as high as they are many."""

    DEFAULT_CSS = "LineBlock { height: 0; width: 1fr; }"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lines: list[Line] = []
        self._actions: list[list[tuple[int, int, str]]] = []

    def show(self, lines: Sequence[Line], actions: Sequence[Sequence[tuple[int, int, str]]] = ()) -> None:
        """Shows these lines from now on.

        Args:
            lines: from top to bottom.
            actions: by line: from column, to column, the app's action for a click there.
        """
        before, self.lines = self.lines, list(lines)
        self._actions = [list(each) for each in actions]
        if len(before) != len(self.lines):
            self.styles.height = len(self.lines)
            self.refresh()
            return
        for y, (old, new) in enumerate(zip(before, self.lines, strict=True)):
            if old != new:
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        """One line."""
        line = self.lines[y] if y < len(self.lines) else []
        return strip_of(line, self.size.width, colors=not self.app.no_color)

    async def on_click(self, event: Click) -> None:
        """Does what the clicked words stand for."""
        for start, end, action in self._actions[event.y] if event.y < len(self._actions) else ():
            if start <= event.x < end:
                await self.app.run_action(action, self.screen)
                return


Row = tuple[str, Sequence[Fragment]]
"""The key of a row, and its text."""


class LineTable(ScrollView, can_focus=True):
    """Rows under a head, one of them selected; a row's text is made when it is seen.

    A row that the user has selected stays so while rows come, go and change places. Before that, and after Home, the
    first row is selected, whichever it is.

    Args:
        draw: the text of a row, by its key and the width.
        head: the head of the table, by the width; None: there is none.
        selects: whether a row is marked as the selected one.
    """

    DEFAULT_CSS = "LineTable { height: 1fr; width: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+b", "page(-1)", show=False),
        Binding("pagedown,ctrl+f,space", "page(1)", show=False),
        Binding("home", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Opened(Message):
        """Enter, or a second click, on a row."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class HeadClicked(Message):
        """A click on the head, at a column of the screen."""

        def __init__(self, x: int) -> None:
            super().__init__()
            self.x = x

    def __init__(
        self,
        draw: Callable[[str, int], Line],
        head: Callable[[int], Line] | None = None,
        *,
        selects: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._draw = draw
        self._head = head
        self._selects = selects
        self._head_lines = 0 if head is None else 1
        self.keys: list[str] = []
        self.selected = ""
        self._index = 0
        self._chosen = False
        self._drawn: dict[int, tuple[Line, bool]] = {}
        self._drawn_width = 0

    # Rows

    def show(self, keys: Sequence[str]) -> None:
        """Shows these rows from now on, and repaints those of them that changed."""
        moved = self._place()
        self.keys = list(keys)
        try:
            self._index = self.keys.index(self.selected) if self._chosen else 0
        except ValueError:  # it has gone: what took its place is selected
            self._index = min(self._index, max(len(self.keys) - 1, 0))
        self.selected = self.keys[self._index] if self.keys else ""
        size = Size(0, len(self.keys) + self._head_lines)
        if size != self.virtual_size:
            self.virtual_size = size
        if self._selects and moved is not None and self.keys and self.has_focus:
            self._keep_in_sight()
        self.repaint()

    def _place(self) -> int | None:
        """Of the selected row the place on the screen, if it is seen and not the first."""
        y = self._index - round(self.scroll_offset.y)
        return y if self._index and 0 <= y < self._seen else None

    @property
    def width(self) -> int:
        """Columns of a row: those beside the scrollbar."""
        return self.scrollable_content_region.width

    @property
    def _seen(self) -> int:
        return max(self.size.height - self._head_lines, 1)

    @property
    def visible_keys(self) -> list[str]:
        """The keys of the rows on the screen."""
        first = round(self.scroll_offset.y)
        return self.keys[first : first + self._seen]

    def repaint(self) -> None:
        """Repaints the lines on the screen whose text changed."""
        width = self.width
        if width != self._drawn_width:
            self._drawn.clear()
            self.refresh()
            return
        for y, drawn in list(self._drawn.items()):
            if y < self.size.height and self._line(y) != drawn:
                self.refresh(Region(0, y, width, 1))

    def _line(self, y: int) -> tuple[Line, bool]:
        width = self.width
        if y < self._head_lines:
            return (self._head(width) if self._head is not None else []), False
        row = y - self._head_lines + round(self.scroll_offset.y)
        if row >= len(self.keys):
            return [], False
        return self._draw(self.keys[row], width), self._selects and row == self._index

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        self._drawn_width = self.width
        line, selected = self._drawn[y] = self._line(y)
        return strip_of(line, self.width, colors=not self.app.no_color, selected=selected, heading=y < self._head_lines)

    # Keys and mouse

    def select(self, index: int) -> None:
        """Selects a row by its place."""
        if not self.keys:
            return
        self._index = min(max(index, 0), len(self.keys) - 1)
        self.selected = self.keys[self._index]
        self._chosen = True
        self._keep_in_sight()
        self.repaint()

    def _keep_in_sight(self) -> None:
        first = round(self.scroll_offset.y)
        if self._index < first:
            self.scroll_to(y=self._index, animate=False)
        elif self._index >= first + self._seen:
            self.scroll_to(y=self._index - self._seen + 1, animate=False)

    def action_move(self, by: int) -> None:
        """Selects the next row, or scrolls where none is selected."""
        if self._selects:
            self.select(self._index + by)
        else:
            self.scroll_to(y=self.scroll_offset.y + by, animate=False)

    def action_page(self, by: int) -> None:
        """A screen further."""
        if self._selects:
            self.select(self._index + by * self._seen)
        else:
            self.scroll_to(y=self.scroll_offset.y + by * self._seen, animate=False)

    def action_edge(self, end: int) -> None:
        """To the first or the last row."""
        if self._selects:
            self.select(len(self.keys) - 1 if end else 0)
            self._chosen = bool(end)
        else:
            self.scroll_to(y=len(self.keys) if end else 0, animate=False)

    def action_open(self) -> None:
        """Opens the selected row."""
        if self.selected and self._selects:
            self.post_message(self.Opened(self.selected))

    def on_click(self, event: Click) -> None:
        """Selects a row; a click on the selected one opens it."""
        if event.y < self._head_lines:
            self.post_message(self.HeadClicked(event.x))
            return
        row = event.y - self._head_lines + round(self.scroll_offset.y)
        if row >= len(self.keys) or not self._selects:
            return
        if row == self._index and event.chain > 1:
            self.action_open()
        else:
            self.select(row)

    def on_resize(self) -> None:
        """Draws all lines anew at another width."""
        self.virtual_size = Size(0, len(self.keys) + self._head_lines)
        self.repaint()
