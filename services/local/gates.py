"""What lets all programs of an attempt begin at once: a file for each attempt of several programs, made once.

Each program prepares itself and waits for the file (`adlro.attempt`), so nothing begins before all have what they need,
and nothing of this service is needed for all to begin once the file is there. Decision 0018 says why.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from adlro.attempt.journal import Journal, now


class Gates:
    """The gates of a node.

    Args:
        folder: theirs; made where it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, attempt_name: str) -> Path:
        """Of the file that an attempt's programs wait for."""
        return self._folder / f"{attempt_name}.json"

    def is_open(self, attempt_name: str) -> bool:
        """Whether an attempt's programs may begin."""
        return self.path(attempt_name).exists()

    def open(self, attempt_name: str) -> None:
        """Lets all programs of an attempt begin, for good.

        Raises:
            OSError: the disk does not take it; whether they may begin is not known.
        """
        Journal(str(self._folder)).write_once(self.path(attempt_name).name, {"opened": now()})

    def remove(self, attempt_name: str) -> None:
        """Removes the gate of an attempt whose programs are forgotten."""
        with contextlib.suppress(FileNotFoundError):
            self.path(attempt_name).unlink()

    def keep(self, attempt_names: Collection[str]) -> None:
        """Removes all gates but these, and what kills have left of writing them."""
        kept = {self.path(each).name for each in attempt_names}
        for entry in list(os.scandir(self._folder)):
            if entry.name not in kept:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
