"""What a container is given of the node's files: only what its user can reach, and only below allowed prefixes.

The engine is root and follows links, so a path that was looked at says nothing of what is mounted later. Where the
service is root too, each source is opened as the user, checked as the descriptor that it is, and bound by the kernel to
a name in a folder that nobody else can write to. The engine is given that name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adlro.attempt.containers.opening import open_as_user
from adlro.attempt.given import NotStartedError

_libc = ctypes.CDLL(None, use_errno=True)
_MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 4096, 16384, 1 << 18, 2
_OPEN_S = 60.0

Record = Mapping[str, Any]


class Mounts:
    """Opens sources, and stages them for the engine.

    Args:
        prefixes: below which sources may lie; none: there are no mounts on this node.
        never: files and directories that are never mounted, nor what is above or below them.
        staging: the folder for the names that the engine is given; made where it is not there.
    """

    def __init__(self, prefixes: Sequence[str], never: Sequence[str], staging: str) -> None:
        self.prefixes = tuple(prefixes)
        self._never = tuple(never)
        self._staging = staging

    def check(self, mounts: Sequence[Record]) -> None:
        """Refuses sources that lie elsewhere already by their name.

        Raises:
            NotStartedError: with the field's name.
        """
        for number, each in enumerate(mounts):
            if not any(_is_below(os.path.normpath(each["source"]), prefix) for prefix in self.prefixes):
                raise NotStartedError(self._elsewhere(number, each["source"]))

    @contextlib.contextmanager
    def staged(
        self, mark: str, mounts: Sequence[Record], user: tuple[int, int, Sequence[int]] | None
    ) -> Iterator[list[dict[str, Any]]]:
        """The mounts with sources that nobody can exchange, until the container has been started.

        Args:
            mark: of the attempt.
            mounts: `source`, `target`, `writable`.
            user: user id, group id and groups; None: this process's.

        Raises:
            NotStartedError: one can't be mounted; with the field's name.
        """
        if not mounts:
            yield []
            return
        self.check(mounts)
        fds = _open_all(mounts, user)
        try:
            for number, fd in enumerate(fds):
                self._check_opened(number, fd)
            # A user whose service is not root has the engine himself: nothing is to be kept from him.
            bind = os.geteuid() == 0
            sources = [self._bind(mark, number, fd) if bind else _path_of(fd) for number, fd in enumerate(fds)]
        except BaseException:
            self.unstage(mark)
            raise
        finally:
            for fd in fds:
                os.close(fd)
        try:
            yield [{**each, "source": source} for each, source in zip(mounts, sources, strict=True)]
        finally:
            self.unstage(mark)

    def unstage(self, mark: str) -> None:
        """Removes the names of an attempt; also those that a killed service has left."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._staging):
                if not name.startswith(f"{mark}-"):
                    continue
                path = os.path.join(self._staging, name)
                while _libc.umount2(os.fsencode(path), _MNT_DETACH) == 0:
                    pass
                # Never more than the empty name: what was bound here is the user's.
                with contextlib.suppress(OSError):
                    os.rmdir(path) if stat.S_ISDIR(os.lstat(path).st_mode) else os.unlink(path)

    def _check_opened(self, number: int, fd: int) -> None:
        path, mode = _path_of(fd), os.fstat(fd).st_mode
        if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise NotStartedError(f"{_field(number)}: '{path}' is neither a directory nor a file")
        if not any(_is_below(path, os.path.realpath(prefix)) for prefix in self.prefixes):
            raise NotStartedError(self._elsewhere(number, path))
        for each in (os.path.realpath(each) for each in self._never):
            if _is_below(path, each) or _is_below(each, path):
                raise NotStartedError(f"{_field(number)}: '{path}' is never mounted on this node")

    def _elsewhere(self, number: int, path: str) -> str:
        if not self.prefixes:
            return f"{_field(number)}: this node mounts nothing into containers"
        return f"{_field(number)}: '{path}' must be below one of {', '.join(self.prefixes)}"

    def _bind(self, mark: str, number: int, fd: int) -> str:
        os.makedirs(self._staging, mode=0o700, exist_ok=True)
        name = os.path.join(self._staging, f"{mark}-{number}")
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.makedirs(name, exist_ok=True)
        else:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600))
        source, target = f"/proc/self/fd/{fd}".encode(), os.fsencode(name)
        for what, flags in ((source, _MS_BIND | _MS_REC), (None, _MS_REC | _MS_PRIVATE)):
            # Private, so that its removal takes nothing from the source.
            if _libc.mount(what, target, None, ctypes.c_ulong(flags), None) != 0:
                why = os.strerror(ctypes.get_errno())
                raise NotStartedError(f"{_field(number)}: this node's service may not mount it ({why})")
        return name


def _field(number: int) -> str:
    return f"payload.container.mounts[{number}].source"


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def _is_below(path: str, prefix: str) -> bool:
    """A path is a prefix, or below it."""
    return path == prefix or Path(path).is_relative_to(prefix)


def _open_all(mounts: Sequence[Record], user: tuple[int, int, Sequence[int]] | None) -> list[int]:
    """Descriptors of all sources.

    Raises:
        NotStartedError: one can't be opened as that user.
    """
    fds: list[int] = []
    try:
        if user is None:
            for number, each in enumerate(mounts):
                try:
                    fds.append(open_as_user(each["source"], writable=each["writable"]))
                except OSError as error:
                    raise _refused(number, each, error.strerror or str(error)) from None
        else:
            _open_in_child(mounts, user, fds)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return fds


def _open_in_child(mounts: Sequence[Record], user: tuple[int, int, Sequence[int]], fds: list[int]) -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        paths = [text for each in mounts for text in ("rw" if each["writable"] else "ro", each["source"])]
        ids = [str(its.fileno()), str(user[0]), str(user[1]), ",".join(map(str, user[2]))]
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("opening.py")), *ids, *paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            pass_fds=[its.fileno()],
        )
        its.close()
        ours.settimeout(_OPEN_S)
        try:
            for number, each in enumerate(mounts):
                try:
                    text, found, _, _ = socket.recv_fds(ours, 4096, 1)
                except TimeoutError:
                    raise _refused(number, each, f"it could not be opened within {_OPEN_S:g} s") from None
                if not found:
                    raise _refused(number, each, text[1:].decode() or "it could not be opened")
                os.set_inheritable(found[0], False)
                fds.append(found[0])
        finally:
            child.kill()
            child.wait()


def _refused(number: int, mount: Record, why: str) -> NotStartedError:
    return NotStartedError(f"{_field(number)}: '{mount['source']}' can't be mounted for this user: {why}")
