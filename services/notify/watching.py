"""What happens in the suite, from the services by `adlro.client`: ends of jobs exactly, conditions by looking.

Ends come by WatchJobs after the position of the outbox, which moves only with the messages of what was noted: whatever
is killed, no end is passed over. If ingest has no such position any more (it was rolled back, or too much has changed),
all ended jobs are read, and those that were not noted yet are.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from adlro.client import AsyncClient, JobEventKind, JobFilter, JobState, JobView
from adlro.errors import AdlroError, NotFound, Unavailable
from adlro.records.watching import JobEvent
from adlro.services.notify.conditions import GPUS, Conditions, Found, drifts, fallback, lost_gpus
from adlro.services.notify.keeper import Keeper
from adlro.webhooks.events import Event, job_ended

_ENDED: Final = JobFilter(states=tuple(each for each in JobState if each.final))
# A watch that sends at most one job before it says which revision is the newest.
_HARDLY_ANY: Final = JobFilter(job_ids=("job-1",))
_TOGETHER: Final = 500
_FIRST_DELAY_S: Final = 0.2
# A job that ends right after a service has come back is told soon.
_LONGEST_DELAY_S: Final = 1.0
_TELL_AGAIN_S: Final = 300.0


class Watching:
    """The loops that note what happens.

    Args:
        client: of the services; says at once that one is away.
        keeper: takes the events.
        look_every_s: how often conditions are looked at.
        settle_s: how long a fallback or a drift lasts before it is told.
        log: of the process.
        begun: called when it is known from where on ends are noted.
    """

    def __init__(
        self,
        client: AsyncClient,
        keeper: Keeper,
        look_every_s: float,
        settle_s: float,
        log: structlog.typing.FilteringBoundLogger,
        begun: Callable[[], None],
    ) -> None:
        self._client = client
        self._keeper = keeper
        self._look_every_s = look_every_s
        self._settle_s = settle_s
        self._log = log
        self._begun = begun
        self._cluster = ""
        self._conditions: Conditions | None = None
        # What is told and its messages are written together: nobody else changes it meanwhile.
        self._telling = asyncio.Lock()

    async def ends(self) -> None:
        """Notes the end of every job, until it is cancelled."""
        await self._again("ends of jobs", self._ends_once)

    async def looks(self) -> None:
        """Notes what lasts, until it is cancelled."""
        self._conditions = Conditions(await self._keeper.conditions())
        await asyncio.gather(
            self._again("lost GPUs", self._look_at(self._lost)),
            self._again("the policy", self._look_at(self._fallback)),
            self._again("drift", self._look_at(self._drift)),
        )

    async def _again(self, what: str, run: Callable[[], Awaitable[None]]) -> None:
        """Runs something again and again, with longer pauses while its service is away."""
        delay_s, told_s = _FIRST_DELAY_S, float("-inf")
        while True:
            began_s = time.monotonic()
            try:
                await run()
            except AdlroError as error:
                if time.monotonic() - told_s > _TELL_AGAIN_S:
                    told_s = time.monotonic()
                    level = "info" if isinstance(error, Unavailable | NotFound) else "error"
                    getattr(self._log, level)(f"can't watch {what} now; tried again", problem=error.message)
            if time.monotonic() - began_s > _LONGEST_DELAY_S:
                delay_s = _FIRST_DELAY_S
            await asyncio.sleep(delay_s * random.uniform(0.7, 1.0))
            delay_s = min(delay_s * 2.0, _LONGEST_DELAY_S)

    # Ends of jobs

    async def _ends_once(self) -> None:
        position = await self._keeper.position()
        if position is None:
            position = await self._newest_revision()
            await self._keeper.begin_at(position)
            self._log.info("notes the ends of jobs from now on", revision=position)
        self._begun()
        self._cluster = (await self._client.cluster()).name
        after = position if await self._is_known_there() else None
        events = self._client.watch(after, _ENDED, patience_s=0.0, view=JobView.FULL)
        arrived: asyncio.Queue[JobEvent] = asyncio.Queue(_TOGETHER)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_read(events, arrived))
                group.create_task(self._note_ends(arrived))
        except BaseExceptionGroup as several:
            # What was read and not noted is read again: the position has not moved.
            raise several.exceptions[0] from None

    async def _is_known_there(self) -> bool:
        """Whether the end at our position is still what ingest has.

        A store that has lost its last changes gives their revisions again: once there are more of them than before, the
        position alone looks as if nothing was lost.
        """
        last_end = await self._keeper.last_end()
        if last_end is None:
            return True
        job_id, event_id = last_end
        try:
            job = await self._client.get(job_id)
        except NotFound:
            return False
        return job.state.final and job_ended(job, self._cluster, 0.0).event_id == event_id

    async def _newest_revision(self) -> int:
        events = self._client.watch(None, _HARDLY_ANY, patience_s=0.0, view=JobView.BASIC)
        async with _closing(events):
            async for event in events:
                if event.kind is JobEventKind.SNAPSHOT_END:
                    return event.revision
        raise Unavailable("ingest has ended the watch")

    async def _note_ends(self, arrived: asyncio.Queue[JobEvent]) -> None:
        known_from: int | None = None
        while True:
            together = [await arrived.get()]
            while len(together) < _TOGETHER and not arrived.empty():
                together.append(arrived.get_nowait())
            ends: list[Event] = []
            position: int | None = None
            for each in together:
                if each.kind is JobEventKind.SNAPSHOT and known_from is None:
                    known_from = await self._keeper.known_from()
                    self._log.warning("ingest has lost our position; all ended jobs are read", known_from=known_from)
                if each.kind is JobEventKind.SNAPSHOT_END:
                    known_from, position = None, each.revision
                elif each.job is not None and each.job.state.final:
                    if each.kind is JobEventKind.CHANGE:
                        position = each.revision
                    elif each.job.revision <= (known_from or 0):
                        continue  # it ended before we began
                    ends.append(job_ended(each.job, self._cluster, time.time()))
            if ends or position is not None:
                await self._keeper.note(ends, position=position)

    # What lasts

    def _look_at(self, find: Callable[[], Awaitable[Found | None]]) -> Callable[[], Awaitable[None]]:
        async def look() -> None:
            while True:
                found = await find()
                if found is not None:
                    await self._note_conditions(found)
                await asyncio.sleep(self._look_every_s)

        return look

    async def _note_conditions(self, found: Found) -> None:
        assert self._conditions is not None
        # A lost GPU matters at once; the other kinds come and go by themselves.
        settle_s = 0.0 if found.kind is GPUS else self._settle_s
        async with self._telling:
            events = self._conditions.look(found, time.time(), time.monotonic(), settle_s)
            if events:
                await self._keeper.note(events, conditions=self._conditions.kept())

    async def _lost(self) -> Found | None:
        described = await self._client.describe_cluster()
        self._cluster = described.cluster.name
        return lost_gpus(described)

    async def _fallback(self) -> Found | None:
        status = await self._client.status()
        return fallback(status, self._cluster) if self._cluster else None

    async def _drift(self) -> Found | None:
        try:
            return drifts(await self._client.cluster_planes())
        except NotFound:  # no cluster was described to it yet
            return None


async def _read(events: AsyncIterator[JobEvent], arrived: asyncio.Queue[JobEvent]) -> None:
    async with _closing(events):
        async for event in events:
            await arrived.put(event)
    raise Unavailable("ingest has ended the watch")


@asynccontextmanager
async def _closing(stream: AsyncIterator[JobEvent]) -> AsyncIterator[None]:
    """Closes a stream at once where it is left."""
    try:
        yield
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
