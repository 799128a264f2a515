"""Stores decisions behind the deciding path: a bounded buffer, and a task that empties it. Redis through `adlro.store`.

A store that is away or slow delays no decision: then the oldest decisions of the buffer are dropped, and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog
from redis.exceptions import RedisError

from adlro.kit.redis_errors import store_problem
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.deciding.feed import BREATH_S
from adlro.services.orchestrator.deciding.side_thread import SideThread
from adlro.store.decisions import DecisionStore, StoredDecision

BUFFER = 2000
"""Decisions that wait to be written, at most."""
TOGETHER = 64
"""Decisions in one round trip, at most."""
PAUSE_S = 0.1
"""Pause after each round trip: decisions that follow each other quickly are written together."""
_RETRY_FIRST_S, _RETRY_LAST_S = 0.1, 2.0
BEHIND, SUPERSEDED = "behind", "superseded"
CAUSES = (BEHIND, SUPERSEDED)
"""Why a decision is not stored: the buffer is full; another instance has stored newer ones already."""


class StoringDecisions:
    """Writes the decisions of this process.

    Args:
        store: the streams.
        worker: the thread in which entries are made.
        count_stored: called with the number of decisions that were stored.
        count_dropped: called with the cause and the number of those that were not.
        log: a structlog logger.
    """

    def __init__(
        self,
        store: DecisionStore,
        worker: SideThread,
        count_stored: Callable[[int], None],
        count_dropped: Callable[[str, int], None],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._store = store
        self._worker = worker
        self._count_stored = count_stored
        self._count_dropped = count_dropped
        self._log = log
        self._buffer: deque[Made] = deque()
        self._writing = 0
        self._wanted, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()

    def take(self, made: Made) -> None:
        """Takes a decision; costs the deciding loop a microsecond."""
        if not self._store.keeps:
            return
        if len(self._buffer) + self._writing >= BUFFER:
            if not self._buffer:
                self._count_dropped(BEHIND, 1)
                return
            self._buffer.popleft()
            self._count_dropped(BEHIND, 1)
        self._buffer.append(made)
        self._wanted.set()
        self._idle.clear()

    async def run(self) -> None:
        """Writes, until it is cancelled."""
        while True:
            await self._wanted.wait()
            part = [self._buffer.popleft() for _ in range(min(TOGETHER, len(self._buffer)))]
            if part:
                self._writing = len(part)
                try:
                    await self._write(part)
                finally:
                    self._writing = 0
                await asyncio.sleep(PAUSE_S)
            if not self._buffer:
                self._wanted.clear()
                self._idle.set()

    async def flush(self, timeout_s: float) -> None:
        """Waits until all is written, for so long at most."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self._log.info("decisions are left unstored at the end", count=len(self._buffer) + self._writing)

    async def _write(self, part: Sequence[Made]) -> None:
        entries = await self._worker.run(lambda: _entries(part, self._log))
        retry_s, tries = _RETRY_FIRST_S, 0
        while entries:
            try:
                refused = await self._store.append(entries)
            except (RedisError, OSError, TimeoutError) as error:
                # Safe to repeat: an entry has the decision's own id, and is never stored twice.
                if tries == 0 and isinstance(error, RedisError) and store_problem(error) is None:
                    self._log.warning("decisions can't be stored; trying again", problem=str(error))
                tries += 1
                await asyncio.sleep(retry_s)
                retry_s = min(2.0 * retry_s, _RETRY_LAST_S)
                continue
            if refused and not tries:  # after a lost answer they may be there already
                self._count_dropped(SUPERSEDED, refused)
            self._count_stored(len(entries) - refused)
            return


def _entries(part: Sequence[Made], log: structlog.typing.FilteringBoundLogger) -> list[StoredDecision]:
    """The entries of some decisions; one that can't be made is left out."""
    entries = []
    for made in part:
        try:
            entries.append(StoredDecision.of(made.summarised(), made.stored()))
        except Exception:
            log.exception("a decision can't be stored", decision=made.decision_id)
        time.sleep(BREATH_S)
    return entries
