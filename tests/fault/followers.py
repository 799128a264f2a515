"""Two witnesses that outlive outages: all that ingest tells of jobs, and all that the cluster tells of attempts.

Both only record; `verdict` judges.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from adlro.client import AsyncClient, JobEvent, JobEventKind
from adlro.errors import OutOfRange, Stale, Unavailable
from adlro.records.events import ClusterEvent, EventKind
from adlro.records.jobs import Job, JobState
from adlro.services.orchestrator.clients import ClusterClient

PATIENCE_S = 200.0
_CLUSTER_RETRY_S = 0.1


class _Follower:
    """A task that records, and waits for what it has recorded."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None]

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
        """Returns when the condition holds; it is looked at whenever something was recorded."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    changed = asyncio.ensure_future(self._changed.wait())
                    await asyncio.wait([changed, self._task], return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    if self._task.done():
                        self._task.result()
                        raise AssertionError(f"the stream ended; waited for {what}")
        except TimeoutError:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}; {self}") from None

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class JobFollower(_Follower):
    """Every change of every job from now on, by WatchJobs, resumed by revision.

    Attributes:
        snapshots: ends of snapshots; more than one means that changes were missed.
        first_revision: of the snapshot; changes are those after it.
        changes: in the order in which they came.
        latest: each job that has changed, as the last change told it.
        final: ids of those that have ended.
    """

    def __init__(self, server: str) -> None:
        super().__init__()
        self.snapshots = 0
        self.first_revision = 0
        self.changes: list[JobEvent] = []
        self.latest: dict[str, Job] = {}
        self.final: set[str] = set()
        self._client = AsyncClient(server, patience_s=PATIENCE_S)

    async def __aenter__(self) -> JobFollower:
        self._task = asyncio.create_task(self._follow())
        await self.until(lambda: self.snapshots > 0, "the snapshot")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()
        await self._client.close()

    def __str__(self) -> str:
        states = {state.name: sum(job.state is state for job in self.latest.values()) for state in JobState}
        return f"{len(self.changes)} changes seen, jobs: {states}"

    @property
    def revision(self) -> int:
        """The newest that was seen."""
        return self.changes[-1].revision if self.changes else self.first_revision

    async def _follow(self) -> None:
        async for event in self._client.watch():
            if event.kind is JobEventKind.SNAPSHOT_END:
                self.snapshots += 1
                self.first_revision = event.revision
            elif event.kind is JobEventKind.CHANGE:
                assert event.job is not None
                self.changes.append(event)
                self.latest[event.job.job_id] = event.job
                if event.job.state.final:
                    self.final.add(event.job.job_id)
            self._tell()


class ClusterFollower(_Follower):
    """Every event of the cluster, by WatchEvents, over restarts of its service.

    Attributes:
        logs: events by incarnation, in the order of incarnations. What happened right before a kill may be missing.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self.logs: dict[str, list[ClusterEvent]] = {}
        self._incarnation = ""
        self._client = ClusterClient(address)

    async def __aenter__(self) -> ClusterFollower:
        self._task = asyncio.create_task(self._follow())
        await self.catch_up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()
        await self._client.close()

    def __str__(self) -> str:
        return f"events by incarnation: { {name: len(log) for name, log in self.logs.items()} }"

    @property
    def started_count(self) -> int:
        """Attempts that were started."""
        return sum(event.kind is EventKind.STARTED for log in self.logs.values() for event in log)

    async def catch_up(self) -> None:
        """Returns when every event up to now has been seen."""
        description = await self._client.describe()
        await self.until(
            lambda: self._revision(description.incarnation) >= description.revision,
            f"revision {description.revision} of the cluster's log",
        )

    def _revision(self, incarnation: str) -> int:
        log = self.logs.get(incarnation)
        return log[-1].revision if log else 0

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(Unavailable, OutOfRange):
                try:
                    async for batch in self._client.events(self._incarnation, self._revision(self._incarnation)):
                        self._incarnation = batch.incarnation
                        self.logs.setdefault(batch.incarnation, []).extend(batch.events)
                        self._tell()
                except Stale:
                    self._incarnation = ""  # it was restarted: from the beginning of its new log
                    continue
            await asyncio.sleep(_CLUSTER_RETRY_S)
