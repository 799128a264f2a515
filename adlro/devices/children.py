"""How the programs of this room are started as child processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def command(module: str) -> list[str]:
    """Runs a module of ADLRO, with no file of the working directory in reach."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """This process's environment, in which the child finds the same ADLRO."""
    root = str(Path(__file__).resolve().parents[2])
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{others}" if others else root}


def ended_text(returncode: int) -> str:
    """How a process ended: `exit code 1`, `SIGSEGV`."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
