"""AMD's GPUs by the kernel's files: trees recorded on machines that have them, with changes."""

from __future__ import annotations

import dataclasses
import math
import os
import pwd
import shutil
from pathlib import Path

import pytest

from adlro.devices import amd
from adlro.devices.records import Vendor
from adlro.hardware.specs import GPU_SPECS
from tests.unit.devices.conftest import unpack_kfd, write_files

NODES = "sys/class/kfd/kfd/topology/nodes"


@pytest.fixture
def mi210(tmp_path: Path) -> Path:
    """Eight MI210 in two groups of four that are linked."""
    unpack_kfd("kfd_mi210.txt", tmp_path)
    for minor in range(128, 136):
        write_files(tmp_path, {f"sys/class/drm/renderD{minor}/device/mem_info_vram_total": "68702699520\n"})
    return tmp_path


@pytest.fixture
def mi25(tmp_path: Path) -> Path:
    """Two MI25 in a tree of an old kernel, which tells no PCI domain."""
    unpack_kfd("kfd_mi25.txt", tmp_path)
    return tmp_path


def change(root: Path, node: int, name: str, value: int) -> None:
    path = root / NODES / str(node) / "properties"
    lines = [line for line in path.read_text().splitlines() if line.split()[0] != name]
    path.write_text("\n".join([*lines, f"{name} {value}"]) + "\n")


def test_a_machine_without_amd_gpus(tmp_path):
    found = amd.find(str(tmp_path))
    assert (found.devices, found.left_out, found.problems) == ((), (), ())


def test_eight_gpus_in_pci_order(mi210):
    found = amd.find(str(mi210))
    assert found.left_out == ()
    assert [each.bus_id for each in found.devices] == [
        "0000:03:00.0",
        "0000:26:00.0",
        "0000:43:00.0",
        "0000:63:00.0",
        "0000:83:00.0",
        "0000:a3:00.0",
        "0000:c3:00.0",
        "0000:e3:00.0",
    ]
    assert [each.index for each in found.devices] == list(range(8))
    first = found.devices[0]
    assert first.vendor is Vendor.AMD
    assert first.uuid == f"GPU-{10645161697164847644:016x}"
    assert first.device_files == ("/dev/kfd", "/dev/dri/renderD130")
    assert len({each.uuid for each in found.devices}) == 8
    for each in found.devices:
        assert (each.gpu_model, each.product_name, each.memory_mib) == ("mi210", "AMD Instinct MI210", 65520)
        assert (each.interconnect, each.interconnect_bandwidth_gb_per_s) == ("xgmi", 150.0)
        assert (each.spec, each.figures) == (None, GPU_SPECS["mi210"])


def test_memory_from_the_kernels_banks(mi25):
    found = amd.find(str(mi25))
    assert [(each.gpu_model, each.memory_mib, each.interconnect) for each in found.devices] == [("mi25", 16368, "")] * 2
    assert [each.uuid for each in found.devices] == ["GPU-c34ec50444dd0a6c", "GPU-c34ec50444dd0a6d"]
    assert [each.kfd_gpu_id for each in found.devices] == [13261, 13261]


def test_without_a_unique_id_the_index_in_kfds_order_names_it(mi210):
    change(mi210, 4, "unique_id", 0)  # the first by PCI address, the third of KFD's GPUs
    first, second = amd.find(str(mi210)).devices[:2]
    assert (first.uuid, first.visible_as) == ("AMD-0000:03:00.0", "2")
    assert second.visible_as == ""


def test_a_gpu_of_an_unknown_model_has_the_figures_that_it_reports(mi25):
    change(mi25, 1, "device_id", 0x6999)
    change(mi25, 1, "gfx_target_version", 90000)
    write_files(
        mi25 / "sys/class/drm/renderD128/device",
        {
            "hwmon/hwmon3/power1_cap": "220000000",
            "hwmon/hwmon3/temp1_crit": "85000",
            "numa_node": "1",
            "max_link_speed": "8.0 GT/s PCIe",
            "max_link_width": "16",
        },
    )
    device = amd.find(str(mi25)).devices[0]
    assert (device.gpu_model, device.product_name) == ("gfx900_6999", "AMD gfx900 6999")
    assert device.spec is not None
    assert device.spec.memory_bandwidth_gb_per_s == pytest.approx(483.84)
    assert (device.spec.power_limit_w, device.spec.max_temperature_c) == (220.0, 85.0)
    assert (device.numa_node, device.interconnect, device.interconnect_bandwidth_gb_per_s) == (1, "pcie3", 15.75)


def test_the_drivers_name_of_a_product_counts_where_the_ids_are_unknown(mi25):
    change(mi25, 1, "device_id", 0x6999)
    write_files(mi25, {"sys/class/drm/renderD128/device/product_name": "AMD Radeon VII\n"})
    assert amd.find(str(mi25)).devices[0].gpu_model == "radeon_vii"


def test_divided_gpus_are_left_out(mi25):
    change(mi25, 2, "unique_id", 14073402507705256556)  # as of the other: partitions of one GPU
    found = amd.find(str(mi25))
    assert found.devices == ()
    assert len(found.left_out) == 2
    assert all("compute-partition SPX" in each.why for each in found.left_out)


