"""Streams of the services into the picture: one of each kind for all pages, while there are any.

Uses `adlro.client`. What each service is asked stands in one short function, so that a better call is one change.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from adlro.client import AsyncClient, Credentials, Endpoints, JobEventKind
from adlro.client.health import check
from adlro.errors import AdlroError, DeadlineExceeded
from adlro.services.web.picture import Picture

SOURCES: Final = ("ingest", "orchestrator", "decompose", "cluster")

STATUS_EVERY_S: Final = 0.5
DESCRIBED_EVERY_S: Final = 5.0
STATE_EVERY_S: Final = 1.0
_HEALTH_EVERY_S: Final = 1.5
# A call to a service that is away fails within this time.
_SETTLED_S: Final = 0.5
_HEALTH_TIMEOUT_S: Final = 5.0
_CALL_TIMEOUT_S: Final = 5.0
_FIRST_DELAY_S: Final = 0.2
_LONGEST_DELAY_S: Final = 2.0
_DECISIONS_BEFORE: Final = 200
# Events of a large snapshot are taken in turns with everything else.
_EVENTS_AT_ONCE: Final = 100


@dataclass(slots=True)
class Source:
    """Whether a service answers.

    Attributes:
        state: connecting, live or away.
        since_unix_s: since when.
        error: why it is away, in words.
    """

    state: str = "connecting"
    since_unix_s: float = 0.0
    error: str = ""


def client_of(endpoints: Endpoints, credentials: Credentials) -> AsyncClient:
    """A client that says at once that a service is away: the page shows that, and tries again by itself."""
    return AsyncClient(endpoints=endpoints, credentials=credentials, timeout_s=_CALL_TIMEOUT_S, patience_s=0.0)


class Feeds:
    """The streams.

    Args:
        endpoints: the services' addresses.
        credentials: the page's own.
        picture: takes what the services say.
        crashed: called with a name and an error if a stream ends by a mistake of the page itself.
        idle_s: how long the streams stay open without a browser.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        credentials: Credentials,
        picture: Picture,
        crashed: Callable[[str, BaseException], None],
        idle_s: float,
    ) -> None:
        self._endpoints = endpoints
        self._credentials = credentials
        self._picture = picture
        self._crashed = crashed
        self._idle_s = idle_s
        self._client: AsyncClient | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted_at_s: dict[str, float] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._revision: int | None = None
        self._running_since_s: dict[str, float] = {}
        self.sources = {name: Source() for name in SOURCES}
        self.sources_version = 0

    def sources_document(self) -> Mapping[str, Any]:
        """The sources for the page."""
        return {name: asdict(source) for name, source in self.sources.items()}

    @property
    def open(self) -> bool:
        """Whether streams are open."""
        return self._client is not None

    def want(self, followed: frozenset[str]) -> None:
        """Opens the streams that browsers need now, and closes those that nobody has needed for a while.

        Args:
            followed: the names of the topics that somebody follows; nothing while no page is open.
        """
        now_s = time.monotonic()
        wanted = {"jobs", "status", "described", "state", "health"} if followed else set()
        if "decisions" in followed:
            wanted.add("decisions")
        for kind in wanted:
            self._wanted_at_s[kind] = now_s
            if kind not in self._tasks:
                self._begin(kind)
        for kind in list(self._tasks):
            if now_s - self._wanted_at_s[kind] > self._idle_s:
                self._tasks.pop(kind).cancel()
        if not self._tasks and self._client is not None:
            client, self._client = self._client, None
            for name in SOURCES:
                self._set(name, "connecting", "")
            self._spawn(client.close(), "close streams")

    async def close(self) -> None:
        """Closes all streams."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _begin(self, kind: str) -> None:
        if self._client is None:
            self._client = client_of(self._endpoints, self._credentials)
        runs: dict[str, tuple[str, Callable[[AsyncClient], Coroutine[Any, Any, None]]]] = {
            "jobs": ("ingest", self._jobs),
            "status": ("orchestrator", self._status),
            "described": ("cluster", self._description),
            "state": ("decompose", self._state),
            "decisions": ("orchestrator", self._decisions),
        }
        if kind == "health":
            self._tasks[kind] = self._spawn(self._health(), "health")
        else:
            source, run = runs[kind]
            self._tasks[kind] = self._spawn(self._keep(kind, source, run, self._client), kind)

    def _spawn(self, coro: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs a coroutine beside; unlike the kit's, it may be cancelled."""
        task = asyncio.create_task(coro, name=name)
        self._running.add(task)  # a task that nobody holds may be collected
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(task.get_name(), error)

    async def _keep(
        self, kind: str, source: str, run: Callable[[AsyncClient], Coroutine[Any, Any, None]], client: AsyncClient
    ) -> None:
        """Reads one kind again and again, with longer and longer pauses while its service is away."""
        delay_s = _FIRST_DELAY_S
        while True:
            began_s = self._running_since_s[kind] = time.monotonic()
            try:
                await run(client)
            except AdlroError as error:
                del self._running_since_s[kind]
                # A decision more or less: whether the orchestrator answers is told by its status.
                if kind != "decisions":
                    self._set(source, "away", error.message)
            if time.monotonic() - began_s > _LONGEST_DELAY_S:
                delay_s = _FIRST_DELAY_S
            await asyncio.sleep(delay_s * random.uniform(0.7, 1.0))
            delay_s = min(delay_s * 2.0, _LONGEST_DELAY_S)

    def _set(self, name: str, state: str, error: str) -> None:
        source = self.sources[name]
        if source.state != state:
            source.since_unix_s = round(time.time(), 1)
        elif source.error == error:
            return
        source.state, source.error = state, error
        self.sources_version += 1

    # What each service is asked

    async def _jobs(self, client: AsyncClient) -> None:
        """WatchJobs: a snapshot, then every change; after an outage only what was missed, if it is still there."""
        picture, count = self._picture, 0
        if not picture.jobs_complete:
            self._revision = None
        in_snapshot = self._revision is None
        if in_snapshot:
            picture.begin_snapshot()
        async for event in client.watch(self._revision, patience_s=0.0):
            if event.kind is JobEventKind.SNAPSHOT and not in_snapshot:
                in_snapshot = True
                picture.begin_snapshot()
            if event.job is not None:
                picture.take_job(event.job)
            if event.kind is JobEventKind.SNAPSHOT_END:
                in_snapshot = False
                picture.end_snapshot()
            if event.kind is not JobEventKind.SNAPSHOT:
                self._revision = event.revision
                self._set("ingest", "live", "")
            count += 1
            if count % _EVENTS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _status(self, client: AsyncClient) -> None:
        """GetStatus, twice a second; after the cluster's description, so that no event seems to be missing."""
        while True:
            async with _ticking(STATUS_EVERY_S):
                self._picture.take_status(await client.status())
                self._set("orchestrator", "live", "")

    async def _description(self, client: AsyncClient) -> None:
        """DescribeCluster, every few seconds: clock, lost GPUs, the revision of its newest event."""
        while True:
            async with _ticking(DESCRIBED_EVERY_S):
                self._picture.take_description(await client.describe_cluster(), time.time())
                self._set("cluster", "live", "")

    async def _state(self, client: AsyncClient) -> None:
        """WatchClusterState: the metrics of all GPUs, and drift."""
        async for state in client.watch_cluster_state(min_interval_s=STATE_EVERY_S):
            self._picture.take_state(state)
            self._set("decompose", "live", "")

    async def _decisions(self, client: AsyncClient) -> None:
        """WatchDecisions: only while somebody looks at decisions."""
        count = 0
        async for decision in client.watch_decisions(history=_DECISIONS_BEFORE):
            self._picture.take_decisions([decision])
            count += 1
            if count % _EVENTS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _health(self) -> None:
        """A service that hangs, or behind a line that is cut, ends no stream: it is asked whether it serves."""
        addresses = {
            "ingest": self._endpoints.ingest,
            "decompose": self._endpoints.decompose,
            "cluster": self._endpoints.cluster,
        }
        while True:
            async with _ticking(_HEALTH_EVERY_S):
                answers = await asyncio.gather(*(_serves(each, self._credentials) for each in addresses.values()))
                for (name, address), serves in zip(addresses.items(), answers, strict=True):
                    if not serves and self.sources[name].state != "away":
                        self._set(name, "away", f"{name} at {address} does not serve now")
                    elif serves and self.sources[name].state == "away" and self._lives(name):
                        self._set(name, "live", "")

    def _lives(self, name: str) -> bool:
        """Whether a source has an open stream that says nothing, because nothing changes."""
        since_s = self._running_since_s.get("jobs")
        return name == "ingest" and since_s is not None and time.monotonic() - since_s > _SETTLED_S


async def _serves(address: str, credentials: Credentials) -> bool:
    with suppress(DeadlineExceeded, TimeoutError):
        async with asyncio.timeout(_HEALTH_TIMEOUT_S + 1.0):
            return await check(address, _HEALTH_TIMEOUT_S, credentials)
    return False


class _ticking:  # noqa: N801 - reads as a statement: `async with _ticking(0.5):`
    """Waits at its end until a time has passed since its begin."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._began_s = 0.0

    async def __aenter__(self) -> None:
        self._began_s = time.monotonic()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await asyncio.sleep(max(self._every_s - (time.monotonic() - self._began_s), 0.0))
