"""The simulated cluster of the service, with its clock in Redis. Uses Redis, no gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from adlro.clusterside.driver import Side
from adlro.clusterside.kept import Kept
from adlro.clusterside.timers import Timers
from adlro.kit.redis_scripts import connect_for_scripts
from adlro.records.events import Clock, ClockMode
from adlro.services.simcluster.clock import clock_scale
from adlro.services.simcluster.clock_store import ClockStore
from adlro.services.simcluster.driver import SimulatedCluster
from adlro.services.simcluster.settings import SimclusterSettings
from adlro.services.simcluster.timekeeping import Timekeeper
from adlro.sim.simulator import ClusterSimulator
from adlro.sim.warming import warm
from adlro.workload.scenario import load_cluster, load_speeds


class TimedCluster(SimulatedCluster):
    """A simulated cluster whose clock survives every restart.

    Args:
        settings: the cluster, the clock, and the clock's store.

    Raises:
        InvalidInput: the cluster or the clock's scale is not right.
    """

    def __init__(self, settings: SimclusterSettings) -> None:
        mode = ClockMode[settings.clock_mode.upper()]
        clock = Clock(mode, clock_scale(mode, settings.clock_scale), settings.clock_paused, 0.0)
        simulator = ClusterSimulator(
            load_cluster(settings.cluster), speeds=load_speeds(settings.cluster), start_cost_s=settings.start_cost_s
        )
        super().__init__(simulator, clock)
        self._settings = settings
        self._begun = False
        self._record: ClockStore
        self._keeper: Timekeeper

    def attach(self, side: Side, timers: Timers) -> None:
        """See Driver."""
        super().attach(side, timers)
        self._redis = connect_for_scripts(self._settings.redis_url)
        self._record = ClockStore(self._redis, self.cluster.name, self._first_clock)
        self._keeper = Timekeeper(self, self._record)

    async def prepare(self) -> None:
        """See Driver."""
        # Where no compiled code is kept this takes seconds: not at the first launch, and a signal must get through.
        await asyncio.to_thread(warm)

    async def begin(self, kept: Kept | None) -> None:
        """Takes over the clock and the running attempts from the previous process.

        Raises:
            redis.exceptions.RedisError, OSError: the store does not answer.
            DataLoss: the record of the clock can't be read.
        """
        self.begin_at(await self._record.take(), kept)
        self._begun = True

    async def run(self, tell: Callable[[str], None]) -> None:
        """Keeps the clock's record.

        Raises:
            Stale: another process has taken the clock over.
        """
        await self._keeper.run(tell)

    async def set_clock(
        self,
        mode: ClockMode | None = None,
        scale: float | None = None,
        paused: bool | None = None,
        not_before_s: float | None = None,
    ) -> Clock:
        """Stores the given values of the clock, then sets them.

        Raises:
            InvalidInput: the mode cannot have that scale.
            Conflict: JOBS_RUNNING: it is to go forward while something runs.
            redis.exceptions.RedisError, OSError: the store does not answer; nothing has changed.
        """
        return await self._keeper.set_clock(mode, scale, paused, not_before_s)

    async def close(self) -> None:
        """Ends the clock, and stores its time."""
        if self._begun:
            await self._keeper.close()
        await self._redis.aclose()
