"""What a program sees of a machine's GPUs."""

from __future__ import annotations

import dataclasses

import pytest

from adlro.devices.pretended import parse_fake_gpus
from adlro.devices.records import Device, Vendor
from adlro.devices.visible import visible_environment

NVIDIA = Device("GPU-0a1b", Vendor.NVIDIA, 0, "t4", "Tesla T4", 15360)
AMD = Device("GPU-00112233445566aa", Vendor.AMD, 0, "mi210", "AMD Instinct MI210", 65520)


def test_an_nvidia_gpu_by_its_uuid_and_no_gpu_of_amd():
    assert visible_environment([NVIDIA], [Vendor.NVIDIA]) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-0a1b",
        "ROCR_VISIBLE_DEVICES": "",
    }
    several = [NVIDIA, dataclasses.replace(NVIDIA, uuid="GPU-77")]
    assert visible_environment(several, [Vendor.NVIDIA])["CUDA_VISIBLE_DEVICES"] == "GPU-0a1b,GPU-77"


def test_an_amd_gpu_by_one_mask_alone():
    assert visible_environment([AMD], [Vendor.AMD]) == {"ROCR_VISIBLE_DEVICES": "GPU-00112233445566aa"}
    without_id = dataclasses.replace(AMD, uuid="AMD-0000:03:00.0", visible_as="1")
    assert visible_environment([AMD, without_id], [Vendor.AMD]) == {"ROCR_VISIBLE_DEVICES": "GPU-00112233445566aa,1"}


def test_an_amd_gpu_hides_those_of_nvidia_on_a_mixed_machine():
    shown = visible_environment([AMD], [Vendor.AMD, Vendor.NVIDIA])
    # HIP obeys CUDA_VISIBLE_DEVICES, but not an empty one; "-1" would hide the AMD GPU as well.
    assert shown == {"ROCR_VISIBLE_DEVICES": "GPU-00112233445566aa", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("devices", [parse_fake_gpus("t4:2"), ()])
def test_with_a_pretended_gpu_or_none_no_real_one_is_seen(devices):
    for vendors in ([], [Vendor.NVIDIA], [Vendor.AMD]):
        assert visible_environment(devices, vendors) == {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}


def test_gpus_of_two_vendors_for_one_program_are_an_error():
    with pytest.raises(ValueError, match="several vendors"):
        visible_environment([NVIDIA, AMD], [Vendor.AMD, Vendor.NVIDIA])
