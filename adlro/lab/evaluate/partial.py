"""Results of finished tasks on disk, so that an interrupted evaluation can continue."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
import tempfile
from pathlib import Path

from adlro.errors import InvalidInput
from adlro.lab.evaluate.measure import Figures
from adlro.lab.evaluate.tasks import from_bytes

# Also matches the remains of a killed write (`write_whole`).
_NAME = re.compile(r"[0-9a-f]{32}\.npz|\.[0-9a-f]{32}\.npz\..*")


class PartialResults:
    """A folder with a file for each finished task, named by the digest of all inputs of the task.

    From `prepare` to `clear` or `release` only this process uses it: a lock on a file beside it excludes others.

    Args:
        folder: created with the first result.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock_file = folder.with_name(folder.name + ".lock")
        self._lock: int | None = None

    def get(self, key: str) -> Figures | None:
        """A task's figures, if they are stored and complete."""
        try:
            return from_bytes(self._path(key).read_bytes())
        except OSError:
            return None

    def put(self, key: str, content: bytes) -> None:
        """Stores a task's figures; the file is written as a whole or not at all."""
        write_whole(self._path(key), content)

    def clear(self) -> None:
        """Removes all results, and the folder if it has no other files; another run may begin."""
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if _NAME.fullmatch(path.name):
                    path.unlink()
            self.folder.rmdir()
        self.release()

    def prepare(self) -> None:
        """Creates the folder, and locks it for this process.

        Raises:
            InvalidInput: it can't be created or written to, or another run uses it.
        """
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self._take()
            self.folder.mkdir(exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except BlockingIOError:
            raise InvalidInput(
                f"{self.folder}: another run writes there; wait until it has ended, or write to another file"
            ) from None
        except OSError as error:
            self.release()
            raise InvalidInput(f"{self.folder}: partial results cannot be kept there: {error}") from None

    def release(self) -> None:
        """Releases the folder, with its content, for another run."""
        if self._lock is not None:
            # Removed while locked: a process that waits for this file notices its removal (`_take`).
            with contextlib.suppress(OSError):
                self._lock_file.unlink()
            os.close(self._lock)
            self._lock = None

    def _take(self) -> None:
        while self._lock is None:
            opened = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    # Between opening and locking, the previous run may have ended and removed the file.
                    if os.path.samestat(os.fstat(opened), os.stat(self._lock_file)):
                        self._lock = opened
            finally:
                if self._lock is None:
                    os.close(opened)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npz"


def is_stream(path: Path) -> bool:
    """Whether a path can't be replaced by a new file: a pipe, a device, this process's stdout."""
    if not path.exists() or path.is_dir():
        return False
    return not path.is_file() or _is_stdout(path)


def _is_stdout(path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(sys.__stdout__.fileno() if sys.__stdout__ else 1), os.stat(path))
    except (OSError, ValueError):  # closed, or no such file
        return False


def target_of(path: Path) -> Path:
    """The file behind a path: the target of a symbolic link."""
    return path if is_stream(path) or not path.is_symlink() else Path(os.path.realpath(path))


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths are one file, which need not exist yet."""
    with contextlib.suppress(OSError):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that it has either all of the content or its previous content."""
    if is_stream(path):
        if _is_stdout(path):  # opening it again would truncate a file behind it
            sys.stdout.flush()
            with open(1, "wb", closefd=False) as stream:
                stream.write(content)
        else:
            path.write_bytes(content)
        return
    path = target_of(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def require_writable(path: Path, field: str) -> None:
    """Raises InvalidInput if a file cannot be written later.

    Args:
        path: the file; it is neither created nor changed.
        field: field name in the message, such as `json`.
    """
    problem = ""
    if path.is_dir():
        problem = "is a directory"
    elif is_stream(path):
        problem = "" if os.access(path, os.W_OK) else "cannot be written"
    elif not (target := target_of(path)).parent.is_dir():
        problem = f"the directory {target.parent} does not exist"
    else:
        try:
            with tempfile.TemporaryFile(dir=target.parent):
                pass
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
        if not problem and path.exists() and not os.access(path, os.W_OK):
            problem = "is write-protected"
    if problem:
        raise InvalidInput(f"{field}: {path}: {problem}", field=field)
