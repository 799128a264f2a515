"""Speeds of two jobs that share a GPU. Plain records only.

`data/interference_pairs.csv` has, for Gavel's job configurations on V100, P100 and K80, the share of its own speed that
each of two jobs of one GPU keeps when both run on it: processes side by side, MPS on the V100. All figures are
measured, each capped at 1. A pair of measured applications without figures could not run together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from adlro.package_data import csv_rows

_SIZED = re.compile(r"(?P<family>.+?) \([^()0-9]*(?P<size>[0-9]+(?:\.[0-9]+)?)[^()0-9]*\)")


def _both_ways(row: Mapping[str, str]) -> dict[tuple[str, str, str], tuple[float, float]]:
    model, a, b = row["gpu_model"], row["application_a"], row["application_b"]
    a_keeps, b_keeps = min(float(row["a_keeps"]), 1.0), min(float(row["b_keeps"]), 1.0)
    return {(model, b, a): (b_keeps, a_keeps), (model, a, b): (a_keeps, b_keeps)}


KEPT_SHARES: Mapping[tuple[str, str, str], tuple[float, float]] = {
    key: kept
    for row in csv_rows("adlro.hardware", "interference_pairs.csv")
    if row["a_keeps"] and row["b_keeps"]
    for key, kept in _both_ways(row).items()
}
"""By GPU model and two applications, in either order: the share of its own speed that each keeps."""


_APPLICATIONS: Mapping[str, frozenset[str]] = {
    chip: frozenset(name for model, name, _ in KEPT_SHARES if model == chip)
    for chip in {model for model, _, _ in KEPT_SHARES}
}
"""By chip the applications that were measured on it."""

TURN_SHARE = 0.5
"""Assumed share of its own speed that a job keeps beside another one where nothing is measured: a GPU without MPS gives
its processes turns of equal length, so both together do the work of one."""


def chip_of(gpu_model: str) -> str:
    """The name under which pairs of a GPU model are known: v100_sxm2 and v100_pcie are Gavel's v100."""
    chip = gpu_model.partition("_")[0]
    return chip if chip in _APPLICATIONS else gpu_model


def simulated_shares(gpu_model: str, application_a: str, application_b: str) -> tuple[float, float] | None:
    """The shares of their own speeds that two jobs keep on one simulated GPU, in the order of the arguments.

    Args:
        gpu_model: any; figures are those of its chip.
        application_a, application_b: any; where one is not measured on that chip, the two take turns (`TURN_SHARE`).

    Returns:
        Two shares in (0, 1]; None: both applications are measured there, and could not run together.
    """
    chip = chip_of(gpu_model)
    if not {application_a, application_b} <= _APPLICATIONS.get(chip, frozenset()):
        return TURN_SHARE, TURN_SHARE
    return KEPT_SHARES.get((chip, application_a, application_b))


def kept_shares(gpu_model: str, application_a: str, application_b: str) -> tuple[float, float] | None:
    """The shares of their own speeds that two jobs keep on one GPU, in the order of the arguments.

    Returns:
        Two shares in (0, 1]; None: there are no figures, so the two must not share a GPU.
    """
    return KEPT_SHARES.get((gpu_model, application_a, application_b))


def family_and_size(application: str) -> tuple[str, str]:
    """The family and the size in an application's name, as in "LM (batch size 10)"; size empty: none is stated."""
    sized = _SIZED.fullmatch(application)
    return (sized["family"], sized["size"]) if sized is not None else (application, "")
