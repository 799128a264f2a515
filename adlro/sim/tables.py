"""Reads the figures that ship with the package (`adlro/sim/data`), also from an installed wheel."""

from __future__ import annotations

import csv
import tomllib
from importlib import resources
from typing import Any


def csv_rows(name: str) -> list[dict[str, str]]:
    """The rows of `adlro/sim/data/<name>`, by column name."""
    text = (resources.files("adlro.sim") / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def toml_table(name: str) -> dict[str, Any]:
    """The content of `adlro/sim/data/<name>`."""
    return tomllib.loads((resources.files("adlro.sim") / "data" / name).read_text(encoding="utf-8"))
