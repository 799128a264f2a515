"""What in Redis can't be read as what it should be: each record is told once, and counted. Knows no Redis."""

from __future__ import annotations

from collections.abc import Callable

import structlog

# So many are told by name; a store that holds more of them needs no list.
TOLD_KEPT = 10_000


class Unreadable:
    """Tells and counts records of one process that can't be read, and are left out.

    Args:
        count: called for each, once.
    """

    def __init__(self, count: Callable[[], None] = lambda: None) -> None:
        self._count = count
        self._told: set[str] = set()
        self._log = structlog.get_logger()

    def add(self, name: str, problem: object) -> None:
        """Takes a record that can't be read; most often it was told before.

        Args:
            name: where it stands.
            problem: why.
        """
        if name in self._told or len(self._told) >= TOLD_KEPT:
            return
        self._told.add(name)
        self._log.error("a record can't be read, and is skipped", record=name, problem=str(problem))
        self._count()
