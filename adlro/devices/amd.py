"""AMD's GPUs, by the files of the kernel's driver: KFD's tree of nodes, and DRM's folder of each GPU.

Nothing of ROCm is needed, so no release of it can be the wrong one.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from adlro.devices.naming import model_of_pci_id, model_of_product
from adlro.devices.owners import user_of
from adlro.devices.records import (
    PCIE_GB_PER_S,
    ComputeProcess,
    Device,
    Found,
    LeftOut,
    Problem,
    Reading,
    Vendor,
)
from adlro.hardware.specs import GPU_SPECS, KNOWN_MODELS
from adlro.records.cluster import GpuSpec

_TREE = "sys/class/kfd/kfd/topology/nodes"
_PROCESSES = "sys/class/kfd/kfd/proc"
_XGMI = 11
_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_LEAST_MIB = 2048
"""Graphics within a processor has less memory of its own; no job should land there."""
_ASSUMED_POWER_W, _ASSUMED_TEMPERATURE_C, _ASSUMED_BANDWIDTH_GB_PER_S = 300.0, 100.0, 500.0


def find(root: str = "/") -> Found:
    """AMD's GPUs, in the order of PCI addresses.

    Args:
        root: where /sys is.
    """
    left_out = []
    nodes: list[tuple[int, Path, dict[str, int]]] = []  # with their number among KFD's GPUs, which is ROCm's index
    folders = [each for each in Path(root, _TREE).glob("*") if each.name.isdigit()]
    for folder in sorted(folders, key=lambda each: int(each.name)):
        try:
            properties = _properties(folder / "properties")
        except OSError as error:
            left_out.append(LeftOut(f"KFD node {folder.name}", f"it can't be read: {error.strerror}"))
            continue
        if properties.get("simd_count", 0) > 0:
            nodes.append((len(nodes), folder, properties))
    shared = Counter(properties.get("unique_id", 0) for _, _, properties in nodes)
    devices = []
    places = sorted(nodes, key=lambda each: (_bus_id(each[2]), each[0]))
    for index, (number, folder, properties) in enumerate(places):
        drm = _drm(root, properties)
        memory_mib = _memory_mib(folder, drm, properties)
        bus_id = _bus_id(properties)
        model, product = _names(properties, drm, memory_mib)
        what = f"{product} at {bus_id}"
        unique_id = properties.get("unique_id", 0)
        partition = _text(drm / "current_compute_partition")
        if (unique_id and shared[unique_id] > 1) or partition not in {"", "SPX"}:
            left_out.append(
                LeftOut(
                    what,
                    "it is divided (compute partitions), and ADLRO uses whole GPUs: "
                    "`sudo amd-smi set --compute-partition SPX` undoes that",
                )
            )
            continue
        if memory_mib < _LEAST_MIB:
            left_out.append(LeftOut(what, f"it has {memory_mib} MiB of memory of its own: graphics of a processor"))
            continue
        interconnect, bandwidth = _interconnect(folder, drm)
        numa = _text(drm / "numa_node")
        devices.append(
            Device(
                uuid=f"GPU-{unique_id:016x}" if unique_id else f"AMD-{bus_id}",
                vendor=Vendor.AMD,
                index=index,
                gpu_model=model,
                product_name=product,
                memory_mib=memory_mib,
                spec=None if model in GPU_SPECS else _own_spec(folder, drm, properties),
                interconnect=interconnect,
                interconnect_bandwidth_gb_per_s=bandwidth,
                numa_node=int(numa) if numa.lstrip("-").isdigit() else -1,
                bus_id=bus_id,
                device_files=("/dev/kfd", f"/dev/dri/renderD{properties.get('drm_render_minor', 0)}"),
                driver_version=_text(Path(root, "sys/module/amdgpu/version")),
                visible_as="" if unique_id else str(number),
                kfd_gpu_id=_number(folder / "gpu_id") or 0,
            )
        )
    return Found(tuple(devices), tuple(left_out))


class AmdReader:
    """Reads AMD's GPUs again and again.

    Args:
        devices: to be read.
        root: where /sys and /proc are.
    """

    def __init__(self, devices: Sequence[Device], root: str = "/") -> None:
        self._devices = devices
        self._root = root

    def read(self) -> tuple[dict[str, Reading], tuple[Problem, ...]]:
        """What each GPU reports now."""
        using = self._processes()
        return {each.uuid: self._reading(each, using) for each in self._devices}, ()

    def _reading(self, device: Device, using: dict[int, tuple[ComputeProcess, ...]] | None) -> Reading:
        drm = Path(self._root, "sys/class/drm", Path(device.device_files[-1]).name, "device")
        if not drm.exists():
            return Reading(lost="the kernel does not list it any more: it has fallen off the bus, or was removed")
        figures = device.figures
        memory_busy = _scaled(drm / "mem_busy_percent", 0.01)
        sensors = _in(drm / "hwmon", "hwmon")
        errors = [_uncorrectable(each) for each in _in(drm / "ras") if each.name.endswith("_err_count")]
        return Reading(
            utilization=_scaled(drm / "gpu_busy_percent", 0.01),
            memory_used_mib=_scaled(drm / "mem_info_vram_used", 2.0**-20),
            bandwidth_gb_per_s=math.nan if figures is None else memory_busy * figures.memory_bandwidth_gb_per_s,
            # MI300 has no sensor at the edge of the chip; its second one is at the hottest place.
            temperature_c=_first([each / name for each in sensors for name in ("temp1_input", "temp2_input")], 1e-3),
            power_w=_first([each / name for each in sensors for name in ("power1_average", "power1_input")], 1e-6),
            processes=None if using is None else using.get(device.kfd_gpu_id, ()),
            ecc_uncorrectable=sum(errors) if errors else None,
        )

    def _processes(self) -> dict[int, tuple[ComputeProcess, ...]] | None:
        """By KFD's number of the GPU: those that hold memory of it, or have a queue on it."""
        if not Path(self._root, _PROCESSES).is_dir():
            return None
        found: dict[int, list[ComputeProcess]] = {}
        folders = [each for each in _in(Path(self._root, _PROCESSES)) if each.name.isdigit()]
        for pid, folder in sorted((int(each.name), each) for each in folders):
            queues = {_number(each / "gpuid") for each in _in(folder / "queues")}
            for each in _in(folder, "vram_"):
                gpu_id, held = each.name.removeprefix("vram_"), _number(each) or 0
                if gpu_id.isdigit() and (held or int(gpu_id) in queues):
                    user = user_of(pid, str(Path(self._root, "proc")))
                    found.setdefault(int(gpu_id), []).append(ComputeProcess(pid, user, held / 2**20))
        return {gpu_id: tuple(processes) for gpu_id, processes in found.items()}


