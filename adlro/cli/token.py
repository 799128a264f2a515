"""`adlro token`: creates a token for a user, and its line in the services' users' file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from adlro.cli.shell import say
from adlro.errors import Conflict, InvalidInput
from adlro.kit.identity import Role, new_token, parse_users, users_line
from adlro.terminal import escape


def token(
    user: Annotated[str, typer.Argument(help="The token's user: the user of the jobs submitted with it.")],
    role: Annotated[
        list[Role],
        typer.Option("--role", "-r", help="A role of the user; repeatable."),
    ],
    users_file: Annotated[
        Path | None,
        typer.Option(
            "--users-file",
            help="Add the line to this file (ADLRO_USERS_FILE of the services). Default: print the line.",
            show_default=False,
            dir_okay=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the token to this new file, which only you can read, instead of stdout.",
            show_default=False,
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Make a token for a user.

    The token itself is not stored: services have its hash. To revoke a token, delete its line.
    """
    made = new_token(user)
    line = users_line(made, role)
    users = "" if users_file is None else _read_users(users_file)
    if out is not None:
        _write_new(out, made + "\n")
    if users_file is not None:
        _append(users_file, f"{line}\n" if not users or users.endswith("\n") else f"\n{line}\n")
    else:
        say(f"For ADLRO_USERS_FILE of the services:\n{escape(line)}")
    if out is None:
        typer.echo(made)


def _write_new(path: Path, text: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Conflict(f"--out: {path} is there already; name another file") from None
    except OSError as error:
        raise InvalidInput(f"--out: can't write {path}: {error.strerror}", field="out") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)


def _read_users(path: Path) -> str:
    """The present lines; raises InvalidInput if they are not a users' file's."""
    try:
        text = path.read_text("utf-8") if path.exists() else ""
    except OSError as error:
        raise InvalidInput(f"--users-file: can't read {path}: {error.strerror}", field="users_file") from None
    if text.strip():
        parse_users(text, str(path), "--users-file")
    return text


def _append(path: Path, text: str) -> None:
    """Writes to the existing file in one step, so that a container with the file mounted gets it at once."""
    try:
        with path.open("ab", buffering=0) as file:
            file.write(text.encode())
    except OSError as error:
        raise InvalidInput(f"--users-file: can't write {path}: {error.strerror}", field="users_file") from None
