"""The folder of an attempt: its records and its lock. Part of the supervisor: standard library only.

    intent.json   what is to run. By the service, before all else
    lock          held by the supervisor as long as it lives; tells its process
    stop.json     somebody wants the end. By the service
    ready.json    all is prepared, and the program waits for its gate (of an attempt of several programs)
    spawn.json    a supervisor is about to make the program's process: no other one ever will
    run.json      the process is there, and may pass its gate now
    wait.json     how the program itself ended; what it left behind may still run
    stuck.json    what does not end although it was killed
    exit.json     how the attempt ended; nothing of it runs any more
    stdout, stderr, scratch/, supervisor.log

A record is there whole or not at all, and is never changed. Those that say what must not happen twice (intent, spawn)
are made exclusively, and are on the disk before anything rests on them. stop, wait and exit are written into files
whose room was reserved with the intent: a full disk keeps no end from being asked for, or from being told.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import time

from adlro.attempt.linux import boot_id, boottime_s, process_stat

TYPE_CHECKING = False  # typing itself would cost each supervisor a megabyte and some milliseconds
if TYPE_CHECKING:
    from typing import Any

    Record = dict[str, Any]

VERSION = 1
"""Of the records' form. A supervisor refuses an intent of another one."""

INTENT, READY, SPAWN, RUN, STUCK = "intent.json", "ready.json", "spawn.json", "run.json", "stuck.json"
STOP, WAIT, EXIT = "stop.json", "wait.json", "exit.json"
LOCK, STDOUT, STDERR, SCRATCH, SUPERVISOR_LOG = "lock", "stdout", "stderr", "scratch", "supervisor.log"

# Reasons of an end, as records have them; `records.EndReason` are the same.
EXITED = "exited"
SIGNALLED = "signalled"
TIME_LIMIT = "time_limit"
OUT_OF_MEMORY = "out_of_memory"
STOPPED = "stopped"
NOT_STARTED = "not_started"
GPU_FAILED = "gpu_failed"
NODE_LOST = "node_lost"
SUPERVISOR_LOST = "supervisor_lost"

SLOT_BYTES = 12 << 10
LOCK_BYTES = 64
# Of the text that a record of an end holds, so that it fits its slot: JSON may take 12 bytes for a character.
DETAIL_CHARS = 800
# Of an intent as it is written; `records` refuses longer ones. What the driver adds has room beside it.
MOST_INTENT_BYTES = 4 << 20
_MOST_BYTES = 2 * MOST_INTENT_BYTES
# struct flock: kind, whence, start, length, pid; the kernel wants pid 0 here.
_FLOCK = "hhqqi0q"


class Journal:
    """The records of one attempt.

    Args:
        folder: of the attempt.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.name = os.path.basename(folder)

    def path(self, name: str) -> str:
        """Of a file in the folder."""
        return os.path.join(self.folder, name)

    # ---- records

    def has(self, name: str) -> bool:
        """A record is there."""
        return os.path.exists(self.path(name))

    def read(self, name: str) -> Record | None:
        """A record; None: it is not there.

        Raises:
            OSError, ValueError: it can't be read.
        """
        try:
            with open(self.path(name), "rb", opener=_no_link) as file:
                found = json.loads(file.read(_MOST_BYTES))
        except FileNotFoundError:
            return None
        if not isinstance(found, dict):
            raise ValueError(f"{self.path(name)} is no record")
        return found

    def write_once(self, name: str, record: Record, *, durable: bool = True) -> bool:
        """Makes a record; False: it is there already, and stays as it is.

        Args:
            name: of the record.
            record: what it says.
            durable: it survives a power failure from now on. Else only the end of this process.

        Raises:
            OSError: it can't be written; whether it is there is not known.
        """
        draft = self.path(f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            try:
                _write_all(fd, _encode(record))
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
            try:
                os.link(draft, self.path(name))
            except FileExistsError:
                return False
        finally:
            os.unlink(draft)
        if durable:
            sync_folder(self.folder)
        return True

    def reserve(self) -> None:
        """Takes the room for stop, wait and exit, and for what the lock tells.

        Raises:
            OSError: the disk has none.
        """
        rooms = [(self._slot(name), SLOT_BYTES) for name in (STOP, WAIT, EXIT)]
        for path, size in (*rooms, (self.path(LOCK), LOCK_BYTES)):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)

    def write_reserved(self, name: str, record: Record) -> None:
        """Makes STOP, WAIT or EXIT in the room that was reserved for it. The first one stays, where there are two.

        Raises:
            OSError: the disk is broken, or the room was taken away.
        """
        text = _encode(record)
        assert len(text) <= SLOT_BYTES, "a record fits its slot"
        fd = os.open(self._slot(name), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            # One writer at a time; and the slot of a record that is there is the record.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
            if self.has(name):
                return
            # JSON may be followed by blanks. The file is not cut: room that is given back may be gone to others.
            _write_all(fd, text.ljust(SLOT_BYTES))
            os.fsync(fd)
            os.link(self._slot(name), self.path(name))
        finally:
            os.close(fd)
        sync_folder(self.folder)

    def _slot(self, name: str) -> str:
        return self.path(name.replace(".json", ".slot"))

    # ---- the lock

    def take_lock(self) -> bool:
        """Takes the lock for the life of this process, and tells in it who that is; False: another one has it.

        Whoever asks `supervisor` does not take it, so a look never gets in the way of a start. The kernel frees it when
        the process and every child that has not run another program are gone.

        Raises:
            OSError: the folder can't be written to, or its file system has no locks.
        """
        fd = self.hold_lock()
        if fd is None:
            return False
        own = process_stat(os.getpid())
        assert own is not None
        os.pwrite(fd, f"{os.getpid()} {own[1]}".ljust(LOCK_BYTES).encode(), 0)
        return True

    def hold_lock(self) -> int | None:
        """Takes the lock until the descriptor that is returned is closed; None: somebody has it, this process included.

        Raises:
            OSError: the folder can't be written to, or its file system has no locks.
        """
        fd = os.open(self.path(LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
        except OSError as error:
            os.close(fd)
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                return None
            raise
        return fd

    def supervised(self) -> bool:
        """A supervisor lives."""
        try:
            fd = os.open(self.path(LOCK), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return _locked(fd)
        finally:
            os.close(fd)

    def supervisor(self) -> tuple[int, int] | None:
        """PID and start of the supervisor that lives, as far as it has told them."""
        try:
            fd = os.open(self.path(LOCK), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            parts = os.pread(fd, LOCK_BYTES, 0).split()
            return (int(parts[0]), int(parts[1])) if len(parts) == 2 and _locked(fd) else None
        finally:
            os.close(fd)


def now() -> Record:
    """The present, as records have it: boot, seconds since it, Unix time."""
    return {"boot_id": boot_id(), "boottime_s": boottime_s(), "unix_s": time.time()}


def sync_folder(folder: str) -> None:
    """Names that were made in a folder survive a power failure from now on.

    Raises:
        OSError: the disk is broken.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _encode(record: Record) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _locked(fd: int) -> bool:
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0)
    kind: int = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
    return kind != fcntl.F_UNLCK
