"""All processes that an attempt's program has brought about: found, signalled, ended. Part of the supervisor.

Killing the program's process group is not enough: torchrun gives each worker a session and a group of its own, and
daemons leave both. As long as the supervisor lives, all are its descendants, for it is their subreaper. After its end
they are found by the mark that stands in their environment, and by the attempt's control group where it has one.

No PID is trusted: a process is named by its PID and its start, and signalled through a pidfd.
"""

from __future__ import annotations

import os
import signal
import time

from adlro.attempt.linux import all_pids, open_process, process_environment, process_stat

MARK = "ADLRO_MARK"
"""The variable in a program's environment by which what is left of it is found."""

# Between two looks while processes are being killed.
_LOOK_S = 0.05
# A process that runs exec has no environment for a moment, so one look that finds nothing proves nothing.
_EMPTY_LOOKS = 3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def descendants(top: int) -> dict[int, int]:
    """The processes below one: PID and start. Zombies are left out."""
    parent_of: dict[int, int] = {}
    start_of: dict[int, int] = {}
    for pid in all_pids():
        found = process_stat(pid)
        if found is not None:
            parent_of[pid], start_of[pid] = found
    below = {top}
    found_one = True
    while found_one:  # a child may have a smaller PID than its parent
        more = {pid for pid, parent in parent_of.items() if parent in below and pid not in below}
        below |= more
        found_one = bool(more)
    return {pid: start_of[pid] for pid in below if pid != top}


def below(tops: Collection[int]) -> dict[int, int]:
    """The processes below any of some: by PID the nearest of those above it."""
    if not tops:
        return {}
    parent_of = {pid: found[0] for pid in all_pids() if (found := process_stat(pid)) is not None}
    nearest: dict[int, int] = {}
    for pid, parent in parent_of.items():
        at = parent
        while at not in tops and at in parent_of:
            at = parent_of[at]
        if at in tops:
            nearest[pid] = at
    return nearest


def marked(mark: str) -> dict[int, int]:
    """The processes that carry a mark: PID and start. Those of other users are seen by root alone."""
    wanted = f"{MARK}={mark}".encode()
    carrying: dict[int, int] = {}
    for pid in all_pids():
        try:
            found = wanted in process_environment(pid)
        except PermissionError:
            continue
        stat = process_stat(pid) if found else None
        if stat is not None:
            carrying[pid] = stat[1]
    return carrying


def send(processes: dict[int, int], number: int) -> None:
    """Sends a signal to processes, given as PID and start. Those that are gone, or not ours, are passed over."""
    for pid, start_ticks in processes.items():
        fd = open_process(pid, start_ticks)
        if fd is None:
            continue
        try:
            signal.pidfd_send_signal(fd, number)
        except (ProcessLookupError, PermissionError):
            continue
        finally:
            os.close(fd)


def kill_all(find: Callable[[], dict[int, int]]) -> int:
    """Kills what a search finds, until it finds nothing more; returns how many there were.

    It does not give up: what the kernel holds (state D) still has its GPU.

    Args:
        find: gives PID and start.
    """
    killed: set[tuple[int, int]] = set()
    empty = 0
    while empty < _EMPTY_LOOKS:
        found = find()
        # Stopped first, so that none makes another one while its parent is being killed.
        send(found, signal.SIGSTOP)
        send(found, signal.SIGKILL)
        killed.update(found.items())
        empty = 0 if found else empty + 1
        time.sleep(_LOOK_S)
    return len(killed)
