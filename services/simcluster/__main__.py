"""Starts simcluster: `python -m services.simcluster`."""

from __future__ import annotations

from adlro.kit.server import main
from services.simcluster.server import SimclusterServer
from services.simcluster.settings import SimclusterSettings

if __name__ == "__main__":
    main(SimclusterServer, SimclusterSettings)
