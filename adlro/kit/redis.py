"""Connections to Redis: clients that never repeat a write by themselves, and the loop that sets the health by Redis.

redis-py repeats a command after a lost reply by default; one XADD may then make two entries while the caller sees
success. With these clients a lost reply is an error, which reaches the caller as UNAVAILABLE, and request ids make a
repeated call safe.

Whatever ends a connection, its command raises a RedisError: a loop that handles these handles every failure of a
network.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
import redis.asyncio as aioredis
from prometheus_client import Counter, Gauge, Histogram
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry as BlockingRetry

from adlro.errors import Unavailable
from adlro.kit.redis_errors import StoreParser, StoreProblem, store_problem

if TYPE_CHECKING:
    from adlro.kit.service import ServiceContext

CONNECT_TIMEOUT_S = 2.0
SOCKET_TIMEOUT_S = 5.0
# The longest block of a blocking read; must stay well below SOCKET_TIMEOUT_S, which counts while it blocks.
MAX_BLOCK_S = 1.0
CONNECTIONS = 64
BLOCKING_CONNECTIONS = 1024

PING_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0, 2.0)

_PROBE_TIMEOUT_S = 2.0
_CHECK_EVERY_S = 1.0
_RETRY_EVERY_S = 0.25
_TELL_EVERY_S = 60.0

# These commands find and store nothing. Redis refuses the first whenever it refuses changes: a full disk, a full
# memory, a replica; it may answer PING in some of these states.
_WRITE = ("SETRANGE", "adlro:probe", "0", "")
_READ = ("EXISTS", "adlro:probe")
_START_IT = "start it, set ADLRO_REDIS_URL, or use `adlro up`, which starts its own; the service waits for it"


def connect(url: str) -> aioredis.Redis:
    """A client for everything but blocking reads; connects at the first command. Replies are bytes; it retries nothing.

    Raises:
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError: from its commands.
    """
    # Commands beyond the limit wait for a connection; a plain pool would raise.
    pool = aioredis.BlockingConnectionPool.from_url(
        url, max_connections=CONNECTIONS, timeout=SOCKET_TIMEOUT_S, **_options(url, SOCKET_TIMEOUT_S)
    )
    pool.connection_class = _sound(pool.connection_class)
    return aioredis.Redis.from_pool(pool)


def connect_blocking(url: str) -> aioredis.Redis:
    """A separate client for XREAD with a block time of at most `MAX_BLOCK_S`: no other command waits behind it."""
    # Each blocked read holds a connection; waiting for one would mean waiting for another stream's entry.
    options = _options(url, SOCKET_TIMEOUT_S + MAX_BLOCK_S)
    pool = aioredis.ConnectionPool.from_url(url, max_connections=BLOCKING_CONNECTIONS, **options)
    pool.connection_class = _sound(pool.connection_class)
    return aioredis.Redis.from_pool(pool)


def connect_in_thread(url: str, timeout_s: float) -> redis.Redis:
    """A client for a thread without an event loop; otherwise as `connect`.

    Args:
        url: URL of Redis.
        timeout_s: for a connection, and for each command.
    """
    return redis.Redis.from_url(
        url,
        retry=BlockingRetry(NoBackoff(), 0),
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),  # as in `_options`
    )


def _sound(base: type[Any]) -> type[Any]:
    """The connection class with two faults corrected.

    redis-py treats an OSError as a lost connection, and passes other errors of a transport on: uvloop's raises
    RuntimeError after a reset, which no caller of Redis expects.

    redis-py writes under `asyncio.wait_for`, which before Python 3.12 loses a cancellation that arrives at the end of
    the write: most cancellations of a task that is busy with Redis, which then never ends.
    """

    class Sound(base):  # type: ignore[misc]  # the base is plain, TLS or Unix socket, as the URL says
        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            task = asyncio.current_task()
            before = task.cancelling() if task else 0
            try:
                await super().send_packed_command(command, check_health)
            except RedisError:
                raise
            except Exception as error:
                raise await self._lost(error) from error
            if task and task.cancelling() > before:
                await self.disconnect(nowait=True)  # a late reply would count as the next command's
                raise asyncio.CancelledError

        async def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return await super().read_response(*args, **options)
            except RedisError:
                raise
            except Exception as error:
                raise await self._lost(error) from error

        async def can_read(self) -> bool:
            """Whether it is unfit for another command; the pool then reconnects."""
            try:
                # The reader does not notice the reset of an unused connection.
                return self._writer.transport.is_closing() or bool(await super().can_read())
            except RedisError:
                raise
            except Exception as error:
                raise await self._lost(error) from error

        async def disconnect(self, *args: Any, **options: Any) -> None:
            # The connection is closed whatever this raises; a dead peer's error has no use.
            with contextlib.suppress(RedisError, OSError, RuntimeError):
                await super().disconnect(*args, **options)

        async def _lost(self, error: Exception) -> RedisConnectionError:
            await self.disconnect(nowait=True)
            return RedisConnectionError(f"Connection lost: {error}")

    return Sound


def _options(url: str, socket_timeout_s: float) -> dict[str, Any]:
    return {
        # redis-py refuses the option for a Unix socket.
        **({} if url.startswith("unix:") else {"socket_keepalive": True}),
        "decode_responses": False,
        "parser_class": StoreParser,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "socket_timeout": socket_timeout_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        # redis-py 8.1 checks whether a pooled connection has died only with this off (its default is "auto"): otherwise
        # every pooled connection would fail one command after a restart of Redis.
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
    """Returns once Redis is usable: it answers, has loaded its data, and accepts changes.

    Raises:
        Unavailable: it was not within `timeout_s`.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        problem = await _probe(client, _WRITE, min(_PROBE_TIMEOUT_S, max(end_s - time.monotonic(), 0.05)))
        if problem is None:
            return
        if time.monotonic() >= end_s:
            way_out = f"; {problem.way_out}" if problem.way_out else ""
            raise Unavailable(f"Redis {problem.text}{way_out}", retry_after_s=1.0)
        await asyncio.sleep(_RETRY_EVERY_S)


