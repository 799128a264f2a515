"""decompose's reader of Redis: outcomes, telemetry, descriptions of clusters. Translates; writes nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple, TypeVar

import redis.asyncio as aioredis
from google.protobuf.message import DecodeError
from redis.exceptions import RedisError

from adlro.errors import Unavailable
from adlro.kit.redis_errors import store_problem
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobType
from adlro.records.matrices import TelemetryBlock
from adlro.services.decompose.outcomes.outcome_memory import DEFAULT_CLUSTER, FinishedJob
from adlro.store.keys import CLUSTERS, CURRENT_CLUSTER, telemetry_latest_key
from adlro.v1 import cluster_pb2, stream_pb2, telemetry_pb2
from adlro.wire import (
    block_from_proto,
    check_format,
    cluster_from_proto,
    neighbour_time_from_proto,
    placement_from_proto,
    spec_from_proto,
    stopped_run_from_proto,
)

CALL_TIMEOUT_S = 2.0

_JOB_TYPES = frozenset(int(job_type) for job_type in JobType)

T = TypeVar("T")
M = TypeVar(
    "M",
    cluster_pb2.Cluster,
    stream_pb2.OutcomeStreamEntry,
    stream_pb2.TelemetryStreamEntry,
    telemetry_pb2.NormalizedBlock,
)


class BadEntry(ValueError):
    """Data in Redis that breaks the contract."""


class StreamEntry(NamedTuple):
    """An entry of a stream: its id, and its message, serialised."""

    entry_id: str
    payload: bytes


class StreamInfo(NamedTuple):
    """The position of a stream's end. `added_count` is -1 if the server does not count."""

    last_id: str
    added_count: int


class RedisReader:
    """Reads streams and descriptions.

    Args:
        redis: for calls with an immediate answer.
        blocking: a separate client for blocking reads.

    Raises:
        Unavailable: from every method while Redis does not answer (within the deadline).
    """

    def __init__(self, redis: aioredis.Redis, blocking: aioredis.Redis) -> None:
        # redis-py's stubs mix sync and async results; Any keeps the awaits readable.
        self._redis: Any = redis
        self._blocking: Any = blocking

    async def close(self) -> None:
        """Closes the connections."""
        await self._redis.aclose()
        await self._blocking.aclose()

    async def read(self, stream: str, after: str, count: int, block_ms: int | None = None) -> list[StreamEntry]:
        """Up to `count` entries after an id, oldest first; waits up to `block_ms` for the first."""
        client = self._redis if block_ms is None else self._blocking
        answer = await _answer(
            client.xread({stream: after}, count=count, block=block_ms), CALL_TIMEOUT_S + (block_ms or 0) / 1000
        )
        if not answer:
            return []
        # A list of pairs by the protocol's version 2, a map with one more level by version 3.
        found = answer[0][1] if isinstance(answer, list) else next(iter(answer.values()))
        if found and isinstance(found[0], list) and found[0] and not isinstance(found[0][0], bytes):
            found = found[0]
        return [_entry(*each) for each in found]

    async def newest(self, stream: str, count: int) -> list[StreamEntry]:
        """The newest `count` entries, oldest first."""
        found = await _answer(self._redis.xrevrange(stream, count=count))
        return [_entry(*each) for each in reversed(found)]

    async def info(self, stream: str) -> StreamInfo | None:
        """The position of a stream's end; None if there is no stream."""
        if not await _answer(self._redis.exists(stream)):
            return None
        try:
            info = await _answer(self._redis.xinfo_stream(stream))
        except Unavailable as error:
            if "no such key" in str(error):  # it was deleted between the two calls
                return None
            raise
        return StreamInfo(_text(info["last-generated-id"]), int(info.get("entries-added", -1)))

    async def clusters(self) -> dict[str, bytes]:
        """The serialised descriptions of all clusters by name."""
        found = await _answer(self._redis.hgetall(CLUSTERS))
        return {_text(name): body for name, body in found.items()}

    async def current_cluster(self) -> str:
        """The name of the most recently described cluster; empty if there is none."""
        return _text(await _answer(self._redis.get(CURRENT_CLUSTER)) or b"")

    async def latest_blocks(self, cluster: str) -> list[bytes]:
        """The latest block of each source of a cluster's telemetry, serialised."""
        return list(await _answer(self._redis.hvals(telemetry_latest_key(cluster))))


