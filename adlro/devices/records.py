"""Plain records of GPUs and machines, and their form in JSON between a child process and its parent."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adlro.hardware.specs import GPU_SPECS
from adlro.records.cluster import Gpu, GpuSpec

PCIE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.984375, 4: 1.96875, 5: 3.9375, 6: 7.5625}
"""Of one PCI Express lane in one direction, by generation."""


class Vendor(enum.StrEnum):
    """Who made a GPU."""

    NVIDIA = "nvidia"
    AMD = "amd"
    PRETENDED = "pretended"
    """Nobody: `--fake-gpus`."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU.

    Attributes:
        uuid: its identity, the same after a reboot or when another GPU was removed. NVIDIA: as NVML reports it. AMD:
            `GPU-<16 hexadecimal digits>`; `AMD-<bus id>` where the GPU has no unique id.
        index: in the order of PCI addresses, per vendor.
        gpu_model: the name that ADLRO uses (adlro.hardware.specs), or one made from `product_name`.
        product_name: as the driver reports it.
        memory_mib: that the driver reports.
        spec: the GPU's own figures, for models that ADLRO has none of; None: those of the model hold.
        interconnect: the fastest way to another GPU, such as `nvlink3`, `xgmi`, `pcie4`; empty: unknown.
        interconnect_bandwidth_gb_per_s: in one direction, of all links together; 0: unknown.
        numa_node: nearest to it; -1: unknown, or the machine has only one.
        bus_id: PCI address `0000:3b:00.0`; empty: none.
        device_files: that a program needs to use it.
        driver_version: empty: unknown.
        node: of a pretended GPU; empty: this machine.
        visible_as: its name in ROCR_VISIBLE_DEVICES, for AMD; empty: `uuid`.
        kfd_gpu_id: AMD's number of it in /sys/class/kfd; 0: none.
    """

    uuid: str
    vendor: Vendor
    index: int
    gpu_model: str
    product_name: str
    memory_mib: int
    spec: GpuSpec | None = None
    interconnect: str = ""
    interconnect_bandwidth_gb_per_s: float = 0.0
    numa_node: int = -1
    bus_id: str = ""
    device_files: tuple[str, ...] = ()
    driver_version: str = ""
    node: str = ""
    visible_as: str = ""
    kfd_gpu_id: int = 0

    @property
    def figures(self) -> GpuSpec | None:
        """Its own figures, or else those of its model; None: unknown."""
        return self.spec or GPU_SPECS.get(self.gpu_model)

    def as_gpu(self, gpu_id: str) -> Gpu:
        """As a cluster describes it, under a name in the cluster such as `node/0`."""
        return Gpu(
            gpu_id,
            self.gpu_model,
            self.memory_mib,
            self.interconnect_bandwidth_gb_per_s,
            self.interconnect,
            self.spec,
        )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A GPU that is there and can't be used: `what` it is, and `why`."""

    what: str
    why: str


class ProblemKind(enum.StrEnum):
    """Why GPUs of a vendor could not be found or read."""

    DRIVER_MISMATCH = "driver_mismatch"
    """NVIDIA's kernel module and its libraries have different versions: after an update, before the reboot."""
    NO_ANSWER = "no_answer"
    """The driver hangs."""
    UNREADABLE = "unreadable"
    """Any other failure."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What hinders all GPUs of a vendor, in words for people, with the way out."""

    vendor: Vendor
    kind: ProblemKind
    message: str


