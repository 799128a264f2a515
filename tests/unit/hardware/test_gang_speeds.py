"""Speeds of spread jobs: the measured families, what is assumed, and sizes and models between."""

from __future__ import annotations

import ast
import csv
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from adlro.hardware.gang_speeds import (
    FAMILY_OF,
    GAVEL_GANG_STEPS_PER_S,
    SPREAD_SPEEDS,
    gavel_steps_per_s,
    spread_speed,
    spread_speeds,
)
from adlro.hardware.specs import KNOWN_MODELS
from adlro.hardware.speeds import APPLICATIONS, GAVEL_APPLICATIONS, GAVEL_STEPS_PER_S, JOB_TYPE_OF
from adlro.package_data import csv_rows
from adlro.records.jobs import JobType

SHARED_DATA = Path(os.environ.get("ADLRO_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
ML = JobType.MACHINE_LEARNING
PAPER_MODELS = ("v100_sxm2", "rtx_2080_ti", "radeon_vii")


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="no shared data; ADLRO_SHARED_DATA says where it is")
def test_measured_shares_are_the_medians_of_the_measured_file():
    with (SHARED_DATA / "gangs" / "spread_penalty_by_family.csv").open(encoding="utf-8") as file:
        medians = {
            (row["family"], int(row["gpus"]), row["model"]): float(row["spread_over_packed_median"])
            for row in csv.DictReader(file)
            if row["gpus"] in ("2", "4")
        }
    measured = [row for row in csv_rows("adlro.hardware", "spread_speeds.csv") if row["basis"] == "measured"]
    assert {
        (row["family"], int(row["gpu_count"]), model): float(row[model])
        for row in measured
        for model in ("v100", "p100", "k80")
    } == medians


def test_every_row_says_whether_it_is_measured_and_has_a_share():
    for row in csv_rows("adlro.hardware", "spread_speeds.csv"):
        assert row["basis"] in ("measured", "assumed")
        assert row["source"]
    assert all(0 < each <= 1 for row in SPREAD_SPEEDS.values() for each in row)


@pytest.mark.parametrize(
    ("application", "two", "four"),
    [
        ("resnet50_fp32", (0.848, 0.984), (0.967, 0.9)),
        ("resnet50_fp16", (0.848, 0.984), (0.967, 0.9)),
        ("mask_rcnn_fp32", (0.848, 0.984), (0.967, 0.9)),
        ("yolov3", (0.848, 0.984), (0.967, 0.9)),
        ("bert_base_fp16", (0.627, 0.698), (0.549, 0.674)),
        ("bert_large_fp16", (0.627, 0.698), (0.549, 0.674)),
        ("tacotron2_fp32", (0.627, 0.698), (0.549, 0.674)),
        ("deepspeech2", (0.627, 0.698), (0.549, 0.674)),
        ("gnmt_fp16", (0.23, 0.518), (0.311, 0.468)),
        ("tealeaf", (0.85, 0.85), (0.85, 0.85)),
        ("stream_triad", (0.85, 0.85), (0.85, 0.85)),
        ("ncf_fp16", (0.5, 0.5), (0.5, 0.5)),
    ],
)
def test_shares_of_the_paper_s_applications(application, two, four):
    found = spread_speeds([application] * 4, [JOB_TYPE_OF[application]] * 4, [1, 2, 4, 8], PAPER_MODELS)
    expected = [(1.0, 1.0, 1.0), (two[0], two[1], two[1]), (four[0], four[1], four[1]), (0.9, 0.9, 0.9)]
    assert found.tolist() == [list(row) for row in expected]


def test_sizes_between_have_the_figure_of_the_nearest_smaller_one():
    sizes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 64]
    found = spread_speeds(["gnmt_fp16"] * len(sizes), [ML] * len(sizes), sizes, ["v100"])[:, 0]
    assert found.tolist() == [1.0, 0.23, 0.23, 0.311, 0.311, 0.311, 0.311, 0.9, 0.9, 0.9, 0.9]


def test_gavel_s_configurations_have_their_own_family():
    assert spread_speed("LM (batch size 20)", ML, 2, "k80") == 0.712
    assert spread_speed("ResNet-18 (batch size 16)", ML, 4, "p100") == 0.593
    unmeasured = {name for name in GAVEL_APPLICATIONS if name not in FAMILY_OF}
    assert {name.partition(" (")[0] for name in unmeasured} == {"A3C", "CycleGAN", "Recommendation"}


def test_models_with_fast_links_lose_as_v100s_do():
    by_model = {model: spread_speed("gnmt_fp16", ML, 2, model) for model in KNOWN_MODELS}
    like_v100 = {model for model, share in by_model.items() if share == 0.23}
    assert {"v100", "v100_sxm2", "v100_pcie", "a100_sxm4_80gb", "h100_sxm5", "b200", "mi250x", "mi300x"} <= like_v100
    assert not {"rtx_2080_ti", "radeon_vii", "p100_sxm2", "a100_pcie_40gb", "rtx_4090", "mi210"} & like_v100
    assert by_model["k80"] == 0.712
    assert by_model["rtx_2080_ti"] == 0.518


def test_an_unlisted_application_has_the_mean_of_its_job_type():
    assert spread_speed("", JobType.SIMULATION, 2, "v100") == 0.85
    assert spread_speed("x", JobType.DATA_PROCESSING, 4, "p100") == pytest.approx(math.sqrt(0.85 * 0.5))
    learning = [spread_speed(name, ML, 2, "v100") for name in APPLICATIONS if JOB_TYPE_OF[name] is ML]
    assert spread_speed("A3C", ML, 2, "v100") == pytest.approx(np.exp(np.mean(np.log(learning))))
    every = [spread_speed(name, ML, 2, "v100") for name in APPLICATIONS]
    assert spread_speed("", JobType.UNSPECIFIED, 2, "v100") == pytest.approx(np.exp(np.mean(np.log(every))))
    assert spread_speed("", JobType.UNSPECIFIED, 8, "v100") == 0.9


def test_no_jobs_and_no_models_have_no_shares():
    assert spread_speeds([], [], [], PAPER_MODELS).shape == (0, 3)
    assert spread_speeds(["a"], [ML], [2], []).shape == (1, 0)


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="no shared data; ADLRO_SHARED_DATA says where it is")
def test_gavel_s_figures_on_several_v100s_are_those_of_the_measured_file():
    measured = json.loads((SHARED_DATA / "gavel" / "simulation_throughputs.json").read_text(encoding="utf-8"))["v100"]
    several = {ast.literal_eval(key): row["null"] for key, row in measured.items()}
    assert {key: each for key, each in several.items() if key[1] > 1 and each} == GAVEL_GANG_STEPS_PER_S
    assert len(GAVEL_GANG_STEPS_PER_S) == 57


def test_sizes_that_were_not_measured_grow_in_proportion():
    name = "LM (batch size 10)"
    assert gavel_steps_per_s(name, 1) == (GAVEL_STEPS_PER_S[name]["v100"], True)
    assert gavel_steps_per_s(name, 8) == (GAVEL_GANG_STEPS_PER_S[name, 8], True)
    assert gavel_steps_per_s(name, 3) == (1.5 * GAVEL_GANG_STEPS_PER_S[name, 2], False)
    assert gavel_steps_per_s(name, 32) == (4 * GAVEL_GANG_STEPS_PER_S[name, 8], False)
    assert gavel_steps_per_s("A3C", 4) == (4 * GAVEL_STEPS_PER_S["A3C"]["v100"], False)
