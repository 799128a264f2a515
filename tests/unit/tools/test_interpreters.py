"""Interpreters are found, passed over when they do not run, and each is told of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import interpreters


def fake_python(path: Path, version: str, code: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path / "pyenv" / "versions"


def test_the_versions_are_those_that_are_promised() -> None:
    assert interpreters.promised()[0] == "3.11"
    assert len(interpreters.promised()) >= 3


def test_what_is_on_path_comes_first(pyenv: Path, tmp_path: Path) -> None:
    fake_python(pyenv / "3.77.1" / "bin" / "python", "3.77")
    first = fake_python(tmp_path / "bin" / "python3.77", "3.77")
    assert interpreters.find("3.77") == first


def test_a_shim_that_does_not_run_is_passed_over_for_the_newest_of_pyenv(pyenv: Path, tmp_path: Path) -> None:
    fake_python(tmp_path / "bin" / "python3.77", "no such version", 127)
    fake_python(pyenv / "3.77.9" / "bin" / "python", "3.77")
    newest = fake_python(pyenv / "3.77.10" / "bin" / "python", "3.77")
    fake_python(pyenv / "3.77.11-dev" / "bin" / "python", "3.77")
    assert interpreters.find("3.77") == newest


def test_one_of_another_version_is_none(pyenv: Path, tmp_path: Path) -> None:
    fake_python(tmp_path / "bin" / "python3.77", "3.11")
    assert interpreters.find("3.77") is None
    assert interpreters.find("3.78") is None


@pytest.mark.parametrize(
    ("result", "code"), [("passed", 0), ("passed, some tests only when they were run once more", 0), ("FAILED", 1)]
)
def test_which_ran_and_which_could_not_be_had_is_said(
    result: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    monkeypatch.setattr(sys, "argv", ["interpreters.py"])
    monkeypatch.setattr(interpreters, "promised", lambda: [own, "3.77", "3.78"])
    monkeypatch.setattr(interpreters, "find", lambda version: Path("/there") if version == "3.77" else None)
    monkeypatch.setattr(interpreters, "run_tests", lambda version, interpreter, workers, paths: result)
    assert interpreters.main() == code
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "--- Python 3.77: /there"
    assert said[1].startswith(f"Python {own}: left to the other targets")
    assert said[2] == f"Python 3.77: {result}"
    assert said[3].startswith("Python 3.78: could not be had")


_ONCE_MORE = ["-n", "0", "--last-failed", "--last-failed-no-failures=none"]


@pytest.mark.parametrize(
    ("codes", "result", "runs"),
    [
        ([0, 0], "passed", 1),
        ([1], "FAILED: its packages could not be installed", 0),
        ([0, 1, 0], "passed, some tests only when they were run once more", 2),
        ([0, 1, 1], "FAILED", 2),
        ([0, 1, 5], "FAILED", 2),  # none is found again
        ([0, 2], "FAILED", 1),  # interrupted: no test has failed
        ([0, 5], "FAILED", 1),  # no test was found
    ],
)
def test_what_fails_is_run_once_more_alone(
    codes: list[int], result: str, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, codes[len(ran) - 1])

    monkeypatch.setattr(subprocess, "run", run)
    assert interpreters.run_tests("3.77", Path("/there"), 2, ["tests/unit"]) == result
    _setup, *tests = ran
    assert len(tests) == runs
    assert [command[-4:] == _ONCE_MORE for command in tests] == [False, True][:runs]


@pytest.mark.parametrize("brief", [False, True])
def test_in_brief_only_the_newest_runs_what_users_install(brief: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["interpreters.py", *(["--brief"] if brief else [])])
    monkeypatch.setattr(interpreters, "promised", lambda: ["3.77", "3.78", "3.79"])
    monkeypatch.setattr(interpreters, "find", lambda version: None if version == "3.79" else Path("/there"))
    asked: dict[str, list[str]] = {}

    def run_tests(version: str, interpreter: Path, workers: int, paths: list[str]) -> str:
        asked[version] = paths
        return "passed" if version == "3.78" else "FAILED"

    monkeypatch.setattr(interpreters, "run_tests", run_tests)
    assert interpreters.main() == 1  # the one that ran some rooms only counts too
    if not brief:
        assert asked == {"3.77": ["tests/unit"], "3.78": ["tests/unit"]}
        return
    others = [f"--ignore=tests/unit/{room}" for room in interpreters.ROOMS_OF_THE_REPOSITORY]
    assert asked["3.77"] == [f"tests/unit/{room}" for room in interpreters.ROOMS_IN_BRIEF]
    assert asked["3.78"] == ["tests/unit", *others]


def test_the_rooms_are_there() -> None:
    unit = Path(__file__).parents[1]
    rooms = (*interpreters.ROOMS_IN_BRIEF, *interpreters.ROOMS_OF_THE_REPOSITORY)
    assert all((unit / room).is_dir() for room in rooms)
