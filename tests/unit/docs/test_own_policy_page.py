"""The page about policies of one's own: its code is the example's, its unit test passes, and its fields exist."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from adlro.decide.catalog import of_files
from adlro.state.observation import CandidateTable, Gangs, Observation

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "own_policy.md").read_text()
EXAMPLE = ROOT / "examples" / "own_policy.py"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_its_policy_is_the_example() -> None:
    assert EXAMPLE.read_text().endswith(blocks()[0])
    assert list(of_files([f"{EXAMPLE}:SmallFirst"])) == ["small_first"]


@pytest.mark.slow
def test_its_unit_test_passes(tmp_path: Path) -> None:
    policy, test = blocks()
    (tmp_path / "mine.py").write_text(policy)
    (tmp_path / "test_mine.py").write_text(test)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_fields_that_it_names_exist() -> None:
    section = PAGE.partition("## What the observation holds")[2]
    named = re.findall(r"`([a-z_.]+)(?:\(x\))?`", "\n".join(re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)))
    there = {each.name for each in fields(Observation)} | {
        *(f"table.{name}" for name in (*CandidateTable._fields, "of_job")),
        *(f"gangs.{name}" for name in Gangs._fields),
    }
    assert len(named) > 25
    assert set(named) <= there
