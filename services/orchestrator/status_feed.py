"""The status as a stream for any number of watchers: worked out and encoded once for all of them. Knows no gRPC.

While somebody watches, one task works the status out, as often as the most eager watcher asks for; without watchers
there is none. Who joins gets a status of that moment, which is the newest for all others too: nobody is told an older
one after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

DEFAULT_INTERVAL_S, LEAST_INTERVAL_S = 0.5, 0.1
ALIVE_S = 10.0
"""Seconds after which a watcher hears the status again though nothing has changed."""


class StatusFeed:
    """The status as watchers get it.

    Args:
        encoded: works the status out, and encodes it.
    """

    def __init__(self, encoded: Callable[[], Awaitable[bytes]]) -> None:
        self._encoded = encoded
        self._newest = b""
        self._begun = self._newest_begun = 0  # numbers of workings-out, in the order of their begins
        self._worked_at = 0.0
        self._intervals_s: list[float] = []
        self._joined = asyncio.Event()
        self._changed = asyncio.Event()
        self._failed: BaseException | None = None
        self._working: asyncio.Task[None] | None = None

    async def watch(
        self, interval_s: float, ended: asyncio.Future[Any], refuse: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        """Yields the encoded status: now, when it has changed, and after ALIVE_S without a change.

        Args:
            interval_s: smallest time between two messages.
            ended: the stream ends once this is done.
            refuse: called before each message; raises where this process has nothing to tell any more.
        """
        self._intervals_s.append(interval_s)
        self._joined.set()
        try:
            told = await self._work_out()
            yield told
            while not ended.done():
                told_at = time.monotonic()
                await asyncio.wait([ended], timeout=interval_s)
                await self._wait_for_news(told, told_at + max(ALIVE_S, interval_s), ended)
                if ended.done():
                    return
                refuse()
                told = self._newest
                yield told
        finally:
            self._intervals_s.remove(interval_s)
            if not self._intervals_s and self._working is not None:
                self._working.cancel()
                self._working = None

    async def _wait_for_news(self, told: bytes, until: float, ended: asyncio.Future[Any]) -> None:
        """Returns when the status differs from `told`, at `until`, or when the stream ends."""
        while not ended.done():
            self._work()
            if self._newest != told:
                return
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                left_s = until - time.monotonic()
                done, _ = await asyncio.wait([changed, ended], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if self._failed is not None:
                raise self._failed
            if not done:
                return

    def _work(self) -> None:
        if self._working is None or self._working.done():
            self._failed = None
            self._working = asyncio.create_task(self._run(), name="work the status out")

    async def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                while True:
                    await self._work_out()
                    await self._rest()
            except Exception as error:  # each watcher's stream ends with it
                self._failed = error
                self._tell()

    async def _work_out(self) -> bytes:
        """The newest status: this one, unless one that was begun later is there already."""
        self._begun += 1
        number = self._begun
        encoded = await self._encoded()
        if number > self._newest_begun:
            self._newest_begun, self._worked_at = number, time.monotonic()
            if encoded != self._newest:
                self._newest = encoded
                self._tell()
        return self._newest

    async def _rest(self) -> None:
        """Returns once the status is as old as the most eager watcher lets it be; one who joins may shorten that."""
        while True:
            due_at = self._worked_at + min(self._intervals_s, default=DEFAULT_INTERVAL_S)
            self._joined.clear()
            try:
                async with asyncio.timeout(due_at - time.monotonic()):
                    await self._joined.wait()
            except TimeoutError:
                return

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
