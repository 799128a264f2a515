"""The outbox and the file of webhooks, in one place: who notes an event, and who delivers it.

The outbox is used from one thread, so that a slow disk holds up neither the loop nor the health of the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import structlog

from adlro.errors import InvalidInput
from adlro.services.notify.metrics import NotifyMetrics
from adlro.webhooks.events import Event
from adlro.webhooks.file import Webhook, WebhooksFile
from adlro.webhooks.outbox import Message, Outbox

T = TypeVar("T")

FILE_KEY = "ADLRO_NOTIFY_WEBHOOKS_FILE"
_LOOK_EVERY_S = 1.0


class Keeper:
    """Webhooks and messages.

    Args:
        webhooks_file: of the operator's.
        data_dir: of the outbox.
        most_count, most_bytes: of the messages of one webhook that wait.
        log: of the process.

    Raises:
        InvalidInput: something in the file is wrong.
        AdlroError, OSError: as `Outbox`.
    """

    def __init__(
        self,
        webhooks_file: Path,
        data_dir: Path,
        most_count: int,
        most_bytes: int,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._file = WebhooksFile(webhooks_file, FILE_KEY)
        self.webhooks: dict[str, Webhook] = {each.name: each for each in self._file.read()}
        self._outbox = Outbox(data_dir, most_count, most_bytes)
        self._log = log
        self._thread = ThreadPoolExecutor(1, "outbox")
        self._news = asyncio.Condition()
        self._noting = asyncio.Lock()
        self.metrics: NotifyMetrics | None = None

    async def run(self, changed: Callable[[], None]) -> None:
        """Reads a changed file again, until it is cancelled; calls `changed` after it has."""
        await self._take(tuple(self.webhooks.values()))
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if not await asyncio.to_thread(self._file.changed):
                continue
            try:
                found = await asyncio.to_thread(self._file.read)
            except InvalidInput as error:
                self._log.error("the changed webhooks' file is invalid; the previous webhooks stay", problem=str(error))
                continue
            await self._take(found)
            self._log.info("the webhooks' file was changed", webhooks=sorted(self.webhooks))
            changed()

    async def _take(self, webhooks: Sequence[Webhook]) -> None:
        async with self._noting:
            self.webhooks = {each.name: each for each in webhooks}
            gone = await self._on_thread(lambda: self._outbox.keep_only(self.webhooks))
        if gone:
            self._log.warning("messages of webhooks that are no more in the file were deleted", count=gone)
        if self.metrics is not None:
            self.metrics.know(self.webhooks)

    def waiting(self) -> dict[str, tuple[int, int]]:
        """By webhook, the number and bytes of the messages that wait."""
        return {name: self._outbox.held(name) for name in self.webhooks}

    async def position(self) -> int | None:
        """The revision up to which ends were noted; None: none was ever."""
        return await self._on_thread(lambda: self._outbox.position)

    async def last_end(self) -> tuple[str, str] | None:
        """Job and event of the end at the position; None: the position is that of no end."""
        return await self._on_thread(lambda: self._outbox.last_end)

    async def known_from(self) -> int:
        """As `Outbox.known_from`."""
        return await self._on_thread(lambda: self._outbox.known_from)

    async def begin_at(self, revision: int) -> None:
        """As `Outbox.begin_at`."""
        await self._on_thread(lambda: self._outbox.begin_at(revision))

    async def conditions(self) -> Mapping[str, Any]:
        """What lasts, and was told."""
        return await self._on_thread(lambda: self._outbox.conditions)

    async def note(
        self, events: Sequence[Event], *, position: int | None = None, conditions: Mapping[str, Any] | None = None
    ) -> None:
        """As `Outbox.note`; those who deliver are woken."""
        async with self._noting:
            webhooks = tuple(self.webhooks.values())
            dropped = await self._on_thread(
                lambda: self._outbox.note(events, webhooks, position=position, conditions=conditions)
            )
        for name, count in dropped.items():
            self._log.error("messages were dropped: too many wait for this webhook", webhook=name, count=count)
        if self.metrics is not None:
            for event in events:
                self.metrics.events.labels(str(event.name)).inc()
            for name, count in dropped.items():
                self.metrics.dropped.labels(name).inc(count)
        if events:
            async with self._news:
                self._news.notify_all()

    async def next_of(self, webhook: str) -> tuple[Message, int]:
        """The oldest message of a webhook, and how many were lost before it; waits for one."""
        while True:
            async with self._news:
                found = await self._on_thread(lambda: self._outbox.next_of(webhook))
                if found is not None:
                    return found
                await self._news.wait()

    async def delivered(self, message: Message, told_count: int) -> None:
        """As `Outbox.delivered`."""
        await self._on_thread(lambda: self._outbox.delivered(message, told_count, time.time()))

    async def failed(self, message: Message, problem: str, next_try_unix_s: float, *, given_up: bool) -> None:
        """As `Outbox.failed`."""
        await self._on_thread(lambda: self._outbox.failed(message, problem, next_try_unix_s, given_up=given_up))

    async def close(self) -> None:
        """Closes the outbox, after what is being written."""
        await self._on_thread(self._outbox.close)
        self._thread.shutdown(wait=False)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
