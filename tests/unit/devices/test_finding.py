"""NVIDIA's GPUs through a fake NVML; its hangs and crashes stay in a child process."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from adlro.devices import children, nvidia
from adlro.devices.finding import find_devices
from adlro.devices.pretended import parse_fake_gpus
from adlro.devices.records import Found, ProblemKind, Vendor, found_of, to_plain
from adlro.records.cluster import Gpu
from tests.unit.devices.conftest import A100, unpack_kfd, write_files

pytestmark = pytest.mark.slow


def test_gpus_in_pci_order_with_what_they_report(nvml, tmp_path):
    nvml.say(
        "driver|550.54.15",
        f"gpu|GPU-b|00000000:86:00.0|NVIDIA A100-SXM4-80GB|{A100.replace('minor=0', 'minor=1')}|nvlinks=12|nvlink=4",
        "gpu|GPU-a|00000000:3B:00.0|NVIDIA GeForce RTX 4070|mib=12282|minor=0|pcie=4|lanes=16"
        "|width=192|clock=10501|limit=200000|slowdown=88",
        "gpu|GPU-m|00000000:AF:00.0|NVIDIA A100-SXM4-40GB|mib=40960|mig=1",
        "gpu|GPU-p|00000000:B0:00.0|Tesla T4|mib=15360|mode=2",
        "gpu|GPU-l|00000000:B1:00.0|Tesla T4|mib=15360|lost=1",
    )
    found = find_devices(str(tmp_path))
    first, second = found.devices
    assert (first.uuid, first.vendor, first.index, first.bus_id) == ("GPU-a", Vendor.NVIDIA, 0, "0000:3b:00.0")
    assert (first.gpu_model, first.product_name, first.memory_mib) == ("rtx_4070", "NVIDIA GeForce RTX 4070", 12282)
    assert first.spec is not None
    assert first.spec.memory_bandwidth_gb_per_s == pytest.approx(504.05, abs=0.01)
    assert (first.spec.power_limit_w, first.spec.max_temperature_c) == (200.0, 88.0)
    assert (first.interconnect, first.interconnect_bandwidth_gb_per_s) == ("pcie4", 31.5)
    assert (second.uuid, second.index, second.gpu_model, second.spec) == ("GPU-b", 1, "a100_sxm4_80gb", None)
    assert (second.interconnect, second.interconnect_bandwidth_gb_per_s) == ("nvlink3", 300.0)
    assert second.driver_version == "550.54.15"
    assert first.as_gpu("a/0") == Gpu("a/0", "rtx_4070", 12282, 31.5, "pcie4", first.spec)
    assert "/dev/nvidia1" in second.device_files
    assert {each.what for each in found.left_out} == {
        "NVIDIA A100-SXM4-40GB at 0000:af:00.0 (GPU-m)",
        "Tesla T4 at 0000:b0:00.0 (GPU-p)",
        "NVIDIA GPU 4",
    }
    whys = " ".join(each.why for each in found.left_out)
    assert "nvidia-smi -i GPU-m -mig 0" in whys
    assert "nvidia-smi -i GPU-p -c DEFAULT" in whys
    assert "fallen off the bus" in whys
    assert found.problems == ()


def test_gpus_of_both_vendors(nvml, tmp_path):
    unpack_kfd("kfd_mi25.txt", tmp_path)
    nvml.say("driver|550", f"gpu|GPU-a|00000000:3B:00.0|NVIDIA A100-SXM4-80GB|{A100}")
    assert [each.gpu_model for each in find_devices(str(tmp_path)).devices] == ["a100_sxm4_80gb", "mi25", "mi25"]


def test_a_driver_that_was_updated_without_a_reboot(nvml, tmp_path):
    nvml.say("init|18")
    found = find_devices(str(tmp_path))
    (problem,) = found.problems
    assert (found.devices, problem.kind) == ((), ProblemKind.DRIVER_MISMATCH)
    assert problem.message.startswith("reboot needed")


def test_a_driver_that_hangs_is_left_after_the_limit(nvml, tmp_path):
    nvml.say("hang|init")
    began_s = time.monotonic()
    (problem,) = find_devices(str(tmp_path), limit_s=1.5).problems
    assert time.monotonic() - began_s < 30
    assert (problem.vendor, problem.kind) == (Vendor.NVIDIA, ProblemKind.NO_ANSWER)
    assert "did not answer within 1.5 s" in problem.message


def test_a_driver_that_crashes_takes_nobody_along(nvml, tmp_path):
    nvml.say("crash|init")
    (problem,) = find_devices(str(tmp_path)).problems
    assert problem.kind is ProblemKind.UNREADABLE
    assert "SIGABRT" in problem.message


def test_a_driver_that_refuses(nvml, tmp_path):
    nvml.say("init|4")
    (problem,) = find_devices(str(tmp_path)).problems
    assert problem.kind is ProblemKind.UNREADABLE
    assert problem.message.startswith("NVIDIA's driver refuses")


def test_without_nvml_there_are_no_gpus_of_nvidia(tmp_path, monkeypatch):
    monkeypatch.setattr(children, "command", lambda module: [sys.executable, "-c", _WITHOUT_NVML])
    assert find_devices(str(tmp_path)) == Found()


_WITHOUT_NVML = """
import ctypes, sys
ctypes.CDLL = lambda *_: (_ for _ in ()).throw(OSError("not found"))
from adlro.devices.nvidia import main
main()
"""


def test_gpus_without_a_driver_are_told(nvml, tmp_path):
    nvml.say("init|9")
    write_files(
        tmp_path / "sys/bus/pci/devices",
        {
            "0000:01:00.0/vendor": "0x10de\n",
            "0000:01:00.0/class": "0x030000\n",
            "0000:01:00.1/vendor": "0x10de\n",
            "0000:01:00.1/class": "0x040300\n",  # its sound
        },
    )
    code = (
        "import json; from adlro.devices.nvidia import find; from adlro.devices.records import to_plain;"
        f"print(json.dumps(to_plain(find({str(tmp_path)!r}))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=children.environment(), capture_output=True, text=True, check=True, timeout=60
    )
    assert '"what": "NVIDIA GPU at 0000:01:00.0"' in done.stdout
    assert "modprobe nvidia" in done.stdout
    assert "01:00.1" not in done.stdout


def test_records_go_through_json_unchanged():
    found = Found(devices=parse_fake_gpus("a=t4:2,b=mi60:1"))
    assert found_of(to_plain(found)) == found


def test_a_library_that_was_replaced_is_noticed(tmp_path):
    maps = tmp_path / "maps"
    kept = "7f00-7f01 r-xp 0000 08:01 77  /usr/lib/libnvidia-ml.so.550.54.15"
    maps.write_text(f"{kept}\n7f02-7f03 r-xp 0000 08:01 78  /usr/lib/libfoo.so (deleted)\n")
    assert not nvidia.library_was_replaced(str(maps))
    maps.write_text(f"{kept} (deleted)\n")
    assert nvidia.library_was_replaced(str(maps))
