"""The data directory of a suite: what is where in it, and its lock.

data-dir/lock              held while it runs; contains the pid
data-dir/up.json           addresses, pids and the page's link, for scripts
data-dir/log/<name>.log    one for each service, of the last starts as .1, .2, .3
data-dir/valkey/           the store's append-only file, and its password
data-dir/checkpoints/      promoted checkpoints of the learned policy (adlro policy promote)
data-dir/learn/            what adlro learn works with, and its candidate
data-dir/notify/           messages to webhooks that are not delivered yet, if there are webhooks

Only where it runs programs (`SuitePlan.closed`):

data-dir/valkey-local/     its store, instead of data-dir/valkey; likewise notify-local
data-dir/secrets/          tokens (adlro.cli.secrets)
data-dir/local/            what programs of local leave: attempts/ with records and logs, notes/, gpus.json

Other users of the machine have no access to these files, whatever the umask.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from adlro.cli.notify_process import notify_directory
from adlro.cli.starting import StartFailed
from adlro.client.endpoints import Endpoints
from adlro.errors import Conflict
from adlro.kit.private_files import private_directory, private_opener
from adlro.kit.running_suites import LOCK, STATUS, SUITES, running_suite

# A command that looks whether a suite runs holds the lock for a moment.
_LOCK_TRIES, _LOCK_AGAIN_S = 5, 0.05

LOCAL_FOLDER = "local"
LOGS, STORE, SECRETS, CHECKPOINTS, LEARN = "log", "valkey", "secrets", "checkpoints", "learn"
# Jobs that callers without a token left in the store of a simulated cluster must never become programs.
CLOSED_STORE = "valkey-local"
_OURS = (
    *(LOCK, STATUS, f"{STATUS}.new", SUITES, LOGS, STORE, CLOSED_STORE, SECRETS, CHECKPOINTS, LEARN),
    *(notify_directory(closed=closed) for closed in (False, True)),
)
"""All entries of a data directory, except that of local, in which programs of other users have files."""


def data_dir_of(server: str | None) -> Path | None:
    """The data directory of this user's suite at an address; None: it runs elsewhere, or not at all.

    Args:
        server: `host:port` of ingest; None: the default one.
    """
    suite = running_suite(Endpoints.resolve(server).ingest)
    return None if suite is None else suite.data_dir


def take_lock(directory: Path, *, passable: bool) -> IO[str]:
    """Makes a data directory, for this user alone, and locks it until the file is closed.

    Args:
        directory: its path.
        passable: other users may pass through it to their own files.

    Raises:
        StartFailed: it can't be written.
        Conflict: another suite uses it, or it belongs to another user.
    """
    try:
        private_directory(directory, _OURS, left=(LOCAL_FOLDER,))
        if passable:
            directory.chmod(0o711)
        lock = open(directory / LOCK, "a+", encoding="utf-8", opener=private_opener)  # noqa: SIM115
    except OSError as error:
        raise StartFailed(
            f"the data directory {directory} can't be written ({error.strerror}); name another --data-dir"
        ) from None
    if not _locked(lock):
        lock.seek(0)
        holder = lock.read().strip()
        lock.close()
        raise Conflict(
            f"{directory} is in use by another `adlro up`"
            + (f" (pid {holder})" if holder else "")
            + "; stop that one, or name another --data-dir"
        ) from None
    lock.seek(0)
    lock.truncate()
    lock.write(str(os.getpid()))
    lock.flush()
    directory.joinpath(STATUS).unlink(missing_ok=True)  # left by a suite that was killed
    return lock


def _locked(lock: IO[str]) -> bool:
    """Takes the lock of a data directory; False: another suite has it."""
    for attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if attempt + 1 < _LOCK_TRIES:
                time.sleep(_LOCK_AGAIN_S)
        else:
            return True
    return False
