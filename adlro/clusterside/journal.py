"""Writes down what a cluster side has decided, before anybody is told: all that is new in one write, then the next.

A launch waits for the write that has it, and so does every answer from which somebody could conclude something. While
the store is away nothing is told and nothing new is taken; what happens meanwhile is told afterwards.
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
    """Where changes are written down: `Record`, or a test's."""

    async def write(self, changes: Changes) -> bool:
        """Writes changes; False: what they build on is not there, so the whole must be written."""


class Journal:
    """Writes a cluster's changes down, and says when.

    Attributes:
        problem: what keeps changes from being written; empty: nothing.

    Args:
        record: where they are written down.
        collect: gives what is new, or the whole, as of now.
        written: called with the changes that are written.
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
        """The record has all up to now: changes follow what was written before."""
        self._whole = False

    def touch(self) -> None:
        """Something is to be written down."""
        self._news.set()

    def check(self) -> None:
        """Refuses what would have to be written down.

        Raises:
            Unavailable: the store does not take it.
        """
        if self.problem:
            raise self._unavailable()

    async def settled(self) -> None:
        """Returns when all that was changed until now is written down.

        Raises:
            Unavailable: the store does not take it; whether it is written down is not known.
        """
        queue = self._waiting if self._news.is_set() else self._under_way
        if queue is None:
            return
        self.check()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(future)
        await future

    async def run(self, tell: Callable[[str], None]) -> None:
        """Writes what is new, for ever; while the store is away it tries again.

        Args:
            tell: told at each try what keeps changes from being written; empty: nothing.

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
        """Writes what is left."""
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
