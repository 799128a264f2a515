"""A state as a stream for any number of watchers: each message is made and encoded once for all of them. No gRPC.

While somebody watches, one task waits for changes; watchers get its messages: what has changed since the one before, or
all of it where they have missed one. Without watchers there is no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

S = TypeVar("S")


class StateFeed(Generic[S]):
    """The messages of one view of a state at one interval.

    Args:
        read: gives the state as it is now; the same object while nothing has changed. Its error ends all streams.
        changed: returns when the state differs from this one.
        whole: encodes a state.
        difference: encodes what the first state lacks of the second; None: each message is whole.
        interval_s: smallest time between two messages.
    """

    def __init__(
        self,
        read: Callable[[], S],
        changed: Callable[[S], Awaitable[None]],
        whole: Callable[[S], bytes],
        difference: Callable[[S, S], bytes] | None,
        interval_s: float,
    ) -> None:
        self._read = read
        self._changed = changed
        self._whole = whole
        self._difference = difference
        self._interval_s = interval_s
        self._watcher_count = 0
        self._number = 0  # of the newest message
        self._state: S  # that it tells
        self._encoded: dict[bool, bytes] = {}  # the newest message, whole or what has changed
        self._before: S | None = None
        self._fresh: tuple[S, bytes] | None = None  # the newest state that a watcher began with
        self._told = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nobody watches."""
        return not self._watcher_count

    async def watch(self, ended: asyncio.Future[Any]) -> AsyncIterator[bytes]:
        """Yields the state now, and after changes; a watcher that is slow misses states, not changes.

        Args:
            ended: the stream ends once this is done.
        """
        self._watcher_count += 1
        try:
            state, encoded = self._begin()
            # This watcher has the state of the message with this number; None: a state that no message told.
            number = self._number if state is self._state else None
            seen = self._number
            yield encoded
            while not ended.done():
                if self._number == seen:
                    await self._wait(ended)
                    continue
                difference = self._difference is not None and number is not None and self._number == number + 1
                number = seen = self._number
                yield self._message(difference)
        finally:
            self._watcher_count -= 1
            if not self._watcher_count and self._working is not None:
                self._working.cancel()
                self._working = None

    def _begin(self) -> tuple[S, bytes]:
        state = self._read()
        if self._working is None or self._working.done():
            self._state, self._encoded, self._before = state, {}, None
            self._working = asyncio.create_task(self._work(), name="work the state out")
        if state is self._state:
            return state, self._message(False)
        if self._fresh is None or self._fresh[0] is not state:
            self._fresh = state, self._whole(state)
        return self._fresh

    def _message(self, difference: bool) -> bytes:
        encoded = self._encoded.get(difference)
        if encoded is None:
            if difference and self._difference is not None and self._before is not None:
                encoded = self._difference(self._before, self._state)
            else:
                encoded = self._whole(self._state)
            self._encoded[difference] = encoded
        return encoded

    async def _wait(self, ended: asyncio.Future[Any]) -> None:
        """Returns with the next message, or when the stream ends."""
        told = asyncio.ensure_future(self._told.wait())
        working = self._working
        assert working is not None
        try:
            await asyncio.wait([told, ended, working], return_when=asyncio.FIRST_COMPLETED)
        finally:
            told.cancel()
        if working.done() and not working.cancelled() and (error := working.exception()) is not None:
            raise error

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._changed(self._state)
            newest = self._read()
            self._before, self._state = self._state, newest
            self._encoded, self._fresh = {}, None
            self._number += 1
            self._told.set()
            self._told = asyncio.Event()
