"""The filter and the order of a queue, as a person types them: `state:pending user:ada resnet`. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from adlro.errors import InvalidInput
from adlro.records.jobs import JobState, JobType, PendingReason

T = TypeVar("T")

MAX_FILTER_CHARACTERS: Final = 300
_MOST_WORDS: Final = 12
_ARRAY: Final = re.compile(r"array-([1-9][0-9]{0,17})", re.ASCII)

_STATES: Final = {each.name.lower(): each for each in JobState}
_REASONS: Final = {each.name.lower(): each for each in PendingReason if each is not PendingReason.NONE}
_TYPES: Final = {each.name.lower(): each for each in JobType}
SORTS: Final = (
    *("place", "priority", "wait_s", "submit_s", "name"),
    *("user", "type", "state", "reason", "gpu_count"),
)


@dataclass(frozen=True, slots=True)
class QueueFilter:
    """All that is set must hold. Without a state: jobs that have not ended; of an array all.

    Attributes:
        states, reasons, types: any of them; empty: all.
        users: any of them.
        arrays: any of them, by the number of their first job.
        texts: parts of a job's id or name, in lower case; all of them.
    """

    states: frozenset[JobState] = frozenset()
    reasons: frozenset[PendingReason] = frozenset()
    types: frozenset[JobType] = frozenset()
    users: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    arrays: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Sort:
    """The order of rows: by a column, then by id."""

    column: str
    descending: bool = False


def parse_filter(text: str) -> QueueFilter:
    """Reads a filter: words that are separated by one space.

    Raises:
        InvalidInput: a word names an unknown state, reason or type, or no array.
    """
    if len(text) > MAX_FILTER_CHARACTERS:
        raise InvalidInput(f"filter: has more than {MAX_FILTER_CHARACTERS} characters", field="filter")
    words = text.split()
    if len(words) > _MOST_WORDS:
        raise InvalidInput(f"filter: has more than {_MOST_WORDS} words", field="filter")
    found: dict[str, list[str]] = {"state": [], "reason": [], "type": [], "user": [], "array": [], "": []}
    for word in words:
        name, colon, value = word.partition(":")
        if colon and name in found and name:
            if not value:
                raise InvalidInput(f"filter: {name}: needs a value after the colon", field="filter")
            found[name].append(value)
        else:
            found[""].append(word.lower())
    return QueueFilter(
        frozenset(_known("state", each, _STATES) for each in found["state"]),
        frozenset(_known("reason", each, _REASONS) for each in found["reason"]),
        frozenset(_known("type", each, _TYPES) for each in found["type"]),
        frozenset(found["user"]),
        tuple(found[""]),
        frozenset(map(_array, found["array"])),
    )


def parse_sort(text: str) -> Sort:
    """Reads an order: a column's name, with - before it for falling values.

    Raises:
        InvalidInput: there is no such column.
    """
    column = text.removeprefix("-")
    if column not in SORTS:
        raise InvalidInput(f"sort: must be one of {', '.join(SORTS)}, with - before it to turn it round", field="sort")
    return Sort(column, text.startswith("-"))


def _array(value: str) -> int:
    found = _ARRAY.fullmatch(value)
    if found is None:
        raise InvalidInput("filter: array: is an array's id, such as array-20", field="filter")
    return int(found[1])


def _known(name: str, value: str, known: Mapping[str, T]) -> T:
    if value not in known:
        raise InvalidInput(f"filter: {name}: is one of {', '.join(known)}", field="filter")
    return known[value]
