"""ingest: accepts jobs and telemetry, normalises and records them."""
