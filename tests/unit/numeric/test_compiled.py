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
from adlro.sim import warming
from adlro.state.machines import occupy_gang
print(warming.__file__)
warming.warm()
print(len(occupy_gang.signatures))
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
    assert ended.stdout.split() == [str(copy / "sim" / "warming.py"), "1"]
    assert not list(tmp_path.rglob("*.nbi"))


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package, beside another one that is none of ours."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    package = tmp_path / "adlro"
    shutil.copytree(Path(adlro.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "services"))
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").touch()
    return package


def folder_of(sources: Path) -> str:
    return str(compiled._cache_folder.__wrapped__(sources))


@pytest.mark.parametrize(
    ("changed", "used_by"),
    [
        ("state/room.py", ["decide/policies", "decide/planes", "decide/rollouts", "state", "sim", "decide"]),
        ("state/observation.py", ["decide/policies", "decide/planes"]),
        ("decide/looked.py", ["decide/policies", "decide/planes", "decide"]),
        ("decide/hold_rule.py", ["decide/rollouts", "decide"]),
        ("decide/policies/plan.py", ["decide/policies"]),
        ("numeric/compiled.py", ["decide/policies", "state", "numeric"]),
        ("sim/kernel.py", ["sim", "decide/rollouts"]),
    ],
)
def test_compiled_code_is_made_anew_where_a_file_changes_that_is_in_it(
    changed: str, used_by: list[str], copied: Path
) -> None:
    before = {name: folder_of(copied / name) for name in used_by}
    others = {name: folder_of(copied / name) for name in ("numeric",) if name not in used_by}
    with (copied / changed).open("a") as file:
        file.write("# changed\n")
    assert [name for name in used_by if folder_of(copied / name) == before[name]] == []
    assert {name: folder_of(copied / name) for name in others} == others


def test_compiled_code_does_not_depend_on_files_of_others_or_that_it_lacks(copied: Path) -> None:
    files = compiled.files_in_code(copied / "decide" / "policies")
    assert not [file for file in files if "numpy" in file.parts]
    names = {file.relative_to(copied).as_posix() for file in files if copied in file.parents}
    assert {"decide/policies/plan.py", "decide/looked.py", "state/room.py", "numeric/compiled.py"} <= names
    assert "decide/policies/dqn.py" not in names


@compiled.compiled_call
def increased_by(number: int, step: int, twice: bool) -> int:
    return number + (2 * step if twice else step)


def increased_in_turns(number: int) -> int:
    number = increased_by(number, 1, False)
    number = increased_by(number, 10, twice=True)
    return increased_by(number, number, twice=False)


def test_a_function_that_is_called_with_constants_is_compiled_once() -> None:
    # Not kept: the call is looked at only where the function around it is compiled.
    increased: Any = numba.njit(increased_in_turns)
    assert increased(100) == 242
    dispatcher: Any = increased_by
    assert len(dispatcher.signatures) == 1


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
