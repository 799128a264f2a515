"""Reports of GPUs as arrays, and their messages: columns and planes are little-endian float32 there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from adlro.records.matrices import (
    ClusterState,
    FloatArray,
    GpuDrift,
    MetricColumn,
    StatePlane,
    Telemetry,
    TelemetryBlock,
    Variable,
)
from adlro.records.telemetry import Metric, Unit
from adlro.v1 import decompose_service_pb2, telemetry_pb2, telemetry_service_pb2
from adlro.wire.fields import Part, Translation
from adlro.wire.formats import FORMAT

_METRICS = {int(each): each for each in Metric}
_UNITS = {int(each): each for each in Unit}

_Each = TypeVar("_Each", telemetry_pb2.NormalizedColumn, decompose_service_pb2.StatePlane)

variable_to_proto = Translation(Variable, decompose_service_pb2.Variable).to_proto


def floats_from_proto(data: bytes) -> FloatArray:
    """A read-only array, without a copy."""
    return np.frombuffer(data, dtype="<f4")


def floats_to_proto(values: FloatArray) -> bytes:
    """An array's values, row by row."""
    return values.astype("<f4", copy=False).tobytes()


def _columns_to_proto(columns: Mapping[Metric, MetricColumn]) -> list[telemetry_pb2.NormalizedColumn]:
    return [
        telemetry_pb2.NormalizedColumn(
            metric=int(metric),  # type: ignore[arg-type]  # enum numbers are those of Metric
            unit=int(column.unit),  # type: ignore[arg-type]  # and of Unit
            raw_f32=floats_to_proto(column.raw),
            normalized_f32=floats_to_proto(column.normalized),
        )
        for metric, column in columns.items()
    ]


def _known(metrics: Iterable[_Each]) -> Iterator[tuple[Metric, Unit, _Each]]:
    """Columns or planes, without those whose metric or unit only a newer release knows."""
    for each in metrics:
        metric, unit = _METRICS.get(int(each.metric)), _UNITS.get(int(each.unit))
        if metric is not None and unit is not None:
            yield metric, unit, each


def _columns_from_proto(message: telemetry_pb2.NormalizedBlock) -> dict[Metric, MetricColumn]:
    shape = (len(message.sample_times_unix_s), len(message.gpu_ids))
    columns = {}
    for metric, unit, each in _known(message.columns):
        raw = _matrix(each.raw_f32, shape, "raw_f32")
        normalized = _matrix(each.normalized_f32, shape, "normalized_f32")
        columns[metric] = MetricColumn(unit, raw, normalized)
    return columns


def _matrix(data: bytes, shape: tuple[int, int], name: str) -> FloatArray:
    if len(data) != 4 * shape[0] * shape[1]:
        raise ValueError(f"{name} has {len(data)} bytes, not those of {shape[0]} x {shape[1]} float32")
    return floats_from_proto(data).reshape(shape)


_BLOCK = Translation(
    TelemetryBlock,
    telemetry_pb2.NormalizedBlock,
    parts={"columns": Part({"columns": _columns_to_proto}, _columns_from_proto)},
    constants={"format": FORMAT},
)
block_to_proto, block_from_proto = _BLOCK.to_proto, _BLOCK.from_proto

telemetry_from_proto = Translation(Telemetry, telemetry_service_pb2.GetTelemetryResponse).from_proto


def _planes_to_proto(planes: Mapping[Metric, StatePlane]) -> list[decompose_service_pb2.StatePlane]:
    return [
        decompose_service_pb2.StatePlane(
            metric=int(metric),  # type: ignore[arg-type]  # enum numbers are those of Metric
            unit=int(plane.unit),  # type: ignore[arg-type]  # and of Unit
            raw_f32=floats_to_proto(plane.raw),
            normalized_f32=floats_to_proto(plane.normalized),
        )
        for metric, plane in planes.items()
    ]


def _planes_from_proto(message: decompose_service_pb2.ClusterState) -> dict[Metric, StatePlane]:
    return {
        metric: StatePlane(unit, floats_from_proto(each.raw_f32), floats_from_proto(each.normalized_f32))
        for metric, unit, each in _known(message.planes)
    }


DRIFT = Translation(GpuDrift, decompose_service_pb2.GpuDrift)

_CLUSTER_STATE = Translation(
    ClusterState,
    decompose_service_pb2.ClusterState,
    parts={"planes": Part({"planes": _planes_to_proto}, _planes_from_proto)},
    left_out=("bundle",),  # decompose adds it on request, for clients in other languages
)
cluster_state_to_proto, cluster_state_from_proto = _CLUSTER_STATE.to_proto, _CLUSTER_STATE.from_proto
