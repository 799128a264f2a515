"""Files and directories that only their owner may open; closes those that an older version left open.

Touches file modes. They exclude other users of a machine, whatever the umask, but not root.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection
from pathlib import Path

from adlro.errors import Conflict

UMASK = 0o077
"""For child processes: their files are readable by their owner only."""


def private_opener(path: str, flags: int) -> int:
    """For `open(..., opener=private_opener)`: a new file has mode 0600."""
    return os.open(path, flags, 0o600)


def private_directory(path: Path, ours: Collection[str] | None = None, left: Collection[str] = ()) -> None:
    """Makes a directory for its owner only (0700), or removes group's and others' bits from an existing one.

    Args:
        path: the directory; missing parents are made too.
        ours: the names in it that are ours; None: all. Where it holds other things too (a home directory, say), its
            own mode and those things are left as they are. Links in it are not followed.
        left: further names that are ours, whose modes and owners are left as they are.

    Raises:
        Conflict: the directory, or one of our files in it, belongs to another user.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = path.resolve()
    found = set(os.listdir(path)) if os.access(path, os.R_OK) else set()
    if ours is None or found <= {*ours, *left}:
        _close(path)
    for name in found - set(left) if ours is None else found & set(ours):
        _close_tree(path / name)


def _close_tree(top: Path) -> None:
    _close(top)
    if top.is_symlink():  # os.walk follows its first argument
        return
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            _close(Path(folder, name))


def _close(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return  # it went meanwhile
    if found.st_uid != os.geteuid():
        raise Conflict(
            f"{path} belongs to another user, who could read or change the files in it; name another data "
            "directory, or make the user of this process its owner",
            reason="DATA_DIR_NOT_OWN",
        )
    if found.st_mode & UMASK and not stat.S_ISLNK(found.st_mode):
        with contextlib.suppress(FileNotFoundError):
            path.chmod(stat.S_IMODE(found.st_mode) & ~UMASK)
