"""`python -m adlro.services.ingest` serves until SIGTERM."""

from __future__ import annotations

from adlro.kit.server import main
from adlro.services.ingest.server import IngestService
from adlro.services.ingest.settings import IngestSettings

if __name__ == "__main__":
    main(IngestService, IngestSettings)
