"""The benchmarks of the services: what they compute, and that each still runs and gives its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measuring import figures, percentile, ratios, spread

ROOT = Path(__file__).resolve().parents[3]


def run(benchmark: str, *options: str) -> dict[str, Any]:
    """What one round of a benchmark prints."""
    ended = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", "--rounds", "1", "--json", *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 51.0, 100.0, 100.0]


def test_figures_are_spread_over_the_rounds_and_ratios_are_of_each_round() -> None:
    rounds = {"a": [{"x": 1.0}, {"x": 4.0}, {"x": 2.0}], "b": [{"x": 2.0}, {"x": 2.0}, {"x": 2.0}]}
    assert figures(rounds)["a"]["x"] == spread([1.0, 4.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert ratios(rounds, "x", "a", "b") == {"median": 1.0, "min": 0.5, "max": 2.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("benchmark", "options", "targets"),
    [
        ("submit", ["--concurrency", "4"], ["bare", "kit", "ingest"]),
        ("telemetry", ["--gpus", "4"], ["bare", "decode", "ingest"]),
        ("watch", ["--watchers", "4", "--rate", "20"], ["one", "many"]),
    ],
)
def test_a_benchmark_runs_and_gives_its_figures(benchmark: str, options: list[str], targets: list[str]) -> None:
    result = run(benchmark, "--seconds", "2", *options)
    assert list(result["figures"]) == targets
    for each in result["figures"].values():
        for figure in each.values():
            assert 0 < figure["min"] <= figure["median"] <= figure["max"]
    assert result["machine"]["cores"] > 0


@pytest.mark.slow
def test_an_orchestrator_that_is_killed_is_measured() -> None:
    result = run("takeover", "--jobs", "800", "--seconds", "3")
    takeover = {name: figure["median"] for name, figure in result["takeover"].items()}
    assert 0 < takeover["listening_s"] <= takeover["acting_s"] <= takeover["placing_s"]
    assert takeover["waiting_jobs"] > 200
    assert result["steady"]["decisions_per_s"] > 0
    assert result["machine"]["cores"] > 0
