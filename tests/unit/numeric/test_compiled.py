"""Compiled code where nothing can be kept: a read-only installation, for a user without a home."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest

import adlro
from adlro.numeric import compiled

CODE = """
from adlro.numeric import compiled
from adlro.sim import simulator
from adlro.state.machines import occupy
print(simulator.__file__)
simulator.warm()
print(len(occupy.signatures))
"""


@pytest.mark.slow
def test_a_cluster_is_simulated_where_no_compiled_code_can_be_kept(tmp_path: Path) -> None:
    package = Path(adlro.__file__).parent
    copy = tmp_path / "adlro"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # Files where folders would have to be: not even root can make them.
    for folder in (*(source.parent for source in copy.rglob("*.py")), tmp_path):
        (folder / "__pycache__").touch(exist_ok=True)
    home = tmp_path / "home"
    home.touch()
    env = {key: value for key, value in os.environ.items() if key not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    env |= {"HOME": str(home), "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=150
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [str(copy / "sim" / "simulator.py"), "1"]
    assert not list(tmp_path.rglob("*.nbi"))


@pytest.mark.parametrize(("kept", "says"), [(True, "compiling, first start only"), (False, "NUMBA_CACHE_DIR")])
def test_what_is_compiled_is_told_of_once(
    kept: bool, says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(compiled._NOTICE, "told", False)
    monkeypatch.setattr(compiled._NOTICE, "kept", kept)

    def increase(number: Any) -> Any:
        return number + 1

    increased: Any = numba.njit(increase)
    assert (increased(1), increased(2), increased(1.5)) == (2, 3, 2.5)
    (message,) = caplog.messages
    assert message.startswith("compiling, ")
    assert says in message
