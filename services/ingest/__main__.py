"""`python -m services.ingest` serves until SIGTERM."""

from __future__ import annotations

from adlro.kit.server import main
from services.ingest.server import IngestService
from services.ingest.settings import IngestSettings

if __name__ == "__main__":
    main(IngestService, IngestSettings)
