"""What a program is given: its user, its environment, its secrets. Part of the supervisor: standard library only.

All of it is found before the spawn record is made, so what is missing keeps a program from starting, and is told.
"""

from __future__ import annotations

import os
import pwd
import stat

from adlro.attempt import tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from adlro.attempt.journal import Record

_MOST_SECRET_BYTES = 64 << 10
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NotStartedError(Exception):
    """The program can't be started; the text says why, for its user."""


def user_of(name: str) -> tuple[tuple[int, int, list[int]] | None, pwd.struct_passwd | None]:
    """The user as whom a program runs.

    Args:
        name: of the user; empty: this process's.

    Returns:
        User id, group id and groups to change to (None: there is nothing to change), and the user's entry (None: there
        is none).

    Raises:
        NotStartedError: there is no such user, or it can't be changed to.
    """
    if not name:
        try:
            return None, pwd.getpwuid(os.geteuid())
        except KeyError:
            return None, None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise NotStartedError(f"this node has no user '{name}'") from None
    if os.geteuid() == entry.pw_uid:
        return None, entry
    if os.geteuid() != 0:
        raise NotStartedError(f"this node's service does not run as root, so it can't run programs as '{name}'")
    return (entry.pw_uid, entry.pw_gid, os.getgrouplist(name, entry.pw_gid)), entry


def environment_of(intent: Record, own: pwd.struct_passwd | None) -> dict[str, str]:
    """All of a program's environment. Nothing of the service's is in it.

    Args:
        intent: of the attempt.
        own: the user's entry.

    Raises:
        NotStartedError: a secret can't be had.
    """
    environment = {"PATH": _PATH, "LANG": "C.UTF-8"}
    if own is not None:
        environment |= {"HOME": own.pw_dir, "USER": own.pw_name, "LOGNAME": own.pw_name, "SHELL": own.pw_shell}
    environment |= intent["environment"]
    environment |= secrets_of(intent, own)
    environment |= {"ADLRO_ATTEMPT": intent["name"]} | intent["node_environment"]
    return environment | {tree.MARK: intent["mark"]}


def secrets_of(intent: Record, own: pwd.struct_passwd | None) -> dict[str, str]:
    """The values of the secrets that a program is given.

    Args:
        intent: of the attempt.
        own: the user's entry.

    Raises:
        NotStartedError: one can't be had.
    """
    owners = {0, os.geteuid() if own is None else own.pw_uid}
    return {name: _secret(name, path, owners) for name, path in intent["secrets"].items()}


def _secret(name: str, path: str, owners: set[int]) -> str:
    """A secret's value. What is wrong with it is told without it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        way_out = "" if os.path.lexists(path) else f"; its operator puts the value into {path}, mode 0600"
        raise NotStartedError(f"this node has no secret '{name}' for this user: {error.strerror}{way_out}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
            raise NotStartedError(f"the secret '{name}' must be a file that its owner alone can read (mode 0600)")
        if found.st_uid not in owners:
            raise NotStartedError(f"the secret '{name}' must be a file of its user, or of root")
        value = os.read(fd, _MOST_SECRET_BYTES + 1)
    finally:
        os.close(fd)
    if len(value) > _MOST_SECRET_BYTES or b"\0" in value:
        raise NotStartedError(f"the secret '{name}' must be text without NUL, of at most {_MOST_SECRET_BYTES} bytes")
    return os.fsdecode(value.removesuffix(b"\n"))
