"""Where NVIDIA GPUs are present: what is found and read agrees with nvidia-smi and CUDA. They must not be in use."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from adlro.devices.conditions import DeviceJudge
from adlro.devices.finding import find_devices
from adlro.devices.pretended import parse_fake_gpus
from adlro.devices.records import Device, Reading, Vendor
from adlro.devices.visible import visible_environment
from adlro.devices.watch import DeviceWatch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU"),
]

# What CUDA sees, by its driver's library alone: UUIDs, one a line.
SEEN = """
import ctypes, uuid
cuda = ctypes.CDLL("libcuda.so.1")
number = ctypes.c_int(0)
if cuda.cuInit(0) == 0:
    cuda.cuDeviceGetCount(ctypes.byref(number))
for index in range(number.value):
    device, name = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    assert cuda.cuDeviceGet(ctypes.byref(device), index) == 0
    assert cuda.cuDeviceGetUuid(name, device) == 0
    print("GPU-" + str(uuid.UUID(bytes=bytes(name))))
"""
# Holds 1 GiB of the only GPU that it sees, until its standard input is closed.
HOLD = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)) == 0
print("held", flush=True)
sys.stdin.read()
"""


def smi(fields: str) -> list[list[str]]:
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [[each.strip() for each in line.split(",")] for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def devices() -> tuple[Device, ...]:
    found = find_devices()
    nvidia = tuple(each for each in found.devices if each.vendor is Vendor.NVIDIA)
    if not nvidia:
        pytest.skip(f"no NVIDIA GPU can be used here: {found.left_out} {found.problems}")
    return nvidia


def run_with(shown: Mapping[str, str], code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **shown},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def seen_by_cuda(shown: Mapping[str, str]) -> list[str]:
    program = run_with(shown, SEEN)
    out, _ = program.communicate(timeout=120)
    assert program.returncode == 0
    return out.split()


def wait_for(condition: Callable[[], object], limit_s: float) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come about in time"
        time.sleep(0.1)


def test_the_gpus_are_those_of_nvidia_smi(devices):
    told = {
        uuid: (name, bus_id[4:].lower(), float(mib))
        for uuid, name, bus_id, mib in smi("uuid,name,pci.bus_id,memory.total")
    }
    for device in devices:
        name, bus_id, mib = told[device.uuid]
        assert (device.product_name, device.bus_id) == (name, bus_id)
        assert device.memory_mib == pytest.approx(mib, abs=2)
        assert device.figures is not None
        assert all(os.path.exists(path) for path in device.device_files)


def test_cuda_sees_exactly_the_gpus_that_were_given(devices):
    for device in devices:
        assert seen_by_cuda(visible_environment([device], [Vendor.NVIDIA])) == [device.uuid]
    assert seen_by_cuda(visible_environment(devices, [Vendor.NVIDIA])) == [each.uuid for each in devices]
    assert seen_by_cuda(visible_environment(parse_fake_gpus("t4:1"), [Vendor.NVIDIA])) == []


@pytest.fixture
def watch(devices) -> Iterator[DeviceWatch]:
    with DeviceWatch(devices) as made:
        wait_for(lambda: not math.isnan(made.readings().by_uuid[devices[0].uuid].memory_used_mib), 60)
        yield made


def test_readings_agree_with_nvidia_smi(devices, watch):
    fields = "uuid,memory.used,temperature.gpu,power.draw"
    told = {uuid: [float(each) for each in rest] for uuid, *rest in smi(fields)}
    for device in devices:
        reading = watch.readings().by_uuid[device.uuid]
        used, temperature, power = told[device.uuid]
        assert reading.memory_used_mib == pytest.approx(used, abs=32)
        assert reading.temperature_c == pytest.approx(temperature, abs=5)
        assert reading.power_w == pytest.approx(power, abs=50)
        assert 0 <= reading.utilization <= 1


def test_memory_is_free_after_a_kill(devices: tuple[Device, ...], watch: DeviceWatch) -> None:
    device = devices[0]

    def reading() -> Reading:
        return watch.readings().by_uuid[device.uuid]

    before_mib = reading().memory_used_mib
    judge = DeviceJudge([device])
    program = run_with(visible_environment([device], [Vendor.NVIDIA]), HOLD)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "held\n"
        wait_for(lambda: reading().memory_used_mib - before_mib >= 1024, 30)
        # In a container with PIDs of its own NVML tells none, or those of the host, which have no user here.
        users = {each.pid: each.user for each in reading().processes or () if each.user}
        assert not users or program.pid in users
        judge.observe(watch.readings(), time.monotonic(), {device.uuid: [program.pid]})
        assert not judge.released(device.uuid)
    finally:
        program.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.communicate(timeout=30)

    def released() -> bool:
        judge.observe(watch.readings(), time.monotonic(), {})
        return judge.released(device.uuid)

    wait_for(released, 30)
    assert reading().memory_used_mib - before_mib < 500
