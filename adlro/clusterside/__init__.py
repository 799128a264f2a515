"""The server half of ClusterService, for every cluster: the event log, attempts, fencing, wake-ups, telemetry.

driver         what an adapter implements, and what it may tell
cluster_side   the rules: what is launched, stopped, told and remembered
server         ClusterService over gRPC, as a service of the kit
"""
