"""`adlro compare`: replaces this process by the laboratory's comparison, with the same arguments."""

from __future__ import annotations

import os
import sys

import typer

from adlro.cli.processes import import_path

MODULE = "adlro.lab.compare"


def compare(context: typer.Context) -> None:
    """Replay the suite's finished jobs under other policies: what would have been gained, with 95 % intervals."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Replaces this process, without a child, as `adlro evaluate`.
    os.execve(sys.executable, [sys.executable, "-m", MODULE, *context.args], {**os.environ, **import_path()})
