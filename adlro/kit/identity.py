"""Users with roles, their tokens, and the users' file of a service. Independent of gRPC.

A token is `<user>.<secret>`, the secret 32 random bytes. The users' file holds only hashes of tokens: a
line for each, `<user> <role>[,<role>] sha256:<SHA-256 of the whole token, hex>`. A user may have several lines, so that
a new token can be issued before the old one is revoked. The secret is random, so a plain hash is enough: an attacker
can't guess it. `adlro token` makes both.

A service reads a changed file again; if the new file is invalid, it keeps the previous users.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from adlro.errors import InvalidInput
from adlro.kit.log import get_logger
from adlro.records.identity import Role

__all__ = [
    "CALLER",
    "Caller",
    "Role",
    "UsersFile",
    "current_caller",
    "new_token",
    "parse_users",
    "read_token",
    "user_of",
    "users_line",
]

# As in job.proto: a user of a token is the user of jobs.
_USER = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_TOKEN = re.compile(r"[A-Za-z0-9._@+-]{1,64}\.[A-Za-z0-9_-]{43}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_SECRET_BYTES = 32
_TOKEN_LIMIT = 256
_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a method."""

    user: str
    roles: frozenset[Role]

    @property
    def sees_all(self) -> bool:
        """Whether he may see other users' jobs."""
        return bool(self.roles & {Role.READER, Role.OPERATOR, Role.SERVICE})

    @property
    def acts_for_all(self) -> bool:
        """Whether he may change other users' jobs, and submit in their name."""
        return Role.OPERATOR in self.roles


# Set by the kit's interceptor for the task of a call.
CALLER: ContextVar[Caller | None] = ContextVar("adlro_caller", default=None)


def current_caller() -> Caller | None:
    """The caller of the current call; None if the service has no users, and every caller may use every method."""
    return CALLER.get()


def new_token(user: str) -> str:
    """Makes a new token.

    Raises:
        InvalidInput: no name for a user.
    """
    if not _USER.fullmatch(user):
        raise InvalidInput(
            f"user: {user!r} is no name for a user; write 1 to 64 letters, digits or any of ._@+-", field="user"
        )
    return f"{user}.{secrets.token_urlsafe(_SECRET_BYTES)}"


def user_of(token: str) -> str:
    """The user that a token names; does not check the token."""
    return token.rpartition(".")[0]


def users_line(token: str, roles: Sequence[Role]) -> str:
    """The line of the users' file for a token."""
    return f"{user_of(token)} {','.join(roles)} sha256:{_digest(token)}"


def read_token(path: str, key: str) -> str:
    """The token in a file.

    Args:
        path: the file; only its first line is read.
        key: its name in error messages.

    Raises:
        InvalidInput: it can't be read, or holds no token. The message does not show its content.
    """
    if _TOKEN.fullmatch(path):
        raise InvalidInput(
            f"{key}: holds a token instead of a file name; write the token to a file, and name the file", field=key
        )
    try:
        lines = Path(path).read_text("ascii").split("\n", 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no ASCII text"
        raise InvalidInput(f"{key}: can't read the token in {path}: {reason}", field=key) from None
    token = lines[0].strip()
    if not _USER.fullmatch(user_of(token)) or " " in token or len(token) > _TOKEN_LIMIT:
        raise InvalidInput(f"{key}: {path} holds no token; make one with `adlro token`", field=key)
    return token


class UsersFile:
    """The users of a service.

    Args:
        path: the file.
        key: its name in error messages.

    Raises:
        InvalidInput: it can't be read, or a line is invalid; names the line.
    """

    def __init__(self, path: str, key: str) -> None:
        self._path = path
        self._key = key
        self._seen = self._state()
        self._users = parse_users(self._read(), path, key)
        self._look_at_s = time.monotonic() + _LOOK_EVERY_S

    def __len__(self) -> int:
        return len(self._users)

    def caller(self, token: str) -> Caller | None:
        """The user of a token; None for an unknown token."""
        if time.monotonic() >= self._look_at_s:
            self._look_again()
        presented = _digest(token)
        found: Caller | None = None
        # All of his tokens are compared, each in constant time; for an unknown user one that no token has.
        for digest, caller in self._users.get(user_of(token), _NOBODY):
            if hmac.compare_digest(digest, presented):
                found = caller
        return found

    def _look_again(self) -> None:
        self._look_at_s = time.monotonic() + _LOOK_EVERY_S
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            self._users = parse_users(self._read(), self._path, self._key)
        except InvalidInput as error:
            get_logger().error("the changed users' file is invalid; the previous users stay", problem=str(error))
        else:
            get_logger().info("the users' file was changed", users=len(self._users))

    def _state(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self) -> str:
        try:
            return Path(self._path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it holds no text"
            raise InvalidInput(f"{self._key}: can't read {self._path}: {reason}", field=self._key) from None


def parse_users(text: str, path: str, key: str) -> Mapping[str, tuple[tuple[str, Caller | None], ...]]:
    """By user, the hashes of his tokens, each with its caller.

    Raises:
        InvalidInput: a line is invalid. The message names the line and does not show it: it might contain a token.
    """
    out: dict[str, tuple[tuple[str, Caller | None], ...]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue

        def wrong(what: str, number: int = number) -> InvalidInput:
            return InvalidInput(
                f"{key}: {path}, line {number}: {what}; a line is `<user> <role>[,<role>] sha256:<64 hex digits>`, "
                "as `adlro token` writes it",
                field=key,
            )

        if len(parts) != 3:
            raise wrong("does not have three parts")
        user, roles, digest = parts
        if not _USER.fullmatch(user):
            raise wrong("its first part is no name for a user")
        known = frozenset(role.value for role in Role)
        if not set(roles.split(",")) <= known:
            raise wrong(f"its second part names an unknown role; roles are {', '.join(sorted(known))}")
        if not _HASH.fullmatch(digest):
            raise wrong("its third part is no SHA-256")
        caller = Caller(user, frozenset(Role(role) for role in roles.split(",")))
        out[user] = (*out.get(user, ()), (digest.removeprefix("sha256:"), caller))
    if not out:
        raise InvalidInput(
            f"{key}: {path} names no user, so no caller could use the service; add one with `adlro token`", field=key
        )
    return out


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


_NOBODY: tuple[tuple[str, Caller | None], ...] = (("0" * 64, None),)
