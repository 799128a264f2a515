"""Which model a GPU is, by what its driver calls it."""

from __future__ import annotations

import pytest

from adlro.devices.naming import model_of_pci_id, model_of_product
from adlro.hardware.specs import KNOWN_MODELS


@pytest.mark.parametrize(
    ("product", "memory_mib", "model"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, "a100_sxm4_80gb"),
        ("A100-SXM4-40GB", 40536, "a100_sxm4_40gb"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100_pcie_80gb"),
        ("Tesla V100-SXM2-16GB", 16160, "v100_sxm2"),
        ("Tesla V100-SXM2-32GB", 32510, "v100_sxm2"),
        ("NVIDIA GeForce RTX 2080 Ti", 11019, "rtx_2080_ti"),
        ("GeForce RTX 2080 Ti", 11019, "rtx_2080_ti"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100_sxm5"),
        ("NVIDIA H200", 143771, "h200_sxm5"),
        ("NVIDIA L4", 23034, "l4"),
        ("Tesla T4", 15360, "t4"),
        ("Tesla K80", 11441, "k80"),
        ("Tesla M40 24GB", 22945, "m40"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx_6000_ada"),
        ("Quadro RTX 6000", 24220, "quadro_rtx_6000"),
        ("AMD Instinct MI250X / MI250", 65520, "mi250x"),
    ],
)
def test_products_that_are_known(product, memory_mib, model):
    assert model_of_product(product, memory_mib) == model
    assert model in KNOWN_MODELS


@pytest.mark.parametrize(
    ("product", "memory_mib", "name"),
    [
        ("NVIDIA GeForce RTX 3080", 12288, "rtx_3080_12gb"),  # another bandwidth than the one with 10 GB
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 16384, "rtx_3080_laptop_gpu"),
        ("NVIDIA GeForce RTX 4080 SUPER", 16376, "rtx_4080_super"),
        ("NVIDIA GH200 480GB", 97871, "gh200_480gb"),
        ("GRID A100-10C", 10240, "grid_a100_10c"),
        ("NVIDIA V100", 16384, "v100_gpu"),  # v100 is Gavel's
        ("\x1b[31m", 1, "31m"),
        ("", 1, "unknown_gpu"),
    ],
)
def test_other_products_have_names_of_their_own(product, memory_mib, name):
    assert model_of_product(product, memory_mib) == name
    assert name not in KNOWN_MODELS


@pytest.mark.parametrize(
    ("device_id", "revision", "units", "model"),
    [
        (0x740F, 0x02, 104, "mi210"),
        (0x740C, -1, 110, "mi250x"),
        (0x74A1, 0x00, 304, "mi300x"),
        (0x66A1, 0x02, 60, "mi50"),
        (0x66A1, 0x02, 64, "mi60"),
        (0x66A1, 0x06, 60, "radeon_pro_vii"),
        (0x744C, 0xC8, 96, "rx_7900_xtx"),
        (0x744C, 0xCC, 84, ""),  # RX 7900 XT: a slower card with the same id
        (0x1234, 0x00, 1, ""),
    ],
)
def test_amd_gpus_by_their_pci_ids(device_id, revision, units, model):
    assert model_of_pci_id(device_id, revision, units) == model


def test_every_known_product_name_leads_to_its_model():
    for model in KNOWN_MODELS.values():
        for product in model.product_names:
            assert model_of_product(product, model.memory_mib) == model.name
            maker = "" if model.vendor == "amd" else "NVIDIA "
            assert model_of_product(maker + product, model.memory_mib) == model.name
