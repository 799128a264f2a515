"""New decisions for watchers: each is made into a message once for all watchers of a view, in a thread. No gRPC.

A watcher is a position. Nothing is made while nobody watches. The deciding loop only appends to a queue, whatever the
number of watchers; a watcher that reads too slowly misses the oldest decisions, and is told how many.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import structlog

from adlro.records.decisions import DecisionView
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.deciding.side_thread import SideThread

Encode = Callable[[Made, DecisionView], bytes]
_Make = Callable[[Sequence[Made], DecisionView], Awaitable[list[bytes | None]]]

PAUSE_S = 0.5
"""Least time between two messages of summaries to a watcher: fifty watchers cost as much as the messages they get."""
DECISIONS_HELD = 2000
"""Decisions that a watcher may be behind,"""
BYTES_HELD = 16 << 20
"""and bytes of their messages, of each view."""
SUMMARIES_TOGETHER = 200
"""Summaries in one message, at most."""
BREATH_S = 1e-4
"""A pause: a thread keeps the interpreter for milliseconds unless it waits, and decisions go first."""
WORK_S = 5e-4
"""Work between two pauses, at least: a summary takes a twentieth of it, and a pause costs more than that."""


class News(NamedTuple):
    """What a watcher has not seen yet.

    Attributes:
        missed: number of decisions before or among these that it can't get any more.
        messages: in order.
    """

    missed: int
    messages: Sequence[bytes]


class DecisionFeed:
    """The watchers of one process.

    Args:
        encode: the message of a decision in a view; called in the thread.
        worker: the thread.
        log: a structlog logger.
        pause_s: least time between two messages of summaries to a watcher.
    """

    def __init__(
        self,
        encode: Encode,
        worker: SideThread,
        log: structlog.typing.FilteringBoundLogger,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._encode = encode
        self._worker = worker
        self._log = log
        self._lanes = {
            DecisionView.FULL: _Lane(self._made, DecisionView.FULL, 1, 0.0),
            DecisionView.SUMMARY: _Lane(self._made, DecisionView.SUMMARY, SUMMARIES_TOGETHER, pause_s),
        }

    @property
    def watcher_count(self) -> int:
        """The number of watchers."""
        return sum(lane.watchers for lane in self._lanes.values())

    def tell(self, made: Made) -> None:
        """Takes a new decision; costs the deciding loop a few microseconds, and none of it depends on the watchers."""
        for lane in self._lanes.values():
            lane.tell(made)

    @contextmanager
    def watch(self, view: DecisionView) -> Iterator[Watch]:
        """A watcher of the decisions from now on."""
        lane = self._lanes[view]
        lane.watchers += 1
        try:
            yield Watch(lane)
        finally:
            lane.watchers -= 1
            if not lane.watchers:
                lane.clear()

    async def of_past(self, decisions: Sequence[Made], view: DecisionView) -> list[bytes]:
        """The messages of some past decisions, for one watcher; those that can't be made are left out."""
        return [message for message in await self._made(decisions, view) if message is not None]

    def close(self) -> None:
        """Ends all watches."""
        for lane in self._lanes.values():
            lane.close()

    async def _made(self, decisions: Sequence[Made], view: DecisionView) -> list[bytes | None]:
        def make() -> list[bytes | None]:
            messages: list[bytes | None] = []
            began_s = time.perf_counter()
            for made in decisions:
                try:
                    messages.append(self._encode(made, view))
                except Exception:
                    self._log.exception("a decision can't be told", decision=made.decision_id)
                    messages.append(None)
                if time.perf_counter() - began_s > WORK_S:
                    time.sleep(BREATH_S)
                    began_s = time.perf_counter()
            return messages

        return await self._worker.run(make)


class _Lane:
    """The decisions in one view: those without a message yet, and the messages that watchers may still need."""

    def __init__(self, make: _Make, view: DecisionView, together: int, pause_s: float) -> None:
        self.together = together
        self.watchers = 0
        self.told = 0  # number of the newest decision
        self.closed = False
        self.advanced = asyncio.Event()
        self._make, self._view, self._pause_s = make, view, pause_s
        self._new: deque[tuple[int, Made]] = deque(maxlen=DECISIONS_HELD)
        self._messages: deque[tuple[int, bytes]] = deque(maxlen=DECISIONS_HELD)
        self._bytes = 0
        self._making: asyncio.Task[None] | None = None

    def tell(self, made: Made) -> None:
        self.told += 1
        if self.watchers:
            self._new.append((self.told, made))
            if self._making is None or self._making.done():
                self._making = asyncio.get_running_loop().create_task(self._work(), name="tell decisions")

    def after(self, position: int) -> list[tuple[int, bytes]]:
        """The first messages after a position, as many as go together."""
        messages = self._messages
        if not messages or messages[-1][0] <= position:
            return []
        # Numbers rise by at least one: the first that is wanted is not before this one. A deque finds its ends quickly.
        start = max(0, len(messages) - (messages[-1][0] - position))
        while messages[start][0] <= position:
            start += 1
        return [messages[index] for index in range(start, min(len(messages), start + self.together))]

    def clear(self) -> None:
        self._new.clear()
        self._messages.clear()
        self._bytes = 0

    def close(self) -> None:
        self.closed = True
        self.clear()
        self._wake()

    async def _work(self) -> None:
        while self._new:
            part = list(islice(self._new, self.together))
            messages = await self._make([made for _, made in part], self._view)
            last = part[-1][0]
            while self._new and self._new[0][0] <= last:
                self._new.popleft()
            if self.watchers:
                for (number, _), message in zip(part, messages, strict=True):
                    if message is not None:
                        self._keep(number, message)
                self._wake()
            if self._pause_s:
                await asyncio.sleep(self._pause_s)

    def _keep(self, number: int, message: bytes) -> None:
        messages = self._messages
        if len(messages) == messages.maxlen:
            self._bytes -= len(messages[0][1])
        messages.append((number, message))
        self._bytes += len(message)
        while self._bytes > BYTES_HELD and len(messages) > 1:
            self._bytes -= len(messages.popleft()[1])

    def _wake(self) -> None:
        self.advanced.set()
        self.advanced = asyncio.Event()


class Watch:
    """The position of one watcher."""

    def __init__(self, lane: _Lane) -> None:
        self._lane = lane
        self._position = lane.told

    @property
    def closed(self) -> bool:
        """Whether the service ends."""
        return self._lane.closed

    async def news(self, timeout_s: float) -> News | None:
        """What is new, as soon as something is; None: nothing in so long, or the service ends."""
        lane = self._lane
        found = lane.after(self._position)
        if not found and not lane.closed:
            advanced = lane.advanced
            try:
                async with asyncio.timeout(timeout_s):
                    await advanced.wait()
            except TimeoutError:
                return None
            found = lane.after(self._position)
        if not found:
            return None
        missed = found[-1][0] - self._position - len(found)
        self._position = found[-1][0]
        return News(missed, [message for _, message in found])
