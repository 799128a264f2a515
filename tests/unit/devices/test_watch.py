"""Readings each second from child processes that may hang, crash, or lose their parent."""

from __future__ import annotations

import json
import math
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adlro.devices import children
from adlro.devices.conditions import ConditionKind, DeviceJudge
from adlro.devices.pretended import parse_fake_gpus
from adlro.devices.records import UNKNOWN, Device, ProblemKind, Reading, Readings, Vendor, to_plain
from adlro.devices.watch import DeviceWatch, WatchTimes
from tests.unit.devices.conftest import A100, write_files

pytestmark = pytest.mark.slow

GPU_A = Device("GPU-a", Vendor.NVIDIA, 0, "a100_sxm4_80gb", "NVIDIA A100-SXM4-80GB", 81920)
GPU_B = Device("GPU-b", Vendor.NVIDIA, 1, "a100_sxm4_80gb", "NVIDIA A100-SXM4-80GB", 81920)
AMD = Device("GPU-00aa", Vendor.AMD, 0, "mi210", "MI210", 65520, device_files=("/dev/kfd", "/dev/dri/renderD128"))
LINE_A = f"gpu|GPU-a|00000000:3B:00.0|NVIDIA A100-SXM4-80GB|{A100}"
LINE_B = f"gpu|GPU-b|00000000:86:00.0|NVIDIA A100-SXM4-80GB|{A100}"
QUICK = WatchTimes(interval_s=0.05, silent_s=2.0, first_report_s=30.0, retry_s=0.5)


