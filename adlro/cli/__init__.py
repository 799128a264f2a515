"""The `adlro` command. It calls the services through `adlro.client`, and starts them as processes; it imports none.

Each group of commands is a file. For a new command: write a function with typer options in its group's file, add it in
`adlro.cli.app`, print through `adlro.cli.shell`, and give a reading command `-o json`.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command line; the entry point `adlro`."""
    _open_standard_streams()
    from adlro.cli.app import app

    app(prog_name="adlro")


def _open_standard_streams() -> None:
    """Connects closed ones to /dev/null: Python leaves them out, and a connection could have their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # stays open
