"""The set-up script tells people what is missing, and touches nothing then."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "setup.sh", tmp_path / "tools")
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    # The tools that the script itself needs; no Python among them.
    for tool in ("sh", "uname", "dirname", "tail", "touch"):
        found = shutil.which(tool)
        assert found
        (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def fake_python(checkout: Path, name: str, script: str) -> Path:
    path = checkout / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def setup(checkout: Path, python: str = "") -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(checkout / "bin"), "HOME": os.environ.get("HOME", "/"), "PYTHON": python}
    return subprocess.run(
        ["sh", "tools/setup.sh", "runtime"],
        cwd=checkout,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


OLD = 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac'
WITHOUT_VENV = 'case "$2" in *version_info\\[*) echo 3.12;; *version_info*) exit 0;; *) exit 1;; esac'


def test_no_python_at_all(checkout: Path) -> None:
    done = setup(checkout)
    assert done.returncode != 0
    assert "needs Python 3.11 or newer, and found no python3 at all" in done.stderr
    assert "PYTHON=" in done.stderr
    assert not (checkout / ".venv").exists()


def test_too_old_python_is_named(checkout: Path) -> None:
    fake_python(checkout, "python3", OLD)
    done = setup(checkout)
    assert done.returncode != 0
    assert "found Python 3.9.2" in done.stderr
    assert not (checkout / ".venv").exists()


def test_named_python_is_not_silently_replaced(checkout: Path) -> None:
    fake_python(checkout, "python3.12", WITHOUT_VENV)
    done = setup(checkout, python=str(fake_python(checkout, "mine", OLD)))
    assert done.returncode != 0
    assert f"PYTHON={checkout}/bin/mine" in done.stderr


def test_missing_venv_module_names_the_package(checkout: Path) -> None:
    fake_python(checkout, "python3", OLD)
    fake_python(checkout, "python3.12", WITHOUT_VENV)
    done = setup(checkout)
    assert done.returncode != 0
    assert "apt-get install python3.12-venv" in done.stderr
    assert not (checkout / ".venv").exists()
