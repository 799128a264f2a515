"""The service's directory, for one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from adlro.attempt.folders import passable_directory
from adlro.errors import Conflict


class DataDir:
    """A directory that this process alone uses.

    Attributes:
        path: of the directory.

    Args:
        path: made where it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = -1

    def take(self) -> None:
        """Makes the directory, and takes its lock, which ends with this process.

        Raises:
            Conflict: another process has it.
            OSError: the directory can't be made.
        """
        if self._lock_fd >= 0:
            return
        passable_directory(self.path)
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            raise Conflict(
                f"another service (pid {holder or 'unknown'}) uses {self.path}: stop it, or set ADLRO_LOCAL_DATA_DIR "
                "to a directory of this one's own",
                reason="DATA_DIR_IN_USE",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    def give_back(self) -> None:
        """Frees the lock."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
