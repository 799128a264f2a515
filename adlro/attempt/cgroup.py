"""Limits by control groups, version 2 or 1, without systemd: memory, processor time, processes, devices.

Part of the supervisor: standard library only. One folder for all controllers (version 2), or one for each (version 1).
The program is put in before it passes its gate; the supervisor stays outside, so that its own end is not among what
running out of memory can bring.

A group is at the kernel's files: tests give trees of plain files for what a machine does not have.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from adlro.attempt import tree
from adlro.attempt.linux import process_stat

UNIFIED = "unified"
"""The name of version 2's folder among paths by controller."""

_PERIOD_US = 100_000
# What every program needs: null, zero, full, random, urandom, tty, ptmx, terminals.
_USUAL_DEVICES = ("c 1:3", "c 1:5", "c 1:7", "c 1:8", "c 1:9", "c 5:0", "c 5:2", "c 136:*")
# The kernel empties a group a moment after the last process has gone.
_REMOVE_S = 2.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from adlro.attempt.journal import Record


class Groups:
    """The control groups of one attempt.

    Args:
        paths: their folders by controller; UNIFIED: of version 2. Empty: there are none.
    """

    def __init__(self, paths: dict[str, str]) -> None:
        self.paths = paths

    @classmethod
    def of_this_process(cls, root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> Groups:
        """Those in which this process is, for reading alone: systemd has made them.

        Args:
            root: where the hierarchies are mounted.
            own: the kernel's list for this process.
        """
        return cls(own_groups(root, own))

    def make(self, limits: Record) -> None:
        """Makes the groups and sets their limits, as far as there are groups for them: the driver says which hold.

        Args:
            limits: `memory_mib`, `cpu_cores`, `processes`, `devices`; what is not named is not limited.

        Raises:
            OSError: a group can't be made, or a limit not be set; the message says which.
        """
        for path in self.paths.values():
            os.makedirs(path, exist_ok=True)
        memory, cores = limits.get("memory_mib"), limits.get("cpu_cores")
        processes, devices = limits.get("processes"), limits.get("devices")
        if UNIFIED in self.paths:
            if memory is not None:
                self._set(UNIFIED, "memory.max", memory << 20)
                self._set(UNIFIED, "memory.swap.max", 0, optional=True)
            if cores is not None:
                self._set(UNIFIED, "cpu.max", f"{int(cores * _PERIOD_US)} {_PERIOD_US}")
            if processes is not None:
                self._set(UNIFIED, "pids.max", processes)
            return
        if memory is not None and "memory" in self.paths:
            self._set("memory", "memory.limit_in_bytes", memory << 20)
            self._set("memory", "memory.memsw.limit_in_bytes", memory << 20, optional=True)
        if cores is not None and "cpu" in self.paths:
            self._set("cpu", "cpu.cfs_period_us", _PERIOD_US)
            self._set("cpu", "cpu.cfs_quota_us", int(cores * _PERIOD_US))
        if processes is not None and "pids" in self.paths:
            self._set("pids", "pids.max", processes)
        if devices is not None and "devices" in self.paths:
            self._set("devices", "devices.deny", "a")
            for each in (*_USUAL_DEVICES, *(_device(path) for path in devices)):
                self._set("devices", "devices.allow", f"{each} rwm")

    def add(self, pid: int) -> None:
        """Puts a process in; what it brings about from now on is in too.

        Raises:
            OSError: the kernel refuses.
        """
        for controller in self.paths:
            self._set(controller, "cgroup.procs", pid)

    def processes(self) -> dict[int, int]:
        """Those that are in: PID and start."""
        found: dict[int, int] = {}
        for controller in self.paths:
            for line in self._read(controller, "cgroup.procs").split():
                stat = process_stat(int(line))
                if stat is not None:
                    found[int(line)] = stat[1]
        return found

    def kill(self) -> None:
        """Kills all that is in at this moment, also what makes processes faster than they are found."""
        if UNIFIED in self.paths and self._write(UNIFIED, "cgroup.kill", "1"):
            return
        frozen = self._write("freezer", "freezer.state", "FROZEN")
        tree.send(self.processes(), signal.SIGKILL)
        if frozen:
            self._write("freezer", "freezer.state", "THAWED")

    def out_of_memory(self) -> bool:
        """The kernel has killed a process in it because the memory limit was reached."""
        text = self._read(UNIFIED, "memory.events") or self._read("memory", "memory.oom_control")
        words = text.split()
        return "oom_kill" in words and int(words[words.index("oom_kill") + 1]) > 0

    def peak_mib(self) -> int | None:
        """The most memory that was used at once; None: not known."""
        text = self._read(UNIFIED, "memory.peak") or self._read("memory", "memory.max_usage_in_bytes")
        return int(text) >> 20 if text.strip().isdigit() else None

    def remove(self) -> None:
        """Removes the groups, which are empty; one that can't be removed is left."""
        deadline_s = time.monotonic() + _REMOVE_S
        for path in self.paths.values():
            while True:
                try:
                    os.rmdir(path)
                except OSError as error:
                    if error.errno == errno.EBUSY and time.monotonic() < deadline_s:
                        time.sleep(0.01)
                        continue
                break

    def _set(self, controller: str, name: str, value: object, *, optional: bool = False) -> None:
        path = os.path.join(self.paths[controller], name)
        try:
            fd = os.open(path, os.O_WRONLY)
            try:
                os.write(fd, str(value).encode())
            finally:
                os.close(fd)
        except OSError as error:
            if not optional:
                raise OSError(error.errno, f"{path} does not take '{value}': {error.strerror}") from None

    def _write(self, controller: str, name: str, value: str) -> bool:
        if controller not in self.paths:
            return False
        try:
            self._set(controller, name, value)
        except OSError:
            return False
        return True

    def _read(self, controller: str, name: str) -> str:
        if controller not in self.paths:
            return ""
        try:
            with open(os.path.join(self.paths[controller], name)) as file:
                return file.read()
        except OSError:
            return ""


def own_groups(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> dict[str, str]:
    """The folders of the groups in which this process is, by controller.

    Args:
        root: where the hierarchies are mounted.
        own: the kernel's list for this process.

    Raises:
        OSError: the machine has no such list.
    """
    paths: dict[str, str] = {}
    with open(own) as file:
        lines = file.read().splitlines()
    for line in lines:
        _, controllers, below = line.split(":", 2)
        for controller in controllers.split(","):
            if not controller:  # version 2: the whole tree, or beside version 1 in a folder of its own
                places = {UNIFIED: root if os.path.exists(f"{root}/cgroup.controllers") else f"{root}/unified"}
            else:
                places = {controller: f"{root}/{controller.removeprefix('name=')}"}
            for name, top in places.items():
                path = os.path.normpath(f"{top}/{below}")
                # In a container the list may name groups of the host, where only its own is to be seen, as the top.
                paths[name] = path if os.path.isdir(path) else top
    return {name: path for name, path in paths.items() if os.path.isdir(path)}


def _device(path: str) -> str:
    found = os.stat(path)
    kind = "b" if (found.st_mode & 0o170000) == 0o060000 else "c"
    return f"{kind} {os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