def _names(properties: dict[str, int], drm: Path, memory_mib: int) -> tuple[str, str]:
    """The model, and the product's name."""
    device_id = properties.get("device_id", 0)
    units = properties["simd_count"] // (properties.get("simd_per_cu", 0) or 4)
    revision = _text(drm / "revision")
    told = _text(drm / "product_name")
    model = model_of_pci_id(device_id, int(revision, 16) if revision else -1, units)
    if model:
        return model, told or KNOWN_MODELS[model].product_names[0]
    version = properties.get("gfx_target_version", 0)
    # Three decimal numbers, of which the last two are written in hexadecimal: 90010 is gfx90a.
    gfx = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    product = told or f"AMD {gfx} {device_id:04x}"
    return model_of_product(product, memory_mib), product


def _drm(root: str, properties: dict[str, int]) -> Path:
    return Path(root, "sys/class/drm", f"renderD{properties.get('drm_render_minor', 0)}", "device")


def _bus_id(properties: dict[str, int]) -> str:
    place = properties.get("location_id", 0)
    return f"{properties.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7:x}"


def _banks(folder: Path) -> list[dict[str, int]]:
    """The GPU's own memory: heaps 1 (seen by the processor) and 2 (not seen)."""
    found = []
    for path in sorted(folder.glob("mem_banks/*/properties")):
        try:
            bank = _properties(path)
        except OSError:
            continue
        if bank.get("heap_type") in {1, 2}:
            found.append(bank)
    return found


def _memory_mib(folder: Path, drm: Path, properties: dict[str, int]) -> int:
    of_banks = sum(bank.get("size_in_bytes", 0) for bank in _banks(folder))
    size = of_banks or _number(drm / "mem_info_vram_total") or properties.get("local_mem_size", 0)
    return int(size) >> 20


def _own_spec(folder: Path, drm: Path, properties: dict[str, int]) -> GpuSpec:
    """What a GPU of an unknown model reports about itself; what it does not report is assumed."""
    bandwidth = 0.0
    for bank in _banks(folder):
        width = bank.get("width", 0)
        # HBM has wide buses and two transfers a clock; GDDR6 sixteen of the clock that the driver reports, GDDR5 four.
        transfers = 2 if width >= 1024 else 16 if properties.get("gfx_target_version", 0) >= 100000 else 4
        bandwidth = max(bandwidth, width / 8 * bank.get("mem_clk_max", 0) * transfers / 1000)
    sensors = _in(drm / "hwmon", "hwmon")
    power = _first([each / name for each in sensors for name in ("power1_cap_default", "power1_cap")], 1e-6)
    critical = _first([each / name for each in sensors for name in ("temp1_crit", "temp2_crit")], 1e-3)
    return GpuSpec(
        memory_bandwidth_gb_per_s=bandwidth or _ASSUMED_BANDWIDTH_GB_PER_S,
        power_limit_w=power if power > 0 else _ASSUMED_POWER_W,
        max_temperature_c=critical if critical > 0 else _ASSUMED_TEMPERATURE_C,
    )


def _interconnect(folder: Path, drm: Path) -> tuple[str, float]:
    xgmi = []
    for path in sorted(folder.glob("io_links/*/properties")):
        try:
            link = _properties(path)
        except OSError:
            continue
        if link.get("type") == _XGMI:
            xgmi.append(link.get("max_bandwidth", 0) / 1000)
    if xgmi:
        return "xgmi", sum(xgmi)
    generation = _GENERATIONS.get(_text(drm / "max_link_speed").split(" ")[0], 0)
    width = _number(drm / "max_link_width") or 0
    return (f"pcie{generation}", PCIE_GB_PER_S[generation] * width) if generation else ("", 0.0)


def _properties(path: Path) -> dict[str, int]:
    """KFD's lines of a name and a number.

    Raises:
        OSError: the file can't be read.
    """
    found = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            found[name] = int(value)
    return found


def _uncorrectable(path: Path) -> int:
    lines = (line.partition(":") for line in _text(path).splitlines())
    return sum(int(value) for name, _, value in lines if name.strip() == "ue" and value.strip().isdigit())


def _in(folder: Path, start: str = "") -> list[Path]:
    """What is in a folder, in order; nothing where it has gone.

    The folder of a process or of a GPU may go at any moment, and a glob raises then (Python 3.11).

    Args:
        folder: which.
        start: that names begin with.
    """
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.startswith(start))
    except OSError:
        return []


def _first(paths: Sequence[Path], factor: float) -> float:
    values = (_scaled(each, factor) for each in paths)
    return next((each for each in values if not math.isnan(each)), math.nan)


def _scaled(path: Path, factor: float) -> float:
    value = _number(path)
    return math.nan if value is None else value * factor


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
