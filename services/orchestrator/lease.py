"""Who acts: a lease in Redis with a fencing token that grows each time the lease is taken. Knows Redis, no gRPC.

adlro:orchestrator:lease    the holder's instance id, expiring
adlro:orchestrator:token    the newest token; `adlro.jobstore` refuses moves with another one, clusters an older one
"""

from __future__ import annotations

from typing import Any

import redis.asyncio as aioredis

from adlro.errors import Stale
from adlro.jobstore import PREFIX, TOKEN

LEASE = PREFIX + "orchestrator:lease"

_TAKE = f"""
local holder = redis.call('GET', '{LEASE}')
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', '{LEASE}', ARGV[1], 'PX', ARGV[2])
return redis.call('INCR', '{TOKEN}')
"""

_RENEW = f"""
if redis.call('GET', '{LEASE}') ~= ARGV[1] or redis.call('GET', '{TOKEN}') ~= ARGV[3] then return 0 end
redis.call('PEXPIRE', '{LEASE}', ARGV[2])
return 1
"""

_GIVE_UP = f"""
if redis.call('GET', '{LEASE}') == ARGV[1] then redis.call('DEL', '{LEASE}') end
return 1
"""


class Lease:
    """The right to act, for one instance.

    Args:
        redis: a client whose writes are not retried.
        instance_id: unique to this process.
        duration_s: how long the lease lasts without renewal.
    """

    def __init__(self, redis: aioredis.Redis, instance_id: str, duration_s: float) -> None:
        client: Any = redis
        self.instance_id = instance_id
        self.duration_s = duration_s
        self._redis = client
        self._take = client.register_script(_TAKE)
        self._renew = client.register_script(_RENEW)
        self._give_up = client.register_script(_GIVE_UP)

    async def take(self) -> int | None:
        """A new token, larger than any before; None while another instance holds the lease."""
        return int(await self._take(args=[self.instance_id, int(self.duration_s * 1000)])) or None

    async def renew(self, token: int) -> None:
        """Prolongs the lease.

        Raises:
            Stale: it ran out and another instance took it.
        """
        if not await self._renew(args=[self.instance_id, int(self.duration_s * 1000), token]):
            raise Stale(f"{self.instance_id} no longer holds the lease with token {token}")

    async def give_up(self) -> None:
        """Lets another instance act at once; nothing happens where this one does not hold it."""
        await self._give_up(args=[self.instance_id])

    async def holder(self) -> str:
        """The instance that holds the lease; empty where none does."""
        found = await self._redis.get(LEASE)
        return found.decode() if found else ""
