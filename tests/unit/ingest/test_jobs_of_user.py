"""Lists and watches of one user's jobs cost what his jobs cost, however many jobs others have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import redis.asyncio as aioredis

from adlro.kit.redis import connect
from adlro.kit.testing import serve
from adlro.records.jobs import JobSpec, JobState, JobType, NormalizedJob
from adlro.records.watching import JobFilter
from adlro.services.ingest.active import ActiveJobs
from adlro.services.ingest.listing import JobList
from adlro.services.ingest.server import IngestService
from adlro.services.ingest.settings import IngestSettings
from adlro.services.ingest.watch import JobWatch
from adlro.store import JobStore, Move, NewJob, sequence_of
from adlro.store.ended import EndedJobs
from adlro.store.keys import INDEX, JOB, USER
from adlro.store.pages import PageTokens

OTHERS = 600
# Hashes that scripts read beside the records.
SCRIPTS_READ = 2
ANN = JobFilter(user="ann")
PENDING = frozenset({JobState.PENDING})


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Any]:
    client = connect(redis_url)
    yield client
    await client.aclose()


class House:
    """A store, and what reads from it for users."""

    def __init__(self, redis: aioredis.Redis) -> None:
        self._redis: Any = redis
        self.store = JobStore(redis)
        self.list = JobList(self.store, PageTokens(redis), ActiveJobs(self.store), EndedJobs(redis, self.store))
        self.watch = JobWatch(self.store, lambda revision, job, form: b"", 8)

    async def submit(self, user: str, count: int = 1) -> None:
        spec = JobSpec("n", user, JobType.SIMULATION)
        await self.store.create_many([NewJob(spec, NormalizedJob(), "", 0.0) for _ in range(count)])

    async def end(self, job_id: str) -> None:
        job = await self.store.get(job_id)
        await self.store.move(1, [Move(replace(job, state=JobState.SUCCEEDED), 0)])

    async def listed(self, job_filter: JobFilter, size: int = 1000) -> list[str]:
        out: list[str] = []
        token = ""
        while True:
            page = await self.list.page(job_filter, size, token)
            jobs, token = page.jobs, page.next_page_token
            out += [job.job_id for job in jobs]
            if not token:
                return out

    async def watched(self, job_filter: JobFilter) -> list[str]:
        _, jobs = await self.watch.snapshot(job_filter, {})
        return [job.job_id async for job in jobs]

    async def began(self) -> None:
        await self._redis.config_resetstat()

    async def hash_reads(self) -> int:
        return await self._calls("hmget")

    async def scripts(self) -> int:
        return await self._calls("evalsha") + await self._calls("eval")

    async def _calls(self, command: str) -> int:
        return int((await self._redis.info("commandstats")).get(f"cmdstat_{command}", {}).get("calls", 0))


@pytest.fixture
async def house(redis: aioredis.Redis) -> House:
    house = House(redis)
    await house.submit("ann")
    await house.submit("bob", OTHERS)
    await house.submit("ann", 2)
    return house


HERS = ["job-1", f"job-{OTHERS + 2}", f"job-{OTHERS + 3}"]


async def test_a_list_by_user_reads_his_records_only(house: House) -> None:
    await house.began()
    assert await house.listed(ANN) == HERS
    assert await house.hash_reads() <= len(HERS) + SCRIPTS_READ


async def test_a_watch_by_user_reads_his_records_only(house: House) -> None:
    await house.began()
    assert await house.watched(ANN) == HERS
    assert await house.hash_reads() <= len(HERS) + SCRIPTS_READ


async def test_a_list_of_a_users_waiting_jobs_reads_those_only(house: House) -> None:
    await house.end("job-1")
    await house.began()
    assert await house.listed(JobFilter(user="ann", states=PENDING)) == HERS[1:]
    assert await house.hash_reads() <= len(HERS) - 1 + SCRIPTS_READ


async def test_a_list_of_a_users_waiting_jobs_costs_nothing_for_those_that_ended(house: House) -> None:
    for number in range(2, OTHERS + 1):
        await house.end(f"job-{number}")
    await house.began()
    assert await house.listed(JobFilter(user="bob", states=PENDING)) == [f"job-{OTHERS + 1}"]
    assert await house.scripts() <= 2
    assert await house.hash_reads() <= 1 + SCRIPTS_READ


async def test_a_short_page_reads_little_more_than_it_shows(house: House) -> None:
    await house.began()
    page = await house.list.page(JobFilter(user="bob"), 10, "")
    assert len(page.jobs) == 10
    assert page.next_page_token
    assert await house.hash_reads() <= 11 + SCRIPTS_READ


class OldHouse(House):
    """Leaves what versions before the index leave."""

    async def submit(self, user: str, count: int = 1) -> None:
        index = await self._redis.hgetall(INDEX)
        newest = await self.store.last_sequence()
        await super().submit(user, count)
        await self._redis.zremrangebyscore(USER + user, newest + 1, newest + count)
        await self._redis.delete(INDEX)
        if index:
            await self._redis.hset(INDEX, mapping=index)


async def test_jobs_recorded_without_the_index_are_listed_before_and_after_they_are_in_it(
    redis: Any, house: House
) -> None:
    old = OldHouse(redis)
    await redis.flushall()
    expected: dict[str, list[str]] = {"ann": [], "bob": []}
    count = 0
    for writer, user, jobs in (
        (old, "ann", 250),
        (house, "ann", 3),
        (house, "bob", 1),
        (old, "bob", 2),
        (house, "ann", 1),
        (old, "ann", 1),
    ):
        await writer.submit(user, jobs)
        expected[user] += [f"job-{count + n}" for n in range(1, jobs + 1)]
        count += jobs
        for name, ids in expected.items():
            assert await house.listed(JobFilter(user=name), 7) == ids
            assert await house.watched(JobFilter(user=name)) == ids
            assert await house.listed(JobFilter(user=name, states=PENDING)) == ids
    # From old ann (250) on, all but the runs of this version: those must be read again, as a gap lies before them.
    assert 254 <= await house.store.index_jobs() <= count
    assert await house.store.index_jobs() == 0
    for user, ids in expected.items():
        await house.began()
        assert await house.listed(JobFilter(user=user)) == ids
        assert await house.hash_reads() <= len(ids) + SCRIPTS_READ
    await house.submit("bob")
    await house.began()
    assert await house.listed(JobFilter(user="bob")) == [*expected["bob"], f"job-{count + 1}"]
    assert await house.hash_reads() <= len(expected["bob"]) + 1 + SCRIPTS_READ


async def test_the_index_is_made_by_two_at_once_while_jobs_come(redis: Any, house: House) -> None:
    await redis.flushall()
    await OldHouse(redis).submit("ann", 900)

    async def come() -> None:
        for _ in range(100):
            await house.submit("ann")
            await house.submit("bob")

    await asyncio.gather(house.store.index_jobs(), House(redis).store.index_jobs(), come())
    await house.began()
    listed = await house.listed(JobFilter(user="bob"))
    assert len(listed) == 100
    assert await house.hash_reads() <= 100 + SCRIPTS_READ
    assert sorted(listed + await house.listed(ANN), key=sequence_of) == [f"job-{n}" for n in range(1, 1101)]


async def test_a_record_that_could_not_be_read_when_the_index_was_made_is_listed_when_it_is_back(
    redis: Any, house: House
) -> None:
    await redis.flushall()
    await OldHouse(redis).submit("ann", 3)
    record = await redis.dump(JOB + "job-2")
    await redis.hset(JOB + "job-2", "m", b"\xff")
    await house.store.index_jobs()
    assert await house.listed(ANN) == ["job-1", "job-3"]
    await redis.restore(JOB + "job-2", 0, record, replace=True)
    assert await house.listed(ANN) == await house.watched(ANN) == ["job-1", "job-2", "job-3"]
    assert await house.listed(JobFilter(user="bob")) == []


async def test_members_that_are_no_job_ids_are_left_out(redis: Any, house: House) -> None:
    await redis.zadd(USER + "ann", {b"\xff": 2, "job-x": 3, f"job-{OTHERS + 3}": 1})
    assert await house.listed(ANN) == HERS


async def test_a_user_with_more_jobs_than_are_looked_at_at_once(house: House) -> None:
    await house.submit("ann", 1200)
    theirs = HERS + [f"job-{OTHERS + 4 + n}" for n in range(1200)]
    assert await house.listed(ANN, 333) == await house.watched(ANN) == theirs
    for job_id in theirs[1:-1]:
        await house.end(job_id)
    assert await house.listed(JobFilter(user="ann", states=PENDING), 1) == [theirs[0], theirs[-1]]


async def test_what_keeps_the_index_from_being_made_is_said_where_nothing_else_says_it(
    redis_url: str, redis: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    await redis.flushall()
    await redis.set(INDEX, "no hash")
    settings = IngestSettings(redis_url=redis_url, listen="127.0.0.1:0")
    said = ""
    async with serve(IngestService(settings), settings), asyncio.timeout(60):
        while "the indexes of jobs can't be made" not in said:
            await asyncio.sleep(0.01)
            said += capsys.readouterr().out
    assert "WRONGTYPE" in said
