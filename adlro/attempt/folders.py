"""Directories in which each job or attempt has its own; touches the disk alone."""

from __future__ import annotations

import os
from pathlib import Path

PASSABLE_MODE = 0o711 if os.geteuid() == 0 else 0o700
"""Only root has programs of other users: they pass through to their own directory, and see nothing else."""


def passable_directory(path: Path) -> None:
    """Makes a directory of `PASSABLE_MODE` where none is; one that is there keeps its mode.

    Several processes may do so at once.

    Raises:
        FileExistsError: something else is there.
        OSError: it can't be made.
    """
    try:
        path.mkdir(mode=PASSABLE_MODE, parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(PASSABLE_MODE)  # whatever the umask takes away
