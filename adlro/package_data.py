"""Reads the figures that ship in a package's folder `data`, also from an installed wheel. Standard library only."""

from __future__ import annotations

import csv
import tomllib
from importlib import resources
from typing import Any


def csv_rows(package: str, name: str) -> list[dict[str, str]]:
    """The rows of `data/<name>` in the package, by column name."""
    text = (resources.files(package) / "data" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def toml_table(package: str, name: str) -> dict[str, Any]:
    """The content of `data/<name>` in the package."""
    return tomllib.loads((resources.files(package) / "data" / name).read_text(encoding="utf-8"))
