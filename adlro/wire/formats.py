"""The format of what is kept: each message says its own."""

from __future__ import annotations

from typing import Protocol

FORMAT = 2
"""Of what is kept of jobs, clusters and telemetry (adlro/store/format.py): each message says its own."""


class _Kept(Protocol):
    """A message of something that is kept."""

    @property
    def format(self) -> int: ...


def check_format(message: _Kept) -> None:
    """Refuses what a newer release has written in a format that this one does not know.

    Raises:
        ValueError: it is of such a format.
    """
    if message.format > FORMAT:
        raise ValueError(f"it is of format {message.format}, and this release reads formats 1 to {FORMAT}")
