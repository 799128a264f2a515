"""Streams of the services into the picture: one of each kind for all pages, while there are any.

Uses `adlro.client`. What each service is asked stands in one short function, so that a better call is one change.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from adlro.client import AsyncClient, Credentials, Endpoints, JobEventKind, JobFilter, JobOrder, JobState, JobView
from adlro.client.health import ServingCheck
from adlro.errors import AdlroError, DeadlineExceeded
from adlro.records.decisions import DecisionView
from adlro.records.jobs import Job
from adlro.services.web.picture import LONGEST_WINDOW_S, WINDOW_S, Picture

T = TypeVar("T")

SOURCES: Final = ("ingest", "orchestrator", "decompose", "cluster")

STATUS_EVERY_S: Final = 1.0
# A page is drawn twice a second; what a job goes through meanwhile is not shown.
CHANGES_EVERY_S: Final = 0.25
DESCRIBED_EVERY_S: Final = 5.0
STATE_EVERY_S: Final = 1.0
_HEALTH_EVERY_S: Final = 1.5
# While one is not live, and where a connection is not there: a service that is killed may serve again within a second.
# A check closes its connection now and then, and is made again so soon as well.
_HEALTH_SOON_S: Final = 0.3
_HEALTH_LOOK_S: Final = 0.1
READINGS_EVERY_S: Final = 1.0
# A stream to a service that is away ends within this time.
_SETTLED_S: Final = 0.3
_HEALTH_TIMEOUT_S: Final = 5.0
_CALL_TIMEOUT_S: Final = 5.0
_FIRST_DELAY_S: Final = 0.2
# A service that is back is live on the page soon after.
_LONGEST_DELAY_S: Final = 1.0
_DECISIONS_BEFORE: Final = 200
# A page that opens several jobs asks for them one after the other.
_TOGETHER_S: Final = 0.02
# One stream tells all jobs that somebody follows; for others it is opened anew so often at most, after its snapshot.
_DETAILS_EVERY_S: Final = 0.5
# A snapshot that takes longer is not waited for.
_DETAILS_WITHIN_S: Final = 5.0
# The stream by which a service is known to answer, though nothing changes.
_STREAM_OF: Final = {"ingest": "jobs", "orchestrator": "status", "decompose": "state"}
# Whether their services answer is told by other streams.
_BESIDE: Final = frozenset({"decisions", "details", "readings"})
_MOST_LEFT: Final = 16
# Jobs that have ended, of which the table begins with as many in any case.
_LATELY: Final = 1000
_ENDED: Final = tuple(each for each in JobState if each.final)
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
        # The jobs that somebody follows, and those that the open stream was asked for.
        self._job_ids: frozenset[str] = frozenset()
        self._asked_ids: frozenset[str] = frozenset()
        self._details_began_s = 0.0
        self._details_told = False
        self._gpu_ids: frozenset[str] = frozenset()
        self._running_since_s: dict[str, float] = {}
        self._serves_again = {name: asyncio.Event() for name in SOURCES}
        self.sources = {name: Source() for name in SOURCES}
        self.sources_version = 0

    def sources_document(self) -> Mapping[str, Any]:
        """The sources for the page."""
        return {name: asdict(source) for name, source in self.sources.items()}

    @property
    def jobs_settled(self) -> bool:
        """Whether the table of jobs is that of now: its stream is open, and what was missed before has come."""
        return self._picture.jobs_complete and self._revision is not None and self._lives("ingest")

    def want(self, followed: frozenset[str], job_ids: frozenset[str], gpu_ids: frozenset[str]) -> None:
        """Opens the streams that browsers need now, and closes those that nobody has needed for a while.

        Args:
            followed: the names of the topics that somebody follows; nothing while no page is open.
            job_ids, gpu_ids: the jobs and the GPUs whose own page is open.
        """
        now_s = time.monotonic()
        wanted = {"jobs", "status", "described", "state", "health"} if followed else set()
        if "decisions" in followed:
            wanted.add("decisions")
        self._gpu_ids = gpu_ids
        wanted |= ({"details"} if job_ids else set()) | ({"readings"} if gpu_ids else set())
        if job_ids:
            self._job_ids = job_ids
            if "details" in self._tasks and self._may_ask_anew(now_s):
                self._tasks.pop("details").cancel()
        for kind in wanted:
            self._wanted_at_s[kind] = now_s
            if kind not in self._tasks:
                self._begin(kind)
        for kind in list(self._tasks):
            if now_s - self._wanted_at_s[kind] > self._idle_s:
                self._tasks.pop(kind).cancel()
                if kind == "details":
                    self._job_ids = self._asked_ids = frozenset()
                    self._picture.take_details((), ())
        if not self._tasks and self._client is not None:
            client, self._client = self._client, None
            # What was told before is no state of now: pages that come back are told nothing of it.
            self._picture.forget()
            self._revision = None
            self._running_since_s.clear()
            for name in SOURCES:
                self._set(name, "connecting", "")
            self._spawn(client.close(), "close streams")

    def _may_ask_anew(self, now_s: float) -> bool:
        """Whether the stream of details is to be opened anew: for other jobs than it was asked for, and not too soon.

        Jobs that nobody follows any more are left out when another one comes, or when they are many.
        """
        if self._job_ids <= self._asked_ids and len(self._asked_ids) <= 2 * len(self._job_ids) + _MOST_LEFT:
            return False
        open_s = now_s - self._details_began_s
        return open_s >= (_DETAILS_EVERY_S if self._details_told else _DETAILS_WITHIN_S)

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
            "details": ("ingest", self._details),
            "readings": ("ingest", self._readings),
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
                self._running_since_s.pop(kind, None)
                if kind not in _BESIDE:
                    self._set(source, "away", error.message)
            if time.monotonic() - began_s > _LONGEST_DELAY_S:
                delay_s = _FIRST_DELAY_S
            # Where its health says that it serves again, at once.
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s * random.uniform(0.7, 1.0)):
                    await self._serves_again[source].wait()
            self._serves_again[source].clear()
            delay_s = min(delay_s * 2.0, _LONGEST_DELAY_S)

    def _set(self, name: str, state: str, error: str) -> None:
        source = self.sources[name]
        if source.state != state:
            source.since_unix_s = round(time.time(), 1)
        elif source.error == error:
            return
        source.state, source.error = state, error
        if name == "orchestrator" and state == "away":
            self._picture.lose_status()
        self.sources_version += 1

    # What each service is asked

    async def _jobs(self, client: AsyncClient) -> None:
        """WatchJobs with the view of a table: a snapshot, then every change; after an outage only what was missed."""
        picture, count = self._picture, 0
        if self._revision is None or not picture.jobs_complete:
            self._revision = await self._jobs_of_now(client)
            self._set("ingest", "live", "")
        changes = client.watch(self._revision, patience_s=0.0, view=JobView.BASIC, min_interval_s=CHANGES_EVERY_S)
        async with _closing(changes):
            async for event in changes:
                if event.kind is not JobEventKind.CHANGE or event.job is None:
                    self._revision = None  # what was missed is stored no more: all anew
                    return
                picture.take_job(event.job)
                self._revision = event.revision
                self._set("ingest", "live", "")
                count += 1
                if count % _EVENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _jobs_of_now(self, client: AsyncClient) -> int:
        """Takes the jobs that have not ended, and those that ended lately; returns the revision to go on from.

        Lately is the last hour in any case, and up to a day for as long as no more than a thousand jobs ended in it.

        Changes are not filtered by time: a cluster that is set up anew begins again at zero.
        """
        newest = await client.list_page(
            JobFilter(states=_ENDED), page_size=_LATELY, order=JobOrder.ENDED, view=JobView.BASIC
        )
        since_s = _lately_s([job.end_s or 0.0 for job in newest.jobs], more=bool(newest.next_page_token))
        lately = JobFilter(active_after_s=since_s)
        picture, count, revision = self._picture, 0, 0
        picture.begin_snapshot(since_s)
        snapshot = client.watch(None, lately, patience_s=0.0, view=JobView.BASIC)
        async with _closing(snapshot):
            async for event in snapshot:
                if event.kind is JobEventKind.SNAPSHOT_END:
                    revision = event.revision
                    break
                if event.job is not None:
                    picture.take_job(event.job)
                count += 1
                if count % _EVENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        picture.end_snapshot()
        return revision

    async def _details(self, client: AsyncClient) -> None:
        """WatchJobs of the jobs whose page is open: all of them, however long ago they ended."""
        self._details_began_s, self._details_told = time.monotonic(), False
        await asyncio.sleep(_TOGETHER_S)
        asked = self._asked_ids = self._job_ids
        found: dict[str, Job] | None = {}
        events = client.watch(job_filter=JobFilter(job_ids=asked), patience_s=0.0)
        async with _closing(events):
            async for event in events:
                if event.kind is JobEventKind.SNAPSHOT and found is None:
                    found = {}  # what was missed is stored no more: all anew
                if event.job is not None and found is None:
                    self._picture.take_detail(event.job)
                elif event.job is not None and found is not None:
                    found[event.job.job_id] = event.job
                elif event.kind is JobEventKind.SNAPSHOT_END and found is not None:
                    self._picture.take_details(asked, found.values())
                    self._details_told, found = True, None

    async def _readings(self, client: AsyncClient) -> None:
        """GetTelemetry of the GPUs whose page is open: their newest raw values."""
        while True:
            async with _ticking(READINGS_EVERY_S):
                asked = sorted(self._gpu_ids & self._picture.layout.index.keys())
                if asked:
                    found = await client.telemetry(gpu_ids=asked)
                    self._picture.take_readings(found.latest)

    async def _status(self, client: AsyncClient) -> None:
        """WatchStatus: the policy, who waits and why, the lag of events."""
        async for status in client.watch_status(STATUS_EVERY_S):
            self._picture.take_status(status)
            self._set("orchestrator", "live", "")

    async def _description(self, client: AsyncClient) -> None:
        """DescribeCluster, every few seconds: clock, lost GPUs."""
        while True:
            async with _ticking(DESCRIBED_EVERY_S):
                self._picture.take_description(await client.describe_cluster(), time.time())
                self._set("cluster", "live", "")

    async def _state(self, client: AsyncClient) -> None:
        """WatchClusterState, as planes: the metrics of all GPUs in steps, and drift."""
        async for state in client.watch_cluster_planes(min_interval_s=STATE_EVERY_S):
            self._picture.take_state(state)
            self._set("decompose", "live", "")

    async def _decisions(self, client: AsyncClient) -> None:
        """WatchDecisions, in short: only while somebody looks at decisions."""
        count, missed = 0, 0

        def note(number: int) -> None:
            nonlocal missed
            missed += number

        decisions = client.watch_decisions(_DECISIONS_BEFORE, view=DecisionView.SUMMARY, missed=note)
        async with _closing(decisions):
            async for decision in decisions:
                if missed:
                    return  # read too slowly: begun anew, with the newest ones
                self._picture.take_decisions([decision], anew=count == 0)
                count += 1
                if count % _EVENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _health(self) -> None:
        """A service that hangs, or behind a line that is cut, ends no stream: it is asked whether it serves."""
        checks = {name: ServingCheck(getattr(self._endpoints, name), self._credentials) for name in SOURCES}
        try:
            while True:
                next_s = time.monotonic() + _HEALTH_EVERY_S
                async with _ticking(_HEALTH_SOON_S):
                    answers = await asyncio.gather(*map(_serves, checks.values()))
                    for (name, check), serves in zip(checks.items(), answers, strict=True):
                        self._take_health(name, check.address, serves=serves)
                if all(each.state == "live" for each in self.sources.values()):
                    await _sleep_until(next_s, lambda: not all(check.is_connected() for check in checks.values()))
        finally:
            await asyncio.gather(*(each.aclose() for each in checks.values()))

    def _take_health(self, name: str, address: str, *, serves: bool) -> None:
        if not serves and self.sources[name].state != "away":
            self._set(name, "away", f"{name} at {address} does not serve now")
        elif serves and self.sources[name].state != "live" and self._lives(name):
            self._set(name, "live", "")
        elif serves and self.sources[name].state == "away":
            self._serves_again[name].set()

    def _lives(self, name: str) -> bool:
        """Whether a source has an open stream that says nothing, because nothing changes."""
        if name == "ingest" and not self._picture.jobs_complete:
            return False  # its snapshot is under way
        since_s = self._running_since_s.get(_STREAM_OF.get(name, ""))
        return since_s is not None and time.monotonic() - since_s > _SETTLED_S


def _lately_s(ends_s: Sequence[float], *, more: bool) -> float:
    """From when on jobs that have ended are read, cluster time.

    Args:
        ends_s: the last ends, the last one first.
        more: there are others before them.
    """
    last_s = max(ends_s, default=0.0)
    longest_s = min(ends_s) if more and ends_s else 0.0
    return max(min(last_s - WINDOW_S, max(longest_s, last_s - LONGEST_WINDOW_S)), 0.0)


async def _serves(check: ServingCheck) -> bool:
    with suppress(DeadlineExceeded, TimeoutError):
        async with asyncio.timeout(_HEALTH_TIMEOUT_S + 1.0):
            return await check.serves(_HEALTH_TIMEOUT_S)
    return False


async def _sleep_until(end_s: float, right: Callable[[], bool]) -> None:
    """Returns at a time of the monotonic clock, or when something has come true that has no event."""
    while time.monotonic() < end_s and not right():  # noqa: ASYNC110 - a connection tells its end to nobody
        await asyncio.sleep(_HEALTH_LOOK_S)


@asynccontextmanager
async def _closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """A stream that is closed at once where it is left."""
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


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
