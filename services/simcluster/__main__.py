"""Starts simcluster: `python -m adlro.services.simcluster`."""

from __future__ import annotations

from adlro.kit.server import main
from adlro.services.simcluster.server import SimclusterServer
from adlro.services.simcluster.settings import SimclusterSettings

if __name__ == "__main__":
    main(SimclusterServer, SimclusterSettings)
