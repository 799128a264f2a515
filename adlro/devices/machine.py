"""The cores and the memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

from adlro.attempt.cgroup import UNIFIED, own_groups
from adlro.devices.records import Machine, NumaNode


def find_machine(root: str = "/", affinity: frozenset[int] | None = None) -> Machine:
    """The machine, as far as this process may use it.

    Args:
        root: where /proc and /sys are.
        affinity: CPUs that this process may use; None: asked of the kernel.
    """
    usable = _affinity() if affinity is None else affinity
    cores = float(len(usable))
    memory_mib = _memory_mib(root)
    for folder in _groups(root):
        cores = min(cores, _quota(folder))
        limit = _first_number(folder, ("memory.max", "memory.limit_in_bytes"))
        if limit is not None:
            memory_mib = min(memory_mib, limit >> 20)
    return Machine(max(1, int(cores)), max(1, memory_mib), _numa_nodes(root, usable))


def _affinity() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _memory_mib(root: str) -> int:
    for line in _text(Path(root, "proc/meminfo")).splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) >> 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


def _groups(root: str) -> list[Path]:
    """This process's control groups and all above them: the narrowest limit holds."""
    top = Path(root, "sys/fs/cgroup")
    try:
        own = own_groups(str(top), str(Path(root, "proc/self/cgroup")))
    except OSError:
        return []
    found = []
    for controller in (UNIFIED, "cpu", "memory"):
        folder = Path(own[controller]) if controller in own else None
        while folder is not None and folder != top.parent:
            found.append(folder)
            folder = folder.parent
    return list(dict.fromkeys(found))


def _quota(folder: Path) -> float:
    """Cores that a group may use."""
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:  # "max", or -1
        return float("inf")
    return int(quota) / int(period)


def _first_number(folder: Path, names: tuple[str, ...]) -> int | None:
    for name in names:
        text = _text(folder / name)
        if text.isdigit():
            return int(text)
    return None


def _numa_nodes(root: str, usable: frozenset[int]) -> tuple[NumaNode, ...]:
    found = []
    for folder in Path(root, "sys/devices/system/node").glob("node*"):
        number = folder.name.removeprefix("node")
        if number.isdigit():
            cpus = _cpus(_text(folder / "cpulist"))
            found.append(NumaNode(int(number), tuple(sorted(cpus & usable))))
    return tuple(sorted(found, key=lambda each: each.number))


def _cpus(text: str) -> set[int]:
    """The kernel's list of CPUs: `0-3,8`."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last or first) + 1))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
