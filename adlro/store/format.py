"""Which format a store has, and whether this release may use it. Knows Redis, no gRPC.

The store says it as a whole (adlro.store.keys.STORE), and each job record, cluster and entry of a stream for itself
(`format` in its message; 0 is 1, from before there were any):

    1   up to 0.1.0: an attempt has a GPU
    2   an attempt has a placement; its first GPU stands beside it, as format 1 had it

A store of an older format is taken over: its records are read as they are, and written in this format when they next
change. One of a newer format is refused, unless what wrote it says that this format's releases may go on using it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import redis.asyncio as aioredis
from redis.exceptions import RedisError

from adlro import __version__
from adlro.errors import DataLoss, Unsupported
from adlro.store.keys import SEQUENCE, STORE
from adlro.wire import FORMAT

OLDEST_USER = FORMAT
"""The oldest format whose releases may use a store that this one writes."""

_AT_START_S = 2.0

# KEYS: the store's mark, the sequence of jobs. ARGV: format, oldest user, release. Returns {format, oldest user,
# release} as they were: nothing where the store is empty, format 1 where it has jobs and no mark. The mark never goes
# down.
_CLAIM = """
local found = redis.call('HMGET', KEYS[1], 'format', 'oldest_user', 'release')
if not found[1] and redis.call('EXISTS', KEYS[2]) == 1 then found = {'1', '1', ''} end
if found[1] and not tonumber(found[1]) then return found end
if not found[1] or tonumber(found[1]) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'oldest_user', ARGV[2], 'release', ARGV[3])
end
return found
"""


async def claim(redis: aioredis.Redis, *, writes: bool = True) -> None:
    """Marks an empty store, or takes an older one over.

    Args:
        redis: a client.
        writes: False: only looks.

    Raises:
        Unsupported: STORE_OF_ANOTHER_FORMAT: the store is of a newer format.
        DataLoss: STORE_MARK_UNREADABLE: what says its format is something else.
        redis.exceptions.RedisError, OSError: the store does not answer.
    """
    client: Any = redis
    if writes:
        found = await client.eval(_CLAIM, 2, STORE, SEQUENCE, FORMAT, OLDEST_USER, __version__)
    else:
        found = await client.hmget(STORE, "format", "oldest_user", "release")
    if not found or found[0] is None:
        return
    try:
        kept, oldest_user = int(found[0]), int(found[1] or found[0])
    except ValueError as error:
        raise DataLoss(
            f"the store's mark in Redis ({STORE}) can't be read ({error}); restore it from a backup, or delete it",
            reason="STORE_MARK_UNREADABLE",
        ) from error
    if kept > FORMAT and oldest_user > FORMAT:
        raise Unsupported(
            f"the store in Redis has format {kept}, written by ADLRO {(found[2] or b'').decode()}; this release "
            f"({__version__}) reads formats 1 to {FORMAT}. Run that release, or a newer one, or give this release "
            "a store of its own (ADLRO_REDIS_URL)",
            reason="STORE_OF_ANOTHER_FORMAT",
            metadata={"format": str(kept), "readable": str(FORMAT)},
        )


def checked(redis: aioredis.Redis, *, writes: bool = True) -> Callable[[], Awaitable[None]]:
    """`claim` for `watch_redis`: a store that comes later, or in the place of another one, is looked at too."""

    async def check() -> None:
        await claim(redis, writes=writes)

    return check


async def claim_at_start(redis: aioredis.Redis, *, writes: bool = True) -> None:
    """The same before a service takes calls, unless the store does not answer then.

    Raises:
        Unsupported: as `claim`.
    """
    with contextlib.suppress(RedisError, OSError, TimeoutError):
        async with asyncio.timeout(_AT_START_S):
            await claim(redis, writes=writes)
