"""The service's side of attempts: starts each once, stops, looks, waits, and takes all up again after a restart.

The service may be killed at any moment: all that it knows of an attempt lies in the attempt's folder. Calls that touch
the disk run in threads; ends are waited for at the supervisor's pidfd, without a thread or a clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from adlro.attempt import journal as names
from adlro.attempt import tree
from adlro.attempt.drivers import Driver, TreeDriver, choose_driver
from adlro.attempt.folders import PASSABLE_MODE, passable_directory
from adlro.attempt.journal import Journal, sync_folder
from adlro.attempt.linux import open_process
from adlro.attempt.log_files import Piece, read_log
from adlro.attempt.records import AttemptView, Launch, Moment, Stage, check_name, exit_status, is_name
from adlro.attempt.removal import remove_tree
from adlro.errors import AlreadyExists, Conflict, NotFound, Unavailable, Unsupported
from adlro.records.payloads import EndReason, ExitStatus

_log = structlog.get_logger()

# Between two looks for what has no descriptor to wait for: shortest, and longest.
_LOOK_S, _MOST_LOOK_S = 0.02, 10.0
_BEGIN_LOOK_S = 0.02
# What folders of forgotten attempts are called until they are removed: no attempt's name begins so.
_GONE = ".gone-"
_FREE_MIB = 64
_MOST_READ_BYTES = 1 << 20


def supervisor_command() -> list[str]:
    """Runs a supervisor, without any installed package: it must start whatever becomes of those."""
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("__main__.py"))]


class Attempts:
    """The attempts of one node.

    Args:
        folder: theirs, on a local disk; made where it is not there.
        driver: starts supervisors; None: the best that the machine has.
        command: runs a supervisor; the attempt's folder is added.
        free_mib: of the disk, below which nothing new is taken.

    Raises:
        Unsupported: this is not Linux.
        OSError: the folder can't be made, or is not ours alone to write to.
    """

    def __init__(
        self,
        folder: Path,
        driver: Driver | None = None,
        *,
        command: Sequence[str] | None = None,
        free_mib: int = _FREE_MIB,
    ) -> None:
        if sys.platform != "linux":
            raise Unsupported(
                "real programs are run on Linux alone, with what its kernel offers to supervise them; other systems "
                "have the simulated cluster",
                reason="LINUX_ONLY",
            )
        self.driver = choose_driver().driver if driver is None else driver
        self._folder = folder.resolve()
        passable_directory(self._folder)
        found = self._folder.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(
                f"{self._folder} must belong to this service's user, and neither its group nor others may write to it: "
                "who can write there says what runs on this node, and as whom"
            )
        self._command = list(supervisor_command() if command is None else command)
        self._free_mib = free_mib
        # Supervisors that this process has started, by attempt; None: it is starting one.
        self._children: dict[str, subprocess.Popen[bytes] | None] = {}
        self._children_lock = threading.Lock()

    # ---- starts and stops

    async def start(self, name: str, launch: Launch) -> AttemptView:
        """Starts an attempt, once: a repeated call changes nothing. When it returns, it is written down.

        Raises:
            InvalidInput: it can't run on any node.
            AlreadyExists: an attempt of that name is another one.
            Unavailable: the disk is full, or no supervisor could be started. Whether it will run is not known then;
                a repeated call says so.
        """
        return await asyncio.to_thread(self._start, name, launch)

    async def stop(
        self, name: str, reason: EndReason = EndReason.STOPPED, detail: str = "", grace_s: float | None = None
    ) -> None:
        """Asks for an attempt's end, for good; returns before it has ended. One that has ended stays as it is.

        Args:
            name: of the attempt.
            reason: that its end shall have: STOPPED, or GPU_FAILED.
            detail: for people.
            grace_s: between SIGTERM and SIGKILL; None: the payload's.

        Raises:
            NotFound: no such attempt.
            Unavailable: the disk does not take it.
        """
        await asyncio.to_thread(self._stop, name, reason, detail, grace_s)

    async def take_up(self) -> list[AttemptView]:
        """Takes up what was there before a restart; returns all attempts.

        Each that has not ended and has no supervisor gets a new one, which begins it or tells that it was lost. One
        that can't be taken up keeps no other one from it: its view tells the `problem`.
        """
        return await asyncio.to_thread(self._take_up)

    async def forget(self, name: str) -> None:
        """Removes an attempt that has ended, logs and all. A later start of that name would be a new one.

        Raises:
            Conflict: it has not ended.
            NotFound: no such attempt.
            Unavailable: the disk does not take it.
        """
        await asyncio.to_thread(self._forget, name)

    async def close(self) -> None:
        """Ends what this process does for them; supervisors need nothing of it."""

    # ---- what is known

    def names(self) -> list[str]:
        """The attempts."""
        return sorted(
            each.name for each in self._folder.iterdir() if is_name(each.name) and (each / names.INTENT).exists()
        )

    def look(self, name: str) -> AttemptView:
        """An attempt as it is now.

        Raises:
            NotFound: no such attempt.
        """
        journal = self._journal(name)
        if not journal.has(names.INTENT):
            raise NotFound(f"there is no attempt {name} on this node")
        supervised = journal.supervised()
        # After the lock: a supervisor that has gone meanwhile has left its last record.
        ended = journal.has(names.EXIT)
        run = _readable(journal, names.RUN)
        began = None if run is None else Moment(**run["at"])
        if ended:
            return replace(_end_of(journal), name=name, supervised=supervised, began=began)
        stuck = _readable(journal, names.STUCK) or {"pids": ()}
        stage = Stage.ORDERED if run is None else Stage.RUNNING
        prepared = journal.has(names.READY)
        return AttemptView(name, stage, supervised, began, stuck_pids=tuple(stuck["pids"]), prepared=prepared)

    def read_log(self, name: str, stream: str, offset: int, most_bytes: int = _MOST_READ_BYTES) -> Piece:
        """Reads an attempt's log.

        Args:
            name: of the attempt.
            stream: `stdout` or `stderr`.
            offset: from which; below 0: so many bytes before the end.
            most_bytes: to read.

        Raises:
            NotFound: no such attempt, or stream.
        """
        if stream not in {names.STDOUT, names.STDERR}:
            raise NotFound(f"there is no stream '{stream}'; there are stdout and stderr", field="stream")
        self.look(name)
        return read_log(self._journal(name).path(stream), offset, most_bytes)

    def log_size(self, name: str, stream: str) -> int:
        """The length of an attempt's log so far, deleted bytes included; 0: there is none yet.

        Args:
            name: of the attempt.
            stream: `stdout` or `stderr`.
        """
        try:
            return os.stat(self._journal(name).path(stream)).st_size
        except FileNotFoundError:
            return 0

    def processes(self, attempts: Collection[str]) -> dict[str, frozenset[int]]:
        """What attempts run now: by attempt the PIDs below its supervisor; none while it has no supervisor.

        Args:
            attempts: their names. One look at all processes of the machine answers for all of them.
        """
        supervisors = {name: self._journal(name).supervisor() for name in attempts}
        tops = {process[0]: name for name, process in supervisors.items() if process is not None}
        found: dict[str, set[int]] = {name: set() for name in attempts}
        for pid, top in tree.below(tops).items():
            found[tops[top]].add(pid)
        return {name: frozenset(pids) for name, pids in found.items()}

    async def prepared(self, name: str) -> AttemptView:
        """Returns when an attempt with a gate waits there, was let go, or has ended.

        Raises:
            NotFound: no such attempt.
        """
        while True:
            view = await asyncio.to_thread(self.look, name)
            if view.prepared or view.stage is not Stage.ORDERED:
                return view
            await asyncio.sleep(_BEGIN_LOOK_S)

    async def begun(self, name: str) -> AttemptView:
        """Returns when an attempt's program was let go, or it has ended.

        Raises:
            NotFound: no such attempt.
        """
        while True:
            view = await asyncio.to_thread(self.look, name)
            if view.stage is not Stage.ORDERED:
                return view
            await asyncio.sleep(_BEGIN_LOOK_S)

    async def ended(self, name: str) -> ExitStatus:
        """Returns when an attempt has ended. It sees to it that it does: a supervisor that was killed gets a successor.

        Raises:
            NotFound: no such attempt.
        """
        pause_s = _LOOK_S
        while True:
            view = await asyncio.to_thread(self.look, name)
            if view.exit is not None:
                self._reap()
                return view.exit
            fd = self._supervisor_fd(name)
            if fd is not None:
                await _readable_fd(fd)
                continue
            try:
                await asyncio.to_thread(self._supervise, self._journal(name))
            except Unavailable as error:
                _log.warning("an attempt has no supervisor; trying again", attempt=name, why=error.message)
            # It has told nobody yet who it is; or it ends at once, each time.
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _MOST_LOOK_S)

    # ---- on the disk

    def _start(self, name: str, launch: Launch) -> AttemptView:
        intent = json.loads(json.dumps(self._intent(name, launch), allow_nan=False))  # as it is read again
        journal = self._journal(name)
        try:
            if not journal.has(names.INTENT):
                self._check_room()
                os.makedirs(journal.folder, exist_ok=True)
                os.chmod(journal.folder, PASSABLE_MODE)
                journal.reserve()
                sync_folder(str(self._folder))
                mark = os.urandom(16).hex()
                driver = {"mark": mark, "driver": self.driver.name, "groups": self.driver.groups(mark)}
                journal.write_once(names.INTENT, intent | driver)
            written = journal.read(names.INTENT)
        except OSError as error:
            raise Unavailable(f"attempt {name} can't be written down: {error}", reason="DISK") from error
        if written is None or any(written.get(each) != value for each, value in intent.items()):
            raise AlreadyExists(f"attempt {name} is on this node, and is another one", reason="ATTEMPT_DIFFERS")
        self._supervise(journal)
        return self.look(name)

    def _intent(self, name: str, launch: Launch) -> dict[str, Any]:
        if launch.payload.container is not None:
            raise Unsupported(
                "processes are run here, no containers", field="payload.container", reason="NO_CONTAINERS"
            )
        return launch.intent(name)

    def _check_room(self) -> None:
        found = os.statvfs(self._folder)
        free_mib = found.f_bavail * found.f_frsize >> 20
        if free_mib < self._free_mib:
            raise Unavailable(
                f"{self._folder} has {free_mib} MiB left, and nothing new is begun below {self._free_mib} MiB: "
                "forget old attempts, or free the disk",
                reason="DISK_FULL",
            )

    def _stop(self, name: str, reason: EndReason, detail: str, grace_s: float | None) -> None:
        view = self.look(name)
        if view.stage is Stage.ENDED:
            return
        journal = self._journal(name)
        try:
            if not journal.has(names.STOP):
                stop = {"reason": reason.name.lower(), "detail": detail[: names.DETAIL_CHARS]}
                journal.write_reserved(names.STOP, stop if grace_s is None else {**stop, "grace_s": grace_s})
        except OSError as error:
            raise Unavailable(f"the stop of attempt {name} can't be written down: {error}", reason="DISK") from error
        self._tell_of_stop(journal)

    def _tell_of_stop(self, journal: Journal) -> None:
        process = journal.supervisor()
        if process is None:  # one that starts just now reads the record
            self._supervise(journal)
            return
        fd = open_process(*process)
        if fd is not None:
            try:
                # It may just have ended: then so has the attempt, or the next supervisor reads the record.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGTERM)
            finally:
                os.close(fd)

    def _forget(self, name: str) -> None:
        if self.look(name).stage is not Stage.ENDED:
            raise Conflict(f"attempt {name} has not ended", reason="ATTEMPT_OPEN")
        gone = self._folder / f"{_GONE}{os.urandom(8).hex()}"
        try:
            # All of it goes at once: an intent whose other records were gone would be begun again.
            os.rename(self._journal(name).folder, gone)
            sync_folder(str(self._folder))
        except FileNotFoundError:
            raise NotFound(f"there is no attempt {name} on this node") from None
        except OSError as error:
            raise Unavailable(f"attempt {name} can't be forgotten: {error}", reason="DISK") from error
        _remove(gone)

    def _take_up(self) -> list[AttemptView]:
        for each in self._folder.glob(f"{_GONE}*"):  # a removal that a kill has cut short
            _remove(each)
        return [self._take_up_one(name) for name in self.names()]

    def _take_up_one(self, name: str) -> AttemptView:
        view = AttemptView(name, Stage.ORDERED, supervised=False)
        try:
            view = self.look(name)
            if view.exit is not None:
                return view
            self._supervise(self._journal(name))
            return self.look(name)
        except Exception as error:  # whatever is wrong with one, the others are taken up
            _log.exception("an attempt can't be taken up", attempt=name)
            return replace(view, problem=str(error) or type(error).__name__)

    def _supervise(self, journal: Journal) -> None:
        """Starts a supervisor where there is none; one too many does nothing.

        Raises:
            Unavailable: it can't be started.
        """
        self._reap()
        with self._children_lock:
            if journal.name in self._children or journal.has(names.EXIT) or journal.supervised():
                return
            self._children[journal.name] = None
        child = None
        try:
            child = self._start_supervisor(journal)
        finally:
            with self._children_lock:
                if child is None:
                    del self._children[journal.name]
                else:
                    self._children[journal.name] = child

    def _start_supervisor(self, journal: Journal) -> subprocess.Popen[bytes] | None:
        try:
            intent = journal.read(names.INTENT)
            if intent is None:
                raise NotFound(f"there is no attempt {journal.name} on this node")
        except (OSError, ValueError) as error:
            if journal.has(names.SPAWN):
                raise Unavailable(
                    f"the intent of attempt {journal.name} can't be read: {error}", reason="DISK"
                ) from error
            # It can't begin any more: a supervisor is to tell that.
            return TreeDriver().start(self._command, {}, journal.folder)
        try:
            return self.driver.start(self._command, intent, journal.folder)
        except Unavailable:
            if journal.has(names.SPAWN) or not journal.has(names.STOP):
                raise
        # It never begins, so nothing of the driver is needed to tell its end.
        return TreeDriver().start(self._command, intent, journal.folder)

    def _reap(self) -> None:
        with self._children_lock:
            for name, child in list(self._children.items()):
                if child is not None and child.poll() is not None:
                    del self._children[name]

    def _supervisor_fd(self, name: str) -> int | None:
        """A pidfd of an attempt's supervisor; None: there is none, or it has told nobody yet."""
        with self._children_lock:
            child = self._children.get(name)
            if child is not None and child.poll() is None:
                return os.pidfd_open(child.pid)
        process = self._journal(name).supervisor()
        return None if process is None else open_process(*process)

    def _journal(self, name: str) -> Journal:
        check_name(name)
        return Journal(str(self._folder / name))


