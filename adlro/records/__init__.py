"""Jobs, clusters, events, telemetry, decisions, status, predictions as plain records: each record once.

Services and clients use the same classes, and `adlro.wire` translates each. The standard library only, but for
`matrices`, whose records hold arrays.
"""
