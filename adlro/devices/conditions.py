"""Which GPUs can't be used now, and why. A pure state machine: it knows no clock, no process and no driver.

Utilization never decides: some drivers report 100 % of an idle GPU for hours.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from adlro.devices.records import UNKNOWN, ComputeProcess, Device, Problem, ProblemKind, Reading, Readings, Vendor

PROGRAM_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""NVIDIA's errors that a program brings about; the GPU is well."""

HELD_MIB = 500.0
"""More memory than this, held by nobody, is held by something."""
RELEASE_S = 30.0
"""For memory to be released after an attempt's end."""
LOST_AFTER_S = 60.0
"""Of silence."""
QUIET_S = 600.0
"""Without a fault, until a GPU that was lost counts as well again."""
FOREIGN_S = 2.0
"""One look may catch a process that has ended since, or one of ours that was started since."""

_SILENT_S = 10.0
_XID_TEXTS = {
    48: "an uncorrectable memory error",
    63: "a bad part of its memory is to be replaced",
    64: "a bad part of its memory could not be replaced",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "its firmware (GSP) does not answer",
    120: "an error of its firmware (GSP)",
}


class ConditionKind(enum.StrEnum):
    """What can be wrong with a GPU."""

    FOREIGN_USE = "foreign_use"
    """A process that belongs to no attempt of ours computes there."""
    MEMORY_HELD = "memory_held"
    """Memory is in use, and no process is there that would use it."""
    LOST = "lost"
    """It can't be used; what ran there has failed, or will."""
    DRAIN = "drain"
    """It should be reset: what runs there may end, nothing new begins."""
    UNKNOWN = "unknown"
    """It has not reported for ten seconds."""
    DRIVER_MISMATCH = "driver_mismatch"
    """Programs that run go on; none can begin before a reboot."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What is wrong with a GPU.

    Attributes:
        uuid: of the GPU.
        kind: for programs.
        reason: for people.
    """

    uuid: str
    kind: ConditionKind
    reason: str

    @property
    def blocks_launches(self) -> bool:
        """Whether nothing new may be placed on the GPU. A silence of seconds does not: it may be the machine's load."""
        return self.kind is not ConditionKind.UNKNOWN

    @property
    def ends_attempts(self) -> bool:
        """Whether an attempt that fails there now failed because of the GPU, and may run again elsewhere."""
        return self.kind is ConditionKind.LOST


@dataclass(slots=True)
class _Gpu:
    """What is remembered of one GPU."""

    device: Device
    busy: bool = False
    own_pids: frozenset[int] = frozenset()
    ended_s: float = -math.inf
    idle_mib: float = math.nan
    held_since_s: float | None = None
    held: str = ""
    released: bool = True
    strangers_since_s: dict[int, float] = field(default_factory=dict)
    fault_s: float = -math.inf
    fault: str = ""
    newest_xid_s: float = -math.inf
    drain: str = ""
    uses: list[Condition] = field(default_factory=list)


class DeviceJudge:
    """Judges GPUs by what they report.

    Args:
        devices: all that are watched. Pretended ones are always well.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._gpus = {each.uuid: _Gpu(each) for each in devices if each.vendor is not Vendor.PRETENDED}

    def observe(
        self, readings: Readings, now_s: float, attempts: Mapping[str, Collection[int]]
    ) -> tuple[Condition, ...]:
        """The conditions now, in the order of GPUs; the gravest first for each.

        Call it about once a second. Reasons stay the same while nothing changes: a new one is news.

        Args:
            readings: the latest.
            now_s: never decreases; the clock of the readings' Xid events (CLOCK_MONOTONIC).
            attempts: by UUID of each GPU on which an attempt of ours runs: the PIDs of its processes, as far as known.
        """
        found: list[Condition] = []
        for uuid, gpu in self._gpus.items():
            reading = readings.by_uuid.get(uuid, UNKNOWN)
            silent_s = readings.silent_s.get(uuid, 0.0)
            problems = [each for each in readings.problems if each.vendor is gpu.device.vendor]
            found += _judged(gpu, reading, silent_s, problems, now_s, attempts.get(uuid))
        return tuple(found)

    def released(self, uuid: str) -> bool:
        """Whether the GPU's memory was seen to be free since the last attempt's end, or half a minute has passed.

        Until then a launch should wait, since a program's memory may outlive it by seconds. True for GPUs that are not
        judged. What is held for longer is a condition.
        """
        gpu = self._gpus.get(uuid)
        return gpu is None or gpu.released

    def clear(self, uuid: str) -> None:
        """Forgets a GPU's faults: a person says that it is well. What is still wrong shows at the next `observe`."""
        if (gpu := self._gpus.get(uuid)) is not None:
            gpu.fault_s, gpu.fault = -math.inf, ""


