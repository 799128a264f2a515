"""The tokens of a suite that runs programs: made at its first start, and kept. Touches files.

data-dir/secrets/users            the services' users' file: the operator's line and the service's, and any added
data-dir/secrets/service.token    what services show each other
data-dir/secrets/operator.token   the token of the user who started the suite; his commands find it by up.json
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from adlro.errors import InvalidInput
from adlro.kit.credentials import SERVICE_TOKEN_ENV, TOKEN_ENV
from adlro.kit.identity import Role, UsersFile, new_token, read_token, users_line
from adlro.kit.private_files import private_directory, private_opener

USERS_ENV = "ADLRO_USERS_FILE"
_OWN_USERS = re.compile(r"ADLRO_[A-Z]+_USERS_FILE")
# A user of this name is no person: its role is `service`.
_SERVICE_USER = "suite"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._@+-]")


@dataclass(frozen=True, slots=True)
class SuiteSecrets:
    """The files of a suite's tokens.

    Attributes:
        users_file: the users and their roles.
        service_token_file: the services' own token.
        token_file: the operator's token.
    """

    users_file: Path
    service_token_file: Path
    token_file: Path


def login() -> str:
    """The user of this process, as a name that jobs may have."""
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = ""
    return _NOT_IN_NAMES.sub("-", name)[:64] or f"uid-{uid}"


def are_given(environment: Mapping[str, str]) -> bool:
    """Whether the environment names the users' file and tokens of a suite; otherwise the suite makes its own.

    Raises:
        InvalidInput: some are missing, or a service would accept every caller.
    """
    for key, value in environment.items():
        if _OWN_USERS.fullmatch(key) and not value:
            raise InvalidInput(
                f"{key} is empty: that service would accept every caller, and --cluster local runs programs for "
                "authenticated ones only; unset it",
                field=key,
            )
    keys = (USERS_ENV, SERVICE_TOKEN_ENV, TOKEN_ENV)
    if not any(environment.get(key) for key in keys[:2]):
        return False
    missing = [key for key in keys if not environment.get(key)]
    if missing:
        raise InvalidInput(
            f"--cluster local: {' and '.join(missing)} is not set; the users' file, the services' token and your own "
            "belong together (docs/security.md). Without any of them, the suite makes its own",
            field=missing[0],
        )
    return True


def make_secrets(folder: Path) -> SuiteSecrets:
    """The tokens in a folder: those of an earlier start, and new ones where they are missing.

    Raises:
        Conflict: the folder, or a file in it, belongs to another user.
        InvalidInput: a file in it is no users' file, or holds no token.
        OSError: it can't be written.
    """
    private_directory(folder)
    found = SuiteSecrets(folder / "users", folder / "service.token", folder / "operator.token")
    _have_token(found.users_file, found.service_token_file, _SERVICE_USER, Role.SERVICE)
    _have_token(found.users_file, found.token_file, login(), Role.OPERATOR)
    return found


def _have_token(users_file: Path, token_file: Path, user: str, role: Role) -> None:
    """Makes a token unless the file has one which the users' file accepts for the role."""
    if token_file.exists() and users_file.exists():
        caller = UsersFile(str(users_file), str(users_file)).caller(read_token(str(token_file), str(token_file)))
        if caller is not None and role in caller.roles:
            return
    token = new_token(user)
    # The line first: a start that was interrupted between the two makes another token, and leaves an unused line.
    lines = users_file.read_text("utf-8") if users_file.exists() else ""
    _write(users_file, f"{lines.rstrip()}\n{users_line(token, [role])}\n".lstrip())
    _write(token_file, f"{token}\n")


def _write(path: Path, text: str) -> None:
    """Replaces a file in one step."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
