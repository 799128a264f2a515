"""The course of jobs in outcomes, and its messages."""

from __future__ import annotations

from adlro.records.outcomes import ApplicationSize, NeighbourTime, StoppedRun
from adlro.v1 import sharing_pb2, stream_pb2
from adlro.wire.fields import Translation

_APPLICATION_SIZE = Translation(ApplicationSize, sharing_pb2.ApplicationSize)
application_size_to_proto = _APPLICATION_SIZE.to_proto
application_size_from_proto = _APPLICATION_SIZE.from_proto

_NEIGHBOUR_TIME = Translation(NeighbourTime, sharing_pb2.NeighbourTime)
neighbour_time_to_proto, neighbour_time_from_proto = _NEIGHBOUR_TIME.to_proto, _NEIGHBOUR_TIME.from_proto

_STOPPED_RUN = Translation(StoppedRun, stream_pb2.StoppedRun)
stopped_run_to_proto, stopped_run_from_proto = _STOPPED_RUN.to_proto, _STOPPED_RUN.from_proto
