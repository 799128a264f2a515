"""The tokens that a suite which runs programs makes for itself."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from adlro.cli.secrets import login, make_secrets
from adlro.errors import InvalidInput
from adlro.kit.identity import Role, UsersFile, new_token, read_token, users_line


def roles(users: Path, token_file: Path) -> tuple[str, frozenset[Role]] | None:
    caller = UsersFile(str(users), "users").caller(read_token(str(token_file), "token"))
    return None if caller is None else (caller.user, caller.roles)


def test_tokens_are_made_once_and_for_their_owner_only(tmp_path: Path) -> None:
    os.umask(previous := os.umask(0))
    os.umask(0)
    try:
        made = make_secrets(tmp_path / "secrets")
    finally:
        os.umask(previous)
    assert roles(made.users_file, made.token_file) == (login(), frozenset({Role.OPERATOR}))
    assert roles(made.users_file, made.service_token_file) == ("suite", frozenset({Role.SERVICE}))
    found = [made.users_file.parent, *made.users_file.parent.iterdir()]
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in found} == {
        "secrets": 0o700,
        "users": 0o600,
        "service.token": 0o600,
        "operator.token": 0o600,
    }
    texts = [path.read_text() for path in found[1:]]
    assert make_secrets(tmp_path / "secrets") == made
    assert [path.read_text() for path in found[1:]] == texts


def test_added_users_stay_and_lost_tokens_are_made_again(tmp_path: Path) -> None:
    made = make_secrets(tmp_path)
    line = users_line(new_token("ada"), [Role.SUBMITTER])
    with made.users_file.open("a") as file:
        file.write(f"{line}\n")
    made.users_file.chmod(0o666)
    first = made.token_file.read_text()
    made.token_file.unlink()
    make_secrets(tmp_path)
    assert made.token_file.read_text() != first
    assert roles(made.users_file, made.token_file) == (login(), frozenset({Role.OPERATOR}))
    assert line in made.users_file.read_text().splitlines()
    assert stat.S_IMODE(made.users_file.stat().st_mode) == 0o600
    # A revoked line is a wish for another token.
    made.users_file.write_text(f"{line}\n")
    make_secrets(tmp_path)
    assert roles(made.users_file, made.service_token_file) == ("suite", frozenset({Role.SERVICE}))
    made.users_file.write_text("nonsense\n")
    with pytest.raises(InvalidInput, match="line 1"):
        make_secrets(tmp_path)


def test_a_user_without_a_name_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert login() == f"uid-{os.geteuid()}"
