"""Enumerations that people read and write by name: `str(JobState.RUNNING)` is `running`. Standard library only."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn, Self

from adlro.errors import InvalidInput

_SHOWN_CHARACTERS = 40


class NamedEnum(enum.IntEnum):
    """Numbers as in the contracts, with names as the command writes them.

    `JobState("running")` is `JobState.RUNNING`; capital letters, and '-' for '_', make no difference. Short names stand
    in `short_names` of a subclass.
    """

    if TYPE_CHECKING:
        # For type checkers: IntEnum's own takes numbers alone.
        def __new__(cls, value: object) -> Self:
            """The member of a number or name."""
            ...

    @classmethod
    def short_names(cls) -> Mapping[str, str]:
        """Further names, and the names that they stand for, in lower case."""
        return {}

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None  # a number that is none of them: ValueError, as of any enumeration
        wanted = value.strip().lower().replace("-", "_")
        wanted = cls.short_names().get(wanted, wanted)
        return cls.__members__.get(wanted.upper())

    @classmethod
    def of(cls, value: object, field: str) -> Self:
        """The member of a name, short name or number.

        Args:
            value: what a caller gave.
            field: its name, for the message.

        Raises:
            InvalidInput: there is no such member; has all names.
        """
        try:
            return cls(value)
        except ValueError:
            refuse_name(value, field, (str(each) for each in cls if each), cls.short_names())

    def __str__(self) -> str:
        return self.name.lower()


def refuse_name(value: object, field: str, names: Iterable[str], short_names: Mapping[str, str]) -> NoReturn:
    """Raises InvalidInput for a name that is none of `names`, with the nearest one first."""
    known = list(names)
    short = {name: brief for brief, name in short_names.items()}
    listed = ", ".join(f"{name} ({short[name]})" if name in short else name for name in known)
    text = repr(value)
    text = text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
    raise InvalidInput(f"{field}: {text} is none of {listed}{nearest(str(value).lower(), known)}", field=field)


def nearest(wanted: str, known: Iterable[str]) -> str:
    """`; do you mean NAME?` for a name that is like a known one; empty for none."""
    near = difflib.get_close_matches(wanted, list(known), 1)
    return f"; do you mean {near[0]}?" if near else ""
