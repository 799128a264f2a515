"""Unreadable records in Redis: each is logged once, and counted. Uses no Redis."""

from __future__ import annotations

from collections.abc import Callable

import structlog

# So many are told by name; a store that holds more of them needs no list.
TOLD_KEPT = 10_000


class Unreadable:
    """Logs and counts the unreadable records of one process.

    Args:
        count: called once for each record.
    """

    def __init__(self, count: Callable[[], None] = lambda: None) -> None:
        self._count = count
        self._told: set[str] = set()
        self._log = structlog.get_logger()

    def add(self, name: str, problem: object) -> None:
        """Notes an unreadable record; most have been logged before.

        Args:
            name: its place.
            problem: the reason.
        """
        if name in self._told or len(self._told) >= TOLD_KEPT:
            return
        self._told.add(name)
        self._log.error("a record can't be read, and is skipped", record=name, problem=str(problem))
        self._count()
