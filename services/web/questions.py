"""Parameters of questions, and answers that the rest can do without. Knows no HTTP and no service."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, TypeVar

from adlro.errors import AdlroError, InvalidInput

T = TypeVar("T")

LATEST_S: Final = 1e12
"""The latest time that a question may name, seconds of the cluster's clock."""


def whole(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """A whole number of a query.

    Raises:
        InvalidInput: it is none, or out of range.
    """
    text = query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or not text.isascii() or len(text) > 20 or not least <= int(text) <= most:
        raise InvalidInput(f"{name}: must be a whole number from {least} to {most}", field=name)
    return int(text)


def real(query: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    """A number of a query.

    Raises:
        InvalidInput: it is none, or out of range.
    """
    text = query.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidInput(f"{name}: must be a number from {least:g} to {most:g}", field=name)
    return value


async def or_none(question: Awaitable[T]) -> T | None:
    """An answer that the rest can do without."""
    try:
        return await question
    except AdlroError:
        return None
