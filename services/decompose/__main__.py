"""Starts decompose: `python -m services.decompose`."""

from __future__ import annotations

from adlro.kit.server import main
from services.decompose.server import DecomposeServer
from services.decompose.settings import DecomposeSettings

if __name__ == "__main__":
    main(DecomposeServer, DecomposeSettings)
