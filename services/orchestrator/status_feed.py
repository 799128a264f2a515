"""The status as a stream for any number of watchers: worked out and encoded once for all of them. Knows no gRPC.

While somebody watches, one task works the status out, as often as the most eager watcher asks for; without watchers
there is none.
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
        self._intervals_s: list[float] = []
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
        try:
            told = await self._encoded()
            yield told
            while not ended.done():
                told_at = time.monotonic()
                await asyncio.wait([ended], timeout=interval_s)
                await self._wait_for_news(told, told_at + max(ALIVE_S, interval_s), ended)
                if ended.done():
                    return
                refuse()
                told = self._newest or told
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
            if self._newest and self._newest != told:
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
            self._failed, self._newest = None, b""
            self._working = asyncio.create_task(self._run(), name="work the status out")

    async def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                while True:
                    newest = await self._encoded()
                    if newest != self._newest:
                        self._newest = newest
                        self._tell()
                    await asyncio.sleep(min(self._intervals_s, default=DEFAULT_INTERVAL_S))
            except Exception as error:  # each watcher's stream ends with it
                self._failed = error
                self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
