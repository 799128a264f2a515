"""`adlro train` where torch is not installed: help helps, and what is missing is told with the way to install it."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_TORCH = """
import sys
for name in ("torch", "onnx", "onnxscript", "tensorboard"):
    sys.modules[name] = None
from adlro.lab.learn.__main__ import main
main()
"""


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_help_needs_no_torch() -> None:
    told = train("--help")
    assert told.returncode == 0, told.stderr
    assert "--recipe" in told.stdout


def test_training_without_torch_says_how_to_install_it() -> None:
    told = train("folder")
    assert told.returncode == 1
    assert "adlro train needs torch, onnx, onnxscript, tensorboard; install it with" in told.stderr
    assert "`pip install '.[train]'` in a checkout of ADLRO" in told.stderr
