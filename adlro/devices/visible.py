"""What a program sees of a machine's GPUs: those that it was given, and no others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from adlro.devices.records import Device, Vendor


def visible_environment(devices: Sequence[Device], vendors: Collection[Vendor]) -> dict[str, str]:
    """Environment variables for a program that was given these GPUs.

    Names are identities, not numbers, whose order may change with a reboot. Only one of AMD's masks is set:
    ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES would be applied one upon the other. On AMD's GPUs HIP obeys
    CUDA_VISIBLE_DEVICES too, but not an empty one.

    These variables are for frameworks that obey them; they keep nobody out. Containers are given devices otherwise.

    Args:
        devices: all real ones of one vendor, or all pretended; none: no GPU.
        vendors: whose GPUs the machine has.
    """
    kinds = {each.vendor for each in devices}
    if len(kinds) > 1:
        raise ValueError(f"one program can't be given GPUs of several vendors: {sorted(kinds)}")
    if kinds == {Vendor.NVIDIA}:
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(each.uuid for each in devices),
            "ROCR_VISIBLE_DEVICES": "",
        }
    if kinds == {Vendor.AMD}:
        shown = {"ROCR_VISIBLE_DEVICES": ",".join(each.visible_as or each.uuid for each in devices)}
        return {**shown, "CUDA_VISIBLE_DEVICES": ""} if Vendor.NVIDIA in vendors else shown
    return {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
