"""Removes a folder with all that programs have left in it, however deep: by neither recursion nor long paths."""

from __future__ import annotations

import os

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(top: str) -> None:
    """Removes a folder. Links are removed, not followed.

    Each folder in it is emptied of its files, and its own folders are moved up to the top: two levels are all there is.

    Args:
        top: the folder; nobody else may write to it.

    Raises:
        OSError: something of it can't be removed.
    """
    fd = os.open(top, _FOLDER)
    try:
        moved = 0
        while folders := _without_files(fd):
            for name in folders:
                below = _open_below(name, fd)
                try:
                    for each in _without_files(below):
                        moved += 1
                        _move_up(each, below, f"{moved}.{os.urandom(8).hex()}", fd)
                finally:
                    os.close(below)
                os.rmdir(name, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(top)


def _without_files(fd: int) -> list[str]:
    """Removes what is no folder; returns the folders."""
    with os.scandir(fd) as entries:
        found = [(each.name, each.is_dir(follow_symlinks=False)) for each in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=fd)
    return [name for name, is_folder in found if is_folder]


def _open_below(name: str, fd: int) -> int:
    _make_ours(name, fd)
    return os.open(name, _FOLDER, dir_fd=fd)


def _move_up(name: str, below: int, new_name: str, top: int) -> None:
    _make_ours(name, below)
    os.rename(name, new_name, src_dir_fd=below, dst_dir_fd=top)


def _make_ours(name: str, fd: int) -> None:
    """A program may have closed its folder to itself. Root needs no leave, and must not follow what may be a link."""
    if os.geteuid() != 0:
        os.chmod(name, 0o700, dir_fd=fd)
