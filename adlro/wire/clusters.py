"""Clusters, their clocks and events, and their messages."""

from __future__ import annotations

from adlro.records.cluster import Cluster
from adlro.records.events import Clock, ClusterDescription, ClusterEvent, EventBatch, RunningJob
from adlro.v1 import cluster_pb2, cluster_service_pb2
from adlro.wire import payloads as _payloads  # noqa: F401 - exit statuses, which events contain, are translated there
from adlro.wire.fields import Translation
from adlro.wire.formats import FORMAT
from adlro.wire.placements import PLACEMENT

_CLUSTER = Translation(Cluster, cluster_pb2.Cluster, constants={"format": FORMAT})
cluster_to_proto, cluster_from_proto = _CLUSTER.to_proto, _CLUSTER.from_proto

_CLOCK = Translation(Clock, cluster_pb2.Clock)
clock_to_proto, clock_from_proto = _CLOCK.to_proto, _CLOCK.from_proto

Translation(ClusterEvent, cluster_service_pb2.ClusterEvent, parts={"placement": PLACEMENT})
_BATCH = Translation(EventBatch, cluster_service_pb2.WatchEventsResponse)
batch_to_proto, batch_from_proto = _BATCH.to_proto, _BATCH.from_proto

Translation(RunningJob, cluster_service_pb2.RunningJob, parts={"placement": PLACEMENT})
_DESCRIPTION = Translation(ClusterDescription, cluster_service_pb2.DescribeClusterResponse)
description_to_proto, description_from_proto = _DESCRIPTION.to_proto, _DESCRIPTION.from_proto
