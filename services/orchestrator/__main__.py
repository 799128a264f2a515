"""Starts the orchestrator: `python -m adlro.services.orchestrator`."""

from __future__ import annotations

from adlro.kit.server import main
from adlro.services.orchestrator.server import OrchestratorServer
from adlro.services.orchestrator.settings import OrchestratorSettings

if __name__ == "__main__":
    main(OrchestratorServer, OrchestratorSettings)
