"""`adlro`, whose `--cluster local` starts the stand-in (tests/e2e/stand_in/local.py)."""

from __future__ import annotations

from adlro.cli import clusters
from adlro.cli.app import app

if __name__ == "__main__":
    clusters.LOCAL_MODULE = "tests.e2e.stand_in.local"
    app(prog_name="adlro")
