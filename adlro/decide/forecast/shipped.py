"""The errors of forecasts that a cluster's own record begins with.

`errors.csv` has a line for each kind: its name, and quantiles of the errors in units of the futures' spread, over lists
of the scenario `paper` under the default policy and `hold_greedy_fixed`. Made by

    python -m benchmarks.expected_start --calibrate adlro/decide/forecast/errors.csv
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def read_errors(path: Path) -> Mapping[str, tuple[float, ...]]:
    """The quantiles by kind, ascending."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {kind: tuple(map(float, errors.split(","))) for kind, _, errors in (line.partition(",") for line in lines)}


ERRORS = read_errors(Path(__file__).with_name("errors.csv"))
