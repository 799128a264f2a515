"""A node's attempts for tests: programs that note each of their starts, and supervisors that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from adlro.attempt import tree
from adlro.attempt.attempts import Attempts
from adlro.attempt.cgroup import own_groups
from adlro.attempt.drivers import CgroupDriver, Driver, TreeDriver
from adlro.attempt.journal import Journal
from adlro.attempt.linux import open_process, punch_hole
from adlro.attempt.records import Launch
from adlro.records.payloads import ExitStatus, process_payload

NOTE = 'echo started >> "$RUNS"; '
"""The first words of a shell program that notes its start."""

DAEMON = (
    "setsid sh -c 'trap \"\" TERM HUP; echo >deaf.$$; while :; do sleep 0.2; done' >/dev/null 2>&1 & "
    'while [ ! -e "deaf.$!" ]; do sleep 0.01; done; '
)
"""Words that leave a process in a session of its own, which ignores SIGTERM by the time that they are done."""


class Node:
    """A folder of attempts, and a service for them, which may be renewed as after a kill."""

    def __init__(self, folder: Path, driver: Driver | None = None) -> None:
        self.folder = folder
        self.driver = driver or TreeDriver()
        self.attempts = self.service()

    def service(self, command: Sequence[str] | None = None) -> Attempts:
        return Attempts(self.folder, self.driver, command=command)

    def launch(self, script: str, name: str = "a.1", grace_s: float = 1.0, **more: Any) -> Launch:
        program = process_payload(
            ("sh", "-c", NOTE + script), environment={"RUNS": str(self.runs_file(name))}, stop_grace_s=grace_s
        )
        return Launch(program, **more)

    async def run(self, script: str, name: str = "a.1", grace_s: float = 1.0, **more: Any) -> ExitStatus:
        """Starts a shell program and returns when it has ended."""
        await self.attempts.start(name, self.launch(script, name, grace_s, **more))
        return await self.ended(name)

    async def ended(self, name: str = "a.1") -> ExitStatus:
        async with asyncio.timeout(60.0):
            return await self.attempts.ended(name)

    def runs_file(self, name: str) -> Path:
        return self.folder.parent / f"{name}.runs"

    def runs(self, name: str = "a.1") -> int:
        """How often a program was started."""
        path = self.runs_file(name)
        return len(path.read_text().splitlines()) if path.exists() else 0

    def journal(self, name: str = "a.1") -> Journal:
        return Journal(str(self.folder / name))

    def left(self, name: str = "a.1") -> dict[int, int]:
        """What of an attempt runs, also by a search that shares nothing with what is tested."""
        mark = json.loads((self.folder / name / "intent.json").read_text())["mark"]
        return tree.marked(mark) | plainly_marked(mark)

    def stdout(self, name: str = "a.1") -> str:
        return self.attempts.read_log(name, "stdout", 0).data.decode()

    def kill_supervisor(self, name: str = "a.1") -> bool:
        """False: there is none."""
        process = self.journal(name).supervisor()
        fd = None if process is None else open_process(*process)
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(fd)
        return True


@contextlib.contextmanager
def own_cgroups() -> Iterator[CgroupDriver | None]:
    """Control groups of this machine, whose folders are removed again; None: it lets us make none."""
    try:
        tops = {path for path in own_groups().values() if os.path.isdir(path)}
        there = {top for path in tops for top in (f"{path}/adlro", f"{os.path.dirname(path)}/adlro")}
        there = {top for top in there if os.path.isdir(top)}
        driver = CgroupDriver.find()
    except OSError:
        yield None
        return
    try:
        yield driver
    finally:
        made = {os.path.dirname(path) for path in driver.groups("any").values()} - there
        for top in made:
            with contextlib.suppress(OSError):  # another test uses it
                os.rmdir(top)


def skip_without_holes(folder: Path) -> None:
    """Skips where the file system can't give a file's beginning back."""
    path = folder / "holes"
    with path.open("wb") as file:
        file.write(bytes(8192))
        file.flush()
        try:
            punch_hole(file.fileno(), 0, 4096)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            pytest.skip("this file system can't punch holes")
        finally:
            path.unlink()


def plainly_marked(mark: str, proc: str = "/proc") -> dict[int, int]:
    """PID and start of all processes of which a thread that lives carries a mark.

    Args:
        mark: of an attempt.
        proc: where the kernel's process files are.
    """
    found = {}
    for pid in filter(str.isdigit, os.listdir(proc)):
        # One that has gone since it was listed; a glob would raise (Python 3.11).
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"{proc}/{pid}/task"):
                with contextlib.suppress(OSError):
                    if _carries(f"{proc}/{pid}/task/{thread}", mark):
                        found[int(pid)] = int(_stat(f"{proc}/{pid}")[19])
    return found


def _carries(thread: str, mark: str) -> bool:
    carries = f"ADLRO_MARK={mark}".encode() in Path(thread, "environ").read_bytes()
    return carries and _stat(thread)[0] not in "ZX"


def _stat(folder: str) -> list[str]:
    return Path(folder, "stat").read_text().rpartition(") ")[2].split()


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Returns when a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  what it waits for is on a disk
            await asyncio.sleep(0.01)