def watch_redis(
    context: ServiceContext,
    client: aioredis.Redis,
    *,
    writes: bool = True,
    check: Callable[[], Awaitable[None]] | None = None,
) -> Coroutine[Any, Any, None]:
    """A loop for `context.spawn`: the service is SERVING only while Redis is usable; otherwise it logs the reason.

    The call itself marks the service as not serving, until the first answer.

    Args:
        context: the service's context.
        client: client for the probes.
        writes: whether the service changes data in Redis; otherwise a Redis that refuses changes is usable.
        check: called whenever Redis becomes usable; its errors, except errors of Redis, end the service.
    """
    url = redacted(context.settings.redis_url)
    context.health.set_serving(False, "", source="redis")
    registry = context.registry
    answers = Gauge("adlro_redis_up", "1 while Redis answers, and takes changes where they are made", registry=registry)
    failed = Counter("adlro_redis_failed_pings", "probes that Redis did not answer, or refused", registry=registry)
    took_s = Histogram(
        "adlro_redis_ping_seconds", "time to an answered probe", buckets=PING_BUCKETS_S, registry=registry
    )

    async def watch() -> None:
        told = _Told(context.log, url)
        while not context.draining.is_set():
            began_s = time.perf_counter()
            problem = await _probe(client, _WRITE if writes else _READ, _PROBE_TIMEOUT_S)
            if problem is None and check is not None:
                with contextlib.suppress(RedisError, OSError, TimeoutError):  # the next probe reports it
                    await check()
            if context.draining.is_set():
                return
            answers.set(problem is None)
            if problem is None:
                took_s.observe(time.perf_counter() - began_s)
            else:
                failed.inc()
            told.tell(problem)
            reason = f"Redis at {url} {problem.text}" if problem else ""
            context.health.set_serving(problem is None, reason, source="redis")
            try:
                await asyncio.wait_for(context.draining.wait(), _RETRY_EVERY_S if problem else _CHECK_EVERY_S)
            except TimeoutError:
                continue

    return watch()


class _Told:
    """The logged states of Redis: each is logged once, and again every minute while it lasts.

    Args:
        log: a structlog logger.
        url: of Redis, without its password.
    """

    def __init__(self, log: Any, url: str) -> None:
        self._log = log
        self._url = url
        self._at_s: dict[str, float] = {}  # by code of the problem
        self._well = False

    def tell(self, problem: StoreProblem | None) -> None:
        """Logs a state unless it was logged within the last minute."""
        now_s = time.monotonic()
        if problem is None:
            if not self._well:
                self._log.info("redis answers", redis_url=self._url)
            self._well = True
        elif now_s - self._at_s.get(problem.code, -math.inf) >= _TELL_EVERY_S:
            self._log.error(
                "redis refuses" if problem.code else "redis does not answer",
                redis_url=self._url,
                problem=problem.text,
                way_out=problem.way_out or _START_IT,
            )
            self._at_s[problem.code], self._well = now_s, False


async def _probe(client: aioredis.Redis, command: tuple[str, ...], timeout_s: float) -> StoreProblem | None:
    """The problem of Redis, if any."""
    try:
        async with asyncio.timeout(timeout_s):
            await client.execute_command(*command)  # type: ignore[no-untyped-call]
    except TimeoutError:
        return StoreProblem("", f"does not answer (not within {timeout_s:.1f} s)", "")
    except RedisError as error:
        return store_problem(error) or StoreProblem("", f"gives an unexpected answer ({error})", "")
    return None
