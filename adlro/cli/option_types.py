"""Readers of options whose values are durations and sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

from adlro.errors import InvalidInput
from adlro.records.arrays import ArrayIndexes, read_array_indexes
from adlro.units import duration_s, size_mib

T = TypeVar("T")

TIME = "TIME"
"""Metavar of durations."""
SIZE = "SIZE"
"""Metavar of sizes."""


def job_id(value: str) -> str:
    """A job's id; a number alone is that of a job: `17` is `job-17`."""
    text = value.strip()
    return f"job-{text}" if text.isascii() and text.isdigit() else text


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


def array_indexes(value: str | ArrayIndexes) -> ArrayIndexes:
    """The indexes of an array, written as Slurm does: `0-99%10`."""
    return value if isinstance(value, ArrayIndexes) else _read(value, read_array_indexes)


def _read(text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
    except InvalidInput as error:
        raise typer.BadParameter(error.message) from None
