"""What ran where, who calls, and what is free, and their messages."""

from __future__ import annotations

from adlro.records.capacity import ClusterCapacity
from adlro.records.history import AttemptHistory
from adlro.records.identity import Identity
from adlro.v1 import job_service_pb2, orchestrator_service_pb2
from adlro.wire.fields import Translation

_HISTORY = Translation(AttemptHistory, job_service_pb2.QueryAttemptsResponse)
history_to_proto, history_from_proto = _HISTORY.to_proto, _HISTORY.from_proto

_IDENTITY = Translation(Identity, job_service_pb2.WhoAmIResponse)
identity_to_proto, identity_from_proto = _IDENTITY.to_proto, _IDENTITY.from_proto

_CAPACITY = Translation(ClusterCapacity, orchestrator_service_pb2.GetClusterCapacityResponse)
capacity_to_proto, capacity_from_proto = _CAPACITY.to_proto, _CAPACITY.from_proto
