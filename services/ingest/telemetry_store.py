"""Telemetry in Redis: a stream of blocks and, beside it, the newest sample of every source.

A source is a set of GPUs with a set of metrics. Arguments and results are bytes; server.py makes and reads them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import RedisError

from adlro.errors import DataLoss
from adlro.records.matrices import TelemetryBlock
from adlro.services.ingest.normalize import GpuSelection, superseded
from adlro.store import Unreadable
from adlro.store.keys import telemetry_key, telemetry_latest_key, telemetry_latest_time_key

# Redis trims a stream by whole nodes of a hundred entries where it may; a few large ones are trimmed exactly.
_EXACT_BELOW = 200
# KEYS: newest samples, their times. ARGV: source, sample, time. Returns 1 for a new source. An older sample that is
# pushed late does not replace a newer one.
_NOTE_NEWEST = """
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known and tonumber(known) > tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
"""

# A source that never comes back leaves its sample behind. From so many on, those that newer ones cover are dropped.
_SOURCES_KEPT = 256
_DIGEST_BYTES = 16
"""Of a source's name: which GPUs; the numbers of its metrics follow."""
# Entries read at a time: few first, more where they are small.
_FIRST_PAGE, _LAST_PAGE = 4, 128
_PAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A stored block."""

    cluster: str
    source: bytes
    entry: bytes
    newest: bytes
    newest_unix_s: float


class TelemetryStore:
    """Appends and reads blocks.

    Args:
        redis: a client with `decode_responses=False` whose writes are not retried.
        entries_kept: of each cluster's stream, roughly.
        bytes_kept: of each cluster's stream, roughly.
        decode: reads the bytes of `StoredBlock.newest`; raises DataLoss if it can't.
        unreadable: records unreadable samples.
    """

    def __init__(
        self,
        redis: aioredis.Redis,
        entries_kept: int,
        bytes_kept: int,
        decode: Callable[[bytes], TelemetryBlock],
        unreadable: Unreadable,
    ) -> None:
        self._redis: Any = redis  # redis-py's stubs mix sync and async results
        self._entries_kept = entries_kept
        self._bytes_kept = bytes_kept
        self._decode = decode
        self.unreadable = unreadable

    async def append(self, blocks: Sequence[StoredBlock]) -> list[Exception | None]:
        """Stores blocks in one transaction, each with its entry and its newest sample: all or none."""
        pipeline = self._redis.pipeline(transaction=True)
        for block in blocks:
            # Large blocks are kept in smaller number: telemetry must never fill the store that holds the jobs.
            kept = max(1, min(self._entries_kept, self._bytes_kept // len(block.entry)))
            stream = telemetry_key(block.cluster)
            pipeline.xadd(stream, {"m": block.entry}, maxlen=kept, approximate=kept > _EXACT_BELOW)
            latest, times = telemetry_latest_key(block.cluster), telemetry_latest_time_key(block.cluster)
            pipeline.eval(_NOTE_NEWEST, 2, latest, times, block.source, block.newest, repr(block.newest_unix_s))
        answers = await pipeline.execute()
        for cluster in {block.cluster for block, new in zip(blocks, answers[1::2], strict=True) if new}:
            await self._drop_superseded(cluster)
        return [None] * len(blocks)

    async def newest_samples(self, cluster: str) -> list[TelemetryBlock]:
        """The newest sample of every source."""
        key = telemetry_latest_key(cluster)
        return list(self._decoded(key, await self._redis.hgetall(key)).values())

    async def entries(self, cluster: str, arrived_after_unix_s: float) -> AsyncIterator[bytes]:
        """The entries of the stream after a time (Redis's wall clock), the newest first."""
        oldest = f"{max(0, int(arrived_after_unix_s * 1000))}-0"
        newest, count = "+", _FIRST_PAGE
        while True:
            page = await self._redis.xrevrange(telemetry_key(cluster), max=newest, min=oldest, count=count)
            for _, fields in page:
                yield fields.get(b"m", b"")
            if len(page) < count:
                return
            if sum(len(fields.get(b"m", b"")) for _, fields in page) < _PAGE_BYTES // 2:
                count = min(2 * count, _LAST_PAGE)
            newest = f"({page[-1][0].decode()}"

    def _decoded(self, key: str, found: Mapping[bytes, bytes]) -> dict[bytes, TelemetryBlock]:
        """The readable samples by source."""
        blocks = {}
        for source, body in found.items():
            try:
                blocks[source] = self._decode(body)
            except DataLoss as error:
                self.unreadable.add(f"{key} {source.hex()}", error)
        return blocks

    async def _drop_superseded(self, cluster: str) -> None:
        key = telemetry_latest_key(cluster)
        try:
            if await self._redis.hlen(key) <= _SOURCES_KEPT:
                return
            async with self._redis.pipeline(transaction=True) as pipeline:
                await pipeline.watch(key)
                found = self._decoded(key, await pipeline.hgetall(key))
                gone = superseded_sources(found)
                if gone:
                    pipeline.multi()
                    pipeline.hdel(key, *gone)
                    pipeline.hdel(telemetry_latest_time_key(cluster), *gone)
                    await pipeline.execute()
        except RedisError:
            # A sample came in between, or Redis went away. The blocks are stored: the next new source tries again.
            return


def superseded_sources(samples: Mapping[bytes, TelemetryBlock]) -> list[bytes]:
    """The sources of which the sample is superseded.

    Not those of which something was left out, because a newer ingest wrote it: a source's name says what it has.
    """
    sources = list(samples)
    found = [sources[index] for index in superseded(list(samples.values()))]
    return [source for source in found if source[_DIGEST_BYTES:] == bytes(sorted(samples[source].columns))]


def source_of(gpus: GpuSelection, block: TelemetryBlock) -> bytes:
    """Names the source of a block: its GPUs and metrics, in any order."""
    return gpus.digest + bytes(sorted(block.columns))
