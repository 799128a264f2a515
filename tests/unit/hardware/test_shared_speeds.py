"""Speeds of two jobs on one GPU: the measured pairs, in either order, and those that must not share."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from adlro.hardware.shared_speeds import KEPT_SHARES, TURN_SHARE, chip_of, kept_shares, simulated_shares
from adlro.hardware.speeds import GAVEL_APPLICATIONS, GAVEL_GPU_MODELS

SHARED_DATA = Path(os.environ.get("ADLRO_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="no shared data; ADLRO_SHARED_DATA says where it is")
def test_figures_are_those_of_the_measured_file():
    with (SHARED_DATA / "gangs" / "interference_pairs.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 26 * 27 // 2
    for row in rows:
        kept = kept_shares(row["model"], row["job_a"], row["job_b"])
        assert kept == ((float(row["a_keeps"]), float(row["b_keeps"])) if row["a_keeps"] else None)


def test_a_pair_has_its_figures_in_either_order():
    assert {model for model, _, _ in KEPT_SHARES} == set(GAVEL_GPU_MODELS)
    assert {name for _, *names in KEPT_SHARES for name in names} <= set(GAVEL_APPLICATIONS)
    for (model, a, b), (a_keeps, b_keeps) in KEPT_SHARES.items():
        assert kept_shares(model, b, a) == (b_keeps, a_keeps)
        assert 0 < a_keeps <= 1
        assert 0 < b_keeps <= 1


def test_330_pairs_run_on_a_v100_and_keep_1_37_in_the_median():
    sums = [sum(kept) for (model, a, b), kept in KEPT_SHARES.items() if model == "v100" and a <= b]
    assert len(sums) == 330
    assert np.median(sums) == pytest.approx(1.37, abs=0.01)


def test_variants_of_a_chip_have_its_figures():
    models = ("v100_sxm2", "v100_pcie", "v100", "k80", "p100_sxm2", "rtx_2080_ti", "mine")
    assert [chip_of(each) for each in models] == ["v100", "v100", "v100", "k80", "p100", "rtx_2080_ti", "mine"]
    for (chip, one, other), kept in KEPT_SHARES.items():
        assert simulated_shares(chip, one, other) == kept
        if chip == "v100":
            assert simulated_shares("v100_sxm2", one, other) == kept


def test_simulated_jobs_take_turns_where_nothing_is_known_and_never_run_where_they_could_not():
    turns = (TURN_SHARE, TURN_SHARE)
    measured = {name for model, name, _ in KEPT_SHARES if model == "v100"}
    assert simulated_shares("rtx_2080_ti", "A3C", "A3C") == turns
    assert simulated_shares("v100", "A3C", "mine") == turns
    assert simulated_shares("v100", "", "") == turns
    large = "ResNet-50 (batch size 128)"
    assert simulated_shares("k80", large, large) == turns, "it was not measured on a K80, only on the others"
    assert simulated_shares("v100", large, large) is None
    never = [(a, b) for a in measured for b in measured if simulated_shares("v100", a, b) is None]
    assert len(never) + sum(model == "v100" for model, _, _ in KEPT_SHARES) == len(measured) ** 2


def test_no_figure_means_never():
    assert kept_shares("rtx_2080_ti", "A3C", "A3C") is None
    assert kept_shares("v100", "A3C", "resnet50_fp16") is None
