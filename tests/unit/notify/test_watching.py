"""What is noted of a suite whose services say what a test lets them: ends of jobs exactly, whatever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from adlro.client import AsyncClient
from adlro.errors import NotFound, Unavailable
from adlro.kit.log import get_logger
from adlro.records.decisions import DecisionBasis
from adlro.records.events import Clock, ClockMode, ClusterDescription
from adlro.records.jobs import Job, JobState
from adlro.records.matrices import ClusterPlanes, DriftSummary
from adlro.records.watching import JobEvent, JobEventKind, JobFilter
from adlro.services.notify.keeper import Keeper
from adlro.services.notify.watching import Watching
from adlro.webhooks.outbox import Message
from tests.contract.ingest_suite import CLUSTER
from tests.unit.notify.test_conditions import STATUS
from tests.unit.webhooks.samples import ended_job, webhooks_file

AWAY = Unavailable("no service answers")


def change(job: Job) -> JobEvent:
    return JobEvent(JobEventKind.CHANGE, job, job.revision)


def snapshot(*jobs: Job, revision: int) -> list[JobEvent]:
    told = [JobEvent(JobEventKind.SNAPSHOT, each, each.revision) for each in jobs]
    return [*told, JobEvent(JobEventKind.SNAPSHOT_END, None, revision)]


@dataclass
class Services:
    """A client; each watch gets what came after its revision, then the next stream; all but the last one break."""

    newest_revision: int = 0
    streams: list[Sequence[JobEvent]] = field(default_factory=list)
    past: list[JobEvent] = field(default_factory=list)
    watched_after: list[int | None] = field(default_factory=list)
    lost: tuple[str, ...] = ()
    basis: DecisionBasis = DecisionBasis.POLICY

    async def cluster(self) -> Any:
        return CLUSTER

    async def get(self, job_id: str) -> Job:
        found = [each.job for each in self.past if each.job is not None and each.job.job_id == job_id]
        if not found:
            raise NotFound(f"there is no job {job_id}")
        return found[-1]

    async def watch(self, after: int | None, chosen: JobFilter, **_: Any) -> AsyncIterator[JobEvent]:
        if chosen.job_ids:  # asks for the newest revision
            for event in snapshot(revision=self.newest_revision):
                yield event
            return
        self.watched_after.append(after)
        if not self.streams:
            await asyncio.sleep(3600)
        again = [] if after is None else [each for each in self.past if each.revision > after]
        for event in (*again, *(new := self.streams.pop(0))):
            yield event
        self.past += [each for each in new if each.kind is JobEventKind.CHANGE]
        if self.streams:
            raise AWAY
        await asyncio.sleep(3600)

    async def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription(CLUSTER, (), self.lost, Clock(ClockMode.REAL, 1.0, False, 1.0), "i", 1, 1)

    async def status(self) -> Any:
        return replace(STATUS, deciding_basis=self.basis)

    async def cluster_planes(self) -> ClusterPlanes:
        return ClusterPlanes("default", (), {}, {}, {}, DriftSummary(), None, 1)


@asynccontextmanager
async def watching(folder: Path, services: Services, settle_s: float = 0.0) -> AsyncIterator[Keeper]:
    """Watches the services until the block ends."""
    keeper = Keeper(webhooks_file(folder), folder / "notify", 1000, 1 << 20, get_logger())
    begun: list[None] = []
    watched = Watching(cast(AsyncClient, services), keeper, 0.01, settle_s, get_logger(), lambda: begun.append(None))
    tasks = [asyncio.create_task(watched.ends()), asyncio.create_task(watched.looks())]
    try:
        yield keeper
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        await keeper.close()
    assert begun


async def until_position(keeper: Keeper, revision: int) -> None:
    async with asyncio.timeout(60.0):
        while await keeper.position() != revision:  # noqa: ASYNC110 - it is on disk
            await asyncio.sleep(0.005)


async def told(keeper: Keeper, count: int) -> list[Message]:
    """The first messages, taken out one after the other."""
    found = []
    async with asyncio.timeout(60.0):
        for _ in range(count):
            message, _ = await keeper.next_of("ops")
            await keeper.delivered(message, 0)
            found.append(message)
    return found


def job_ids(messages: list[Message]) -> list[str]:
    return [each.document["job"]["job_id"] for each in messages]


async def test_the_first_start_begins_with_now(tmp_path: Path) -> None:
    services = Services(newest_revision=40, streams=[[change(ended_job(17, revision=41))]])
    async with watching(tmp_path, services) as keeper:
        assert job_ids(await told(keeper, 1)) == ["job-17"]
    assert services.watched_after == [40]


async def test_a_restart_goes_on_where_it_was_and_notes_what_ended_meanwhile(tmp_path: Path) -> None:
    services = Services(streams=[[change(ended_job(1, revision=3))]])
    async with watching(tmp_path, services) as keeper:
        await until_position(keeper, 3)
    past = [change(ended_job(1, revision=3))]
    services = Services(newest_revision=99, past=past, streams=[[change(ended_job(2, revision=7))]])
    async with watching(tmp_path, services) as keeper:
        assert job_ids(await told(keeper, 2)) == ["job-1", "job-2"]
    assert services.watched_after == [3]


async def test_a_broken_stream_is_opened_again_after_what_was_noted(tmp_path: Path) -> None:
    first = [change(ended_job(1, revision=3)), change(ended_job(2, revision=4))]
    services = Services(streams=[first, [], [change(ended_job(3, revision=8))]])
    async with watching(tmp_path, services) as keeper:
        assert job_ids(await told(keeper, 3)) == ["job-1", "job-2", "job-3"]
        await until_position(keeper, 8)
    # What was read and not noted is read again: then it is noted once.
    assert services.watched_after[0] == 0
    assert all(after in (0, 3, 4) for after in services.watched_after)


async def test_what_is_read_twice_is_noted_once(tmp_path: Path) -> None:
    again = [change(ended_job(number, revision=number)) for number in (1, 2, 3)]
    async with watching(tmp_path, Services(streams=[again[:2], again[:1], again])) as keeper:
        assert job_ids(await told(keeper, 3)) == ["job-1", "job-2", "job-3"]
        await until_position(keeper, 3)
        assert keeper.waiting() == {"ops": (0, 0)}


async def test_where_the_position_is_lost_ends_that_were_not_noted_are(tmp_path: Path) -> None:
    before = [change(ended_job(number, revision=number)) for number in (21, 22)]
    # Of a store that was rolled back: job-23 ended under a revision that was another job's before, job-5 before us.
    after = snapshot(
        *(ended_job(number, revision=number) for number in (5, 21)), ended_job(23, revision=22), revision=23
    )
    services = Services(newest_revision=20, streams=[[*before, *after, change(ended_job(24, revision=24))]])
    async with watching(tmp_path, services) as keeper:
        assert job_ids(await told(keeper, 4)) == ["job-21", "job-22", "job-23", "job-24"]
        await until_position(keeper, 24)
        assert keeper.waiting() == {"ops": (0, 0)}


@pytest.mark.parametrize(
    "now_there",
    [
        None,  # its creation was lost, too
        ended_job(22, revision=22, state=JobState.RUNNING),
        ended_job(22, revision=29, end_s=77.0),  # it has ended again, at another time
    ],
)
async def test_a_store_that_was_rolled_back_is_noticed_though_it_has_as_many_changes_again(
    tmp_path: Path, now_there: Job | None
) -> None:
    services = Services(
        newest_revision=20, streams=[[change(ended_job(number, revision=number)) for number in (21, 22)]]
    )
    async with watching(tmp_path, services) as keeper:
        await until_position(keeper, 22)
    again = [] if now_there is None else [now_there]
    there = snapshot(ended_job(21, revision=21), ended_job(23, revision=22), *again, revision=30)
    services = Services(newest_revision=30, past=[change(each) for each in again], streams=[there])
    async with watching(tmp_path, services) as keeper:
        await until_position(keeper, 30)
        expected = ["job-21", "job-22", "job-23", *(each.job_id for each in again if each.state.final)]
        assert job_ids(await told(keeper, len(expected))) == expected
        assert keeper.waiting() == {"ops": (0, 0)}
    assert services.watched_after == [None]


async def test_a_store_with_a_lower_revision_moves_the_position_back(tmp_path: Path) -> None:
    services = Services(newest_revision=20, streams=[snapshot(revision=7)])
    async with watching(tmp_path, services) as keeper:
        await until_position(keeper, 7)
    services = Services(streams=[[change(ended_job(1, revision=8))]])
    async with watching(tmp_path, services) as keeper:
        assert job_ids(await told(keeper, 1)) == ["job-1"]
    assert services.watched_after == [7]


async def test_conditions_are_told_at_begin_and_end_and_not_again_by_the_next_process(tmp_path: Path) -> None:
    services = Services(lost=("volta-0/1",), basis=DecisionBasis.MISSING)
    async with watching(tmp_path, services) as keeper:
        begun = await told(keeper, 2)
    assert {each.event for each in begun} == {"gpu_lost", "policy_fell_back"}
    services = Services()
    async with watching(tmp_path, services) as keeper:
        ended = await told(keeper, 2)
        await asyncio.sleep(0.1)  # several looks
        assert keeper.waiting() == {"ops": (0, 0)}
    assert {each.event for each in ended} == {"gpu_back", "policy_recovered"}


async def test_a_fallback_that_passes_is_not_told(tmp_path: Path) -> None:
    services = Services(basis=DecisionBasis.LATE, lost=("volta-0/1",))
    async with watching(tmp_path, services, settle_s=3600.0) as keeper:
        assert [each.event for each in await told(keeper, 1)] == ["gpu_lost"]  # a lost GPU is told at once
        services.basis = DecisionBasis.POLICY
        await asyncio.sleep(0.1)
        assert keeper.waiting() == {"ops": (0, 0)}


async def test_only_jobs_that_have_ended_are_told(tmp_path: Path) -> None:
    """A service of an older version may not know the filter."""
    runs = ended_job(1, revision=1, state=JobState.RUNNING)
    async with watching(tmp_path, Services(streams=[[change(runs), change(ended_job(2, revision=2))]])) as keeper:
        assert job_ids(await told(keeper, 1)) == ["job-2"]
