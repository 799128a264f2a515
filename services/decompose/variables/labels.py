"""The selection of jobs' labels: numbers as sizes, repeated texts. Knows plain values only.

A text label that differs for each job (a run's name) would distinguish similar jobs, so it is left out; numbers have
LABEL_LIMIT columns, for the most frequent keys. Both follow the newest jobs, so invented labels do not permanently
replace those in use.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence

LABEL_LIMIT = 8
"""Number of columns for keys of numeric labels."""
RECENT_JOBS = 256
"""Number of newest finished jobs in the comparison of keys of numbers."""
TAKES_OVER_FROM = 16
"""Number of these jobs that must have a key before it replaces another in its column."""
TAKES_OVER_LEAD = 4
"""Factor by which its jobs must outnumber the other key's."""
RECENT_VALUES = 256
"""Number of a key's newest values in the test whether it distinguishes every job."""
JUDGED_FROM = 64
LEFT_OUT_SHARE, TAKEN_BACK_SHARE = 0.4, 0.25
"""A key is left out when more than the first share of its newest values differ, until at most the second share do."""
KEY_LIMIT = 256
"""Number of text keys that are tracked: the most recent ones."""


class LabelUse:
    """Learns from the labels of finished jobs which keys to use."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._recent: deque[tuple[str, ...]] = deque()
        self._carried: Counter[str] = Counter()
        self._values: dict[str, deque[str]] = {}  # by key, the most recent at the end
        self._left_out: dict[str, None] = {}

    def note(self, labels: Mapping[str, str]) -> list[int]:
        """Adds a finished job's labels.

        Returns:
            The columns whose key changed: their earlier values are invalid from now on.
        """
        numeric = []
        for key, value in labels.items():
            if as_number(value) is not None:
                numeric.append(key)
            else:
                self._judge(key, value)
        self._recent.append(tuple(numeric))
        self._carried.update(numeric)
        if len(self._recent) > RECENT_JOBS:
            gone = self._recent.popleft()
            self._carried.subtract(gone)
            for key in gone:
                if not self._carried[key]:
                    del self._carried[key]
        return [column for key in numeric if (column := self._give_column(key)) is not None]

    def column(self, key: str) -> int | None:
        """The column of a numeric label; None if it has none."""
        return self._columns.get(key)

    def key(self, column: int) -> str:
        """The key of a column.

        Raises:
            IndexError: the column has no key.
        """
        for key, number in self._columns.items():
            if number == column:
                return key
        raise IndexError(f"no label has the column {column}")

    def is_left_out(self, key: str) -> bool:
        """Whether a text label's values differ from job to job."""
        return key in self._left_out

    def columns(self) -> dict[str, int]:
        """The keys of numeric labels and their columns."""
        return dict(self._columns)

    def left_out(self) -> list[str]:
        """The keys of text labels that are left out."""
        return list(self._left_out)

    def restore(self, columns: Mapping[str, int], left_out: Sequence[str]) -> None:
        """Restores the state of another process.

        Raises:
            ValueError: a column is repeated, or does not exist.
        """
        numbers = list(columns.values())
        if len(set(numbers)) != len(numbers) or not set(numbers) <= set(range(LABEL_LIMIT)):
            raise ValueError(f"columns of labels must be different numbers below {LABEL_LIMIT}, not {numbers}")
        self._columns = dict(columns)
        self._left_out = dict.fromkeys(left_out[:KEY_LIMIT])

    def _give_column(self, key: str) -> int | None:
        """Gives a key a column if it qualifies. Returns the column if another key had it."""
        if key in self._columns:
            return None
        free = set(range(LABEL_LIMIT)) - set(self._columns.values())
        if free:
            self._columns[key] = min(free)
            return None
        least = min(self._columns, key=lambda each: self._carried[each])
        count = self._carried[key]
        if count < TAKES_OVER_FROM or count < TAKES_OVER_LEAD * self._carried[least]:
            return None
        column = self._columns[key] = self._columns.pop(least)
        return column

    def _judge(self, key: str, value: str) -> None:
        values = self._values.pop(key, None) or deque(maxlen=RECENT_VALUES)
        values.append(value)
        self._values[key] = values
        if len(self._values) > KEY_LIMIT:
            del self._values[next(iter(self._values))]
        if len(values) < JUDGED_FROM:
            return
        share = len(set(values)) / len(values)
        if share > LEFT_OUT_SHARE:
            self._left_out[key] = None
            if len(self._left_out) > KEY_LIMIT:
                del self._left_out[next(iter(self._left_out))]
        elif share <= TAKEN_BACK_SHARE:
            self._left_out.pop(key, None)


def as_number(text: str) -> float | None:
    """The finite number of a label; None for another text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
