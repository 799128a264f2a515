"""NVIDIA's GPUs, by NVML. It may hang or crash: only child processes call what is here.

`python -m adlro.devices.nvidia` writes the GPUs that it finds as one line of JSON (`records.found_of`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from adlro.devices import children
from adlro.devices.naming import model_of_product
from adlro.devices.owners import user_of
from adlro.devices.records import (
    PCIE_GB_PER_S,
    UNKNOWN,
    ComputeProcess,
    Device,
    Found,
    LeftOut,
    Problem,
    ProblemKind,
    Reading,
    Vendor,
    XidEvent,
    to_plain,
)
from adlro.hardware.specs import GPU_SPECS
from adlro.records.cluster import GpuSpec

_PCI_VENDOR = "0x10de"
# By NVML's number of the version: name, GB/s of one link in one direction.
_NVLINKS = {
    1: ("nvlink1", 20.0),
    2: ("nvlink2", 25.0),
    3: ("nvlink2", 25.0),
    4: ("nvlink3", 25.0),
    5: ("nvlink3", 25.0),
    6: ("nvlink4", 25.0),
    7: ("nvlink5", 50.0),
}
# Figures of a model that nobody knows and whose driver does not report them either.
_ASSUMED_POWER_W, _ASSUMED_TEMPERATURE_C, _ASSUMED_BANDWIDTH_GB_PER_S = 300.0, 90.0, 500.0
RETRY_S = 30.0
_FIND_S = 120
_XIDS_KEPT_S, _XIDS_KEPT = 900.0, 32
_LOST_NUMBERS = {
    6: "NVML does not list it any more: it has fallen off the bus, or was removed",
    15: "the driver has lost it (GPU is lost): it has fallen off the bus",
    16: "it needs a reset (`nvidia-smi --gpu-reset`, or a reboot)",
    28: "NVML does not list it any more: it has fallen off the bus, or was removed",
}
_NOT_FOUND = 6  # of a GPU, but also of other things that are asked for
_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED, _VERSION_MISMATCH = 12, 9, 18


class _Failed(Exception):
    """NVML's error: its number and text."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


def find(root: str = "/") -> Found:
    """NVIDIA's GPUs, in the order of PCI addresses.

    Args:
        root: where /sys and /dev are.
    """
    try:
        nvml = _started()
    except _Failed as failed:
        return _without_nvml(failed, root)
    _make_device_files(root)
    driver = str(_value("", nvml.nvmlSystemGetDriverVersion))
    places = []
    left_out = []
    for number in range(int(_value(0, nvml.nvmlDeviceGetCount))):
        try:
            handle = _checked(nvml.nvmlDeviceGetHandleByIndex, number)
            bus_id = _bus_id(_checked(nvml.nvmlDeviceGetPciInfo, handle).busId)
        except _Failed as failed:
            left_out.append(LeftOut(f"NVIDIA GPU {number}", f"it can't be read: {_reason(failed)}"))
            continue
        places.append((bus_id, handle))
    devices = []
    for index, (bus_id, handle) in enumerate(sorted(places, key=lambda each: each[0])):
        try:
            found = _device(nvml, handle, index, bus_id, driver, root)
        except _Failed as failed:
            found = LeftOut(f"NVIDIA GPU at {bus_id}", f"it can't be read: {_reason(failed)}")
        if isinstance(found, Device):
            devices.append(found)
        else:
            left_out.append(found)
    return Found(tuple(devices), tuple(left_out))


