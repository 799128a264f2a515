"""What Python's library lacks of the Linux kernel: prctl, fallocate, inotify, and who is who in /proc.

Part of the supervisor: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_IN_MODIFY = 0x02
_KEYCTL, _JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


# ---- processes


def become_subreaper() -> None:
    """Whatever this process's descendants leave behind becomes its child, not init's.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """This process is killed when its parent ends. Also after exec, unless that changes the user.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def new_keyring() -> None:
    """Keys of the session's keyring are no longer this process's. Where the kernel refuses, they still are."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        _libc.syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None)


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, *(ctypes.c_ulong(each) for each in (value, 0, 0, 0))))


def boot_id() -> str:
    """Names this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def boottime_s() -> float:
    """Seconds since this boot, time asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_stat(pid: int) -> tuple[int, int] | None:
    """The parent of a process, and its start in clock ticks since boot; None: there is none, or only a zombie.

    A process whose first thread has ended looks like a zombie, but is there as long as its other threads work.

    A PID with its start names a process for good; a PID alone may be somebody else's by now.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command's name stands in brackets, and may have brackets and blanks itself.
    fields = text[text.rfind(b")") + 2 :].split()
    if fields[0] in {b"Z", b"X"} and int(fields[17]) <= 1:
        return None
    return int(fields[1]), int(fields[19])


def process_environment(pid: int) -> list[bytes]:
    """The variables with which a process's program began, as NAME=VALUE. Empty: there are none, or it has gone.

    Raises:
        OSError: it is another user's, or the machine lacks something.
    """
    found = _environment(f"/proc/{pid}/environ")
    if found:
        return found
    # Where the first thread has ended, the others still have it.
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []
    for thread in threads:
        if thread != str(pid) and (found := _environment(f"/proc/{pid}/task/{thread}/environ")):
            return found
    return []


def _environment(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return [each for each in file.read().split(b"\0") if each]
    except (FileNotFoundError, ProcessLookupError):
        return []


def all_pids() -> list[int]:
    """The processes that this one can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def open_process(pid: int, start_ticks: int) -> int | None:
    """A pidfd of the process with this PID and this start; None: it is gone."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    # Looked at after the pidfd was opened: who has that start now had the PID then too.
    found = process_stat(pid)
    if found is None or found[1] != start_ticks:
        os.close(fd)
        return None
    return fd


# ---- files


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Gives a range of a file back to the disk; its size, and all offsets, stay.

    Raises:
        OSError: the file system can't.
    """
    _check(_libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(length)))


def watch_writes(paths: list[str]) -> int | None:
    """A descriptor that can be read when one of these files is written to; None: the kernel has none left."""
    fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None
    for path in paths:
        if _libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) < 0:
            os.close(fd)
            return None
    return fd