@dataclass(frozen=True, slots=True)
class Found:
    """The GPUs of a machine, the ones that are left out, and what went wrong."""

    devices: tuple[Device, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A part of a machine whose cores and memory are near each other: its number, and the CPUs we may use there."""

    number: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """What this process may use of the machine.

    Attributes:
        cpu_cores: CPUs of its affinity, at most its control groups' quota; at least 1.
        memory_mib: the machine's memory, at most its control groups' limit.
        numa_nodes: in the order of their numbers.
    """

    cpu_cores: int
    memory_mib: int
    numa_nodes: tuple[NumaNode, ...] = ()


@dataclass(frozen=True, slots=True)
class ComputeProcess:
    """A process that computes on a GPU.

    Attributes:
        pid: as the driver reports it.
        user: its owner's name, or number where it has none; empty: this process can't see it (another PID namespace).
        memory_mib: GPU memory that it holds; NaN: unknown.
    """

    pid: int
    user: str = ""
    memory_mib: float = math.nan


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An error that NVIDIA's driver reported: its number, and when (CLOCK_MONOTONIC, seconds)."""

    xid: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What a GPU reported. NaN, or None: unknown.

    Attributes:
        utilization: 0..1, the share of the last moment in which a kernel ran.
        memory_used_mib: by all programs and the driver's share for them.
        bandwidth_gb_per_s: an estimate from above: the share of time in which the memory was busy, times its peak.
        temperature_c: of the GPU.
        power_w: of the whole card.
        graphics_memory_mib: held by programs that draw (a desktop); NaN: unknown.
        processes: that compute.
        ecc_uncorrectable: errors since the driver was loaded.
        row_remap_pending: whether a bad part of its memory will be replaced at the next reset.
        xids: the errors of the last minutes, oldest first.
        lost: why it can't be used any more, as the driver reports it; empty: it is there.
    """

    utilization: float = math.nan
    memory_used_mib: float = math.nan
    bandwidth_gb_per_s: float = math.nan
    temperature_c: float = math.nan
    power_w: float = math.nan
    graphics_memory_mib: float = math.nan
    processes: tuple[ComputeProcess, ...] | None = None
    ecc_uncorrectable: int | None = None
    row_remap_pending: bool | None = None
    xids: tuple[XidEvent, ...] = ()
    lost: str = ""


UNKNOWN = Reading()
"""Of a GPU that reports nothing."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What GPUs reported last.

    Attributes:
        by_uuid: of every GPU that is watched; UNKNOWN where there is nothing recent.
        silent_s: seconds since the last report, by GPU; pretended GPUs have none.
        problems: of a vendor's driver.
    """

    by_uuid: Mapping[str, Reading]
    silent_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


# ---- JSON: NaN is null.


def to_plain(record: Any) -> Any:
    """A record of this module as dicts, lists and plain values, without NaN."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {each.name: to_plain(getattr(record, each.name)) for each in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {key: to_plain(each) for key, each in record.items()}
    if isinstance(record, list | tuple):
        return [to_plain(each) for each in record]
    if isinstance(record, float) and not math.isfinite(record):
        return None
    return record


def found_of(plain: Mapping[str, Any]) -> Found:
    """The `Found` of `to_plain`."""
    return Found(
        devices=tuple(device_of(each) for each in plain["devices"]),
        left_out=tuple(LeftOut(**each) for each in plain["left_out"]),
        problems=tuple(problem_of(each) for each in plain["problems"]),
    )


def device_of(plain: Mapping[str, Any]) -> Device:
    """The `Device` of `to_plain`."""
    spec = plain["spec"]
    return Device(
        **{
            **plain,
            "vendor": Vendor(plain["vendor"]),
            "spec": None if spec is None else GpuSpec(**spec),
            "device_files": tuple(plain["device_files"]),
        }
    )


def problem_of(plain: Mapping[str, Any]) -> Problem:
    """The `Problem` of `to_plain`."""
    return Problem(Vendor(plain["vendor"]), ProblemKind(plain["kind"]), plain["message"])


def reading_of(plain: Mapping[str, Any]) -> Reading:
    """The `Reading` of `to_plain`."""
    numbers = {name: math.nan if plain[name] is None else float(plain[name]) for name in _NUMBERS}
    processes = plain["processes"]
    return Reading(
        **numbers,
        processes=None if processes is None else tuple(_process_of(each) for each in processes),
        ecc_uncorrectable=plain["ecc_uncorrectable"],
        row_remap_pending=plain["row_remap_pending"],
        xids=tuple(XidEvent(**each) for each in plain["xids"]),
        lost=plain["lost"],
    )


_NUMBERS = (
    "utilization",
    "memory_used_mib",
    "bandwidth_gb_per_s",
    "temperature_c",
    "power_w",
    "graphics_memory_mib",
)


def _process_of(plain: Mapping[str, Any]) -> ComputeProcess:
    memory = plain["memory_mib"]
    return ComputeProcess(plain["pid"], plain["user"], math.nan if memory is None else float(memory))
