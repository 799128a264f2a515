"""The files that `paper_figures run` makes, by what is asked of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOUND = "bound.json"

Entry = dict[str, Any]


class Runs:
    """The runs of a folder.

    Args:
        folder: that `paper_figures run` has filled.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._documents: dict[str, Entry] = {}

    def document(self, run: str) -> Entry:
        """What `adlro evaluate` wrote."""
        if run not in self._documents:
            self._documents[run] = json.loads((self._folder / f"{run}.json").read_text())
        return self._documents[run]

    def took(self, run: str) -> Entry:
        """How long it took."""
        found: Entry = json.loads((self._folder / f"{run}.took.json").read_text())
        return found

    def bound(self) -> list[Entry]:
        """The bounds on throughput."""
        found: list[Entry] = json.loads((self._folder / BOUND).read_text())
        return found

    def rows(self, run: str, load: float | None) -> list[Entry]:
        """Of a run at a load, by mean JCT."""
        found = [row for row in self.document(run)["rows"] if load is None or row["load"] == load]
        return sorted(found, key=lambda row: float(row["mean_jct_s"]))

    def row(self, run: str, load: float | None, policy: str) -> Entry:
        """Of one policy."""
        return next(row for row in self.rows(run, load) if row["policy"] == policy)

    def paired(self, run: str, load: float | None, baseline: str) -> list[Entry]:
        """Comparisons with a baseline, by JCT."""
        found = [
            entry
            for entry in self.document(run)["paired"]
            if entry["baseline"] == baseline and (load is None or entry["load"] == load)
        ]
        return sorted(found, key=lambda entry: float(entry["jct_ratio"]))
