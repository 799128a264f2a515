"""Groups writes to Redis: items that arrive during one round trip share the next one. No I/O of its own.

This adds no delay: an item without a running write is written at once, alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


class GroupedWrites(Generic[ItemT, AnswerT]):
    """Collects items while a write is under way.

    Args:
        write: writes items in one round trip; returns answers in order, an exception for a refused item.
            An exception from it goes to every item of the group.
        max_items: limit of one round trip, so that it stays short.
    """

    def __init__(
        self, write: Callable[[list[ItemT]], Awaitable[Sequence[AnswerT | Exception]]], max_items: int
    ) -> None:
        self._write = write
        self._max_items = max_items
        self._waiting: deque[tuple[ItemT, asyncio.Future[AnswerT]]] = deque()
        self._writer: asyncio.Task[None] | None = None

    def add(self, item: ItemT) -> asyncio.Future[AnswerT]:
        """Adds an item; the future has its answer. Cancelling the future does not undo the write."""
        future: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_waiting(), name="grouped-writes")
        return future

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(self._max_items, len(self._waiting)))]
                await self._write_group(group)
        finally:
            self._writer = None
            # Only where this task was cancelled: nobody may wait for ever.
            while self._waiting:
                self._waiting.popleft()[1].cancel()

    async def _write_group(self, group: list[tuple[ItemT, asyncio.Future[AnswerT]]]) -> None:
        try:
            answers = await self._write([item for item, _ in group])
        except asyncio.CancelledError:
            for _, future in group:
                future.cancel()
            raise
        except Exception as error:  # handed to the callers, which tell the client
            answers = [error] * len(group)
        for (_, future), answer in zip(group, answers, strict=True):
            if future.done():  # the caller has gone away
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
                future.exception()  # a caller that goes away before it looks is no reason for a warning
            else:
                future.set_result(answer)
