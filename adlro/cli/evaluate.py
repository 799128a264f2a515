"""`adlro evaluate`: runs the orchestrator's evaluation as a process of its own, with the arguments as they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import typer

from adlro.cli.processes import import_path

MODULE = "services.orchestrator.evaluate"

SETTINGS: Mapping[str, Any] = {
    # Everything goes to the module, `--help` too.
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}


def evaluate(context: typer.Context) -> None:
    """Judge policies on simulated clusters: the same job lists for each, with intervals; JSON and a page with plots."""
    process = subprocess.Popen([sys.executable, "-m", MODULE, *context.args], env={**os.environ, **import_path()})
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # From a terminal Ctrl-C reaches both; the evaluation takes the first and passes over the second.
        for number in before:
            signal.signal(number, lambda number, _: process.send_signal(number))
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    raise typer.Exit(code if code >= 0 else 128 - code)
