"""The indexes of an array of jobs, as people write them: `0-99%10`. Plain data."""

from __future__ import annotations

import re
from typing import NamedTuple

from adlro.errors import InvalidInput


class ArrayIndexes(NamedTuple):
    """The indexes of an array, in rising order, and the most of its jobs that may run at once (0: any number)."""

    indexes: tuple[int, ...]
    max_running: int = 0


_MOST_INDEXES = 10_000
_HIGHEST_INDEX = 1_000_000_000
_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?")
ARRAYS = "indexes such as 0-99, 1,5,7 or 0-100:10, and %10 behind them: at most 10 at once"
"""What `read_array_indexes` accepts, in words."""


def read_array_indexes(text: str) -> ArrayIndexes:
    """Reads the indexes of an array.

    Args:
        text: such as `0-99`, `1,5,7`, `0-100:10` (every tenth), each with `%N` behind it.

    Raises:
        InvalidInput: it is none.
    """
    wanted, percent, most = text.strip().partition("%")
    found: set[int] = set()
    good = not percent or (most.isascii() and most.isdigit() and 0 < int(most) <= _MOST_INDEXES)
    for part in wanted.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or not good:
            raise InvalidInput(f"{text[:40]!r} is no array: write {ARRAYS}")
        first = int(match[1])
        last, step = int(match[2] or first), int(match[3] or 1)
        if last < first or not step or last > _HIGHEST_INDEX:
            raise InvalidInput(f"{part.strip()!r} in {text[:40]!r} is no range: write FIRST-LAST, or FIRST-LAST:STEP")
        if (last - first) // step >= _MOST_INDEXES:
            raise InvalidInput(f"{text[:40]!r} has more than {_MOST_INDEXES:,} indexes; submit several arrays")
        found.update(range(first, last + 1, step))
    if len(found) > _MOST_INDEXES:
        raise InvalidInput(f"{text[:40]!r} has more than {_MOST_INDEXES:,} indexes; submit several arrays")
    return ArrayIndexes(tuple(sorted(found)), int(most) if percent else 0)
