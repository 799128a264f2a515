"""Whose processes use a GPU."""

from __future__ import annotations

import os
import pwd


def user_of(pid: int, proc: str = "/proc") -> str:
    """The name of a process's user, or the number of one without a name; empty: the process can't be seen.

    Args:
        pid: of the process.
        proc: where the kernel's process files are.
    """
    try:
        uid = os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
