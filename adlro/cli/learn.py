"""`adlro learn`: replaces this process by the laboratory's learning from a cluster's past, with the same arguments."""

from __future__ import annotations

import os
import sys

import typer

from adlro.cli.processes import import_path

MODULE = "adlro.lab.candidates"


def learn(context: typer.Context) -> None:
    """Make a candidate for the learned policy from what this cluster has run, and judge it; change nothing."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Replaces this process, without a child, as `adlro evaluate`.
    os.execve(sys.executable, [sys.executable, "-m", MODULE, *context.args], {**os.environ, **import_path()})
