"""Who acts: a lease in Redis with a fencing token that grows each time the lease is taken. Knows Redis, no gRPC.

A lease is kept by a thread with a connection of its own: an event loop that is busy, as while it loads a long queue on
a machine that others use, would be late for it. The thread keeps it for a loop that is alive only: one that has not
come round for `HANGS_LEASES` times the lease's length hangs, and its lease runs out.
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
"""So many times a lease's length without a sign of life, and the event loop hangs."""
RENEWALS = 3
"""Renewals in a lease's length, and tries of each that fails."""
_FOR_EVER = -1  # what Redis says of a key that does not expire

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
        client: whose writes are not retried.
        of_thread: for the thread; times out in a fraction of the lease (`adlro.kit.redis.connect_in_thread`).
        instance_id: unique to this process.
        duration_s: how long the lease lasts without renewal.
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
        """A new token, larger than any before; None while another instance holds the lease."""
        return int(await self._take(args=[self.instance_id, int(self.duration_s * 1000)])) or None

    async def keep(self, token: int) -> None:
        """Keeps the lease for as long as this is awaited, and the event loop is alive.

        Raises:
            Stale: another instance has taken it, or could: it ran out.
            redis.exceptions.ConnectionError: Redis has not answered for so long that it runs out.
        """
        keeper = _Keeper(self._renewed, self.duration_s, token)
        try:
            await keeper.run()
        finally:
            keeper.stop()

    async def give_up(self) -> None:
        """Lets another instance act at once; nothing happens where this one does not hold it."""
        await self._give_up(args=[self.instance_id])

    async def holder(self) -> str:
        """The instance that holds the lease; empty where none does."""
        found = await self._redis.get(LEASE)
        return found.decode() if found else ""

    async def runs_out_in_s(self) -> float:
        """How long it lasts if nobody renews it; 0: nobody holds it."""
        left_ms = int(await self._redis.pttl(LEASE))
        return self.duration_s if left_ms == _FOR_EVER else max(left_ms, 0) / 1000.0

    def _renewed(self, token: int) -> None:
        """Prolongs the lease; for the thread.

        Raises:
            Stale: it ran out, or another instance took it.
        """
        if not self._renew(args=[self.instance_id, int(self.duration_s * 1000), token]):
            raise Stale(f"{self.instance_id} no longer holds the lease with token {token}")


class _Keeper:
    """The thread that keeps a lease, and the event loop's signs of life.

    A renewal that is on its way when `stop` is called does no harm: it prolongs nothing that was given up since, nor
    what was taken anew, under another token.

    Args:
        renew: prolongs the lease under a token; raises Stale where it is lost.
        duration_s: of the lease.
        token: under which it was taken.
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
            self._ended.exception()  # heard, also where nobody waits for it any more

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
