"""Lines of trace files and their fields: every error names file, line and field. Standard library only."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from adlro.errors import InvalidInput
from adlro.records.jobs import KINDS_OF_WORK, JobType

LONGEST_S = 31_536_000.0
"""One year: the limit of job.proto for work and expected runtime."""
LATEST_S = 1e11
"""The latest time of a trace: 3,000 years of seconds, so Unix times are below it, and floats keep milliseconds."""
LARGEST = 2**31 - 1

_USER = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_APPLICATION = re.compile(r"[^\x00-\x1f\x7f]{0,128}")


class Row:
    """The fields of one line.

    Args:
        path: the file.
        line: its number, from 1.
        numbers: by field, its index in `values`.
        values: the texts.
    """

    __slots__ = ("_numbers", "_path", "_values", "line")

    def __init__(self, path: str | Path, line: int, numbers: Mapping[str, int], values: Sequence[str]) -> None:
        self._path = path
        self.line = line
        self._numbers = numbers
        self._values = values

    def refuse(self, field: str, complaint: str) -> NoReturn:
        """Raises InvalidInput."""
        raise InvalidInput(f"{self._path}: line {self.line}: {field}: {complaint}", field=field)

    def text(self, field: str) -> str:
        """The field's text, possibly empty."""
        return self._values[self._numbers[field]].strip()

    def given(self, field: str) -> bool:
        """Whether the file has the column, and the line something there."""
        return field in self._numbers and bool(self.text(field))

    def number(
        self, field: str, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
    ) -> float:
        """A finite number within the limits."""
        text = self._values[self._numbers[field]]
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        # float() also accepts `1_000`; infinities are outside every limit but `most`.
        if not (least <= value <= most and value > above and value < math.inf) or "_" in text:
            bounds = (
                (least > -math.inf, f"from {least:g}"),
                (above > -math.inf, f"above {above:g}"),
                (most < math.inf, f"at most {most:g}"),
            )
            wanted = " ".join(["a number", *(words for given, words in bounds if given)])
            self.refuse(field, f"must be {wanted}, not '{text}'")
        return value

    def whole(self, field: str, *, least: int, most: int = LARGEST) -> int:
        """A whole number; `4.0` is accepted too."""
        text = self._values[self._numbers[field]]
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (least <= value <= most and value.is_integer()) or "_" in text:
            self.refuse(field, f"must be a whole number from {least} to {most}, not '{text}'")
        return int(value)

    def time(self, field: str) -> float:
        """A time such as `2017-09-04 10:30:41` (ISO 8601), as Unix time; UTC if it has no zone."""
        text = self.text(field)
        try:
            parsed = datetime.datetime.fromisoformat(text)
            if parsed.tzinfo is None:
                parsed = parsed.replace(tzinfo=datetime.UTC)
            return parsed.timestamp()
        except (ValueError, OverflowError):
            self.refuse(field, f"must be a time such as 2017-09-04 10:30:41, not '{text}'")

    def user(self, field: str, prefix: str = "") -> str:
        """A user's name that job.proto accepts."""
        name = prefix + self.text(field)
        if name == prefix:
            self.refuse(field, "must be given, not ''")
        if not _USER.fullmatch(name):
            self.refuse(field, f"must be up to {64 - len(prefix)} letters, digits or ._@+-, not '{self.text(field)}'")
        return name

    def application(self, field: str) -> str:
        """An application's name that job.proto accepts."""
        name = self.text(field)
        if not name:
            self.refuse(field, "must be given, not ''")
        if not _APPLICATION.fullmatch(name):
            self.refuse(field, "must be up to 128 characters without control characters")
        return name

    def job_type(self, field: str) -> JobType:
        """One of the three job types, by its label."""
        found = {job_type.label: job_type for job_type in KINDS_OF_WORK}.get(self.text(field))
        if found is None:
            labels = ", ".join(job_type.label for job_type in KINDS_OF_WORK)
            self.refuse(field, f"must be one of {labels}, not '{self.text(field)}'")
        return found


class InOrder:
    """Checks that the times of a file do not decrease."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._last = -math.inf

    def check(self, row: Row, time_s: float) -> None:
        """Refuses a line that is earlier than the one before."""
        if time_s < self._last:
            earlier = f"'{row.text(self._field)}' is before the time of the line above"
            row.refuse(self._field, f"lines must be in the order of submission, but {earlier}")
        self._last = time_s


def csv_rows(path: str | Path, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """The lines of a CSV file with these columns, in any order; blank lines are skipped.

    Args:
        path: the file.
        columns: what it must have.
        optional: what it may have beside them (`Row.given`); nothing else is allowed.

    Raises:
        InvalidInput: no such file, unreadable, not UTF-8, a missing, unknown or repeated column, a line with too many
            or too few values.
    """
    text = read_text(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header, columns, optional)
        numbers = {name: i for i, name in enumerate(header)}
        for values in reader:
            if len(values) != len(header):
                if not any(value.strip() for value in values):
                    continue
                field = header[min(len(values), len(header) - 1)]
                counts = f"{len(values)} values where {len(header)} columns are expected"
                raise InvalidInput(f"{path}: line {reader.line_num}: {field}: {counts}", field=field)
            yield Row(path, reader.line_num, numbers, values)
    except csv.Error as error:
        raise InvalidInput(f"{path}: line {reader.line_num}: is not CSV: {error}", field=columns[0]) from error


def read_text(path: str | Path, *, lenient: bool = False) -> str:
    """The text of a file, decompressed if its name ends in `.gz`, without a byte order mark.

    Args:
        path: the file.
        lenient: replaces bytes that are not UTF-8 (for formats whose comments may have another encoding).

    Raises:
        InvalidInput: no such file, unreadable, a broken gzip file, or not UTF-8.
    """
    if not Path(path).is_file():
        raise InvalidInput(f"{path}: no such file", field="path")
    try:
        data = Path(path).read_bytes()
        if str(path).endswith(".gz"):
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}", field="path") from error
    try:
        return data.decode("utf-8-sig", errors="replace" if lenient else "strict")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput(
            f"{path}: line {line}: is not UTF-8 (byte {data[error.start]:#04x}); save the file as UTF-8", field="path"
        ) from None


def _check_header(path: str | Path, header: Sequence[str], columns: Sequence[str], optional: Sequence[str]) -> None:
    wanted = ",".join(columns)
    if not any(header):
        raise InvalidInput(f"{path}: line 1: {columns[0]}: no header, but {wanted} is expected", field=columns[0])
    problems = [
        *((name, "is missing") for name in columns if name not in header),
        *((name, "is unknown") for name in header if name not in (*columns, *optional)),
        *((name, "is given twice") for i, name in enumerate(header) if name in header[:i]),
    ]
    if problems:
        name, problem = problems[0]
        more = f" (and may have {','.join(optional)})" if optional else ""
        raise InvalidInput(
            f"{path}: line 1: header must be {wanted}{more}, not {','.join(header)}: {name}: the column {problem}",
            field=name,
        )
