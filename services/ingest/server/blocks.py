"""Telemetry blocks: messages to plain records and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from adlro.errors import DataLoss
from adlro.records.telemetry import Metric, Unit
from adlro.services.ingest.normalize import NormalizedBlock, NormalizedColumn, RawBlock, RawColumn
from adlro.v1 import stream_pb2, telemetry_pb2
from adlro.wire import FORMAT, check_format

# What bytes that nobody wrote as a block may raise while they are read.
_UNREADABLE = (DecodeError, ValueError, TypeError)


def raw_from_proto(message: telemetry_pb2.TelemetryBlock, gpu_ids: tuple[str, ...]) -> RawBlock:
    """A received block, with the GPUs of its stream."""
    return RawBlock(
        cluster=message.cluster,
        gpu_ids=gpu_ids,
        sample_times_unix_s=_times(message.sample_times_unix_s),
        cluster_times_s=_times(message.cluster_times_s),
        columns=[RawColumn(Metric(each.metric), Unit(each.unit), each.values_f32) for each in message.columns],
    )


def to_proto(block: NormalizedBlock) -> telemetry_pb2.NormalizedBlock:
    """The message of a normalised block."""
    return telemetry_pb2.NormalizedBlock(
        cluster=block.cluster,
        gpu_ids=block.gpu_ids,
        sample_times_unix_s=block.sample_times_unix_s.tolist(),
        cluster_times_s=block.cluster_times_s.tolist(),
        columns=[
            telemetry_pb2.NormalizedColumn(
                metric=int(each.metric),  # type: ignore[arg-type]  # enum numbers are those of Metric
                unit=int(each.unit),  # type: ignore[arg-type]  # and of Unit
                raw_f32=_bytes(each.raw),
                normalized_f32=_bytes(each.normalized),
            )
            for each in block.columns
        ],
        clipped_count=block.clipped_count,
        format=FORMAT,
    )


def from_proto(message: telemetry_pb2.NormalizedBlock) -> NormalizedBlock:
    """A normalised block from its message."""
    shape = (len(message.sample_times_unix_s), len(message.gpu_ids))
    return NormalizedBlock(
        cluster=message.cluster,
        gpu_ids=tuple(message.gpu_ids),
        sample_times_unix_s=_times(message.sample_times_unix_s),
        cluster_times_s=_times(message.cluster_times_s),
        columns=tuple(
            NormalizedColumn(
                Metric(each.metric),
                Unit(each.unit),
                np.frombuffer(each.raw_f32, "<f4").reshape(shape),
                np.frombuffer(each.normalized_f32, "<f4").reshape(shape),
            )
            for each in message.columns
        ),
        clipped_count=message.clipped_count,
    )


def from_bytes(body: bytes) -> NormalizedBlock:
    """A normalised block from its bytes.

    Raises:
        DataLoss: they hold none.
    """
    try:
        message = telemetry_pb2.NormalizedBlock.FromString(body)
        check_format(message)
        block = from_proto(message)
    except _UNREADABLE as error:
        raise DataLoss(f"no block of telemetry: {type(error).__name__}: {error}") from error
    if not block.sample_times_unix_s.size:
        raise DataLoss("no block of telemetry: it has no sample")
    return block


def message_from_entry(body: bytes) -> telemetry_pb2.NormalizedBlock:
    """The normalised block of a stream entry, for a response.

    Raises:
        DataLoss: it holds none.
    """
    try:
        entry = stream_pb2.TelemetryStreamEntry.FromString(body)
        check_format(entry)
        block = entry.block
        from_proto(block)
    except _UNREADABLE as error:
        raise DataLoss(f"no entry of telemetry: {type(error).__name__}: {error}") from error
    if not block.sample_times_unix_s:
        raise DataLoss("no entry of telemetry: it has no sample")
    return block


def entry_to_bytes(block: NormalizedBlock) -> bytes:
    """The stream entry of a normalised block."""
    return stream_pb2.TelemetryStreamEntry(block=to_proto(block), format=FORMAT).SerializeToString()


def _times(values: Sequence[float]) -> NDArray[np.float64]:
    return np.fromiter(values, np.float64, len(values))


def _bytes(values: NDArray[np.float32]) -> bytes:
    return values.astype("<f4", copy=False).tobytes()
