"""Connections to Redis: clients that never repeat a write by themselves, and the loop that tells health about Redis.

redis-py repeats a command after a lost reply by default; one XADD then makes two entries while the caller sees success.
Here a lost reply is an error, which travels to the client as UNAVAILABLE, and request ids make the repeat safe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis.asyncio as aioredis
from prometheus_client import Counter, Gauge, Histogram
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError
from redis.maint_notifications import MaintNotificationsConfig

from adlro.errors import Unavailable

if TYPE_CHECKING:
    from adlro.kit.service import ServiceContext

CONNECT_TIMEOUT_S = 2.0
SOCKET_TIMEOUT_S = 5.0
# The longest block of a blocking read; must stay well below SOCKET_TIMEOUT_S, which counts while it blocks.
MAX_BLOCK_S = 1.0
CONNECTIONS = 64
BLOCKING_CONNECTIONS = 1024

PING_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0, 2.0)

_PING_TIMEOUT_S = 2.0
_CHECK_EVERY_S = 1.0
_RETRY_EVERY_S = 0.25


def connect(url: str) -> aioredis.Redis:
    """A client for everything but blocking reads; connects at the first command. Replies are bytes; nothing is retried.

    Raises:
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError: from its commands.
    """
    # Commands beyond the limit wait for a connection; a plain pool would fail them.
    pool = aioredis.BlockingConnectionPool.from_url(
        url, max_connections=CONNECTIONS, timeout=SOCKET_TIMEOUT_S, **_options(SOCKET_TIMEOUT_S)
    )
    pool.connection_class = _cancellable(pool.connection_class)
    return aioredis.Redis.from_pool(pool)


def connect_blocking(url: str) -> aioredis.Redis:
    """A client of its own for XREAD with a block time of at most `MAX_BLOCK_S`: no other command waits behind it."""
    # Each blocked read keeps a connection; waiting for one would be waiting for another stream's entry.
    options = _options(SOCKET_TIMEOUT_S + MAX_BLOCK_S)
    pool = aioredis.ConnectionPool.from_url(url, max_connections=BLOCKING_CONNECTIONS, **options)
    pool.connection_class = _cancellable(pool.connection_class)
    return aioredis.Redis.from_pool(pool)


def _cancellable(base: type[Any]) -> type[Any]:
    """The connection class with a `send_packed_command` that doesn't swallow cancellations.

    redis-py writes under `asyncio.wait_for`, which before Python 3.12 loses a cancellation that arrives when the write
    is done: most cancellations of a task that is busy with Redis, which then goes on for ever.
    """

    class Cancellable(base):  # type: ignore[misc]  # the base is plain, TLS or Unix socket, as the URL says
        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            task = asyncio.current_task()
            before = task.cancelling() if task else 0
            await super().send_packed_command(command, check_health)
            if task and task.cancelling() > before:
                await self.disconnect(nowait=True)  # the reply that comes would be taken for the next command's
                raise asyncio.CancelledError

    return Cancellable


def _options(socket_timeout_s: float) -> dict[str, Any]:
    return {
        "decode_responses": False,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "socket_timeout": socket_timeout_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        # redis-py 8.1 looks whether a pooled connection has died only with this off (its default is "auto"): after a
        # restart of Redis, every pooled connection would fail one command.
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def redacted(url: str) -> str:
    """The URL without its password and query, for logs and messages."""
    parts = urlsplit(url)
    at = parts.netloc.rpartition("@")
    user = at[0].partition(":")[0]
    secret = ":***" if ":" in at[0] else ""
    login = f"{user}{secret}@" if at[1] else ""
    return f"{parts.scheme}://{login}{at[2]}{parts.path}"


async def wait_until_up(client: aioredis.Redis, timeout_s: float) -> None:
    """Returns when Redis answers and has loaded its data.

    Raises:
        Unavailable: it did not within `timeout_s`.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        problem = await _ping(client, min(_PING_TIMEOUT_S, max(end_s - time.monotonic(), 0.05)))
        if not problem:
            return
        if time.monotonic() >= end_s:
            raise Unavailable(f"Redis does not answer ({problem})", retry_after_s=1.0)
        await asyncio.sleep(_RETRY_EVERY_S)


def watch_redis(context: ServiceContext, client: aioredis.Redis) -> Coroutine[Any, Any, None]:
    """A loop for `context.spawn`: the service is SERVING only while Redis answers, and the log says why not.

    Calling it already marks the service as not serving, so that nobody is told otherwise before the first answer.
    """
    url = redacted(context.settings.redis_url)
    context.health.set_serving(False, "", source="redis")
    registry = context.registry
    answers = Gauge("adlro_redis_up", "1 while Redis answers", registry=registry)
    failed = Counter("adlro_redis_failed_pings", "pings that Redis did not answer", registry=registry)
    took_s = Histogram(
        "adlro_redis_ping_seconds", "time to an answered ping", buckets=PING_BUCKETS_S, registry=registry
    )

    async def watch() -> None:
        was_up: bool | None = None
        while not context.draining.is_set():
            began_s = time.perf_counter()
            problem = await _ping(client, _PING_TIMEOUT_S)
            if context.draining.is_set():
                return
            up = not problem
            answers.set(up)
            if up:
                took_s.observe(time.perf_counter() - began_s)
            else:
                failed.inc()
            if up and was_up is not True:
                context.log.info("redis answers", redis_url=url)
            elif not up and was_up is not False:
                context.log.error(
                    "redis does not answer",
                    redis_url=url,
                    problem=problem,
                    way_out="start it, set ADLRO_REDIS_URL, or let `adlro up` bring its own; this waits for it",
                )
            reason = f"Redis at {url} does not answer ({problem})" if problem else ""
            context.health.set_serving(up, reason, source="redis")
            was_up = up
            try:
                await asyncio.wait_for(context.draining.wait(), _CHECK_EVERY_S if up else _RETRY_EVERY_S)
            except TimeoutError:
                continue

    return watch()


async def _ping(client: aioredis.Redis, timeout_s: float) -> str:
    """Empty where Redis answers, else what is wrong."""
    try:
        async with asyncio.timeout(timeout_s):
            await client.execute_command("PING")  # type: ignore[no-untyped-call]
    except BusyLoadingError:
        return "it is loading its data"
    except TimeoutError:
        return f"no answer within {timeout_s:.1f} s"
    except (RedisError, OSError) as error:
        return str(error).rstrip(".") or type(error).__name__
    return ""
