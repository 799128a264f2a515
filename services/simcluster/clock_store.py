"""The record of the cluster's clock in Redis, which survives restarts. Uses Redis, no gRPC.

Only the process that acquired the record last writes it: `take` gives it a larger term than before, and a write of an
older term is refused. Of one process an older write never replaces a newer one, however late it comes.
"""

from __future__ import annotations

import math
from typing import Any

import redis.asyncio as aioredis

from adlro.errors import DataLoss, InvalidInput, Stale
from adlro.records.events import Clock, ClockMode
from adlro.services.simcluster.clock import clock_scale
from adlro.store.keys import clock_key

_TAKE = """
local found = redis.call('HMGET', KEYS[1], 'mode', 'scale', 'paused', 'time_s', 'settings')
redis.call('HSET', KEYS[1], 'write', 0)
return {redis.call('HINCRBY', KEYS[1], 'term', 1), unpack(found, 1, 5)}
"""

# ARGV: term, write, mode, scale, paused, time_s, settings.
_WRITE = """
local term, write = unpack(redis.call('HMGET', KEYS[1], 'term', 'write'))
term, write = tonumber(term or 0), tonumber(write or 0)
if term > tonumber(ARGV[1]) then return 0 end
if term == tonumber(ARGV[1]) and write > tonumber(ARGV[2]) then return 1 end
redis.call('HSET', KEYS[1], 'term', ARGV[1], 'write', ARGV[2], 'mode', ARGV[3], 'scale', ARGV[4], 'paused', ARGV[5],
  'time_s', ARGV[6], 'settings', ARGV[7])
return 1
"""


class ClockStore:
    """One process's hold on the record of its cluster's clock.

    Args:
        redis: a client whose writes are not retried.
        cluster: the cluster's name.
        settings: the clock of this process's settings.
    """

    def __init__(self, redis: aioredis.Redis, cluster: str, settings: Clock) -> None:
        client: Any = redis
        self._key = clock_key(cluster)
        self._settings = settings
        self._take = client.register_script(_TAKE)
        self._write = client.register_script(_WRITE)
        self._term = 0
        self._writes = 0

    async def take(self) -> Clock:
        """Makes this process the writer of the record.

        Returns:
            The initial clock: at the newest time that may have been reported, with the last settings, from
            SetClock or from service settings that have changed since.

        Raises:
            DataLoss: the record can't be read.
        """
        term, mode, scale, paused, time_s, settings = await self._take(keys=[self._key])
        self._term, self._writes = int(term), 0
        wanted = self._settings
        if mode is None:
            return wanted
        try:
            kept = ClockMode(int(mode))
            known = Clock(kept, clock_scale(kept, float(scale)), paused == b"1", float(time_s))
            if not 0.0 <= known.time_s < math.inf:
                raise ValueError(f"its time is {known.time_s}")
            unchanged = settings.decode() == _text(wanted)
        except (ValueError, TypeError, AttributeError, InvalidInput) as error:
            raise DataLoss(
                f"the clock in Redis ({self._key}) can't be read ({error}); restore it from a backup, or delete it: "
                "then cluster time begins at 0",
                reason="CLOCK_UNREADABLE",
            ) from error
        return known if unchanged else Clock(wanted.mode, wanted.scale, wanted.paused, known.time_s)

    async def write(self, clock: Clock) -> None:
        """Writes the record; no time beyond `time_s` is reported before the next write.

        Raises:
            Stale: another process has taken the record over.
        """
        self._writes += 1
        fields = [int(clock.mode), repr(clock.scale), int(clock.paused), repr(clock.time_s), _text(self._settings)]
        if not await self._write(keys=[self._key], args=[self._term, self._writes, *fields]):
            raise Stale("another process has taken over this cluster's clock; only one process of a cluster may run")


def _text(settings: Clock) -> str:
    return f"{settings.mode.name} {settings.scale!r} {settings.paused}"
