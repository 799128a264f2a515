"""This user's running suites, by their address, and the token that belongs to each, if any. Touches files.

    <default data directory>/suites/<port>.json    names the data directory of the suite at that port of 127.0.0.1
    <data directory>/up.json                       its addresses, and the file of its token
    <data directory>/lock                          locked while it runs

A file counts only if it belongs to this user and no other user can read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlro.kit.addresses import split_address
from adlro.kit.private_files import UMASK, private_directory, private_opener

LOCK, STATUS, SUITES = "lock", "up.json", "suites"
"""Entries of data directories."""

_HOST = "127.0.0.1"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RunningSuite:
    """A suite that runs now, as this user.

    Attributes:
        addresses: of its services, `host:port`.
        token_file: file with a token for its services; empty: they take calls without one.
        data_dir: its data directory.
        page: the link of its live page; empty: it has none.
    """

    addresses: frozenset[str]
    token_file: str
    data_dir: Path
    page: str = ""


def default_data_dir() -> Path:
    """`$XDG_STATE_HOME/adlro`, or `~/.local/state/adlro`."""
    state_home = os.environ.get("XDG_STATE_HOME", "")
    # The XDG rules: a relative path counts as not set.
    base = Path(state_home) if Path(state_home).is_absolute() else Path.home() / ".local" / "state"
    return base / "adlro"


def note_suite(server: str, data_dir: Path) -> None:
    """Records where the data of the suite at an address are.

    Raises:
        Conflict: the directory of the notes belongs to another user.
        OSError: the note can't be written.
    """
    note = _note(server)
    private_directory(note.parent)
    new = note.with_suffix(".new")
    with open(new, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(json.dumps({"data_dir": str(data_dir)}) + "\n")
    new.replace(note)


def forget_suite(server: str, data_dir: Path) -> None:
    """Removes the note of `note_suite`, unless it is of another suite by now."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: this user has no home directory
        note = _note(server)
        if _read(note).get("data_dir") == str(data_dir):
            note.unlink(missing_ok=True)


def running_suite(server: str) -> RunningSuite | None:
    """The suite at an address, if it runs as this user; of one that asks for a token, if the token is his.

    Args:
        server: `host:port` of ingest; only 127.0.0.1 is looked for: at another name of this machine another user may
            listen.
    """
    host, _ = split_address(server)
    if host != _HOST:
        return None
    try:
        data_dir = Path(str(_read(_note(server))["data_dir"]))
        status = _read(data_dir / STATUS)
        addresses, token_file = status["addresses"], str(status["token_file"])
        if status["server"] != server or not isinstance(addresses, dict):
            return None
        if token_file and _own(Path(token_file)) is None:
            return None
    except (KeyError, OSError, RuntimeError):  # no note; or no home directory
        return None
    if not _is_locked(data_dir / LOCK):
        return None
    return RunningSuite(frozenset(map(str, addresses.values())), token_file, data_dir, str(status.get("page") or ""))


def _note(server: str) -> Path:
    return default_data_dir() / SUITES / f"{split_address(server)[1]}.json"


def _read(path: Path) -> dict[str, Any]:
    """The object in a JSON file of this user's; empty if there is none."""
    text = _own(path)
    try:
        found = json.loads(text or "null")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _own(path: Path) -> str | None:
    """The text of a file that belongs to this user and that no other user can open; otherwise None."""
    try:
        # Not blocking: a pipe of that name would make the caller wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & UMASK:
                return None
            return file.read(_MOST_BYTES)
    except (OSError, UnicodeDecodeError):
        return None


def _is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a running suite: after a crash, its files are there, and the lock is free."""
    try:
        with open(path, "rb") as lock:
            if os.fstat(lock.fileno()).st_uid != os.geteuid():
                return False
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except OSError:
        return False
