"""Results of finished tasks on disk, so that an interrupted evaluation goes on where it stopped."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

from adlro.errors import InvalidInput
from services.orchestrator.evaluate.measure import Figures
from services.orchestrator.evaluate.tasks import from_bytes

_NAME = re.compile(r"[0-9a-f]{32}\.npz")


class PartialResults:
    """A folder with a file for each finished task, named by the digest of all that the task depends on.

    Args:
        folder: made when the first result comes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> Figures | None:
        """A task's figures, if they are there and whole."""
        try:
            return from_bytes(self._path(key).read_bytes())
        except OSError:
            return None

    def put(self, key: str, content: bytes) -> None:
        """Keeps a task's figures; a file is there whole or not at all."""
        write_whole(self._path(key), content)

    def clear(self) -> None:
        """Removes all results, and the folder if nothing else lies in it."""
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if _NAME.fullmatch(path.name):
                    path.unlink()
            self.folder.rmdir()

    def prepare(self) -> None:
        """Makes the folder.

        Raises:
            InvalidInput: it cannot be made, or not be written to.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise InvalidInput(f"{self.folder}: partial results cannot be kept there: {error}") from None

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npz"


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that it holds all of the content or what it held before."""
    if path.exists() and not path.is_file():  # such as /dev/stdout: nothing that could be replaced
        path.write_bytes(content)
        return
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
    """Raises InvalidInput where a file cannot be written later.

    Args:
        path: the file; it is neither made nor changed.
        field: for the message, such as `json`.
    """
    problem = ""
    if path.is_dir():
        problem = "is a directory"
    elif path.exists() and not path.is_file():
        problem = "" if os.access(path, os.W_OK) else "cannot be written"
    elif not path.parent.is_dir():
        problem = f"the directory {path.parent} does not exist"
    else:
        try:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
        if not problem and path.exists() and not os.access(path, os.W_OK):
            problem = "is write-protected"
    if problem:
        raise InvalidInput(f"{field}: {path}: {problem}", field=field)