def wait_for(condition: Callable[[], object], limit_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come about in time"
        time.sleep(0.02)


@pytest.fixture
def watch(nvml, tmp_path: Path) -> Iterator[Callable[..., DeviceWatch]]:
    made: list[DeviceWatch] = []

    def start(*devices: Device, times: WatchTimes = QUICK) -> DeviceWatch:
        each = DeviceWatch(devices, str(tmp_path), times)
        made.append(each)
        each.start()
        return each

    yield start
    for each in made:
        each.stop()
        assert each.sampler_pids == ()


def reading_of(watch: DeviceWatch, device: Device = GPU_A) -> Reading:
    return watch.readings().by_uuid[device.uuid]


def test_what_a_gpu_reports(nvml, watch):
    me = os.getpid()
    nvml.say(LINE_A, LINE_B, f"proc|GPU-a|{me}|500", "proc|GPU-a|4000000|20", f"draw|GPU-a|{me}|300")
    seen = watch(GPU_A, GPU_B)
    assert reading_of(seen) is UNKNOWN
    wait_for(lambda: reading_of(seen) is not UNKNOWN)
    reading = reading_of(seen)
    assert (reading.utilization, reading.memory_used_mib, reading.bandwidth_gb_per_s) == (0.5, 1000, 510)
    assert (reading.temperature_c, reading.power_w, reading.graphics_memory_mib) == (45, 250, 300)
    assert reading.processes is not None
    user = pwd.getpwuid(os.getuid()).pw_name
    assert [(each.pid, each.user, each.memory_mib) for each in reading.processes] == [
        (me, user, 500),
        (4000000, "", 20),
    ]
    assert (reading.ecc_uncorrectable, reading.row_remap_pending, reading.lost) == (0, False, "")
    assert reading_of(seen, GPU_B).processes == ()
    assert seen.readings().problems == ()


def test_what_a_gpu_does_not_report_is_unknown_and_never_zero(nvml, watch):
    nvml.say("gpu|GPU-a|00000000:3B:00.0|NVIDIA A100-SXM4-80GB|mib=81920|used=7")
    seen = watch(GPU_A)
    wait_for(lambda: reading_of(seen).memory_used_mib == 7)
    reading = reading_of(seen)
    unknown = (reading.utilization, reading.bandwidth_gb_per_s, reading.temperature_c, reading.power_w)
    assert all(math.isnan(each) for each in unknown)
    assert (reading.ecc_uncorrectable, reading.row_remap_pending, reading.lost) == (None, None, "")


def test_readings_follow_the_gpu(nvml, watch):
    nvml.say(LINE_A)
    seen = watch(GPU_A)
    wait_for(lambda: reading_of(seen).utilization == 0.5)
    nvml.say(LINE_A.replace("busy=50", "busy=80"))
    wait_for(lambda: reading_of(seen).utilization == 0.8)


def test_an_error_that_the_driver_reports_stays_for_minutes(nvml, watch):
    nvml.say(LINE_A, LINE_B)
    seen = watch(GPU_A, GPU_B)
    wait_for(lambda: reading_of(seen).utilization == 0.5)
    began_s = time.monotonic()
    nvml.say(LINE_A, LINE_B, "xid|GPU-a|31", "xid|GPU-a|79")
    wait_for(lambda: len(reading_of(seen).xids) == 2)
    nvml.say(LINE_A.replace("busy=50", "busy=1"), LINE_B, "xid|GPU-a|31", "xid|GPU-a|79")
    wait_for(lambda: reading_of(seen).utilization == 0.01)
    assert [each.xid for each in reading_of(seen).xids] == [31, 79]
    assert all(began_s <= each.at_s <= time.monotonic() for each in reading_of(seen).xids)
    assert reading_of(seen, GPU_B).xids == ()
    judged = DeviceJudge([GPU_A, GPU_B]).observe(seen.readings(), time.monotonic(), {})
    assert [(each.uuid, each.kind) for each in judged] == [("GPU-a", ConditionKind.LOST)]


def test_a_gpu_that_is_lost_leaves_the_others_alone(nvml, watch):
    nvml.say(LINE_A, LINE_B)
    seen = watch(GPU_A, GPU_B)
    wait_for(lambda: reading_of(seen).utilization == 0.5)
    nvml.say(LINE_A + "|lost=1", LINE_B)
    wait_for(lambda: "fallen off the bus" in reading_of(seen).lost)
    assert math.isnan(reading_of(seen).utilization)
    assert reading_of(seen, GPU_B).utilization == 0.5


def test_a_lost_gpu_is_looked_for_in_a_process_of_its_own(nvml, watch):
    nvml.say(LINE_A, LINE_B)
    seen = watch(GPU_A, GPU_B)
    wait_for(lambda: reading_of(seen).utilization == 0.5)
    pids = seen.sampler_pids
    # Whoever starts NVML now hangs; the sampler has started it before.
    nvml.say("hang|init", LINE_A + "|lost=1", LINE_B)
    wait_for(lambda: reading_of(seen).lost)
    wait_for(lambda: any(children_of(pid) for pid in pids))
    nvml.say("hang|init", LINE_A + "|lost=1", LINE_B.replace("busy=50", "busy=70"))
    wait_for(lambda: reading_of(seen, GPU_B).utilization == 0.7)
    for pid in pids:
        for child in children_of(pid):
            os.kill(child, signal.SIGKILL)
    nvml.say(LINE_A, LINE_B)
    wait_for(lambda: reading_of(seen).utilization == 0.5)
    assert seen.sampler_pids == pids


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_gpu_that_is_not_there_from_the_start(nvml, watch):
    nvml.say(LINE_B)
    seen = watch(GPU_A, GPU_B)
    wait_for(lambda: reading_of(seen, GPU_B).utilization == 0.5)
    assert "NVML does not list it" in reading_of(seen).lost


def test_a_driver_mismatch_is_told(nvml, watch):
    nvml.say("init|18")
    seen = watch(GPU_A)
    wait_for(lambda: seen.readings().problems)
    (problem,) = seen.readings().problems
    assert problem.kind is ProblemKind.DRIVER_MISMATCH
    judged = DeviceJudge([GPU_A]).observe(seen.readings(), time.monotonic(), {})
    assert [each.kind for each in judged] == [ConditionKind.DRIVER_MISMATCH]


def test_a_driver_that_is_updated_while_it_is_used_is_noticed(nvml, watch, library_folder, tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    mine.mkdir()
    library = mine / "libnvidia-ml.so.1"
    shutil.copy(library_folder / library.name, library)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(mine))
    nvml.say(LINE_A)
    seen = watch(GPU_A)
    wait_for(lambda: reading_of(seen).utilization == 0.5)
    pids = seen.sampler_pids
    nvml.say("init|18", LINE_A)  # seen by who starts NVML now
    shutil.copy(library_folder / library.name, mine / "new")
    (mine / "new").replace(library)
    wait_for(lambda: seen.readings().problems)
    assert [each.kind for each in seen.readings().problems] == [ProblemKind.DRIVER_MISMATCH]
    assert seen.sampler_pids != pids


def test_a_driver_that_hangs_makes_its_gpus_unknown_and_is_asked_anew(nvml, watch, tmp_path):
    write_files(tmp_path, {"sys/class/drm/renderD128/device/gpu_busy_percent": "10\n"})
    nvml.say(LINE_A)
    seen = watch(GPU_A, AMD)
    wait_for(lambda: reading_of(seen).utilization == 0.5 and reading_of(seen, AMD).utilization == 0.1)
    first = set(seen.sampler_pids)
    nvml.say("hang|read", LINE_A)
    wait_for(lambda: reading_of(seen) is UNKNOWN)
    assert seen.readings().silent_s["GPU-a"] >= QUICK.silent_s
    # The other vendor's GPUs are read by another process.
    assert reading_of(seen, AMD).utilization == pytest.approx(0.1)
    assert seen.readings().silent_s[AMD.uuid] < QUICK.silent_s
    nvml.say(LINE_A)
    wait_for(lambda: reading_of(seen).utilization == 0.5)
    assert len(set(seen.sampler_pids) & first) == 1


def test_a_sampler_that_dies_is_started_again(nvml, watch):
    nvml.say(LINE_A)
    seen = watch(GPU_A)
    wait_for(lambda: reading_of(seen).utilization == 0.5)
    (pid,) = seen.sampler_pids
    os.kill(pid, signal.SIGKILL)
    nvml.say(LINE_A.replace("busy=50", "busy=60"))
    wait_for(lambda: reading_of(seen).utilization == 0.6)
    assert seen.sampler_pids != (pid,)


def test_stop_ends_a_sampler_that_hangs(nvml, watch):
    nvml.say("hang|init")
    seen = watch(GPU_A)
    wait_for(lambda: seen.sampler_pids)
    (pid,) = seen.sampler_pids
    began_s = time.monotonic()
    seen.stop()
    assert time.monotonic() - began_s < 10
    assert not Path(f"/proc/{pid}").exists()


def has_ended(pid: int) -> bool:
    """It is a zombie, or nobody knows it any more; that may come between opening and reading."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_sampler_ends_with_its_parent_also_while_the_driver_hangs(nvml):
    nvml.say("hang|init")
    order = {"vendor": "nvidia", "devices": to_plain([GPU_A]), "interval_s": 1.0, "retry_s": 30.0, "root": "/"}
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, json.dumps(order), *children.command("adlro.devices.sampler")],
        env=children.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait(10)
        wait_for(lambda: has_ended(pid))
    finally:
        parent.kill()
        parent.communicate(timeout=10)


_PARENT = """
import subprocess, sys, time
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
child.stdin.write(sys.argv[1].encode() + b"\\n")
child.stdin.flush()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_pretended_gpus_report_nothing_and_need_no_process(watch):
    devices = parse_fake_gpus("t4:2")
    seen = watch(*devices)
    assert seen.readings() == Readings({each.uuid: UNKNOWN for each in devices})
    assert seen.sampler_pids == ()
