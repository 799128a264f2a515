"""Durations and sizes of memory as people write them: one reader of each, for all options and files."""

from __future__ import annotations

import datetime
import math
import numbers
import re
from fractions import Fraction
from typing import TypeGuard

from adlro.errors import InvalidInput

_NUMBER = r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+"

_SECONDS = {
    "ms": Fraction(1, 1000),
    **{unit: Fraction(unit_s) for unit, unit_s in (("s", 1), ("m", 60), ("h", 3600), ("d", 86400), ("w", 604800))},
}
_SAME_DURATION = {"sec": "s", "min": "m", "hr": "h"}
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*")
_PLAIN = re.compile(_NUMBER)
# D-HH, D-HH:MM, D-HH:MM:SS; and MM:SS, HH:MM:SS.
_WITH_DAYS = re.compile(r"([0-9]+)-([0-9]{1,2})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")
_WITHOUT_DAYS = re.compile(r"(?:([0-9]+):)?([0-9]+):([0-9]{1,2})")

DURATIONS = "seconds (90), units (10m, 1h30m, 1.5h, 2d) or a clock (MM:SS, 01:00:00, 1-12:00:00)"
"""What `duration_s` accepts, in words."""

_BYTES: dict[str, int] = {
    "b": 1,
    **{letter + end: 1024**power for power, letter in enumerate("kmgt", 1) for end in ("", "i", "ib")},
    **{letter + "b": 1000**power for power, letter in enumerate("kmgt", 1)},
}
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)")

SIZES = "a number with its unit, such as 20GiB, 512MiB, 16G (GiB) or 16GB (16 * 1000^3 bytes)"
"""What `size_bytes` accepts, in words."""

# Longer texts are no duration and no size that anybody means.
_LONGEST = 40


def duration_s(text: str) -> float:
    """A duration in seconds.

    A plain number is seconds (Slurm's would be minutes). Units are ms, s, m, h, d and w, the larger ones first, each
    once; the last number may have a fraction. A clock is read as Slurm does: MM:SS, HH:MM:SS, D-HH, D-HH:MM or
    D-HH:MM:SS.

    Args:
        text: such as `90`, `1h30m`, `01:00:00`.

    Raises:
        InvalidInput: it is none.
    """
    asked = text.strip().lower()
    found = None
    if len(asked) <= _LONGEST:
        if _PLAIN.fullmatch(asked):
            found = Fraction(asked)
        elif ":" in asked or "-" in asked:
            found = _clock_s(asked)
        else:
            found = _sum_of_units_s(asked)
    if found is None:
        raise InvalidInput(f"{text[:_LONGEST]!r} is no duration: write {DURATIONS}")
    return float(found)


def _clock_s(asked: str) -> Fraction | None:
    match = _WITH_DAYS.fullmatch(asked) or _WITHOUT_DAYS.fullmatch(asked)
    if match is None:
        return None
    given = [int(each or 0) for each in match.groups()]
    days, hours, minutes, seconds = [0] * (4 - len(given)) + given
    # The first field has no upper end: 90:00 is an hour and a half.
    first_is_minutes = match.re is _WITHOUT_DAYS and match[1] is None
    if seconds >= 60 or (minutes >= 60 and not first_is_minutes) or (hours >= 24 and match.re is _WITH_DAYS):
        return None
    return Fraction(days * 86400 + hours * 3600 + minutes * 60 + seconds)


def _sum_of_units_s(asked: str) -> Fraction | None:
    total, position = Fraction(0), 0
    last: Fraction | None = None
    while match := _PART.match(asked, position):
        number, unit = match.groups()
        unit_s = _SECONDS.get(_SAME_DURATION.get(unit, unit))
        if unit_s is None or (last is not None and unit_s >= last):
            return None
        if "." in number and match.end() != len(asked):
            return None
        total, last, position = total + Fraction(number) * unit_s, unit_s, match.end()
    return total if last is not None and position == len(asked) else None


def size_bytes(text: str, *, plain_unit: str = "") -> int:
    """A size in bytes, rounded up.

    K, M, G and T are binary units, as KiB, MiB, GiB and TiB (or Ki, Mi, Gi, Ti); KB, MB, GB and TB are decimal ones.

    Args:
        text: such as `20GiB`, `512 MiB`, `0`.
        plain_unit: the unit of a plain number; empty: a plain number other than 0 is refused.

    Raises:
        InvalidInput: it is none.
    """
    match = _SIZE.fullmatch(text.strip().lower()) if len(text) <= _LONGEST else None
    if match is None or (match[2] and match[2] not in _BYTES):
        raise InvalidInput(f"{text[:_LONGEST]!r} is no size: write {SIZES}")
    number, unit = Fraction(match[1]), match[2] or plain_unit.lower()
    if not unit and number:
        raise InvalidInput(f"{text!r} has no unit: write {text.strip()}MiB or {text.strip()}GiB")
    return math.ceil(number * _BYTES[unit or "b"])


def size_mib(text: str, *, plain_unit: str = "") -> int:
    """A size in MiB, rounded up; arguments and errors as those of `size_bytes`."""
    return -(-size_bytes(text, plain_unit=plain_unit) // (1 << 20))


def given_duration_s(value: object, field: str) -> float:
    """A duration in seconds of what a caller gave: a number of seconds, a text (`duration_s`), or a timedelta.

    Args:
        value: such as `90`, `"1h30m"`, `timedelta(hours=1)`.
        field: its name, for messages.

    Raises:
        InvalidInput: it is none; names the field.
    """
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        try:
            return duration_s(value)
        except InvalidInput as error:
            raise InvalidInput(f"{field}: {error.message}", field=field) from None
    if _is_number(value) and math.isfinite(value):
        return float(value)
    raise InvalidInput(
        f"{field}: {_shown(value)} is no duration: write {DURATIONS}, a number of seconds or a timedelta", field=field
    )


def given_size_mib(value: object, field: str) -> int:
    """A size in MiB, rounded up, of what a caller gave: a text with its unit (`size_mib`); 0 needs none.

    Args:
        value: such as `"16GiB"`.
        field: its name, for messages.

    Raises:
        InvalidInput: it is none, or has no unit; names the field.
    """
    if _is_number(value):
        if value == 0:
            return 0
        raise InvalidInput(
            f"{field}: {_shown(value)} has no unit: write {field}='{value}GiB', or {field}_mib={value}", field=field
        )
    if not isinstance(value, str):
        raise InvalidInput(f"{field}: {_shown(value)} is no size: write {SIZES}", field=field)
    try:
        return size_mib(value)
    except InvalidInput as error:
        raise InvalidInput(f"{field}: {error.message}", field=field) from None


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool):
        return False
    return isinstance(value, numbers.Real)  # numpy's numbers, too


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
