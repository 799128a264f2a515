"""Telemetry in Redis: a stream of blocks and, beside it, the newest sample of every source.

    adlro:telemetry:<cluster>          stream; field m = TelemetryStreamEntry; the oldest entries go
    adlro:telemetry:latest:<cluster>   hash; source -> NormalizedBlock of one sample time

A source is a set of GPUs with a set of metrics. Bytes go in and out; server.py makes and reads them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import RedisError

from services.ingest.normalize import Block, GpuSelection, superseded

STREAM = "adlro:telemetry:"
LATEST = "adlro:telemetry:latest:"

# A source that never comes back leaves its sample behind. From so many on, those that newer ones cover are dropped.
_SOURCES_KEPT = 256
_PAGE = 100


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block as Redis keeps it."""

    cluster: str
    source: bytes
    entry: bytes
    newest: bytes


class TelemetryStore:
    """Appends and reads blocks.

    Args:
        redis: a client with `decode_responses=False` whose writes are not retried.
        entries_kept: of each cluster's stream, roughly.
        decode: reads the bytes of `StoredBlock.newest`.
    """

    def __init__(self, redis: aioredis.Redis, entries_kept: int, decode: Callable[[bytes], Block]) -> None:
        self._redis: Any = redis  # redis-py's stubs mix sync and async results
        self._entries_kept = entries_kept
        self._decode = decode

    async def append(self, blocks: Sequence[StoredBlock]) -> list[Exception | None]:
        """Stores blocks in one transaction: each with its entry and its newest sample, or nothing of any."""
        pipeline = self._redis.pipeline(transaction=True)
        for block in blocks:
            pipeline.xadd(STREAM + block.cluster, {"m": block.entry}, maxlen=self._entries_kept, approximate=True)
            pipeline.hset(LATEST + block.cluster, block.source, block.newest)
        answers = await pipeline.execute()
        for cluster in {block.cluster for block, new in zip(blocks, answers[1::2], strict=True) if new}:
            await self._drop_superseded(LATEST + cluster)
        return [None] * len(blocks)

    async def newest_samples(self, cluster: str) -> list[Block]:
        """The newest sample of every source."""
        return [self._decode(body) for body in await self._redis.hvals(LATEST + cluster)]

    async def entries(self, cluster: str, arrived_after_unix_s: float) -> AsyncIterator[bytes]:
        """The entries of the stream that arrived after a moment (Redis's wall clock), the newest first."""
        oldest = f"{max(0, int(arrived_after_unix_s * 1000))}-0"
        newest = "+"
        while True:
            page = await self._redis.xrevrange(STREAM + cluster, max=newest, min=oldest, count=_PAGE)
            for _, fields in page:
                yield fields[b"m"]
            if len(page) < _PAGE:
                return
            newest = f"({page[-1][0].decode()}"

    async def _drop_superseded(self, key: str) -> None:
        try:
            if await self._redis.hlen(key) <= _SOURCES_KEPT:
                return
            async with self._redis.pipeline(transaction=True) as pipeline:
                await pipeline.watch(key)
                found: dict[bytes, bytes] = await pipeline.hgetall(key)
                sources = list(found)
                drop = superseded([self._decode(body) for body in found.values()])
                if drop:
                    pipeline.multi()
                    pipeline.hdel(key, *(sources[index] for index in drop))
                    await pipeline.execute()
        except RedisError:
            # A sample came in between, or Redis went away. The blocks are stored: the next new source tries again.
            return


def source_of(gpus: GpuSelection, block: Block) -> bytes:
    """Names the source of a block: its GPUs and metrics, in any order."""
    return gpus.digest + bytes(sorted(column.metric for column in block.columns))
