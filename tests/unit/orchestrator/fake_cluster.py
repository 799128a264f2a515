"""The cluster in memory as a ClusterPort: what it is asked for is answered a moment later, or never."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from adlro.errors import Unavailable
from adlro.placement import NOWHERE, Placement
from adlro.records.cluster import Cluster
from adlro.records.events import Clock, ClusterDescription, EventBatch, EventKind
from adlro.records.jobs import AttemptRef, JobSpec
from adlro.services.orchestrator.ports import Launched
from tests.unit.orchestrator.cluster_model import ClusterModel, HangsError, UntoldError


class FakeCluster(ClusterModel):
    """Implements ClusterPort."""

    def __init__(self, cluster: Cluster) -> None:
        self.slow = asyncio.Event()  # answers to launches that are carried out untold come when it is set
        self.slow.set()
        self._news = asyncio.Event()
        super().__init__(cluster)

    def restart(self) -> None:
        """See ClusterModel."""
        super().restart()
        self._news.set()

    def emit(self, *events: tuple[Any, ...]) -> None:
        """See ClusterModel."""
        super().emit(*events)
        self._news.set()

    def break_streams(self) -> None:
        """Wakes the event streams, so that they find the cluster away."""
        self.emit((EventKind.WAKE_UP, "", 0, NOWHERE))

    # ---- ClusterPort

    async def describe(self) -> ClusterDescription:
        await asyncio.sleep(0)
        return self.on_describe()

    async def launch(
        self,
        job_id: str,
        attempt: int,
        spec: JobSpec,
        placement: Placement,
        token: int,
        incarnation: str,
        *,
        preempts: Sequence[AttemptRef] = (),
        remaining_ratio: float = 1.0,
        resumes: bool = False,
    ) -> Launched:
        await asyncio.sleep(0)
        try:
            return self.on_launch(
                job_id,
                attempt,
                spec,
                placement,
                token,
                incarnation,
                preempts=preempts,
                remaining_ratio=remaining_ratio,
                resumes=resumes,
            )
        except HangsError:
            return await asyncio.Future()
        except UntoldError:
            await self.slow.wait()
            raise self.error from None

    async def stop(self, job_id: str, attempt: int, token: int, incarnation: str) -> bool:
        await asyncio.sleep(0)
        return self.on_stop(job_id, attempt, token, incarnation)

    async def acknowledge(self, incarnation: str, revision: int, token: int) -> None:
        await asyncio.sleep(0)
        self.on_acknowledge(incarnation, revision, token)

    async def wake_at(self, times_s: Sequence[float]) -> Clock:
        await asyncio.sleep(0)
        return self.on_wake_at(times_s)

    async def advance_to(self, time_s: float) -> Clock:
        await asyncio.sleep(0)
        return self.on_advance_to(time_s)

    async def set_clock(self, clock: Clock) -> None:
        await asyncio.sleep(0)
        self.on_set_clock(clock)

    async def events(self, incarnation: str, after_revision: int) -> AsyncIterator[EventBatch]:
        self.check_incarnation(incarnation)
        batches, place = self.batches, 0
        while True:
            while place < len(batches):
                batch = batches[place]
                place += 1
                if batch.events[-1].revision > after_revision:
                    await asyncio.sleep(0)
                    self.check_not_away()
                    yield batch
            if self.incarnation != incarnation:
                raise Unavailable("the cluster went away")
            self._news.clear()
            await self._news.wait()