def _remove(gone: Path) -> None:
    """Removes what was an attempt's folder. What can't be takes room alone, and the next restart tries again."""
    try:
        remove_tree(str(gone))
    except FileNotFoundError:  # somebody else removes it
        pass
    except OSError as error:
        _log.warning("a forgotten attempt's folder can't be removed", folder=str(gone), why=str(error))


def _end_of(journal: Journal) -> AttemptView:
    """How an attempt has ended, when, and whether its node could not start it.

    A record that can't be read (of a broken disk, or of a later release) still says that it has.
    """
    at, end_at, by_node = Moment("", 0.0, 0.0), None, False
    try:
        end = journal.read(names.EXIT)
        assert end is not None, "records are never removed alone"
        status, at, by_node = exit_status(end), Moment(**end["ended"]), bool(end.get("by_node"))
        end_at = Moment(**end["at"]) if "at" in end else None
    except (ValueError, KeyError, TypeError) as error:
        at = Moment("", 0.0, os.stat(journal.path(names.EXIT)).st_mtime)
        detail = f"the record of its end can't be read: {error}"
        status = ExitStatus(EndReason.SUPERVISOR_LOST, detail=detail[: names.DETAIL_CHARS])
    return AttemptView(
        journal.name, Stage.ENDED, supervised=False, ended=at, exit=status, by_node=by_node, program_ended=end_at
    )


def _readable(journal: Journal, name: str) -> dict[str, Any] | None:
    """A record that a power failure may have spoilt."""
    try:
        return journal.read(name)
    except ValueError:
        return None


async def _readable_fd(fd: int) -> None:
    """Returns when a descriptor can be read, and closes it."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
