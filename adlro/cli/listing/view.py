"""How a reading command shows its rows: the user's choice, and the printing in every format."""

from __future__ import annotations

import csv
import enum
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from adlro.cli.listing.columns import (
    BROAD,
    Column,
    Kind,
    Listing,
    Row,
    ordered,
    plain,
)
from adlro.cli.listing.layout import TextTable
from adlro.cli.listing.watching import watched
from adlro.cli.listing.yaml_text import to_yaml
from adlro.cli.shell import emit_json, emit_json_line, say, stdout
from adlro.cli.times import iso_text
from adlro.text import visible


class Format(enum.StrEnum):
    """The output formats of a reading command; CUSTOM is written HEADING=FIELD,..."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"
    CUSTOM = "HEADING=FIELD"

    @property
    def is_table(self) -> bool:
        """Whether it has columns for people."""
        return self in (Format.TABLE, Format.WIDE, Format.CUSTOM)


@dataclass(frozen=True)
class Reading(Generic[Row]):
    """What a command has read.

    Attributes:
        rows: in their own order.
        document: of the rows in the order that the user chose, for JSON and YAML.
        findings: lines below a table that are part of the result; rich markup, or texts.
        notes: lines below a table about it, on stderr; rich markup.
        left_out: said on stderr in every format: a limit left rows out; empty: none.
        empty: said where there is no row, with what to do.
        total: a row below the others in tables; None: none.
        drawn: of rows, a table of their own where nobody chose columns, for texts that need several lines; None: none.
    """

    rows: Sequence[Row]
    document: Callable[[Sequence[Row]], Any]
    findings: Sequence[str | Text] = ()
    notes: Sequence[str] = ()
    left_out: str = ""
    empty: str = ""
    total: Row | None = None
    drawn: Callable[[Sequence[Row]], RenderableType] | None = None


@dataclass(frozen=True)
class View(Generic[Row]):
    """The user's choice of what to show and how.

    Attributes:
        listing: the kind of rows.
        format: of the output.
        chosen: columns by --format or -o HEADING=FIELD, with widths; empty: those of the listing.
        sort: columns to sort by, and whether the greatest comes first.
        header: tables and CSV have a line of headings.
        iso: wall times as ISO 8601.
        every_s: seconds between two readings; None: one reading.
    """

    listing: Listing[Row]
    format: Format = Format.TABLE
    chosen: tuple[tuple[Column[Row], int | None], ...] = ()
    sort: tuple[tuple[Column[Row], bool], ...] = ()
    header: bool = True
    iso: bool = False
    every_s: float | None = None

    def columns(self, width: int, rows: Sequence[Row] | None = None) -> tuple[Column[Row], ...]:
        """The columns that are shown.

        Args:
            width: of the screen.
            rows: leaves out columns that say nothing of these rows; None: names all that may be shown.
        """
        if self.chosen:
            return tuple(column for column, _ in self.chosen)
        listing = self.listing
        names = listing.wide if self.format in (Format.WIDE, Format.CSV) else listing.names(width)
        columns = tuple(listing.by_name[name] for name in names)
        if rows is None or self.format is not Format.TABLE:
            return columns
        return tuple(each for each in columns if each.only_if is None or any(map(each.only_if, rows)))

    @property
    def whole_records(self) -> bool:
        """Whether the output has all of each record."""
        return self.format in (Format.JSON, Format.YAML, Format.CUSTOM)

    def show(self, read: Callable[[], Reading[Row]]) -> None:
        """Prints what is read: once, or with --watch until Ctrl-C.

        Args:
            read: reads; called again for each update.
        """
        if self.every_s is None:
            self._print(read())
            return
        if self.format is Format.JSON:
            watched(lambda: self._emit(read(), emit_json_line), self.every_s)
        elif not self.format.is_table:
            raise typer.BadParameter(f"--watch goes with tables and -o json, not with -o {self.format}")
        else:
            watched(None, self.every_s, draw=lambda: self._drawn(read()))

    def _print(self, reading: Reading[Row]) -> None:
        if self.format is Format.JSON:
            self._emit(reading, emit_json)
        elif self.format is Format.YAML:
            sys.stdout.write(to_yaml(reading.document(self._sorted(reading))))
        elif self.format is Format.CSV:
            sys.stdout.write(self._csv(reading))
        elif self.format is Format.NAME:
            for row in self._sorted(reading):
                sys.stdout.write(visible(self.listing.row_id(row)) + "\n")
        else:
            console = stdout()
            if reading.rows:
                console.print(self._table(reading, console), soft_wrap=True)
            elif reading.empty:
                say(reading.empty)
            for finding in reading.findings:
                console.print(finding)
            # Who chooses columns, or leaves out the headings, goes on with the rows.
            for note in () if self.chosen or not self.header else reading.notes:
                say(note)
        sys.stdout.flush()
        if reading.left_out:
            say(f"[dim]{reading.left_out}[/]")

    def _emit(self, reading: Reading[Row], emit: Callable[[Any], None]) -> None:
        emit(reading.document(self._sorted(reading)))

    def _sorted(self, reading: Reading[Row]) -> Sequence[Row]:
        return ordered(reading.rows, self.sort) if self.sort else reading.rows

    def _table(self, reading: Reading[Row], console: Console) -> RenderableType:
        rows = self._sorted(reading)
        if reading.drawn is not None and self.format is Format.TABLE and not self.chosen:
            return reading.drawn(rows)
        return TextTable(
            self.columns(console.width, rows),
            rows,
            tuple(width for _, width in self.chosen),
            header=self.header,
            iso=self.iso,
            last=reading.total,
        )

    def _drawn(self, reading: Reading[Row]) -> tuple[RenderableType, Sequence[RenderableType]]:
        return (self._table(reading, stdout()) if reading.rows else reading.empty), [*reading.findings, *reading.notes]

    def _csv(self, reading: Reading[Row]) -> str:
        columns, text = self.columns(BROAD), io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self.header:
            writer.writerow([each.key or each.name for each in columns])
        for row in self._sorted(reading):
            writer.writerow([_csv_cell(each, each.value(row)) for each in columns])
        return text.getvalue()


def _csv_cell(column: Column[Row], value: Any) -> str:
    if value is None:
        return ""
    if column.kind is Kind.MOMENT:
        return iso_text(value) or ""
    if isinstance(value, float):
        return repr(value)
    return visible(plain(value))
