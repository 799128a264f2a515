"""An attempt's logs: files that its program appends to, kept below a limit, read by offset. Part of the supervisor.

No process stands between the program and its log, so none can break it, or lose lines. A log that becomes too long
loses its beginning to a hole: the disk gets the room back, while size and offsets stay, so a reader goes on where it
was, and the program notices nothing. The first byte that is kept is the file's first data after its hole.
"""

from __future__ import annotations

import errno
import os

from adlro.attempt.linux import punch_hole

# Holes end where a page and a block of the file system ends: what else were cut would be filled with zeros.
_BLOCK_BYTES = 4096
# Of the limit: above the first, older bytes go, down to the second, so that this happens now and then and not with each
# line. Above the third the disk would hold more than is promised; a look must come before.
_FULL_RATIO, _LEFT_RATIO, _MOST_RATIO = 0.9, 0.8, 1.1

# Between two looks at a log that grows: shortest, and longest.
_SOONEST_S, _LATEST_S = 0.002, 0.05


def open_log(path: str, owner: tuple[int, int] | None) -> int:
    """Opens a log for a program to append to; makes it where it is not there. Its owner alone may read it.

    Args:
        path: of the log.
        owner: user and group id; None: this process's.

    Raises:
        OSError: it can't be opened.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if owner is not None:
        os.fchown(fd, *owner)
    return fd


class Bound:
    """Keeps a log below its limit.

    Attributes:
        problem: why it can't; empty: it can.

    Args:
        fd: of the log, open for writing.
        limit_bytes: what the disk is to hold of it. At least four fifths of it are kept.
    """

    def __init__(self, fd: int, limit_bytes: int) -> None:
        self.problem = ""
        self._fd = fd
        self._limit_bytes = limit_bytes
        self._hole_end = 0
        self._last_size = os.fstat(fd).st_size

    def look(self, since_s: float) -> float | None:
        """Gives older bytes back to the disk where there are too many.

        Args:
            since_s: how long ago the last look was.

        Returns:
            After how many seconds to look again; None: when it is written to.
        """
        size = os.fstat(self._fd).st_size
        grown, self._last_size = size - self._last_size, size
        if size < self._hole_end:  # the program has cut its log
            self._hole_end = 0
        if size - self._hole_end > self._limit_bytes * _FULL_RATIO and not self.problem:
            end = size - int(self._limit_bytes * _LEFT_RATIO)
            end -= end % _BLOCK_BYTES
            try:
                punch_hole(self._fd, 0, end)
            except OSError as error:
                self.problem = f"the log is not kept below its limit: {error.strerror}"
                return None
            self._hole_end = end
        if grown <= 0:
            return None
        room = self._limit_bytes * _MOST_RATIO - (size - self._hole_end)
        # Half of the time in which the room is gone if it grows on like that.
        wait_s = 0.5 * room * max(since_s, 1e-4) / grown
        return min(max(wait_s, _SOONEST_S), _LATEST_S)

    def close(self) -> None:
        """The log is on the disk."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            self.problem = f"the log is not safe on the disk: {error.strerror}"
        os.close(self._fd)


class Piece:
    """What was read of a log.

    Attributes:
        offset: of the first byte; beyond what was asked for where that is gone.
        data: the bytes.
        size: of the log, bytes that are gone included.
    """

    def __init__(self, offset: int, data: bytes, size: int) -> None:
        self.offset = offset
        self.data = data
        self.size = size


def read_log(path: str, offset: int, most_bytes: int) -> Piece:
    """Reads a log from an offset on; no byte is told that was not written there.

    Args:
        path: of the log. It need not be there yet.
        offset: from which; below 0: so many bytes before the end.
        most_bytes: to read.

    Raises:
        OSError: it can't be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return Piece(0, b"", 0)
    try:
        size = os.fstat(fd).st_size
        begin = max(size + offset if offset < 0 else offset, _first_kept(fd, size))
        data = os.pread(fd, most_bytes, begin)
        # A hole may have grown over them meanwhile, and holes read as zeros.
        kept = _first_kept(fd, os.fstat(fd).st_size)
        if kept > begin:
            data, begin = data[kept - begin :], kept
        return Piece(begin, data, max(size, begin + len(data)))
    finally:
        os.close(fd)


def _first_kept(fd: int, size: int) -> int:
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # there is none
            return size
        raise
