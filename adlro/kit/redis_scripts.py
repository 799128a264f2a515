"""A Redis client whose script calls share one connection, with any number of concurrent calls.

redis-py takes a connection out of its pool for each command, writes, waits for the reply and puts it back, which costs
some 200 us of CPU per command. For a service that runs a script for every call of its clients, this is up to half of
its other work. Here a script call is a write and a future. All commands except EVALSHA use the pool.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import hiredis
import redis.asyncio as aioredis
from redis.asyncio.connection import UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from adlro.kit.redis import CONNECT_TIMEOUT_S, SOCKET_TIMEOUT_S, connect
from adlro.kit.redis_errors import StoreParser


class ScriptRedis(aioredis.Redis):
    """As `adlro.kit.redis.connect`, with a separate connection for script calls. It retries nothing either.

    A lost connection fails its open calls; the next call reconnects.
    """

    _line: _Line | None = None
    _connecting: asyncio.Lock | None = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Runs a command; returns its reply.

        Raises:
            redis.exceptions.ConnectionError, redis.exceptions.TimeoutError: whether the command was run is unknown.
            redis.exceptions.ResponseError: Redis's error.
        """
        if args[0] != "EVALSHA":
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        line = self._line
        if line is None or line.closed:
            line = await self._connect()
        return await line.call(args)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Closes all connections."""
        if self._line is not None:
            self._line.close()
        await super().aclose(close_connection_pool)

    async def _connect(self) -> _Line:
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._line is None or self._line.closed:
                try:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        self._line = await self._open()
                except RedisError:
                    raise
                except TimeoutError:
                    raise RedisTimeoutError("Timeout connecting to server") from None
                except Exception as error:
                    raise RedisConnectionError(str(error)) from error
            return self._line

    async def _open(self) -> _Line:
        pool = self.connection_pool
        options: dict[str, Any] = pool.connection_kwargs
        loop = asyncio.get_running_loop()
        if issubclass(pool.connection_class, UnixDomainSocketConnection):
            _, line = await loop.create_unix_connection(_Line, options["path"])
        else:
            _, line = await loop.create_connection(_Line, options.get("host", "localhost"), options.get("port", 6379))
        try:
            if options.get("password"):
                await line.call(("AUTH", options.get("username") or "default", options["password"]))
            if options.get("db"):
                await line.call(("SELECT", options["db"]))
        except BaseException:
            line.close()
            raise
        return line


def connect_for_scripts(url: str) -> aioredis.Redis:
    """A client whose script calls share one connection; over TLS an ordinary client.

    Raises:
        redis.exceptions.ConnectionError, redis.exceptions.TimeoutError: from its commands.
    """
    client = connect(url)
    return client if url.startswith("rediss://") else ScriptRedis(connection_pool=client.connection_pool)


class _Line(asyncio.Protocol):
    """One connection; replies have the order of the commands."""

    def __init__(self) -> None:
        self.closed = False
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=StoreParser.parse_error)
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()  # with the deadline of the reply
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: Any = None

    def call(self, args: tuple[Any, ...]) -> asyncio.Future[Any]:
        """Sends a command; the future has its reply. A cancelled future does not cancel the command."""
        future: asyncio.Future[Any] = self._loop.create_future()
        packed = hiredis.pack_command(args)
        if self.closed:
            future.set_exception(RedisConnectionError("Connection closed"))
            return future
        self._waiting.append((self._loop.time() + SOCKET_TIMEOUT_S, future))
        try:
            self._transport.write(packed)
        except Exception as error:  # uvloop's error after a reset without a callback
            self.close(RedisConnectionError(f"Connection lost: {error}"))
            return future
        if self._timer is None:
            self._timer = self._loop.call_later(SOCKET_TIMEOUT_S, self._look_at_time)
        return future

    def close(self, error: RedisError | None = None) -> None:
        """Closes the connection and fails its open calls."""
        self.closed = True
        self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error or RedisConnectionError("Connection closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self.close(RedisConnectionError(f"Connection lost: {exc}" if exc else "Connection closed by server"))

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                if isinstance(reply, RedisConnectionError):  # an error of the connection, possibly without a command
                    self.close(reply)
                    return
                _, future = self._waiting.popleft()
                if future.done():  # the caller has given up
                    continue
                if isinstance(reply, RedisError):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)
        except Exception as error:
            # hiredis can't read the reply, or no command waits for it: then later replies can't be assigned either.
            self.close(RedisConnectionError(f"Redis gave an invalid answer: {error}"))

    def _look_at_time(self) -> None:
        """One timer for all commands: the oldest is the first to be late."""
        self._timer = None
        if not self._waiting:
            return
        late_at = self._waiting[0][0]
        if late_at <= self._loop.time():
            self.close(RedisTimeoutError("Timeout reading from server"))
        else:
            self._timer = self._loop.call_at(late_at, self._look_at_time)
