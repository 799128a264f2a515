"""Starts the orchestrator: `python -m services.orchestrator`."""

from __future__ import annotations

from adlro.kit.server import main
from services.orchestrator.server import OrchestratorServer
from services.orchestrator.settings import OrchestratorSettings

if __name__ == "__main__":
    main(OrchestratorServer, OrchestratorSettings)
