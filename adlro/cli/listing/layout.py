"""A table's layout: widths of its columns, and what is cut where the screen is too narrow. Pure; rich draws it.

Figures are never cut; texts that may be cut (names, reasons) end in an ellipsis then. If that is not enough, lines are
longer than the screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style

from adlro.cli.listing.columns import Column, Row
from adlro.text import visible

_GAP = 2
_ELLIPSIS = "…"


def fitted(text: str, width: int) -> str:
    """The text in at most `width` columns of a screen; of a longer one the end is cut, and an ellipsis says so."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + _ELLIPSIS if width > 0 else ""


def widths_of(
    columns: Sequence[Column[Any]], natural: Sequence[int], given: Sequence[int | None], room: int
) -> list[int]:
    """The widths of columns on a screen.

    Args:
        columns: the columns.
        natural: what the widest cell or heading of each takes.
        given: widths that the user has chosen.
        room: columns of the screen.

    Returns:
        Widths that add up to `room` with the gaps, or to more if nothing else may be cut.
    """
    widths = list(natural)
    for place, width in enumerate(given):
        if width is not None:
            widths[place] = width if columns[place].floors else max(width, natural[place])
    over = sum(widths) + _GAP * (len(widths) - 1) - room
    rounds = max((len(each.floors) for each in columns), default=0)
    in_order = sorted(range(len(columns)), key=lambda place: columns[place].cut_after)
    for turn in range(rounds):
        for place in in_order:
            floors = columns[place].floors
            if over <= 0 or given[place] is not None or not floors:
                continue
            floor = max(floors[min(turn, len(floors) - 1)], cell_len(columns[place].heading))
            cut = min(max(widths[place] - floor, 0), over)
            widths[place] -= cut
            over -= cut
    return widths


@dataclass(frozen=True)
class TextTable(Generic[Row]):
    """Rows as text, drawn for the screen that it is printed on; each row is one line.

    Attributes:
        columns: the columns.
        rows: the rows.
        given: widths of columns that the user has chosen; empty: none.
        header: with a line of headings.
        iso: wall times as ISO 8601.
        last: a row below the others, such as a total; None: none.
    """

    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    given: Sequence[int | None] = ()
    header: bool = True
    iso: bool = False
    last: Row | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """The table's lines."""
        rows = [*self.rows, *([] if self.last is None else [self.last])]
        texts = [
            [visible(text) for text in column.cells([column.value(row) for row in rows], iso=self.iso)]
            for column in self.columns
        ]
        heads = [column.heading for column in self.columns]
        natural = [
            max([cell_len(text) for text in cells] + [cell_len(visible(head)) if self.header else 0], default=0)
            for cells, head in zip(texts, heads, strict=True)
        ]
        widths = widths_of(self.columns, natural, self.given or [None] * len(heads), options.max_width)
        if self.header:
            yield from self._line([visible(head) for head in heads], widths, [Style(bold=True)] * len(heads))
        for number, row in enumerate(rows):
            styles = [
                Style.parse(column.style(row)) if column.style is not None and number < len(self.rows) else None
                for column in self.columns
            ]
            yield from self._line([cells[number] for cells in texts], widths, styles)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """It takes all the room."""
        return Measurement(options.max_width, options.max_width)

    def _line(self, cells: Sequence[str], widths: Sequence[int], styles: Sequence[Style | None]) -> Iterator[Segment]:
        last = len(cells) - 1
        for place, (cell, width, style) in enumerate(zip(cells, widths, styles, strict=True)):
            text = fitted(cell, width) if self.columns[place].floors else cell
            room = max(width - cell_len(text), 0)
            if self.columns[place].right:
                text = " " * room + text
            elif place < last:
                text += " " * room
            yield Segment(text, style)
            if place < last:
                yield Segment(" " * _GAP)
        yield Segment.line()
