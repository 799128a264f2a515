"""The GPU matrix in short, and its messages: planes of one byte a value, and the rest where it has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.records.matrices import ClusterPlanes, DriftSummary, FloatArray, GpuDrift
from adlro.records.telemetry import Metric
from adlro.v1 import decompose_service_pb2 as pb
from adlro.wire.fields import Translation
from adlro.wire.matrices import DRIFT

_SUMMARY = Translation(DriftSummary, pb.DriftSummary)
_METRICS = {int(each): each for each in Metric}

MOST_U8 = 254
"""The byte of 1; 0 is the byte of 0."""
NOT_REPORTED_U8 = 255


def bytes_of(normalized: FloatArray) -> bytes:
    """One byte a value: 0..254 for 0..1, 255 for NaN."""
    missing = np.isnan(normalized)
    scaled = np.rint(np.clip(np.where(missing, 0.0, normalized), 0.0, 1.0) * MOST_U8)
    return np.where(missing, NOT_REPORTED_U8, scaled).astype(np.uint8).tobytes()


def values_of(data: bytes) -> FloatArray:
    """The values of `bytes_of`."""
    numbers = np.frombuffer(data, dtype=np.uint8)
    values = numbers.astype(np.float32) / np.float32(MOST_U8)
    values[numbers == NOT_REPORTED_U8] = np.nan
    return values


@dataclass(frozen=True, slots=True)
class VariableValues:
    """A variable of all GPUs: the values that it has, and (G,) each GPU's place among them."""

    values: tuple[str, ...]
    numbers: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PlanesNow:
    """A cluster's planes at one moment, as a service has them.

    Attributes:
        gpus: (gpu_id, node_id, gpu_model).
        normalized: by metric, (G,).
        variables: by name.
        drifts: by a GPU's place, of those that ran jobs.
    """

    cluster: str
    revision: int
    newest_sample_unix_s: float | None
    gpus: tuple[tuple[str, str, str], ...]
    normalized: Mapping[Metric, FloatArray]
    variables: Mapping[str, VariableValues]
    drifts: Mapping[int, GpuDrift]
    summary: DriftSummary


def planes_to_proto(now: PlanesNow, before: PlanesNow | None = None) -> pb.ClusterPlanes:
    """The message of the planes: all of them, or what a receiver of those before lacks."""
    if before is not None and before.gpus != now.gpus:
        before = None
    message = pb.ClusterPlanes(
        cluster=now.cluster,
        revision=now.revision,
        newest_sample_unix_s=now.newest_sample_unix_s,
        planes=[
            pb.BytePlane(metric=int(metric), normalized_u8=bytes_of(plane))  # type: ignore[arg-type]
            for metric, plane in now.normalized.items()
        ],
        variables=[
            pb.VariablePlane(name=name, values=each.values, numbers_u8=each.numbers.tobytes())
            for name, each in now.variables.items()
            if before is None or not _same(before.variables.get(name), each)
        ],
        drifts=[
            pb.GpuDriftOf(gpu_number=number, drift=DRIFT.to_proto(drift))
            for number, drift in now.drifts.items()
            if before is None or before.drifts.get(number) != drift
        ],
    )
    if before is not None:
        # A card that was replaced has run no jobs yet.
        message.drifts.extend(
            pb.GpuDriftOf(gpu_number=number, drift=DRIFT.to_proto(GpuDrift()))
            for number in before.drifts.keys() - now.drifts.keys()
        )
    if before is None or before.summary != now.summary:
        message.drift_summary.CopyFrom(_SUMMARY.to_proto(now.summary))
    if before is None:
        message.gpus.CopyFrom(_gpus_to_proto(now.gpus))
    return message


def _same(one: VariableValues | None, other: VariableValues) -> bool:
    return one is not None and one.values == other.values and np.array_equal(one.numbers, other.numbers)


def _gpus_to_proto(gpus: Sequence[tuple[str, str, str]]) -> pb.PlaneGpus:
    node_ids = {name: number for number, name in enumerate(dict.fromkeys(node for _, node, _ in gpus))}
    models = {name: number for number, name in enumerate(dict.fromkeys(model for _, _, model in gpus))}
    return pb.PlaneGpus(
        gpu_ids=[gpu_id for gpu_id, _, _ in gpus],
        node_numbers=[node_ids[node] for _, node, _ in gpus],
        node_ids=node_ids,
        model_numbers=[models[model] for _, _, model in gpus],
        gpu_models=models,
    )


class PlanesAssembly:
    """Makes the planes of a stream's messages, each of which lacks what has not changed."""

    def __init__(self) -> None:
        self._newest: ClusterPlanes | None = None

    def add(self, message: pb.ClusterPlanes) -> ClusterPlanes:
        """The planes after a message.

        Raises:
            ValueError: the first message names no GPUs, or one does not fit to its GPUs.
        """
        before = self._newest
        if message.HasField("gpus"):
            before, gpus = None, _gpus_from_proto(message.gpus)
        elif before is not None:
            gpus = before.gpus
        else:
            raise ValueError("the first planes of a stream name no GPUs")
        planes = {
            metric: values_of(_of_gpus(each.normalized_u8, gpus))
            for each in message.planes
            if (metric := _METRICS.get(int(each.metric))) is not None
        }
        variables = {} if before is None else dict(before.variables)
        for variable in message.variables:
            numbers = _of_gpus(variable.numbers_u8, gpus)
            variables[variable.name] = tuple(variable.values[number] for number in numbers)
        drifts = {} if before is None else dict(before.drifts)
        for each in message.drifts:
            drifts[gpus[each.gpu_number][0]] = DRIFT.from_proto(each.drift)
        summary = DriftSummary() if before is None else before.drift_summary
        if message.HasField("drift_summary"):
            summary = _SUMMARY.from_proto(message.drift_summary)
        self._newest = ClusterPlanes(
            message.cluster,
            gpus,
            planes,
            variables,
            drifts,
            summary,
            message.newest_sample_unix_s if message.HasField("newest_sample_unix_s") else None,
            message.revision,
        )
        return self._newest


def _gpus_from_proto(message: pb.PlaneGpus) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (gpu_id, message.node_ids[node], message.gpu_models[model])
        for gpu_id, node, model in zip(message.gpu_ids, message.node_numbers, message.model_numbers, strict=True)
    )


def _of_gpus(data: bytes, gpus: Sequence[object]) -> bytes:
    if len(data) != len(gpus):
        raise ValueError(f"a plane has {len(data)} bytes for {len(gpus)} GPUs")
    return data
