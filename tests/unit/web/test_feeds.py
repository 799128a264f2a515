"""What the page asks the services: the jobs of now, all of a job that somebody follows; and what after an outage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest

from adlro.client import AsyncClient, Credentials, Endpoints
from adlro.client.health import ServingCheck
from adlro.errors import Unavailable
from adlro.records.decisions import Decision, DecisionView
from adlro.records.events import ClusterDescription
from adlro.records.jobs import Job, JobState
from adlro.records.matrices import ClusterPlanes, MetricColumn, Telemetry, TelemetryBlock
from adlro.records.status import OrchestratorStatus
from adlro.records.telemetry import Metric, Unit
from adlro.records.watching import JobEvent, JobEventKind, JobFilter, JobOrder, JobPage, JobView
from adlro.services.web import feeds as module
from adlro.services.web.feeds import Feeds
from adlro.services.web.hub import Hub
from adlro.services.web.picture import Picture
from adlro.services.web.viewers import EVERYBODY
from tests.unit.web.world import GPU_IDS, cluster_state, decision, description, ended, job, running, status

NOWHERE = "127.0.0.1:1"
END = JobEvent(JobEventKind.SNAPSHOT_END, None, 7)


def told(*jobs: Job) -> list[JobEvent]:
    """A snapshot."""
    return [*(JobEvent(JobEventKind.SNAPSHOT, each, each.revision) for each in jobs), END]


def change(made: Job, revision: int) -> JobEvent:
    return JobEvent(JobEventKind.CHANGE, made, revision)


class Client:
    """A client of services that say what a test lets them.

    Attributes:
        streams: the events of each watch of jobs, in the order in which they are opened; then nothing more comes.
        watched: what each watch asked for.
    """

    def __init__(self, *streams: Sequence[JobEvent], last_end_s: float | None = None) -> None:
        self.streams = list(streams)
        self.last_end_s = last_end_s
        self.listed: list[tuple[JobFilter, JobOrder, JobView]] = []
        self.watched: list[tuple[int | None, JobFilter | None, JobView]] = []
        self.asked_gpus: list[list[str]] = []

    async def list_page(self, chosen: JobFilter, *, page_size: int, order: JobOrder, view: JobView) -> JobPage:
        assert page_size == 1000
        self.listed.append((chosen, order, view))
        if self.last_end_s is None:
            return JobPage([])
        # A thousand jobs ended in its last second, and others before them.
        return JobPage([ended(running(job(1)), end_s=self.last_end_s - ago_s) for ago_s in (0.0, 1.0)], "more")

    async def watch(
        self,
        after_revision: int | None = None,
        job_filter: JobFilter | None = None,
        *,
        patience_s: float,
        view: JobView = JobView.FULL,
        min_interval_s: float = 0.0,
    ) -> AsyncIterator[JobEvent]:
        assert patience_s == 0.0
        assert (min_interval_s > 0.0) == (after_revision is not None)
        self.watched.append((after_revision, job_filter, view))
        for event in self.streams.pop(0) if self.streams else ():
            yield event
        if not self.streams:
            await asyncio.Event().wait()

    async def telemetry(self, *, gpu_ids: list[str]) -> Telemetry:
        self.asked_gpus.append(gpu_ids)
        values = np.array([[0.5] * len(gpu_ids)], np.float32)
        columns: Mapping[Metric, MetricColumn] = {Metric.UTILIZATION: MetricColumn(Unit.RATIO, values, values)}
        return Telemetry(TelemetryBlock("default", tuple(gpu_ids), (1.0,), (1.0,), columns))

    async def watch_status(self, _: float) -> AsyncIterator[OrchestratorStatus]:
        yield status(queue_length=3)
        raise Unavailable("the orchestrator is away")

    async def close(self) -> None:
        pass


@pytest.fixture
def picture() -> Picture:
    return Picture()


@pytest.fixture
def feeds(picture: Picture) -> Feeds:
    def crashed(name: str, error: BaseException) -> None:
        raise AssertionError(name) from error

    return Feeds(Endpoints(NOWHERE, NOWHERE, NOWHERE, NOWHERE), Credentials(), picture, crashed, idle_s=60.0)


async def until(right: Any) -> None:
    async with asyncio.timeout(20.0):
        while not right():  # noqa: ASYNC110 - the feeds have no event for it
            await asyncio.sleep(0.005)


def as_client(client: Client) -> AsyncClient:
    return cast(AsyncClient, client)


async def test_only_jobs_of_now_are_asked_for_and_every_change_after_them(feeds: Feeds, picture: Picture) -> None:
    waits = job(2)
    old = ended(running(job(3), GPU_IDS[0]), end_s=5.0)
    client = Client(told(waits), [change(running(waits, GPU_IDS[1]), 8), change(old, 9)], last_end_s=10_000.0)
    reading = asyncio.create_task(feeds._jobs(as_client(client)))
    await until(lambda: picture.jobs_complete and len(picture.jobs) == 2)
    reading.cancel()
    ((listed, order, view),) = client.listed
    assert (order, view) == (JobOrder.ENDED, JobView.BASIC)
    assert all(state.final for state in listed.states)
    (first, second) = client.watched
    # The last hour before the last end: a virtual clock may stand far beyond it.
    assert first == (None, JobFilter(active_after_s=6400.0), JobView.BASIC)
    # Not filtered by time: a cluster that is set up anew begins at zero, and its ends must come.
    assert second == (7, None, JobView.BASIC)
    known = picture.jobs.get("job-3")
    assert known is not None
    assert known.state is JobState.SUCCEEDED
    assert feeds.sources["ingest"].state == "live"
    assert picture.jobs.known_since_s == 6400.0


@pytest.mark.parametrize(
    ("ends_s", "more", "since_s"),
    [
        ([], False, 0.0),
        ([10_000.0], False, 0.0),
        ([10_000.0, 9_000.0], True, 6_400.0),
        ([10_000.0, 2_000.0], True, 2_000.0),
        ([200_000.0, 3_000.0], True, 113_600.0),
        ([200_000.0], False, 113_600.0),
        ([3_000.0, 2_000.0], True, 0.0),
    ],
)
def test_jobs_that_ended_are_read_for_an_hour_at_least_and_a_thousand_of_a_day_at_most(ends_s, more, since_s):
    assert module._lately_s(ends_s, more=more) == since_s


async def test_without_a_page_the_jobs_are_no_longer_known(picture: Picture, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Feeds(Endpoints(*[NOWHERE] * 4), Credentials(), picture, lambda *_: None, idle_s=0.0)
    client = Client(told(job(2)), [], told(job(3)), [])
    monkeypatch.setattr(module, "client_of", lambda *_: client)
    monkeypatch.setattr(module, "_SETTLED_S", 0.0)
    monkeypatch.setattr(made, "_keep", lambda kind, _source, run, given: run(given) if kind == "jobs" else _nothing())
    monkeypatch.setattr(made, "_health", _nothing)
    made._running_since_s["jobs"] = 0.0
    nobody: frozenset[str] = frozenset()
    try:
        assert not made.jobs_settled
        made.want(frozenset({"queue"}), nobody, nobody)
        await until(lambda: made.jobs_settled)
        await asyncio.sleep(0.001)
        made.want(nobody, nobody, nobody)
        # What changes from now on is not told: the next page begins with a snapshot.
        assert (picture.jobs_complete, made.jobs_settled) == (False, False)
        made._running_since_s["jobs"] = 0.0
        made.want(frozenset({"queue"}), nobody, nobody)
        await until(lambda: made.jobs_settled)
        assert {each.job_id for each in picture.jobs.jobs()} == {"job-3"}
    finally:
        await made.close()


async def test_after_an_outage_only_what_was_missed_is_read(feeds: Feeds, picture: Picture) -> None:
    client = Client(told(job(2)), [change(running(job(2), GPU_IDS[1]), 8)], [change(job(4), 9)], [], last_end_s=None)
    for _ in range(2):
        await feeds._jobs(as_client(client))
    assert [after for after, _, _ in client.watched] == [None, 7, 8]
    assert client.watched[0][1] == JobFilter(active_after_s=0.0)
    assert len(client.listed) == 1
    assert len(picture.jobs) == 2


async def test_where_what_was_missed_is_no_longer_stored_all_is_read_anew(feeds: Feeds, picture: Picture) -> None:
    # The client goes on with a snapshot of everything: the page leaves it, and asks for the jobs of now.
    client = Client(told(job(2)), told(job(2), job(3)), told(job(4)), [change(job(5), 8)], [])
    for _ in range(2):
        await feeds._jobs(as_client(client))
    assert [after for after, _, _ in client.watched] == [None, 7, None, 7]
    assert {each.job_id for each in picture.jobs.jobs()} == {"job-4", "job-5"}


async def test_a_change_that_the_snapshot_has_already_changes_nothing(feeds: Feeds, picture: Picture) -> None:
    runs = running(job(2), GPU_IDS[1])
    client = Client(told(runs), [change(job(2), 8)], [])
    await feeds._jobs(as_client(client))
    known = picture.jobs.get("job-2")
    assert known is not None
    assert known.state is JobState.RUNNING


async def test_all_of_the_jobs_that_somebody_follows_is_read(feeds: Feeds, picture: Picture) -> None:
    feeds._job_ids = frozenset({"job-2", "job-9"})
    client = Client([*told(job(2)), change(running(job(2), GPU_IDS[0]), 8), *told(job(9)), change(job(2), 9)], [])
    await feeds._details(as_client(client))
    assert client.watched == [(None, JobFilter(job_ids=feeds._job_ids), JobView.FULL)]
    # A second snapshot in the middle: what was missed is stored no more.
    assert picture.details_known == feeds._job_ids
    assert {job_id: each.state for job_id, each in picture.details.items()} == {
        "job-9": JobState.PENDING,
        "job-2": JobState.PENDING,
    }


async def test_the_streams_follow_what_pages_show(
    feeds: Feeds, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(told(job(1)), told(job(1), job(2)), [])
    monkeypatch.setattr(module, "client_of", lambda *_: client)
    monkeypatch.setattr(module, "_DETAILS_EVERY_S", 0.0)
    monkeypatch.setattr(feeds, "_keep", lambda kind, _source, run, given: run(given) if kind in OWN else _nothing())
    monkeypatch.setattr(feeds, "_health", _nothing)
    picture.take_description(description(), 0.0)
    nobody: frozenset[str] = frozenset()
    try:
        feeds.want(frozenset({"head"}), nobody, nobody)
        assert "details" not in feeds._tasks
        feeds.want(frozenset({"job"}), frozenset({"job-1"}), nobody)
        await until(lambda: "job-1" in picture.details)
        feeds.want(frozenset({"job"}), frozenset({"job-1"}), nobody)
        first = feeds._tasks["details"]
        # Another one is asked for together with the first; one that is left is not asked for anew.
        feeds.want(frozenset({"job"}), frozenset({"job-1", "job-2"}), nobody)
        await until(lambda: len(client.watched) == 2)
        feeds.want(frozenset({"job"}), frozenset({"job-2"}), nobody)
        second = feeds._tasks["details"]
        assert first is not second
        assert [set(each.job_ids) for _, each, _ in client.watched if each] == [{"job-1"}, {"job-1", "job-2"}]
        feeds.want(frozenset({"gpu"}), nobody, frozenset({GPU_IDS[1], "no such GPU"}))
        await until(lambda: client.asked_gpus)
        assert client.asked_gpus[0] == [GPU_IDS[1]]
        assert picture.readings[GPU_IDS[1]] == {Metric.UTILIZATION: 0.5}
    finally:
        await feeds.close()


OWN = ("details", "readings")


async def _nothing() -> None:
    await asyncio.Event().wait()


async def test_one_who_opens_jobs_all_the_time_keeps_no_job_from_others(
    feeds: Feeds, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Client):
        async def watch(self, *given: Any, **named: Any) -> AsyncIterator[JobEvent]:
            self.watched.append((None, named["job_filter"], JobView.FULL))
            await asyncio.sleep(0.05)
            for event in told(job(2)):
                yield event
            await asyncio.Event().wait()

    client = Slow()
    monkeypatch.setattr(module, "client_of", lambda *_: client)
    monkeypatch.setattr(feeds, "_keep", lambda kind, _source, run, given: run(given) if kind in OWN else _nothing())
    monkeypatch.setattr(feeds, "_health", _nothing)
    nobody: frozenset[str] = frozenset()
    try:
        number, last = 1000, frozenset({"job-2"})
        feeds.want(frozenset({"job"}), last, nobody)
        began_s = time.monotonic()
        while (picture.details_known != last or number < 1100) and time.monotonic() < began_s + 20.0:
            if number < 1100:
                number += 1
                last = frozenset({"job-2", f"job-{number}"})
            feeds.want(frozenset({"job"}), last, nobody)
            await asyncio.sleep(0.01)
            # Once it is known, it stays so.
            assert "job-2" in picture.details or len(client.watched) <= 1
        assert picture.details_known == last
        # A hundred subscriptions in a second or a little more: not a stream for each.
        assert 2 <= len(client.watched) <= 20
    finally:
        await feeds.close()


async def test_a_stream_of_decisions_that_begins_anew_leaves_no_hole(feeds: Feeds, picture: Picture) -> None:
    class Deciding(Client):
        def __init__(self) -> None:
            super().__init__()
            self.tells = [(range(1, 4), 0), (range(8, 10), 0), (range(9, 12), 5), (range(14, 17), 0)]
            self.closed = 0

        async def watch_decisions(self, history: int, *, view: DecisionView, missed: Any) -> AsyncIterator[Decision]:
            assert (history, view) == (200, DecisionView.SUMMARY)
            numbers, lost = self.tells.pop(0)
            try:
                for number in numbers:
                    # The last one comes with the number of those before it that do not.
                    if lost and number == numbers[-1]:
                        missed(lost)
                    yield decision(number)
            finally:
                self.closed += 1

    def shown() -> list[str]:
        return [each.decision_id for each in picture.decisions]

    client = Deciding()
    await feeds._decisions(as_client(client))
    assert shown() == ["d-1-3", "d-1-2", "d-1-1"]
    await feeds._decisions(as_client(client))
    assert shown() == ["d-1-9", "d-1-8"]
    await feeds._decisions(as_client(client))
    assert (shown(), client.closed) == (["d-1-10", "d-1-9"], 3)
    await feeds._decisions(as_client(client))
    assert shown() == ["d-1-16", "d-1-15", "d-1-14"]


class Restarting(Client):
    """Services whose streams tell something the first time they are opened, and nothing the second time."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0

    async def watch(self, after_revision: int | None = None, *_: Any, **named: Any) -> AsyncIterator[JobEvent]:
        if after_revision is None and not self.opened:
            for event in told(job(2)):
                yield event
        await asyncio.Event().wait()

    async def describe_cluster(self) -> ClusterDescription:
        if self.opened:
            await asyncio.Event().wait()
        return description()

    async def watch_status(self, _: float) -> AsyncIterator[OrchestratorStatus]:
        if not self.opened:
            yield status(queue_length=640)
        await asyncio.Event().wait()

    async def watch_cluster_planes(self, *, min_interval_s: float) -> AsyncIterator[ClusterPlanes]:
        if not self.opened:
            yield cluster_state()
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.opened += 1