def decode_cluster(body: bytes) -> Cluster:
    """A cluster's description.

    Raises:
        BadEntry: it can't be read.
    """
    return cluster_from_proto(_parse(cluster_pb2.Cluster, body))


def decode_outcome(body: bytes) -> FinishedJob | None:
    """A finished job from an entry of the outcomes; None for one with an error, whose runtime says little.

    Raises:
        BadEntry: it can't be read, or is not a job's.
    """
    entry = _parse(stream_pb2.OutcomeStreamEntry, body)
    if not entry.succeeded:
        return None
    if not entry.job_id:
        raise BadEntry("job_id is empty")
    if int(entry.spec.job_type) not in _JOB_TYPES:
        raise BadEntry(f"spec.job_type is {entry.spec.job_type}")
    # Its application says what it ran; arguments and environment are nobody else's, and the memory is shown to others.
    entry.spec.ClearField("payload")
    try:
        placement = placement_from_proto(entry)
    except ValueError as error:
        raise BadEntry(f"placement: {error}") from error
    return FinishedJob(
        job_id=entry.job_id,
        spec=spec_from_proto(entry.spec),
        gpu_model=entry.gpu_model,
        runtime_s=entry.runtime_s,
        end_s=entry.end_s,
        gpu_id=entry.gpu_id,
        cluster=entry.cluster or DEFAULT_CLUSTER,
        gpu_ids=placement.gpu_ids if len(placement.gpus) > 1 else (),
        spread=entry.spread and entry.spec.gpu_count > 1,
        stopped_runs=tuple(map(stopped_run_from_proto, entry.stopped_runs)),
        neighbours=tuple(map(neighbour_time_from_proto, entry.neighbours)),
    )


def decode_telemetry_entry(body: bytes) -> TelemetryBlock:
    """The block of an entry of a telemetry stream.

    Raises:
        BadEntry: it can't be read, or its columns don't have a value for each time and GPU.
    """
    return _block(_parse(stream_pb2.TelemetryStreamEntry, body).block)


def decode_block(body: bytes) -> TelemetryBlock:
    """A normalised block.

    Raises:
        BadEntry: as for `decode_telemetry_entry`.
    """
    return _block(_parse(telemetry_pb2.NormalizedBlock, body))


def _block(message: telemetry_pb2.NormalizedBlock) -> TelemetryBlock:
    if not message.sample_times_unix_s or not all(map(math.isfinite, message.sample_times_unix_s)):
        raise BadEntry("sample_times_unix_s are missing or not finite")
    try:
        return block_from_proto(message)
    except ValueError as error:
        raise BadEntry(str(error)) from error


def _parse(message_type: type[M], body: bytes) -> M:
    try:
        message = message_type.FromString(body)
        check_format(message)
    except (DecodeError, ValueError) as error:
        raise BadEntry(f"not a {message_type.DESCRIPTOR.full_name}: {error}") from error
    return message


async def _answer(call: Awaitable[T], timeout_s: float = CALL_TIMEOUT_S) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await call
    except (RedisError, TimeoutError) as error:
        problem = store_problem(error)
        text = problem.text if problem else f"gives an unexpected answer ({str(error) or type(error).__name__})"
        raise Unavailable(f"Redis {text}", reason="REDIS_UNAVAILABLE", retry_after_s=1.0) from error


def _entry(entry_id: bytes, fields: dict[bytes, bytes] | Sequence[bytes] | None) -> StreamEntry:
    value = fields.get(b"m", b"") if isinstance(fields, dict) else b""
    return StreamEntry(entry_id.decode(), value)


def _text(value: bytes | str) -> str:
    # An invalid name must not end the service.
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
