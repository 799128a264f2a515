"""GPUs that are not there: real programs run, on a machine that has none, as if it had some.

v100_sxm2:2,rtx_2080_ti:2         on this machine
a=v100_sxm2:2,b=rtx_2080_ti:2     as if it were two, named a and b
"""

from __future__ import annotations

import re
from typing import NoReturn

from adlro.devices.records import Device, Vendor
from adlro.errors import InvalidInput
from adlro.hardware.specs import KNOWN_MODELS, known_models_text

MOST_GPUS = 256


def parse_fake_gpus(text: str, option: str = "--fake-gpus") -> tuple[Device, ...]:
    """The GPUs of a text such as `v100_sxm2:2,rtx_2080_ti:2`.

    Args:
        text: models with their numbers, each with the name of its node or none of them. Without a number: one.
        option: by which the text was given, for messages.

    Raises:
        InvalidInput: names the part that is wrong, and what would be right.
    """

    def refuse(complaint: str) -> NoReturn:
        raise InvalidInput(f"{option}: {complaint}, such as v100_sxm2:2,rtx_2080_ti:2", field=option)

    parts = [each.strip() for each in text.split(",")]
    if parts == [""]:
        refuse("names no GPU; give models with their numbers")
    devices: list[Device] = []
    for part in parts:
        match = re.fullmatch(r"(?:([^=:\s]+)\s*=\s*)?([^=:\s]+)(?:\s*:\s*([0-9]{1,6}))?", part)
        if match is None:
            refuse(f"{part!r} must be MODEL:NUMBER or NODE=MODEL:NUMBER")
        node, model, number = match[1] or "", match[2], int(match[3] or 1)
        if ("=" in part) != ("=" in parts[0]):
            refuse("give every model a node's name (a=v100_sxm2:2,b=rtx_2080_ti:2), or none")
        if node and not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", node):
            refuse(f"{node!r} can't name a node: use letters, digits, '-', '.' and '_', at most 63")
        if model not in KNOWN_MODELS:
            raise InvalidInput(
                f"{option}: {model!r} is not a known GPU model; use one of {known_models_text(model)}",
                field=option,
                reason="UNKNOWN_GPU_MODEL",
                metadata={"gpu_model": model},
            )
        if not 1 <= number <= MOST_GPUS - len(devices):
            refuse(f"{part!r} makes {len(devices) + number} GPUs; give 1 to {MOST_GPUS} in all")
        devices += [_device(node, model, len(devices) + i) for i in range(number)]
    return tuple(devices)


def _device(node: str, model: str, index: int) -> Device:
    known = KNOWN_MODELS[model]
    return Device(
        uuid=f"FAKE-{node}-{index}" if node else f"FAKE-{index}",
        vendor=Vendor.PRETENDED,
        index=index,
        gpu_model=model,
        product_name=f"pretended {model}",
        memory_mib=known.memory_mib,
        node=node,
    )