class NvidiaReader:
    """Reads NVIDIA's GPUs again and again.

    Args:
        devices: to be read.
        retry_s: between looks for a driver that refuses, or for GPUs that are lost.
        clock: CLOCK_MONOTONIC, seconds.
    """

    def __init__(
        self, devices: Sequence[Device], retry_s: float = RETRY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._devices = devices
        self._retry_s = retry_s
        self._clock = clock
        self._nvml: Any = None
        self._started_s = -math.inf
        self._look: subprocess.Popen[bytes] | None = None
        self._looked_s = -math.inf
        self._problems: tuple[Problem, ...] = ()
        self._handles: dict[str, Any] = {}
        self._gone: dict[str, str] = {}
        self._events: Any = None
        self._xids: dict[str, list[XidEvent]] = {each.uuid: [] for each in devices}

    def read(self) -> tuple[dict[str, Reading], tuple[Problem, ...]]:
        """What each GPU reports now, and what is wrong with the driver."""
        if self._nvml is None:
            if self._clock() - self._started_s >= self._retry_s:
                self._start()
        elif self._gone and self._gone_are_back():
            self._start()
        if self._nvml is None:
            return {each.uuid: UNKNOWN for each in self._devices}, self._problems
        self._take_events()
        readings = {each.uuid: self._reading(each) for each in self._devices}
        return readings, ()

    def _start(self) -> None:
        """Starts NVML, anew where a GPU had gone: NVML lists what was there when it was started."""
        self._started_s = self._clock()
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
        self._nvml = self._events = None
        self._handles, self._gone = {}, {}
        try:
            nvml = _started()
        except _Failed as failed:
            self._problems = (_problem_of(failed, "/"),)
            return
        self._nvml, self._problems = nvml, ()
        for each in self._devices:
            try:
                self._handles[each.uuid] = _checked(nvml.nvmlDeviceGetHandleByUUID, each.uuid)
            except _Failed as failed:
                self._gone[each.uuid] = _reason(failed)
        with contextlib.suppress(_Failed):
            events = _checked(nvml.nvmlEventSetCreate)
            for handle in self._handles.values():
                with contextlib.suppress(_Failed):
                    _checked(nvml.nvmlDeviceRegisterEvents, handle, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events

    def _gone_are_back(self) -> bool:
        """Whether a GPU that had gone is there again: a process of its own looks, since the driver may hang for it."""
        now_s = self._clock()
        if self._look is None:
            if now_s - self._looked_s >= self._retry_s:
                self._looked_s = now_s
                with contextlib.suppress(OSError):
                    self._look = subprocess.Popen(
                        children.command("adlro.devices.nvidia"),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        env=children.environment(),
                    )
            return False
        if self._look.poll() is None:  # one that hangs ends itself, at the latest after _FIND_S
            return False
        assert self._look.stdout is not None
        with self._look.stdout as out:
            text = out.read()
        self._look, self._looked_s = None, now_s
        try:
            there = {each["uuid"] for each in json.loads(text)["devices"]}
        except (ValueError, KeyError, TypeError):
            return False
        return bool(there & self._gone.keys())

    def _take_events(self) -> None:
        now_s = self._clock()
        while self._events is not None:
            try:
                event = _checked(self._nvml.nvmlEventSetWait, self._events, 0)
            except _Failed:  # a timeout: there are no more
                break
            if event.eventType != self._nvml.nvmlEventTypeXidCriticalError:
                continue
            for uuid in self._concerned(event.device):
                self._xids[uuid].append(XidEvent(int(event.eventData), now_s))
        for uuid, events in self._xids.items():
            self._xids[uuid] = [each for each in events if now_s - each.at_s < _XIDS_KEPT_S][-_XIDS_KEPT:]

    def _concerned(self, handle: Any) -> Collection[str]:
        """The GPU of an event; all of them where the driver can't say which."""
        for uuid, each in self._handles.items():
            if _address(each) == _address(handle):
                return [uuid]
        try:
            uuid = str(_checked(self._nvml.nvmlDeviceGetUUID, handle))
        except _Failed:
            return self._handles
        return [uuid] if uuid in self._handles else []

    def _reading(self, device: Device) -> Reading:
        xids = tuple(self._xids[device.uuid])
        if device.uuid in self._gone:
            return Reading(lost=self._gone[device.uuid], xids=xids)
        try:
            return self._values(device, self._handles[device.uuid], xids)
        except _Failed as failed:
            self._gone[device.uuid] = _reason(failed)
            return Reading(lost=self._gone[device.uuid], xids=xids)

    def _values(self, device: Device, handle: Any, xids: tuple[XidEvent, ...]) -> Reading:
        nvml, nan = self._nvml, math.nan
        rates = _value(None, nvml.nvmlDeviceGetUtilizationRates, handle)
        figures = device.figures
        busy = nan if rates is None else rates.memory / 100
        remapped = _value(None, nvml.nvmlDeviceGetRemappedRows, handle)
        counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ecc = _value(None, nvml.nvmlDeviceGetTotalEccErrors, handle, *counter)
        drawing = _processes(nvml, "nvmlDeviceGetGraphicsRunningProcesses", handle)
        return Reading(
            utilization=nan if rates is None else rates.gpu / 100,
            memory_used_mib=_memory(nvml, handle).used / 2**20,
            bandwidth_gb_per_s=nan if figures is None else busy * figures.memory_bandwidth_gb_per_s,
            temperature_c=float(
                _first(
                    nan,
                    lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU),
                    lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                )
            ),
            power_w=_value(nan, nvml.nvmlDeviceGetPowerUsage, handle) / 1000,
            graphics_memory_mib=nan if drawing is None else _known_sum(each.memory_mib for each in drawing),
            processes=_processes(nvml, "nvmlDeviceGetComputeRunningProcesses", handle),
            ecc_uncorrectable=ecc,
            row_remap_pending=None if remapped is None else bool(remapped[2] or remapped[3]),
            xids=xids,
        )


def library_was_replaced(maps: str = "/proc/self/maps") -> bool:
    """Whether the NVML that this process has loaded is no longer on the disk: the driver was updated meanwhile.

    Args:
        maps: the kernel's list of what this process has loaded.
    """
    try:
        text = Path(maps).read_text(errors="replace")
    except OSError:
        return False
    return any("libnvidia-ml.so" in line and line.endswith("(deleted)") for line in text.splitlines())


# ---- NVML


def _started() -> Any:
    """NVML's Python module, after nvmlInit."""
    try:
        import pynvml
    except ImportError:
        raise _Failed(_LIBRARY_NOT_FOUND, "the Python package nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _Failed(error.value, str(error)) from None
    return pynvml


def _checked(call: Callable[..., Any], *arguments: Any) -> Any:
    """The call's result.

    Raises:
        _Failed: with NVML's error.
    """
    import pynvml

    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise _Failed(error.value, str(error)) from None


def _value(otherwise: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """The call's result, or another value where NVML or this GPU does not have it.

    Raises:
        _Failed: the GPU is lost.
    """
    try:
        return _checked(call, *arguments)
    except _Failed as failed:
        if failed.number in _LOST_NUMBERS and failed.number != _NOT_FOUND:
            raise
        return otherwise


def _first(otherwise: Any, *calls: Callable[[], Any]) -> Any:
    """The result of the first call that has one: which functions there are depends on the driver's release."""
    nothing = object()
    for call in calls:
        if (value := _value(nothing, call)) is not nothing:
            return value
    return otherwise


def _memory(nvml: Any, handle: Any) -> Any:
    """Memory without what the driver keeps for itself (version 2, as nvidia-smi shows it), else with it."""

    class _Nothing:
        total, used = 0, math.nan

    return _first(
        _Nothing,
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2),
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
    )


def _processes(nvml: Any, function: str, handle: Any) -> tuple[ComputeProcess, ...] | None:
    found = _first(None, lambda: getattr(nvml, function)(handle), lambda: getattr(nvml, f"{function}_v2")(handle))
    if found is None:
        return None
    return tuple(
        ComputeProcess(
            each.pid,
            user_of(each.pid),
            math.nan if each.usedGpuMemory is None else each.usedGpuMemory / 2**20,
        )
        for each in found
    )


def _known_sum(values: Iterable[float]) -> float:
    return sum(each for each in values if each == each)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _reason(failed: _Failed) -> str:
    return _LOST_NUMBERS.get(failed.number, str(failed))


# ---- finding


def _without_nvml(failed: _Failed, root: str) -> Found:
    present = _on_pci(root)
    if failed.number in {_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED}:
        why = (
            f"{failed}: install NVIDIA's driver and its libraries (libnvidia-ml.so.1)"
            if failed.number == _LIBRARY_NOT_FOUND
            else "NVIDIA's driver is not loaded: `sudo modprobe nvidia`, or install the driver again"
        )
        return Found(left_out=tuple(LeftOut(f"NVIDIA GPU at {each}", why) for each in present))
    return Found(problems=(_problem_of(failed, root),))


def _problem_of(failed: _Failed, root: str) -> Problem:
    if failed.number == _VERSION_MISMATCH:
        loaded = _text(Path(root, "sys/module/nvidia/version"))
        version = f" ({loaded} is loaded)" if loaded else ""
        return Problem(
            Vendor.NVIDIA,
            ProblemKind.DRIVER_MISMATCH,
            f"reboot needed: NVIDIA's driver was updated, and the kernel still runs the former one{version}; no "
            "program can begin to use these GPUs",
        )
    return Problem(Vendor.NVIDIA, ProblemKind.UNREADABLE, f"NVIDIA's driver refuses: {failed}")


def _on_pci(root: str) -> list[str]:
    """Bus ids of NVIDIA's display and compute devices."""
    return [
        folder.name
        for folder in sorted(Path(root, "sys/bus/pci/devices").glob("*"))
        if _text(folder / "vendor") == _PCI_VENDOR and _text(folder / "class").startswith(("0x0300", "0x0302"))
    ]


def _device(nvml: Any, handle: Any, index: int, bus_id: str, driver: str, root: str) -> Device | LeftOut:
    uuid = str(_checked(nvml.nvmlDeviceGetUUID, handle))
    product = str(_checked(nvml.nvmlDeviceGetName, handle))
    what = f"{product} at {bus_id} ({uuid})"
    if _value((0, 0), nvml.nvmlDeviceGetMigMode, handle)[0]:
        return LeftOut(
            what, f"it is divided (MIG), and ADLRO uses whole GPUs: `sudo nvidia-smi -i {uuid} -mig 0` undoes that"
        )
    if _value(0, nvml.nvmlDeviceGetComputeMode, handle) == nvml.NVML_COMPUTEMODE_PROHIBITED:
        return LeftOut(
            what, f"its compute mode is Prohibited: `sudo nvidia-smi -i {uuid} -c DEFAULT` lets programs use it"
        )
    memory_mib = int(_memory(nvml, handle).total) >> 20
    model = model_of_product(product, memory_mib)
    interconnect, bandwidth = _interconnect(nvml, handle)
    minor = _value(index, nvml.nvmlDeviceGetMinorNumber, handle)
    numa = _text(Path(root, "sys/bus/pci/devices", bus_id, "numa_node"))
    shared = [name for name in ("nvidia-uvm", "nvidia-uvm-tools") if Path(root, "dev", name).exists()]
    return Device(
        uuid=uuid,
        vendor=Vendor.NVIDIA,
        index=index,
        gpu_model=model,
        product_name=product,
        memory_mib=memory_mib,
        spec=None if model in GPU_SPECS else _own_spec(nvml, handle),
        interconnect=interconnect,
        interconnect_bandwidth_gb_per_s=bandwidth,
        numa_node=int(numa) if numa.lstrip("-").isdigit() else -1,
        bus_id=bus_id,
        device_files=("/dev/nvidiactl", f"/dev/nvidia{minor}", *(f"/dev/{name}" for name in shared)),
        driver_version=driver,
    )


def _own_spec(nvml: Any, handle: Any) -> GpuSpec:
    """What a GPU of an unknown model reports about itself; what it does not report is assumed."""
    width = _value(0, nvml.nvmlDeviceGetMemoryBusWidth, handle)
    clock_mhz = _value(0, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM)
    power_mw = _first(
        0,
        lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle),
        lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
    )
    slowdown_c = _value(0, nvml.nvmlDeviceGetTemperatureThreshold, handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    # Two transfers a clock, as NVML counts it: 5120 bits at 2619 MHz are the 3352 GB/s of an H100.
    bandwidth = width / 8 * clock_mhz * 2 / 1000
    return GpuSpec(
        memory_bandwidth_gb_per_s=bandwidth or _ASSUMED_BANDWIDTH_GB_PER_S,
        power_limit_w=power_mw / 1000 or _ASSUMED_POWER_W,
        max_temperature_c=float(slowdown_c) or _ASSUMED_TEMPERATURE_C,
    )


def _interconnect(nvml: Any, handle: Any) -> tuple[str, float]:
    name, bandwidth = "", 0.0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = _value(None, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:  # no such link
            break
        if state:
            version = _value(0, nvml.nvmlDeviceGetNvLinkVersion, handle, link)
            name, each = _NVLINKS.get(version, ("nvlink", 0.0))
            bandwidth += each
    if name:
        return name, bandwidth
    generation = _value(0, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
    width = _value(0, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
    return (f"pcie{generation}", PCIE_GB_PER_S.get(generation, 0.0) * width) if generation else ("", 0.0)


def _bus_id(text: Any) -> str:
    """NVML's `00000000:3B:00.0` as the kernel writes it: `0000:3b:00.0`."""
    name = (text.decode() if isinstance(text, bytes) else str(text)).lower()
    return name[4:] if len(name) == len("00000000:3b:00.0") else name


def _make_device_files(root: str) -> None:
    """Has NVIDIA's own tool make the file that CUDA makes at its first start; a program with few devices could not."""
    if root == "/" and Path("/dev/nvidiactl").exists() and not Path("/dev/nvidia-uvm").exists():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["nvidia-modprobe", "-u", "-c", "0"], capture_output=True, timeout=10, check=False)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def main() -> None:
    """Writes the GPUs as one line of JSON to standard output."""
    # Not even a driver that hangs keeps this process for ever, should nobody be left who would end it.
    signal.alarm(_FIND_S)
    # What the driver's libraries print must not mix with it.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    out.write(json.dumps(to_plain(find())) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
