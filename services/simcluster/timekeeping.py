"""Prevents cluster time from going back: no time is reported before it is stored.

The record in the store holds a ceiling that a REAL or SCALED clock may not pass. It is written ahead of time, a second
of wall time, so that no caller waits for it. A VIRTUAL clock moves with its events, which the cluster side journals
before it sends them: its record has mode, scale, pause, and a time that it has passed. While the store is away
the reported clock stands at its ceiling; events of that time are reported afterwards, with their own times.
The successor of a killed process begins at the ceiling, or with the newest event; a process that ends in
order writes its exact time (docs/decisions/0009-cluster-time-survives.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Protocol

from redis.exceptions import RedisError

from adlro.errors import Stale
from adlro.records.events import Clock, ClockMode
from adlro.services.simcluster.driver import SimulatedCluster

# Interval of the checks of the ceiling.
LOOK_S = 0.25
# Interval of writes without a change, so that a store that has lost the record gets it again.
REWRITE_S = 5.0
# Limit of the wait for the store at the end, shorter than a drain.
_LAST_WRITE_S = 1.0


class ClockRecord(Protocol):
    """The store of the clock: `ClockStore`, or a test's."""

    async def write(self, clock: Clock) -> None:
        """Writes the clock; no time beyond its `time_s` is reported before the next write."""


class Timekeeper:
    """Stores a cluster's clock, ahead of reported times.

    Args:
        cluster: the cluster.
        record: the store of the clock.
    """

    def __init__(self, cluster: SimulatedCluster, record: ClockRecord) -> None:
        self._cluster = cluster
        self._record = record
        self._written: Clock | None = None
        self._written_at = 0.0
        self._writing = asyncio.Lock()
        self._needed = asyncio.Event()
        cluster.on_ceiling_reached = self._needed.set

    async def run(self, tell: Callable[[str], None]) -> None:
        """Keeps the ceiling above the clock, endlessly; retries while the store is away.

        Args:
            tell: called at each try with the reason why writes fail; empty: none.

        Raises:
            Stale: another process has taken the clock over.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with self._writing:
                    wanted = self._cluster.wanted_ceiling()
                    self._needed.clear()
                    if self._is_news(wanted) or loop.time() > self._written_at + REWRITE_S:
                        await self._write(wanted, wanted.time_s if wanted.mode is not ClockMode.VIRTUAL else math.inf)
                        tell("")
            except (RedisError, OSError, TimeoutError) as error:
                tell(
                    "the clock stands, because the store does not accept its time: "
                    f"{str(error) or type(error).__name__}"
                )
            with contextlib.suppress(TimeoutError):
                # Where the store does not answer, what needs it does not make it answer.
                async with asyncio.timeout(LOOK_S):
                    await (self._needed.wait() if self._written else asyncio.sleep(LOOK_S))

    async def set_clock(
        self,
        mode: ClockMode | None = None,
        scale: float | None = None,
        paused: bool | None = None,
        not_before_s: float | None = None,
    ) -> Clock:
        """Stores the new settings of the cluster's clock, then applies them.

        Raises:
            InvalidInput, Conflict: the cluster refuses; nothing has changed.
            redis.exceptions.RedisError, OSError: the store does not answer; nothing has changed.
            Stale: another process has taken the clock over.
        """
        async with self._writing:
            planned = self._cluster.planned_clock(mode, scale, paused, not_before_s)
            await self._write(self._cluster.ceiling_of(planned), planned.time_s)
            return self._cluster.set_clock_now(mode, scale, paused, not_before_s)

    async def close(self) -> None:
        """Ends the clock, and writes the exact time at which it stands."""
        clock = self._cluster.stand()
        with contextlib.suppress(RedisError, OSError, TimeoutError, Stale):  # Stale: a successor writes its own
            async with asyncio.timeout(_LAST_WRITE_S), self._writing:
                await self._write(clock, clock.time_s)

    def _is_news(self, wanted: Clock) -> bool:
        before = self._written
        if before is None or wanted.mode is not ClockMode.VIRTUAL:
            return wanted != before
        return (wanted.mode, wanted.scale, wanted.paused) != (before.mode, before.scale, before.paused)

    async def _write(self, clock: Clock, meanwhile_s: float) -> None:
        """Writes the clock; until the store has answered, it does not pass `meanwhile_s`, nor its ceiling."""
        # Until then, either may be what a successor finds there.
        self._cluster.set_ceiling(min(self._cluster.ceiling_s, meanwhile_s))
        self._written = None
        await self._record.write(clock)
        self._written, self._written_at = clock, asyncio.get_running_loop().time()
        self._cluster.set_ceiling_of(clock)
