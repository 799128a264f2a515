"""`adlro train`: replaces this process by the laboratory's training, with the same arguments."""

from __future__ import annotations

import os
import sys

import typer

from adlro.cli.processes import import_path

MODULE = "adlro.lab.learn"


def train(context: typer.Context) -> None:
    """Train a policy on simulated clusters; stopped or killed, the same command goes on where it stood."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Replaces this process, without a child, as `adlro evaluate`.
    os.execve(sys.executable, [sys.executable, "-m", MODULE, *context.args], {**os.environ, **import_path()})
