"""The format of a store, and whether this release may use it. Uses Redis, no gRPC.

The store as a whole has a format (adlro.store.keys.STORE), and so has each job record, cluster and stream entry
(`format` in its message; 0 means 1, of releases without formats):

    1   up to 0.1.0: an attempt has a GPU
    2   an attempt has a placement; beside it its first GPU, as in format 1

A release reads the records of an older format, and writes a record in the present format at its next
change. It refuses a newer format, unless the store's mark allows releases of this format.
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
    """Marks an empty store, or an older one, with this format.

    Args:
        redis: a client.
        writes: False: only checks the format.

    Raises:
        Unsupported: STORE_OF_ANOTHER_FORMAT: the store is of a newer format.
        DataLoss: STORE_MARK_UNREADABLE: the mark can't be read.
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
    """`claim` for `watch_redis`: also checks a store that appears later, or replaces another one."""

    async def check() -> None:
        await claim(redis, writes=writes)

    return check


async def claim_at_start(redis: aioredis.Redis, *, writes: bool = True) -> None:
    """`claim` before a service accepts calls, unless the store does not answer then.

    Raises:
        Unsupported: as `claim`.
    """
    with contextlib.suppress(RedisError, OSError, TimeoutError):
        async with asyncio.timeout(_AT_START_S):
            await claim(redis, writes=writes)
