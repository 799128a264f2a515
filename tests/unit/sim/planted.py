"""Compares the simulator with the oracle after one passage of a module of ADLRO was replaced: a process of its own.

    NUMBA_DISABLE_JIT=1 python -m tests.unit.sim.planted WHAT [MODULE OLD NEW]

WHAT the compared lists have: gangs, stops, shares. Without the others nothing is replaced. Prints the first difference;
prints nothing if there is none.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, ModuleType

INSTANCES = 800
START_COSTS_S = (0.0, 0.7)
HOLD_SHARES = (0.0, 0.0, 0.2)


class Planted(importlib.machinery.SourceFileLoader):
    """Loads a module with one passage replaced; the text is never stored."""

    def __init__(self, name: str, path: str, old: str, new: str) -> None:
        super().__init__(name, path)
        text = Path(path).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{name} has the passage {text.count(old)} times: {old}")
        self._code = compile(text.replace(old, new), path, "exec")

    def get_code(self, fullname: str) -> CodeType:
        return self._code


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, loader: Planted) -> None:
        self._loader = loader

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._loader.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._loader.path, loader=self._loader)


def plant(module: str, old: str, new: str) -> None:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or module in sys.modules:
        raise SystemExit(f"{module} can't be replaced")
    sys.meta_path.insert(0, Finder(Planted(module, spec.origin, old, new)))


def difference(what: str) -> str:
    """The first difference between the simulator and the oracle; empty: none."""
    from tests.oracle.acts import any_set, anything
    from tests.oracle.instances import draw_instance
    from tests.unit.sim.against_oracle import Differs, compare_choices

    shares = what == "shares"
    stops = what == "stops" or shares  # shares are compared with stops
    for seed in range(INSTANCES):
        # For shares half the lists are long and without gangs: elsewhere two that may be stopped rarely share a GPU.
        single = shares and seed % 4 < 2
        drawn = draw_instance(seed, max_jobs=30 if single else 10, gangs=not single, stops=stops, shares=shares)
        instance = replace(drawn, start_cost_s=START_COSTS_S[seed % 2])
        try:
            if stops:
                rule, other = anything(seed, 0.2, 0.6, moves=False), anything(-1 - seed, 0.2, 0.6, moves=False)
            else:
                rule, other = any_set(seed, HOLD_SHARES[seed % 3]), any_set(-1 - seed)
            before = ([other], 6) if seed % 4 == 0 else None
            compare_choices([instance], [rule], tries_illegal=True, before=before, asks_stops=stops, asks_shares=shares)
        except Differs as differs:
            return str(differs)
    return ""


if __name__ == "__main__":
    if len(sys.argv) == 5:
        plant(*sys.argv[2:])
    sys.stdout.write(difference(sys.argv[1]))
