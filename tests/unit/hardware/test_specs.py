"""The GPU models that ADLRO knows, and what a message about an unknown one says."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from adlro.hardware.specs import GPU_SPECS, KNOWN_MODELS, known_models_text
from adlro.package_data import csv_rows

DOCS = Path(__file__).resolve().parents[3] / "docs" / "real_gpus.md"


def test_every_model_has_a_name_figures_and_a_source():
    for row in csv_rows("adlro.hardware", "gpu_specs.csv"):
        model = KNOWN_MODELS[row["gpu_model"]]
        assert re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", model.name)
        assert model.vendor in {"nvidia", "amd"}
        assert 8 * 1024 <= model.memory_mib <= 512 * 1024
        assert 100 <= model.spec.memory_bandwidth_gb_per_s <= 10_000
        assert 50 <= model.spec.power_limit_w <= 2000
        assert 80 <= model.spec.max_temperature_c <= 110
        assert row["source"]
        assert "maximum temperature is assumed" in row["assumed"]


def test_what_a_driver_reports_names_one_model_only():
    for names in ("product_names", "pci_ids"):
        times = Counter(each for model in KNOWN_MODELS.values() for each in getattr(model, names))
        assert [each for each, number in times.items() if number > 1] == []


def test_the_figures_of_models_that_were_known_before_stay():
    assert GPU_SPECS["v100_sxm2"].power_limit_w == 300
    assert GPU_SPECS["k80"].memory_bandwidth_gb_per_s == 240
    assert GPU_SPECS["mi50"].memory_bandwidth_gb_per_s == 1024


@pytest.mark.parametrize(
    ("unknown", "first"),
    [
        ("a100", "a100_"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm4_80gb"),
        ("4090", "rtx_4090"),
        ("rtx2080ti", "rtx_2080_ti"),
        ("MI300", "mi300"),
        ("abacus", "v100_sxm2"),
    ],
)
def test_a_message_about_an_unknown_model_begins_with_the_nearest(unknown, first):
    text = known_models_text(unknown)
    assert text.startswith(first)
    assert f"of {len(KNOWN_MODELS)} known models" in text


def test_a_message_about_an_unknown_model_begins_with_the_clusters_own_and_stays_short():
    assert known_models_text("v101", ["lab_card"]).startswith("lab_card, v100")
    text = known_models_text("v101", [f"card_{i:02d}" for i in range(40)])
    assert "and 32 more of the cluster" in text
    assert len(text) < 400


def test_the_page_lists_every_model():
    table = DOCS.read_text()
    assert [model for model in KNOWN_MODELS if f"`{model}`" not in table] == []
