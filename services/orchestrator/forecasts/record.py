"""The record of finished forecasts in Redis, so that it outlives the process. Bounded: the oldest entries go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import redis.asyncio as aioredis

from adlro.decide.forecast.calibration import KEPT, KINDS, Calibration, Finished
from adlro.store.keys import FORECASTS

MOST_ENTRIES = 4000


class Record:
    """The stream of finished forecasts.

    Args:
        redis: a client.
    """

    def __init__(self, redis: aioredis.Redis) -> None:
        self._redis: Any = redis

    async def load(self, calibration: Calibration) -> int:
        """Reads the newest finished forecasts of each kind into a calibration that has none; returns their number."""
        newest: dict[str, list[Finished]] = {kind: [] for kind in KINDS}
        for _, entry in await self._redis.xrevrange(FORECASTS, count=MOST_ENTRIES):
            read = _read(entry)
            if read is not None and len(newest[read[0]]) < KEPT:
                newest[read[0]].append(read[1])
        for kind, finished in newest.items():
            calibration.finished[kind].clear()
            calibration.finished[kind].extend(reversed(finished))
        return sum(map(len, newest.values()))

    async def add(self, finished: Sequence[tuple[str, Finished]]) -> None:
        """Adds finished forecasts, each with its kind."""
        pipeline = self._redis.pipeline(transaction=False)
        for kind, each in finished:
            fields = {"kind": kind, "error": repr(each.error), "in": int(each.came_in)}
            pipeline.xadd(FORECASTS, fields, maxlen=MOST_ENTRIES, approximate=True)
        await pipeline.execute()


def _read(entry: dict[bytes, bytes]) -> tuple[str, Finished] | None:
    """One entry; None: another release wrote it."""
    try:
        kind, error = entry[b"kind"].decode(), float(entry[b"error"])
        came_in = entry[b"in"] == b"1"
    except (KeyError, ValueError, UnicodeDecodeError):
        return None
    return (kind, Finished(error, came_in)) if kind in KINDS and math.isfinite(error) else None
