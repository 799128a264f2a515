"""Keeps cluster time from ever going back: no time is told before it is written down.

The record in the store holds a ceiling that a REAL or SCALED clock may not pass. It is written ahead of time, a second
of wall time, so that nobody who asks waits for it. A VIRTUAL clock moves with its events, which the cluster side writes
down before it tells them: of it the record holds how it goes, and a time that it has passed. While the store is away
the clock is seen to stand at its ceiling; what happens meanwhile on the cluster is told afterwards, with its own times.
A process that was killed is followed by one that begins at the ceiling, or with the newest event; one that ends in
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

# How often it is looked whether the ceiling is where it should be.
LOOK_S = 0.25
# Also what has not changed is written so often: a store that has lost it has it again.
REWRITE_S = 5.0
# At the end nobody waits for the store as long as a drain may last.
_LAST_WRITE_S = 1.0


class ClockRecord(Protocol):
    """Where the clock is written down: `ClockStore`, or a test's."""

    async def write(self, clock: Clock) -> None:
        """Writes the clock; no time beyond its `time_s` is told before the next write."""


class Timekeeper:
    """Writes a cluster's clock down, ahead of what it tells.

    Args:
        cluster: whose clock it is.
        record: where the clock is written down.
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
        """Keeps the ceiling above the clock, for ever; while the store is away it tries again.

        Args:
            tell: told at each try what keeps the clock from being written down; empty: nothing.

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
        """Sets the cluster's clock, after it is written down how.

        Raises:
            InvalidInput, Conflict: as the cluster says; nothing has changed.
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
