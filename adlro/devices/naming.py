"""From what drivers call a GPU to the model that ADLRO knows, or to a name of its own."""

from __future__ import annotations

import re

from adlro.hardware.specs import KNOWN_MODELS

_MAKERS = ("nvidia", "amd", "ati", "advanced_micro_devices_inc")
_FAMILIES = ("radeon_instinct", "instinct", "tesla", "geforce")
_MEMORY_TOLERANCE = 0.15
"""Drivers report less than what is sold: ECC in GDDR takes a sixteenth, the driver some more."""


def slug(product_name: str) -> str:
    """A name as ADLRO writes them: `NVIDIA GeForce RTX 4080 SUPER` is `rtx_4080_super`."""
    name = re.sub(r"[^a-z0-9]+", "_", product_name.lower()).strip("_")
    for words in (_MAKERS, _FAMILIES):
        for word in words:
            if name.startswith(word + "_"):
                name = name[len(word) + 1 :]
                break
    return name[:64].strip("_") or "unknown_gpu"


_OF_PRODUCT = {slug(product): each for each in KNOWN_MODELS.values() for product in each.product_names}
_OF_PCI_ID = {pci_id: each for each in KNOWN_MODELS.values() for pci_id in each.pci_ids}


def model_of_product(product_name: str, memory_mib: int) -> str:
    """The model of a GPU by what its driver calls it.

    Only a whole name counts: an RTX 3080 is neither an RTX 3080 Ti nor its laptop version. Where a name has no size in
    it, the memory must fit too: an RTX 3080 with 12 GB has another bandwidth than the one with 10.

    Args:
        product_name: as NVML reports it, or AMD's marketing name.
        memory_mib: that the driver reports; 0: unknown.

    Returns:
        A known model's name, or one of the product's own, which is none of the known ones.
    """
    name = slug(product_name)
    model = _OF_PRODUCT.get(name)
    if model is not None:
        fits = abs(memory_mib - model.memory_mib) <= _MEMORY_TOLERANCE * model.memory_mib
        if not memory_mib or fits or re.search(r"\dgb?(_|$)", name) or model.vendor == "amd":
            return model.name
        return f"{name}_{max(1, round(memory_mib / 1024))}gb"
    return f"{name}_gpu" if name in KNOWN_MODELS else name


def model_of_pci_id(device_id: int, revision: int, compute_units: int) -> str:
    """The model of an AMD GPU by its PCI ids; empty: unknown.

    Args:
        device_id: of PCI, such as 0x740f.
        revision: of PCI; -1: unknown.
        compute_units: that the kernel reports.
    """
    device = f"{device_id:04x}"
    for key in (f"{device}:{revision:02x}", f"{device}/{compute_units}", device):
        if key in _OF_PCI_ID:
            return _OF_PCI_ID[key].name
    return ""
