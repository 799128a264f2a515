"""Runs one call of a Python function: a job's program. Standard library and cloudpickle; nothing else of ADLRO.

A copy of this file lies beside the call, so that a node needs no ADLRO. It reads `call.pkl` and writes `result.pkl`,
each a line of JSON and then a pickle. A result is there as a whole or not at all: it is written under another name,
brought to the disk, and renamed. An attempt that runs again replaces it.
"""

from __future__ import annotations

import json
import os
import pickle
import stat
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

    Head = dict[str, Any]
    Dump = Callable[[BinaryIO], object]

FORMAT = 1
CALL, RESULT = "call.pkl", "result.pkl"
_MOST_HEAD_BYTES = 1 << 20
_FAILED = 1


class RefusedError(Exception):
    """A file that must not, or can't, be read; the text says why, for the user."""


def python_minor() -> str:
    """The version of this Python, such as `3.12`: pickled code runs in the same one only."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def open_own(path: str) -> tuple[BinaryIO, Head]:
    """Opens a file of this user's, for reading; returns it and the head of its first line.

    Raises:
        FileNotFoundError: there is none.
        RefusedError: somebody else could have written it (reading a pickle runs what its writer wants), or it is none
            of ours.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    file = os.fdopen(fd, "rb")
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise RefusedError(f"{path} belongs to user {found.st_uid}, and this is {os.geteuid()}: it is not read")
        if found.st_mode & 0o022:
            raise RefusedError(f"{path} can be written by others: it is not read (chmod go-w)")
        try:
            head = json.loads(file.readline(_MOST_HEAD_BYTES))
            known = head["format"] == FORMAT
        except (ValueError, TypeError, KeyError):
            raise RefusedError(f"{path} is no file of a call") from None
        if not known:
            raise RefusedError(f"{path} is of another release of ADLRO: use the one that submitted the job")
    except BaseException:
        file.close()
        raise
    return file, head


def write_own(path: str, head: Head, dump: Dump) -> None:
    """Writes a file that is there as a whole or not at all; `dump` writes the pickle to it."""
    new = f"{path}.{os.getpid()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(json.dumps({"format": FORMAT, "python": python_minor(), **head}).encode() + b"\n")
            dump(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        if os.path.exists(new):
            os.unlink(new)
        raise
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _load(folder: str) -> Any:
    """The function and its arguments."""
    file, head = open_own(os.path.join(folder, CALL))
    with file:
        if head["python"] != python_minor():
            raise RefusedError(
                f"the function was pickled by Python {head['python']}, and {sys.executable} is {python_minor()}: name "
                f"an interpreter of version {head['python']} by python="
            )
        # Modules are found as at the caller's.
        sys.path.extend(each for each in head["sys_path"] if each not in sys.path)
        try:
            return pickle.load(file)
        except ModuleNotFoundError as error:
            if error.name == "cloudpickle":
                raise RefusedError(f"{sys.executable} has no cloudpickle: pip install cloudpickle there") from error
            raise RefusedError(
                f"{sys.executable} has no module {error.name!r}, which the function needs: install it there, or define "
                "the function where it is submitted"
            ) from error


def _first_rank() -> bool:
    # Of several programs the first one's result counts.
    return os.environ.get("RANK", os.environ.get("NODE_RANK", "0")) in ("", "0")


def _call(folder: str) -> tuple[Head, Dump]:
    """Runs the call; returns the head of the result and what writes its pickle."""
    try:
        function, args, kwargs = _load(folder)
        try:
            value = function(*args, **kwargs)
        except Exception as error:
            return _raised(error)
        except SystemExit as error:
            return _refused(f"the function ended its process: sys.exit({error.code!r})")
    except RefusedError as error:
        return _refused(str(error))
    except Exception as error:
        return _refused(f"the call can't be read: {type(error).__name__}: {error}")
    return {"kind": "value"}, lambda file: _pickler().dump(value, file, protocol=5)


def _pickler() -> Any:
    try:
        import cloudpickle
    except ModuleNotFoundError:
        return pickle
    return cloudpickle


def _refused(text: str) -> tuple[Head, Dump]:
    sys.stderr.write(f"{text}\n")
    return {"kind": "refused", "text": text}, lambda file: None


def _raised(error: Exception) -> tuple[Head, Dump]:
    # Without this file's own frame.
    frames = error.__traceback__ and error.__traceback__.tb_next
    told = "".join(traceback.format_exception(type(error), error, frames)).rstrip("\n")
    sys.stderr.write(f"{told}\n")
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    head = {"kind": "error", "traceback": told, "type": kind, "text": str(error)}
    try:
        pickled = _pickler().dumps(error.with_traceback(None), protocol=5)
        pickle.loads(pickled)  # many can be written and not read
    except Exception:
        return {**head, "pickled": False}, lambda file: None
    return {**head, "pickled": True}, lambda file: file.write(pickled)


def main(folder: str) -> int:
    """Runs the call in a folder, and writes its result; the exit code is 0 only for a value."""
    os.umask(0o077)
    head, dump = _call(folder)
    place = {"attempt": int(os.environ.get("ADLRO_ATTEMPT", "1")), "job_id": os.environ.get("ADLRO_JOB_ID", "")}
    if not _first_rank() and head["kind"] == "value":
        return 0
    path = os.path.join(folder, RESULT)
    try:
        write_own(path, {**head, **place}, dump)
    except OSError:
        raise  # a full disk: its text is in the log
    except Exception as error:
        text = f"the function's result can't be pickled: {type(error).__name__}: {error}"
        head, dump = _refused(text)
        write_own(path, {**head, **place}, dump)
    return 0 if head["kind"] == "value" else _FAILED


if __name__ == "__main__":
    # The folder of this file is no place of modules.
    sys.path[:1] = []
    sys.exit(main(os.path.dirname(os.path.abspath(__file__))))
