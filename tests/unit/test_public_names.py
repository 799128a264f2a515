"""`import adlro`: the names that people type, and how little it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import adlro


def test_every_name_is_there_and_shown() -> None:
    for name in adlro.__all__:
        assert getattr(adlro, name).__name__ == name
        assert name in dir(adlro)
    with pytest.raises(AttributeError, match="module 'adlro' has no attribute 'conect'"):
        _ = adlro.conect  # type: ignore[attr-defined]


def test_the_import_alone_loads_nothing_else() -> None:
    script = (
        "import sys; before = set(sys.modules); import adlro; new = set(sys.modules) - before\n"
        "assert new == {'adlro'}, new\n"
        "from adlro import JobSpec, Executor, submit\n"
        "assert 'pandas' not in sys.modules and 'cloudpickle' not in sys.modules and 'asyncio' in sys.modules\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60, cwd="/"
    )
    assert ended.returncode == 0, ended.stderr
