"""`adlro evaluate`: replaces this process by the laboratory's evaluation, with the same arguments."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import typer

from adlro.cli.processes import import_path

MODULE = "adlro.lab.evaluate"

SETTINGS: Mapping[str, Any] = {
    # All arguments go to the module, also `--help`.
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}


def evaluate(context: typer.Context) -> None:
    """Judge policies on simulated clusters: the same job lists for each, with intervals; JSON and a page with plots."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Replaces this process, without a child: a signal to it, also SIGKILL, reaches the evaluation.
    os.execve(sys.executable, [sys.executable, "-m", MODULE, *context.args], {**os.environ, **import_path()})
