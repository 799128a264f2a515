"""Starts local: `python -m adlro.services.local`."""

from __future__ import annotations

from adlro.kit.server import main
from adlro.services.local.server import LocalServer
from adlro.services.local.settings import LocalSettings

if __name__ == "__main__":
    main(LocalServer, LocalSettings)
