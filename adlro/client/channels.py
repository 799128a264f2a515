"""The channels of a client, by address: opens, replaces and closes them. Uses gRPC.

One class for asyncio and one for threads: all code in which the two clients differ by more than `async` and `await`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Iterator
from typing import TypeVar

import grpc

from adlro.client.transport import STATUS_TRIES
from adlro.kit.channel import open_blocking_channel, open_channel
from adlro.kit.credentials import Credentials

T = TypeVar("T")


class AsyncChannels:
    """The channels of an `AsyncClient`.

    Args:
        credentials: certificates and token.
        grace_s: how long running calls on a replaced channel may continue.
    """

    def __init__(self, credentials: Credentials, grace_s: float) -> None:
        self._credentials = credentials
        self._grace_s = grace_s
        self._open: dict[str, grpc.aio.Channel] = {}
        self._left: set[asyncio.Future[None]] = set()

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to an address; calls share it until one of them leaves it."""
        if address not in self._open:
            self._open[address] = open_channel(address, self._credentials)
        return self._open[address]

    def leave(self, address: str, channel: grpc.aio.Channel) -> None:
        """Drops a channel: the next call to the address opens a new connection, perhaps to another replica.

        Does nothing if another call has left the channel already: its successor may be the right one.
        """
        if self._open.get(address) is channel:
            del self._open[address]
            leaving = asyncio.ensure_future(channel.close(self._grace_s))
            self._left.add(leaving)
            leaving.add_done_callback(self._left.discard)

    async def answer(self, call: Awaitable[T]) -> T:
        """The answer to a call.

        gRPC forgets a cancellation that comes in the moment of the answer: its task would go on as if nobody had asked
        for its end.
        """
        asked = _cancellations()
        answer = await call
        _check_not_cancelled(asked)
        return answer

    async def messages(self, stream: AsyncIterable[T]) -> AsyncIterator[T]:
        """The messages of a stream, as `answer`."""
        asked = _cancellations()
        async for message in stream:
            _check_not_cancelled(asked)
            yield message

    async def close(self) -> None:
        """Ends running calls and closes all channels."""
        channels, self._open = list(self._open.values()), {}
        for channel in channels:
            await channel.close(None)
        for leaving in list(self._left):
            leaving.cancel()


def _cancellations() -> int:
    """How often the end of the present task was asked for."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _check_not_cancelled(asked: int) -> None:
    """Raises CancelledError if the end of the present task was asked for more often by now."""
    if _cancellations() > asked:
        raise asyncio.CancelledError


class Channels:
    """The channels of a `Client`; threads may share them.

    Args:
        credentials: certificates and token.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._open: dict[str, grpc.Channel] = {}
        self._left: deque[grpc.Channel] = deque()
        self._lock = threading.Lock()

    def to(self, address: str) -> grpc.Channel:
        """As of `AsyncChannels`."""
        with self._lock:
            if address not in self._open:
                self._open[address] = open_blocking_channel(address, self._credentials)
            return self._open[address]

    def leave(self, address: str, channel: grpc.Channel) -> None:
        """As of `AsyncChannels`."""
        with self._lock:
            if self._open.get(address) is not channel:
                return
            del self._open[address]
            # Calls of other threads may run on it, and closing would end them at once; so some are kept for a
            # while.
            self._left.append(channel)
            closing = self._left.popleft() if len(self._left) > STATUS_TRIES else None
        if closing is not None:
            closing.close()

    def answer(self, answer: T) -> T:
        """As of `AsyncChannels`: threads are not cancelled."""
        return answer

    def messages(self, stream: Iterable[T]) -> Iterator[T]:
        """As of `AsyncChannels`."""
        return iter(stream)

    def close(self) -> None:
        """As of `AsyncChannels`."""
        with self._lock:
            channels = [*self._open.values(), *self._left]
            self._open, self._left = {}, deque()
        for channel in channels:
            channel.close()