def test_a_gpu_in_a_partition_mode_is_left_out(mi210):
    for minor in range(128, 136):
        mode = "CPX" if minor == 131 else "SPX"
        write_files(mi210, {f"sys/class/drm/renderD{minor}/device/current_compute_partition": f"{mode}\n"})
    found = amd.find(str(mi210))
    assert len(found.devices) == 7
    assert [each.what for each in found.left_out] == ["AMD Instinct MI210 at 0000:26:00.0"]


def test_graphics_of_a_processor_are_left_out(mi210):
    write_files(mi210, {"sys/class/drm/renderD130/device/mem_info_vram_total": str(512 << 20)})
    found = amd.find(str(mi210))
    assert len(found.devices) == 7
    (left_out,) = found.left_out
    assert left_out.why == "it has 512 MiB of memory of its own: graphics of a processor"


def test_what_can_t_be_read_is_left_out_with_the_reason(mi25):
    (mi25 / NODES / "2" / "properties").unlink()
    found = amd.find(str(mi25))
    assert len(found.devices) == 1
    assert [each.what for each in found.left_out] == ["KFD node 2"]
    assert found.left_out[0].why.startswith("it can't be read: ")


# ---- readings


def test_readings_of_the_kernels_files(mi210):
    device = dataclasses.replace(amd.find(str(mi210)).devices[0], kfd_gpu_id=51234)
    write_files(
        mi210 / "sys/class/drm/renderD130/device",
        {
            "gpu_busy_percent": "37\n",
            "mem_busy_percent": "50\n",
            "mem_info_vram_used": f"{3 << 30}\n",
            "hwmon/hwmon5/temp1_input": "41000\n",
            "hwmon/hwmon5/power1_average": "93000000\n",
            "ras/umc_err_count": "ue: 2\nce: 7\n",
            "ras/sdma_err_count": "ue: 1\nce: 0\n",
        },
    )
    (reading,) = amd.AmdReader([device], str(mi210)).read()[0].values()
    assert reading.utilization == pytest.approx(0.37)
    assert reading.memory_used_mib == 3072
    assert reading.bandwidth_gb_per_s == pytest.approx(820)
    assert [reading.temperature_c, reading.power_w] == pytest.approx([41, 93])
    assert reading.ecc_uncorrectable == 3
    assert reading.processes is None  # this kernel does not tell
    assert reading.lost == ""


def test_what_the_kernel_does_not_tell_is_unknown(mi210):
    (reading,) = amd.AmdReader(amd.find(str(mi210)).devices[:1], str(mi210)).read()[0].values()
    numbers = (reading.utilization, reading.memory_used_mib, reading.bandwidth_gb_per_s, reading.temperature_c)
    assert all(math.isnan(each) for each in (*numbers, reading.power_w, reading.graphics_memory_mib))
    assert (reading.ecc_uncorrectable, reading.row_remap_pending) == (None, None)


def test_processes_that_hold_memory_or_have_a_queue(mi210):
    device = dataclasses.replace(amd.find(str(mi210)).devices[0], kfd_gpu_id=51234)
    pid = os.getpid()
    write_files(
        mi210 / "sys/class/kfd/kfd/proc",
        {
            f"{pid}/vram_51234": f"{2 << 30}\n",
            f"{pid}/vram_777": "0\n",
            "5000001/vram_51234": "0\n",
            "5000001/queues/0/gpuid": "51234\n",
            "5000002/vram_51234": "0\n",
            "5000002/queues/0/gpuid": "777\n",
        },
    )
    write_files(mi210, {f"proc/{pid}/stat": ""})
    (reading,) = amd.AmdReader([device], str(mi210)).read()[0].values()
    assert reading.processes is not None
    me = pwd.getpwuid(os.getuid()).pw_name
    assert [(each.pid, each.user, each.memory_mib) for each in reading.processes] == [
        (pid, me, 2048),
        (5000001, "", 0),
    ]


@pytest.mark.parametrize("gone", ["5000001", "5000001/queues"])
def test_a_process_that_goes_while_it_is_looked_at(mi210, monkeypatch, gone):
    device = dataclasses.replace(amd.find(str(mi210)).devices[0], kfd_gpu_id=51234)
    processes = mi210 / "sys/class/kfd/kfd/proc"
    write_files(
        processes,
        {
            "5000001/vram_51234": "0\n",
            "5000001/queues/0/gpuid": "51234\n",
            "5000002/vram_51234": f"{2 << 30}\n",
        },
    )

    def late(list_folder):
        def listed(folder="."):
            if str(folder).rstrip("/") == str(processes / gone):
                shutil.rmtree(processes / "5000001", ignore_errors=True)
            return list_folder(folder)

        return listed

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, late(getattr(os, name)))
    (reading,) = amd.AmdReader([device], str(mi210)).read()[0].values()
    assert not (processes / "5000001").exists()
    assert [(each.pid, each.memory_mib) for each in reading.processes or ()] == [(5000002, 2048)]


def test_a_gpu_that_the_kernel_no_longer_lists_is_lost(mi210):
    device = amd.find(str(mi210)).devices[0]
    (mi210 / "sys/class/drm/renderD130/device/mem_info_vram_total").unlink()
    (mi210 / "sys/class/drm/renderD130/device").rmdir()
    (reading,) = amd.AmdReader([device], str(mi210)).read()[0].values()
    assert "fallen off the bus" in reading.lost
