"""Readers of options whose values are durations and sizes, and the shell's completion of policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

from adlro.errors import InvalidInput
from adlro.records.decisions import POLICY_NAMES
from adlro.units import duration_s, size_mib

T = TypeVar("T")

TIME = "TIME"
"""Metavar of durations."""
SIZE = "SIZE"
"""Metavar of sizes."""


def policy_names(incomplete: str) -> list[str]:
    """The policies of this release whose names begin so, for the shell's completion."""
    return [name for name in POLICY_NAMES if name.startswith(incomplete)]


def duration(value: str | float) -> float:
    """A duration in seconds (`adlro.units.duration_s`); a number is an option's default."""
    return value if isinstance(value, int | float) else _read(value, duration_s)


def interval(value: str | float) -> float:
    """A duration in seconds between two updates of a display."""
    found = duration(value)
    if not 0.1 <= found <= 3600.0:
        raise typer.BadParameter(f"{value!r} must be between 100ms and 1h")
    return found


def size(value: str | int) -> int:
    """A size in MiB, with its unit (`adlro.units.size_mib`); a number is an option's default."""
    return value if isinstance(value, int) else _read(value, size_mib)


def plain_mib(value: str | int) -> int:
    """A size in MiB for options that are named so; a plain number is MiB."""
    return value if isinstance(value, int) else _read(value, lambda text: size_mib(text, plain_unit="MiB"))


def _read(text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
    except InvalidInput as error:
        raise typer.BadParameter(error.message) from None
