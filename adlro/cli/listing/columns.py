"""Columns with names, and the choice of columns by name. Pure functions; nothing printed."""

from __future__ import annotations

import difflib
import enum
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from adlro.cli.documents import document
from adlro.cli.times import moments
from adlro.cli.units_text import UNKNOWN, durations
from adlro.errors import InvalidInput

Row = TypeVar("Row")

_DIGITS = re.compile(r"([0-9]+)")
# Parts of a record whose keys users choose: a key that one row lacks is no mistake.
_FREE_KEYS = frozenset({"labels", "environment"})


STANDARD, BROAD = 100, 140
"""Widths of a screen, in columns, from which tables show more columns."""


class Kind(enum.Enum):
    """What the values of a column are, and so how its cells are written: all cells of a column in one form."""

    TEXT = "text"
    NUMBER = "number"
    DURATION = "seconds"
    MOMENT = "seconds of wall time since 1970"


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table.

    Attributes:
        name: by which users choose it; in capitals its heading, unless `head` is another one.
        about: what it shows, for the list of columns.
        value: of a row, as a plain value; None: not known.
        kind: of the values.
        key: its name in CSV, with a unit where the value has one; empty: `name`.
        texts: the cells of all values; None: by `kind`.
        floors: widths to which its texts may be cut, one after the other, where the screen is too narrow; empty: they
            are never cut.
        cut_after: of two columns that may be cut, the one with the smaller number is cut first.
        style: rich's name of a row's style.
        only_if: without a choice of the user the column is shown if this holds for a row; None: always.
    """

    name: str
    about: str
    value: Callable[[Row], Any]
    kind: Kind = Kind.TEXT
    key: str = ""
    head: str = ""
    texts: Callable[[Sequence[Any]], list[str]] | None = None
    floors: tuple[int, ...] = ()
    cut_after: int = 0
    style: Callable[[Row], str] | None = None
    only_if: Callable[[Row], bool] | None = None

    @property
    def heading(self) -> str:
        """Its heading."""
        return self.head or self.name.upper()

    @property
    def right(self) -> bool:
        """Whether its cells are aligned at the right: those of figures are."""
        return self.kind in (Kind.NUMBER, Kind.DURATION)

    def cells(self, values: Sequence[Any], *, iso: bool = False) -> list[str]:
        """The texts of values, all in one form.

        Args:
            values: of the rows.
            iso: times as ISO 8601 with the offset from UTC.
        """
        if self.texts is not None:
            return self.texts(values)
        if self.kind is Kind.DURATION:
            return durations(values)
        if self.kind is Kind.MOMENT:
            return moments(values, iso=iso)
        return [UNKNOWN if each is None else plain(each) for each in values]


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """A kind of rows: its columns, and those that are shown without a choice of the user.

    Attributes:
        plural: what the rows are, the key of the JSON document.
        columns: all there are.
        narrow, standard, broad: names of the columns on a screen of less than `STANDARD` columns, on one of less than
            `BROAD`, and on others and in pipes.
        wide: names of the columns of -o wide.
        row_id: what -o name prints.
        record: of a row, what -o json shows of it.
        example: a row with nothing in it, against which names of fields are checked.
    """

    plural: str
    columns: tuple[Column[Row], ...]
    narrow: tuple[str, ...]
    standard: tuple[str, ...]
    broad: tuple[str, ...]
    wide: tuple[str, ...]
    row_id: Callable[[Row], str]
    record: Callable[[Row], Any]
    example: Row
    by_name: Mapping[str, Column[Row]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {each.name: each for each in self.columns})

    def names(self, width: int) -> tuple[str, ...]:
        """The names of the columns on a screen of `width` columns."""
        return self.narrow if width < STANDARD else self.standard if width < BROAD else self.broad

    def column(self, name: str, option: str) -> Column[Row]:
        """The column of a name, in upper or lower case; headings are names too.

        Raises:
            InvalidInput: there is none; the message has the nearest names, and all.
        """
        asked = name.strip().lower()
        heads = {each.heading.lower(): each for each in reversed(self.columns)}
        found = self.by_name.get(asked) or heads.get(asked)
        if found is None:
            raise InvalidInput(no_such(f"{option}: no column {name.strip()!r}", asked, self.by_name, "columns"))
        return found


def no_such(what: str, asked: str, names: Collection[str], plural: str) -> str:
    """An error's text with the nearest names and all of them."""
    near = difflib.get_close_matches(asked, names, n=2, cutoff=0.5)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{what}{meant} The {plural} are {', '.join(names)}" if meant else f"{what}; there are {', '.join(names)}"