async def test_streams_that_were_closed_for_a_while_come_back_with_nothing_old(
    feeds: Feeds, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = True

    async def serves(*_: object) -> bool:
        return serving

    client, hub = Restarting(), Hub(picture)
    monkeypatch.setattr(module, "client_of", lambda *_: client)
    monkeypatch.setattr(module, "_serves", serves)
    feeds._idle_s = 0.0
    nobody: frozenset[str] = frozenset()
    hidden = hub.open(EVERYBODY)
    try:
        feeds.want(frozenset({"head"}), nobody, nobody)
        await until(lambda: all(each.state == "live" for each in feeds.sources.values()))
        assert [len(hub.subscribe(hidden, key, 1.0)) for key in ("head", "queue", "gpus")] == [1, 1, 1]
        hub.sleep(hidden)
        await asyncio.sleep(0.01)
        feeds.want(nobody, nobody, nobody)
        await until(lambda: client.opened == 1)
        assert {each.state for each in feeds.sources.values()} == {"connecting"}
        # The next time nobody tells anything: no page is told anything either.
        serving = False
        feeds.want(frozenset({"head"}), nobody, nobody)
        assert hub.wake(hidden, 3600.0) == []
        assert hub.tick(3600.5, lambda _: False) == []
        assert [hub.subscribe(hub.open(EVERYBODY), key, 3601.0) for key in ("head", "queue", "gpus")] == [[], [], []]
        assert not picture.status_live
    finally:
        await feeds.close()


async def test_a_source_that_has_an_open_stream_and_serves_is_live_though_nothing_changes(
    feeds: Feeds, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serves(*_: object) -> bool:
        return True

    client = Restarting()
    client.opened = 1
    monkeypatch.setattr(module, "client_of", lambda *_: client)
    monkeypatch.setattr(module, "_serves", serves)
    # Its jobs are known, so that it goes on from there.
    picture.begin_snapshot()
    picture.end_snapshot()
    feeds._revision = 7
    nobody: frozenset[str] = frozenset()
    try:
        feeds.want(frozenset({"head"}), nobody, nobody)
        await until(lambda: {feeds.sources[each].state for each in ("ingest", "decompose")} == {"live"})
    finally:
        await feeds.close()


async def test_an_orchestrator_that_is_away_has_no_figures_of_now(feeds: Feeds, picture: Picture) -> None:
    keeping = asyncio.create_task(feeds._keep("status", "orchestrator", feeds._status, as_client(Client())))
    await until(lambda: feeds.sources["orchestrator"].state == "away")
    assert picture.status is not None
    assert (picture.status.queue_length, picture.status_live) == (3, False)
    keeping.cancel()


async def test_a_connection_that_breaks_is_looked_after_at_once(feeds: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def serves(_check: object) -> bool:
        nonlocal asked
        asked += 1
        return asked <= len(module.SOURCES)

    monkeypatch.setattr(module, "_serves", serves)
    monkeypatch.setattr(module, "_HEALTH_EVERY_S", 3600.0)
    connected = True
    monkeypatch.setattr(ServingCheck, "is_connected", lambda _: connected)
    for each in feeds.sources.values():
        each.state = "live"
    health = asyncio.create_task(feeds._health())
    await until(lambda: asked == len(module.SOURCES))
    await asyncio.sleep(0.5)
    assert asked == len(module.SOURCES), "nothing is broken"
    connected = False
    await until(lambda: feeds.sources["cluster"].state == "away")
    health.cancel()


async def test_health_wakes_a_stream_that_waits_for_its_service(feeds: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    async def away(_: AsyncClient) -> None:
        nonlocal tries
        tries += 1
        raise Unavailable("it is away")

    monkeypatch.setattr(module, "_FIRST_DELAY_S", 3600.0)
    monkeypatch.setattr(module, "_LONGEST_DELAY_S", 3600.0)
    keeping = asyncio.create_task(feeds._keep("jobs", "ingest", away, as_client(Client())))
    await until(lambda: tries == 1)

    async def serves(_check: object) -> bool:
        return True

    monkeypatch.setattr(module, "_serves", serves)
    health = asyncio.create_task(feeds._health())
    await until(lambda: tries >= 2)
    for task in (keeping, health):
        task.cancel()
