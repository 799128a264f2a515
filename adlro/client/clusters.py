"""A check of a cluster's description by the contracts, without a server."""

from __future__ import annotations

from adlro.kit.validation import check
from adlro.records.cluster import Cluster
from adlro.v1 import telemetry_service_pb2
from adlro.wire import cluster_to_proto


def check_cluster(cluster: Cluster) -> None:
    """Raises InvalidInput, with each field, if TelemetryService would refuse the description by a field's rule."""
    check(telemetry_service_pb2.UpsertClusterRequest(cluster=cluster_to_proto(cluster)))