def chosen_columns(listing: Listing[Row], text: str) -> tuple[tuple[Column[Row], int | None], ...]:
    """The columns of `--format COLUMN,COLUMN:WIDTH`, each with its width in characters, None: as wide as its cells.

    Raises:
        InvalidInput: of a name or a width.
    """
    chosen = []
    for part in text.split(","):
        name, colon, width = part.partition(":")
        column = listing.column(name, "--format")
        if colon and not (width.strip().isascii() and width.strip().isdecimal() and 0 < int(width) <= 10_000):
            raise InvalidInput(
                f"--format: the width of {column.name} is {width.strip()!r}: write a number of characters, such as "
                f"{column.name}:20"
            )
        chosen.append((column, int(width) if colon else None))
    return tuple(chosen)


def custom_columns(listing: Listing[Row], text: str) -> tuple[Column[Row], ...]:
    """The columns of `-o HEADING=FIELD,...`: a field is a column's name, or the path of a field in the JSON document.

    Raises:
        InvalidInput: of a field.
    """
    made: list[Column[Row]] = []
    for part in text.split(","):
        heading, equals, path = (each.strip() for each in part.partition("="))
        if not (heading and equals and path):
            raise InvalidInput(f"--output: {part.strip()!r} is no HEADING=FIELD, such as ID=job_id")
        column = listing.by_name.get(path.lower())
        if column is not None:
            made.append(replace(column, head=heading, only_if=None))
            continue
        _check_path(listing, path)
        made.append(Column(path, "", _reader(listing, path), head=heading, floors=()))
    return tuple(made)


def _check_path(listing: Listing[Row], path: str) -> None:
    at: Any = document(listing.record(listing.example))
    for number, name in enumerate(parts := path.split(".")):
        if isinstance(at, Mapping) and name in at:
            at = at[name]
        elif number and parts[number - 1] in _FREE_KEYS:
            return
        elif isinstance(at, Mapping) and at:
            where = ".".join(parts[:number])
            what = f"--output: no field {name!r}" + (f" in {where}" if where else "")
            known = [*at, *(listing.by_name if not number else ())]
            raise InvalidInput(no_such(what, name, dict.fromkeys(known), "fields"))
        else:
            return  # nothing is known of it without a row that has it


def _reader(listing: Listing[Row], path: str) -> Callable[[Row], Any]:
    parts = path.split(".")

    def read(row: Row) -> Any:
        at: Any = document(listing.record(row))
        for name in parts:
            if isinstance(at, Mapping):
                at = at.get(name)
            elif isinstance(at, list) and name.isdecimal() and int(name) < len(at):
                at = at[int(name)]
            else:
                return None
        return at

    return read


def plain(value: Any) -> str:
    """A value as text: numbers without a needless fraction, lists and mappings as JSON on one line."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    return json.dumps(document(value), ensure_ascii=False, separators=(",", ":"))


def ordered(rows: Iterable[Row], keys: Sequence[tuple[Column[Row], bool]]) -> list[Row]:
    """Rows by columns, the first key first; what is not known comes last either way.

    Args:
        rows: in their own order, which stays where the keys are equal.
        keys: columns, and whether the greatest comes first.
    """
    found = list(rows)
    for column, descending in reversed(keys):
        known = [row for row in found if not _missing(column.value(row))]
        unknown = [row for row in found if _missing(column.value(row))]
        known.sort(key=lambda row, column=column: _sortable(column.value(row)), reverse=descending)  # type: ignore[misc]
        found = known + unknown
    return found


def _missing(value: Any) -> bool:
    return value is None or value == ""


def _sortable(value: Any) -> Any:
    """Numbers by size, texts as people number things: job-9 before job-10."""
    if isinstance(value, int | float):
        return ((0, float(value), ""),)
    return tuple(
        (0, float(part), "") if part.isdecimal() else (1, 0.0, part)
        for part in _DIGITS.split(plain(value).casefold())
        if part
    )
