"""As which Unix user a program runs.

A service that is not root runs all programs as its own user. One that is root needs a file that says who is who:

    ada      ada
    bob      robert
    *        *        # everybody else: the Unix user of the same name

Nobody's programs run as root, but where a line names root: `ada root`, or `* root`.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass, field
from pathlib import Path

from adlro.errors import InvalidInput, Unavailable

EVERYBODY = SAME_NAME = "*"
KEY = "ADLRO_LOCAL_USERS_MAP"


@dataclass(frozen=True, slots=True)
class _Map:
    """What the file says: `others`: for everybody whom it does not name; empty: nobody."""

    named: dict[str, str] = field(default_factory=dict)
    others: str = ""


class UnixUsers:
    """Finds Unix users for the users of ADLRO. The file is read again when it has changed.

    Args:
        path: of the map; empty: there is none.
        euid: of this process; None: ask the kernel.
        key: where the map is named: a setting or an option, for messages.

    Raises:
        InvalidInput: this process is root and there is no map; it is not root and there is one; the map is wrong.
    """

    def __init__(self, path: str, euid: int | None = None, key: str = KEY) -> None:
        self._key = key
        self._path = Path(path) if path else None
        self._root = (os.geteuid() if euid is None else euid) == 0
        if self._root and self._path is None:
            raise InvalidInput(
                f"this service runs as root, so {key} (adlro up --users-map) must name a file that says as which Unix "
                "user each user's programs run: lines such as 'ada ada', '* *' (the Unix user of the same name), or "
                "'* root' (as root: for machines and containers of your own); or run the service as another user",
                field=key,
                reason="NO_USERS_MAP",
            )
        if not self._root and self._path is not None:
            raise InvalidInput(
                f"{key}: only root can run programs as other users; this user's suite runs all programs as this user: "
                f"leave {key} out, or start the suite as root",
                field=key,
                reason="NOT_ROOT",
            )
        self._read_of: tuple[int, int] | None = None
        self._map = _Map()
        self._refresh()

    @property
    def root_alone(self) -> bool:
        """The map names no Unix user but root."""
        return {*self._map.named.values(), self._map.others} <= {"", "root"}

    def unix_user(self, user: str) -> str:
        """The Unix user of a user's programs; empty: the service's own.

        Raises:
            InvalidInput: there is none.
            Unavailable: the map can't be read now.
        """
        if not self._root:
            return ""
        try:
            self._refresh()
        except InvalidInput as error:
            raise Unavailable(error.message, reason="USERS_MAP") from None
        name = self._map.named.get(user)
        explicit = name is not None or self._map.others not in ("", SAME_NAME)
        if name is None:
            name = self._map.others
        if name == SAME_NAME:
            name, explicit = user, False
        try:
            uid = pwd.getpwnam(name).pw_uid if name else None
        except (KeyError, ValueError):
            uid = None
        if uid is None or (uid == 0 and not explicit):
            raise InvalidInput(
                f"user {user} has no Unix user on this node: its operator can name one in the users' map"
            )
        return name

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp == self._read_of:
                return
            if found.st_uid != 0 or found.st_mode & 0o022:
                raise InvalidInput(
                    f"{self._key}: {self._path} must belong to root, and nobody else may write to it: it says whose "
                    f"programs run as whom; chown root {self._path}; chmod go-w {self._path}",
                    field=self._key,
                )
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InvalidInput(f"{self._key}: {self._path} can't be read: {why}", field=self._key) from None
        self._map, self._read_of = _parsed(text, self._path, self._key), stamp


def _parsed(text: str, path: Path, key: str) -> _Map:
    named: dict[str, str] = {}
    others = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or (words[1] == SAME_NAME and words[0] != EVERYBODY):
            raise InvalidInput(
                f"{key}: line {number} of {path} must be '<user> <Unix user>', '* <Unix user>' or '* *'", field=key
            )
        user, name = words
        if user in named or (user == EVERYBODY and others):
            raise InvalidInput(f"{key}: line {number} of {path}: '{user}' has a line already", field=key)
        if user == EVERYBODY:
            others = name
        else:
            named[user] = name
    return _Map(named, others)
