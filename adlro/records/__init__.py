"""Jobs, clusters, events, telemetry as plain records: each record once. The standard library only."""
