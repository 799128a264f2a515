"""The lease of the acting instance in Redis; its fencing token grows with each lease. Knows Redis, no gRPC.

A thread with its own connection renews the lease: a busy event loop, as while a long queue loads on a shared machine,
would renew it too late. The thread renews only while the event loop is alive: a loop without a sign of life for
`HANGS_LEASES` lease lengths hangs, and its lease expires.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio as aioredis

from adlro.errors import Stale
from adlro.store.keys import LEASE, TOKEN

HANGS_LEASES = 4.0
"""Lease lengths without a sign of life after which the event loop counts as hanging."""
RENEWALS = 3
"""Renewals per lease length, and tries of each failing renewal."""
_FOR_EVER = -1  # Redis's answer for a key that does not expire

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
        client: a Redis client that does not retry writes.
        of_thread: the thread's client; times out in a fraction of the lease (`adlro.kit.redis.connect_in_thread`).
        instance_id: unique to this process.
        duration_s: length of the lease without a renewal.
    """

    def __init__(self, client: aioredis.Redis, of_thread: redis.Redis, instance_id: str, duration_s: float) -> None:
        of_loop: Any = client
        self.instance_id = instance_id
        self.duration_s = duration_s
        self._redis = of_loop
        self._take = of_loop.register_script(_TAKE)
        self._give_up = of_loop.register_script(_GIVE_UP)
        self._renew: Any = of_thread.register_script(_RENEW)

    async def take(self) -> int | None:
        """Takes the lease; returns a new token, larger than all before, or None while another instance holds it."""
        return int(await self._take(args=[self.instance_id, int(self.duration_s * 1000)])) or None

    async def keep(self, token: int) -> None:
        """Renews the lease until cancelled, while the event loop is alive.

        Raises:
            Stale: the lease has expired, or another instance has taken it.
            redis.exceptions.ConnectionError: Redis has not answered for so long that the lease expires.
        """
        keeper = _Keeper(self._renewed, self.duration_s, token)
        try:
            await keeper.run()
        finally:
            keeper.stop()

    async def give_up(self) -> None:
        """Releases the lease, so that another instance can act at once; no effect if this instance does not hold it."""
        await self._give_up(args=[self.instance_id])

    async def holder(self) -> str:
        """The instance that holds the lease; empty if none does."""
        found = await self._redis.get(LEASE)
        return found.decode() if found else ""

    async def runs_out_in_s(self) -> float:
        """Seconds until the lease expires without a renewal; 0: no instance holds it."""
        left_ms = int(await self._redis.pttl(LEASE))
        return self.duration_s if left_ms == _FOR_EVER else max(left_ms, 0) / 1000.0

    def _renewed(self, token: int) -> None:
        """Renews the lease; for the thread.

        Raises:
            Stale: the lease has expired, or another instance has taken it.
        """
        if not self._renew(args=[self.instance_id, int(self.duration_s * 1000), token]):
            raise Stale(f"{self.instance_id} no longer holds the lease with token {token}")


class _Keeper:
    """The thread that renews a lease, and the event loop's signs of life.

    A renewal under way when `stop` is called does no harm: it prolongs neither a released lease nor a new one with
    another token.

    Args:
        renew: renews the lease with a token; raises Stale if it is lost.
        duration_s: length of the lease.
        token: the lease's token.
    """

    def __init__(self, renew: Callable[[int], None], duration_s: float, token: int) -> None:
        self._renew = renew
        self._duration_s = duration_s
        self._token = token
        self._alive_at = time.monotonic()  # written by the loop, read by the thread
        self._stopped = threading.Event()
        self._ended: asyncio.Future[None]
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        threading.Thread(target=self._keep, name="keep lease", daemon=True).start()
        while not self._ended.done():
            self._alive_at = time.monotonic()
            await asyncio.wait([self._ended], timeout=self._duration_s / RENEWALS)
        self._ended.result()

    def stop(self) -> None:
        self._stopped.set()
        if self._ended.done():
            self._ended.exception()  # retrieved, also if nothing awaits the future any more

    def _keep(self) -> None:
        pause_s = self._duration_s / RENEWALS
        renewed_at = time.monotonic()
        failure: Exception | None = None
        while not self._stopped.wait(pause_s if failure is None else pause_s / RENEWALS):
            now = time.monotonic()
            if now - self._alive_at > HANGS_LEASES * self._duration_s:
                self._end(Stale(f"the event loop stood still for {now - self._alive_at:.3g} s, and gave up the lease"))
                return
            if failure is not None and now - renewed_at > self._duration_s:
                text = f"Redis has not answered for {now - renewed_at:.3g} s, longer than the lease lasts: {failure}"
                self._end(redis.ConnectionError(text))
                return
            try:
                self._renew(self._token)
            except (redis.RedisError, OSError) as error:
                failure = error
            except Exception as error:
                self._end(error)
                return
            else:
                renewed_at, failure = now, None

    def _end(self, error: Exception) -> None:
        def end() -> None:
            if not self._stopped.is_set() and not self._ended.done():
                self._ended.set_exception(error)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(end)
