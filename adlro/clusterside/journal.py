"""Stores the changes of a cluster side before they are sent: all new changes in one write, then the next write.

A launch waits for its write, and so does every answer that reveals a change. While
the store is away the cluster sends no events and accepts no new calls; events of that time are sent afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from redis.exceptions import RedisError

from adlro.clusterside.kept import Changes
from adlro.errors import Stale, Unavailable

# Also without news it is looked so often whether the store has lost what was written.
LOOK_S = 5.0
# Pause before the store is asked again.
AGAIN_S = 0.25
# At the end nobody waits for the store as long as a drain may last.
_LAST_WRITE_S = 1.0


class Written(Protocol):
    """The store of changes: `Record`, or a test's."""

    async def write(self, changes: Changes) -> bool:
        """Writes changes; False: their predecessor is missing, so the whole state must be written."""


class Journal:
    """Writes a cluster's changes, and reports each write.

    Attributes:
        problem: the reason why writes fail; empty: none.

    Args:
        record: the store of the changes.
        collect: returns the new changes, or the whole state.
        written: called with stored changes.
    """

    def __init__(self, record: Written, collect: Callable[[bool], Changes], written: Callable[[Changes], None]) -> None:
        self.problem = ""
        self._record = record
        self._collect = collect
        self._written = written
        self._whole = True
        self._news = asyncio.Event()
        # Who waits for the write to come, and for the one under way.
        self._waiting: list[asyncio.Future[None]] = []
        self._under_way: list[asyncio.Future[None]] | None = None

    def go_on(self) -> None:
        """Marks the record as complete: later changes follow the last write."""
        self._whole = False

    def touch(self) -> None:
        """Requests a write."""
        self._news.set()

    def check(self) -> None:
        """Refuses a call that needs a write.

        Raises:
            Unavailable: the store does not accept the journal.
        """
        if self.problem:
            raise self._unavailable()

    async def settled(self) -> None:
        """Returns when all changes until now are stored.

        Raises:
            Unavailable: the store does not accept them; whether they are stored is unknown.
        """
        queue = self._waiting if self._news.is_set() else self._under_way
        if queue is None:
            return
        self.check()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(future)
        await future

    async def run(self, tell: Callable[[str], None]) -> None:
        """Writes new changes, endlessly; retries while the store is away.

        Args:
            tell: called at each try with the reason why writes fail; empty: none.

        Raises:
            Stale: another process has taken the record over.
        """
        told = ""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()
            try:
                await self._write()
            except (RedisError, OSError, TimeoutError) as error:
                self.problem = str(error) or type(error).__name__
                told = f"the store does not accept the journal: {self.problem}"
                tell(told)
                await asyncio.sleep(AGAIN_S)
            else:
                if told:
                    tell(told := "")

    async def close(self) -> None:
        """Writes the remaining changes."""
        with contextlib.suppress(RedisError, OSError, TimeoutError, Stale):  # Stale: a successor goes on
            async with asyncio.timeout(_LAST_WRITE_S):
                await self._write()

    async def _write(self) -> None:
        self._news.clear()
        waiting, self._waiting = self._waiting, []
        self._under_way = waiting
        try:
            changes = self._collect(self._whole)
            if not await self._record.write(changes):
                changes = self._collect(True)
                if not await self._record.write(changes):
                    raise TimeoutError("a write of this process came late")
        except BaseException as error:
            self._whole = True
            self._news.set()
            self._under_way = None
            self.problem = str(error) or type(error).__name__
            for future in waiting:
                if not future.done():
                    future.set_exception(self._unavailable())
            raise
        self._whole, self.problem, self._under_way = False, "", None
        self._written(changes)
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _unavailable(self) -> Unavailable:
        return Unavailable(
            f"the cluster can't write its journal, so it accepts no new calls: {self.problem}", retry_after_s=1.0
        )