def _judged(
    gpu: _Gpu,
    reading: Reading,
    silent_s: float,
    problems: Sequence[Problem],
    now_s: float,
    own_pids: Collection[int] | None,
) -> list[Condition]:
    uuid = gpu.device.uuid
    _note_attempt(gpu, reading, now_s, own_pids)
    found: list[Condition] = []
    mismatch = [each for each in problems if each.kind is ProblemKind.DRIVER_MISMATCH]
    others = [each for each in problems if each.kind is not ProblemKind.DRIVER_MISMATCH]
    _note_faults(gpu, reading, silent_s, others, now_s)
    if gpu.fault and now_s - gpu.fault_s < QUIET_S:
        past = "; it counts as well again after 10 quiet minutes" if now_s - gpu.fault_s > _SILENT_S else ""
        found.append(Condition(uuid, ConditionKind.LOST, gpu.fault + past))
    else:
        gpu.fault = ""
    found += [Condition(uuid, ConditionKind.DRIVER_MISMATCH, each.message) for each in mismatch]
    if silent_s >= _SILENT_S and not found:
        found.append(Condition(uuid, ConditionKind.UNKNOWN, "the driver has not answered for 10 s or more"))
    # Nothing is known in a silence: who was accused stays so, and nobody else is.
    if reading.ecc_uncorrectable is not None or reading.row_remap_pending is not None:
        gpu.drain = _drain_reason(reading)
    if gpu.drain:
        found.append(Condition(uuid, ConditionKind.DRAIN, gpu.drain))
    if reading.processes is not None:
        gpu.uses = _uses(gpu, reading, reading.processes, now_s)
    found += gpu.uses
    seen = reading.processes is not None and now_s - silent_s > gpu.ended_s
    free = seen and gpu.held_since_s is None and not gpu.strangers_since_s
    gpu.released = not gpu.busy and (free or now_s - gpu.ended_s >= RELEASE_S)
    return found


def _note_attempt(gpu: _Gpu, reading: Reading, now_s: float, own_pids: Collection[int] | None) -> None:
    if own_pids is not None:
        # Those of the attempt that have ended since the reading was taken are still ours.
        there = {each.pid for each in reading.processes or ()}
        gpu.own_pids = frozenset(own_pids) | (gpu.own_pids & there if gpu.busy else frozenset())
        gpu.busy = True
    elif gpu.busy:
        gpu.busy, gpu.ended_s, gpu.held_since_s = False, now_s, None


def _note_faults(gpu: _Gpu, reading: Reading, silent_s: float, problems: Sequence[Problem], now_s: float) -> None:
    new = [each for each in reading.xids if each.at_s > gpu.newest_xid_s]
    for event in new:
        gpu.newest_xid_s = max(gpu.newest_xid_s, event.at_s)
        if event.xid not in PROGRAM_XIDS:
            text = _XID_TEXTS.get(event.xid, "see `dmesg`")
            gpu.fault_s, gpu.fault = now_s, f"the driver reported Xid {event.xid}: {text}"
    if reading.lost:
        gpu.fault_s, gpu.fault = now_s, reading.lost
    elif problems:
        gpu.fault_s, gpu.fault = now_s, problems[0].message
    elif silent_s >= LOST_AFTER_S:
        gpu.fault_s = now_s
        gpu.fault = "the driver has not answered for a minute or more; if it stays so, a reboot is needed"


def _drain_reason(reading: Reading) -> str:
    if reading.row_remap_pending:
        return "a bad part of its memory is to be replaced, which needs a reset (`nvidia-smi --gpu-reset`, or a reboot)"
    if reading.ecc_uncorrectable:
        errors = f"{reading.ecc_uncorrectable} uncorrectable memory error"
        return f"{errors}{'s' if reading.ecc_uncorrectable > 1 else ''} since the driver was loaded; reset the GPU"
    return ""


def _uses(gpu: _Gpu, reading: Reading, processes: Sequence[ComputeProcess], now_s: float) -> list[Condition]:
    """Foreign processes, and memory that nobody uses."""
    after_end = now_s - gpu.ended_s
    ours = gpu.own_pids if gpu.busy or after_end < RELEASE_S else frozenset()
    strangers = [
        each
        for each in processes
        if each.pid not in ours
        # A process that can't be seen from here may well be ours, while an attempt of ours runs or has just ended.
        and (each.user or not (gpu.busy or after_end < RELEASE_S))
    ]
    gpu.strangers_since_s = {each.pid: gpu.strangers_since_s.get(each.pid, now_s) for each in strangers}
    foreign = [each for each in strangers if now_s - gpu.strangers_since_s[each.pid] >= FOREIGN_S]
    found = [_foreign_condition(gpu.device.uuid, foreign)] if foreign else []
    held_mib = _held_mib(gpu, reading)
    if gpu.busy or strangers or math.isnan(held_mib) or held_mib < HELD_MIB:
        gpu.held_since_s = None
        if not gpu.busy and not processes and not math.isnan(reading.memory_used_mib):
            gpu.idle_mib = reading.memory_used_mib
        return found
    if gpu.held_since_s is None:
        whose = f"pid {processes[0].pid} of an attempt that has ended" if processes else "no process"
        gpu.held_since_s = now_s
        gpu.held = (
            f"{held_mib:.0f} MiB of its memory are held by {whose}; a reset of the GPU, or a reboot, releases them"
        )
    if now_s - gpu.held_since_s >= RELEASE_S:
        found.append(Condition(gpu.device.uuid, ConditionKind.MEMORY_HELD, gpu.held))
    return found


def _held_mib(gpu: _Gpu, reading: Reading) -> float:
    """Memory in use that a desktop does not explain; NaN: unknown.

    Where it is not known what a desktop has (AMD), it is what was in use before the attempt.
    """
    if not math.isnan(reading.graphics_memory_mib):
        return reading.memory_used_mib - reading.graphics_memory_mib
    if math.isnan(gpu.idle_mib):
        gpu.idle_mib = reading.memory_used_mib if not gpu.busy and not reading.processes else math.nan
    return reading.memory_used_mib - gpu.idle_mib


def _foreign_condition(uuid: str, foreign: Sequence[ComputeProcess]) -> Condition:
    first = foreign[0]
    whose = f" of user {first.user}" if first.user else ""
    more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
    return Condition(uuid, ConditionKind.FOREIGN_USE, f"used by pid {first.pid}{whose}{more}")
