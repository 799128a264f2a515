"""Starts decompose: `python -m adlro.services.decompose`."""

from __future__ import annotations

from adlro.kit.server import main
from adlro.services.decompose.server import DecomposeServer
from adlro.services.decompose.settings import DecomposeSettings

if __name__ == "__main__":
    main(DecomposeServer, DecomposeSettings)
