"""Opens files as a user, for a service that is root: python -I -S opening.py SOCKET UID GID GROUPS [rw|ro PATH]...

Standard library only. Each file is opened without being read, after the change of user: what the user can't reach can't
be opened. For each, a message goes back through the socket: '+' with the descriptor, or '-' and why not.
"""

from __future__ import annotations

import os
import socket
import sys


def open_as_user(path: str, *, writable: bool) -> int:
    """Opens a file or directory as a name of it alone (O_PATH), if this process may read it.

    Args:
        path: of it. Links are followed.
        writable: it must be writable too.

    Raises:
        OSError: it can't be opened, or read, or written to.
    """
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        here = f"/proc/self/fd/{fd}"
        wanted = os.R_OK | (os.W_OK if writable else 0) | (os.X_OK if os.path.isdir(here) else 0)
        if not os.access(here, wanted):
            raise PermissionError(13, "it may not be written to" if os.access(here, os.R_OK) else "it may not be read")
    except BaseException:
        os.close(fd)
        raise
    return fd


def main(arguments: list[str]) -> None:
    """Answers for all paths, then ends."""
    number, user_id, group_id = (int(each) for each in arguments[:3])
    with socket.socket(fileno=number) as answers:
        os.setgroups([int(each) for each in arguments[3].split(",") if each])
        os.setresgid(group_id, group_id, group_id)
        os.setresuid(user_id, user_id, user_id)
        for mode, path in zip(arguments[4::2], arguments[5::2], strict=True):
            try:
                fd = open_as_user(path, writable=mode == "rw")
            except OSError as error:
                answers.send(f"-{error.strerror or error}".encode())
                continue
            socket.send_fds(answers, [b"+"], [fd])
            os.close(fd)


if __name__ == "__main__":
    main(sys.argv[1:])
