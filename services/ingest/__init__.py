"""ingest: accepts jobs and telemetry, brings both to one normal form, and records them."""
