"""Telemetry blocks as they come, and as they are kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from adlro.errors import DataLoss
from adlro.records.matrices import TelemetryBlock
from adlro.records.telemetry import Metric, Unit
from adlro.services.ingest.normalize import RawBlock, RawColumn
from adlro.v1 import stream_pb2, telemetry_pb2
from adlro.wire import FORMAT, block_from_proto, block_to_proto, check_format

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


def from_bytes(body: bytes) -> TelemetryBlock:
    """A normalised block from its bytes.

    Raises:
        DataLoss: they hold none.
    """
    try:
        message = telemetry_pb2.NormalizedBlock.FromString(body)
        check_format(message)
        block = block_from_proto(message)
    except _UNREADABLE as error:
        raise DataLoss(f"no block of telemetry: {type(error).__name__}: {error}") from error
    if not block.sample_times_unix_s:
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
        block_from_proto(block)
    except _UNREADABLE as error:
        raise DataLoss(f"no entry of telemetry: {type(error).__name__}: {error}") from error
    if not block.sample_times_unix_s:
        raise DataLoss("no entry of telemetry: it has no sample")
    return block


def entry_to_bytes(block: TelemetryBlock) -> bytes:
    """The stream entry of a normalised block."""
    return stream_pb2.TelemetryStreamEntry(block=block_to_proto(block), format=FORMAT).SerializeToString()


def _times(values: Sequence[float]) -> NDArray[np.float64]:
    return np.fromiter(values, np.float64, len(values))
