"""The format number of stored data: each message has its own."""

from __future__ import annotations

from typing import Protocol

FORMAT = 2
"""Format of stored jobs, clusters and telemetry (adlro/store/format.py): each message has its number."""


class _Kept(Protocol):
    """A stored message."""

    @property
    def format(self) -> int: ...


def check_format(message: _Kept) -> None:
    """Refuses a message of a newer release, in a format that this one does not know.

    Raises:
        ValueError: the message has such a format.
    """
    if message.format > FORMAT:
        raise ValueError(f"it is of format {message.format}, and this release reads formats 1 to {FORMAT}")
