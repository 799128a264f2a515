"""The same seed gives the same numbers to the last bit whatever the processor can do.

Processes with features switched off (tests/processors.py) draw what tests/unit/sim/drawn.py has, and must come to the
digests that stand here. They were the same under Python 3.11, 3.12 and 3.13; job lists, and nearly all populations, are
those that published results were made with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processors import C_LIBRARY_OFF, Level, environment_of, fingerprints, levels, numpy_features
from tests.unit.sim.drawn import draw_futures, draw_lists

LEVELS = levels()
DIGESTS: dict[str, str] = json.loads((Path(__file__).parent / "drawn.json").read_text())


def run(module: str, *arguments: str, level: Level, cache: Path) -> dict[str, str]:
    finished = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment_of(level, cache),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, f"{level.name}: {finished.stderr}"
    found: dict[str, str] = json.loads(finished.stdout)
    return found


def differing(found: dict[str, str]) -> dict[str, str]:
    return {name: each for name, each in found.items() if DIGESTS.get(name) != each}


def test_this_processor_draws_what_is_written_here():
    assert differing(draw_lists()) == {}


# Of the fast tests one has everything off; those between are looked at by `make test`.
@pytest.mark.parametrize(
    "level",
    [*(pytest.param(level, marks=pytest.mark.slow) for level in LEVELS[1:-1]), LEVELS[-1]],
    ids=lambda level: level.name,
)
def test_every_processor_draws_the_same_lists_populations_and_estimates(level, tmp_path):
    assert differing(run("tests.unit.sim.drawn", "lists", level=level, cache=tmp_path)) == {}


def test_the_levels_are_another_processor_indeed(tmp_path):
    least = run("tests.processors", level=LEVELS[-1], cache=tmp_path)
    assert least["features"] == ""
    here = fingerprints()
    if "X86_V4" in numpy_features():  # numpy has an exp of its own for it
        assert least["numpy's exp"] != here["numpy's exp"]
    can_differ = C_LIBRARY_OFF in LEVELS[-1].environment and C_LIBRARY_OFF not in os.environ
    if "X86_V3" in numpy_features() and can_differ:
        assert least["the C library's exp"] != here["the C library's exp"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # compiles all for another processor
def test_every_processor_imagines_the_same_futures_worlds_and_decisions(pytestconfig):
    # Compiled once for each state of the sources (adlro/numeric/compiled.py): a minute. Kept between runs.
    compiled = pytestconfig.cache.mkdir("numba-for-any-processor")
    assert differing(draw_futures()) == {}
    assert differing(run("tests.unit.sim.drawn", "futures", level=LEVELS[-1], cache=compiled)) == {}
