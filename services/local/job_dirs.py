"""A directory for each job, the same for all of its attempts: what it needs to go on after a stop lies there.

It belongs to the program's Unix user, and is deleted with the logs of the job's last attempt. While the job is to go on
(it was preempted, or lost) it stays until nothing in it has changed for as long as logs are kept.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import time
from collections.abc import Collection
from pathlib import Path

import structlog

from adlro.attempt.folders import passable_directory
from adlro.attempt.records import is_name
from adlro.attempt.removal import remove_tree
from adlro.clusterside.attempts import Attempt
from adlro.errors import InvalidInput

_log = structlog.get_logger()
_DIGITS = 8


class JobDirs:
    """The directories of jobs.

    Args:
        folder: theirs; made where it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        passable_directory(folder)

    def make(self, name: str, unix_user: str) -> str:
        """Makes a job's directory where it is not there; returns its path.

        Args:
            name: `job_dir_name`.
            unix_user: whose it is; empty: this process's.

        Raises:
            InvalidInput: there is no such user.
            OSError: the disk does not take it.
        """
        path = self._folder / name
        path.mkdir(mode=0o700, exist_ok=True)
        os.utime(path, follow_symlinks=False)  # it is not old, though its attempt is not known yet
        if unix_user:
            try:
                entry = pwd.getpwnam(unix_user)
            except KeyError:
                raise InvalidInput(f"this node has no user '{unix_user}'") from None
            os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
        return str(path)

    def remove(self, name: str) -> None:
        """Removes a job's directory, with all that is in it."""
        try:
            remove_tree(str(self._folder / name))
        except FileNotFoundError:
            pass
        except OSError as error:  # the next look tries again, once it is old
            _log.warning("a job's directory can't be removed", directory=name, why=str(error))

    def remove_old(self, keep_s: float, known: Collection[str]) -> None:
        """Removes those in which nothing has changed for a time, whose jobs have no attempt here any more.

        Args:
            keep_s: the time.
            known: directories of jobs that have one.
        """
        for entry in list(os.scandir(self._folder)):
            if entry.name not in known and time.time() - entry.stat(follow_symlinks=False).st_mtime > keep_s:
                self.remove(entry.name)


def job_dir_name(attempt: Attempt, incarnation: str) -> str:
    """The name of the directory of an attempt's job.

    A store that was rolled back may give a job's id to another job: that one has another user or another program, and
    so another directory.
    """
    spec = attempt.spec
    assert spec is not None
    words = [spec.user]
    if spec.payload is not None and spec.payload.process is not None:
        words += spec.payload.process.argv
    elif spec.payload is not None and spec.payload.container is not None:
        words += [spec.payload.container.image, *spec.payload.container.argv]
    whose = hashlib.sha256("\0".join(words).encode()).hexdigest()[:_DIGITS]
    end = f"{incarnation[:_DIGITS]}.{whose}"
    name = f"{attempt.job_id}.{end}"
    return name if is_name(name) else f"x{hashlib.sha256(attempt.job_id.encode()).hexdigest()[:32]}.{end}"
