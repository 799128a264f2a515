"""Bytes in Redis that nobody wrote as a record: they concern one job, are told once, and stop nobody."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as aioredis

from adlro.errors import AdlroError, Conflict, DataLoss, OutOfRange
from adlro.kit.redis import connect, connect_blocking
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec, JobType, NormalizedJob
from adlro.store import Created, JobStore, NewJob, Unreadable
from adlro.store.keys import ACTIVE, ATTAINED, CURSOR, EVENTS, JOB
from adlro.v1 import job_pb2, stream_pb2

SPEC = JobSpec("j", "ann", JobType.SIMULATION, expected_runtime=ExpectedRuntime("v100_sxm2", 3.0))
SIMULATION = job_pb2.JobSpec(job_type=job_pb2.JOB_TYPE_SIMULATION)
STOPS_BACKWARDS = job_pb2.JobSpec(job_type=job_pb2.JOB_TYPE_SIMULATION, preemptible=job_pb2.Preemptible(lost_s=-1.0))
PENDING = job_pb2.JOB_STATE_PENDING
SEEDS = range(300)


class CountingStore(JobStore):
    """Counts as the services do."""

    counted = 0

    def __init__(self, redis: aioredis.Redis, blocking: aioredis.Redis) -> None:
        super().__init__(redis, blocking)
        self.unreadable = Unreadable(self._count)

    def _count(self) -> None:
        self.counted += 1


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[aioredis.Redis]:
    client = connect(redis_url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def store(client: aioredis.Redis, redis_url: str) -> AsyncIterator[CountingStore]:
    blocking = connect_blocking(redis_url)
    yield CountingStore(client, blocking)
    await blocking.aclose()


async def three(store: JobStore) -> list[Job]:
    return [(await store.create(SPEC, NormalizedJob(), "", 0.0)).job for _ in range(3)]


def damaged(body: bytes, draw: random.Random) -> bytes:
    """A record as a disk, another version or another program may leave it."""
    match draw.randrange(5):
        case 0:
            return draw.randbytes(draw.randrange(200))
        case 1:
            return body[: draw.randrange(len(body))]
        case 2:
            place = draw.randrange(len(body))
            return body[:place] + draw.randbytes(draw.randint(1, 8)) + body[place:]
        case 3:
            flipped = bytearray(body)
            for _ in range(draw.randint(1, 4)):
                flipped[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
            return bytes(flipped)
    message = job_pb2.Job.FromString(body)
    message.ClearField(draw.choice(["job_id", "state", "spec"]))
    message.spec.job_type = draw.choice([0, 77])  # type: ignore[assignment]  # any number, as it may stand there
    message.spec.expected_runtime.runtime_s = draw.choice([-1.0, float("nan"), float("inf")])
    return message.SerializeToString()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xff\xff",
        job_pb2.Job(job_id="job-1", state=PENDING).SerializeToString(),  # no spec, as a version before would
        job_pb2.Job(job_id="job-2", state=PENDING, spec=SIMULATION).SerializeToString(),  # another one's
        job_pb2.Job(job_id="job-1", spec=SIMULATION).SerializeToString() + b"\x18\x63",  # an unknown state
        job_pb2.Job(job_id="job-1", state=PENDING, spec=SIMULATION, submit_s=float("nan")).SerializeToString(),
        job_pb2.Job(job_id="job-1", state=PENDING, spec=STOPS_BACKWARDS).SerializeToString(),
        job_pb2.Job(job_id="job-1", state=PENDING, spec=SIMULATION, remaining_ratio=1.5).SerializeToString(),
        job_pb2.Job(job_id="job-1", state=PENDING, spec=SIMULATION, remaining_ratio=float("nan")).SerializeToString(),
    ],
)
async def test_one_record_that_cannot_be_read_concerns_one_job(
    store: CountingStore, client: aioredis.Redis, body: bytes
) -> None:
    first, *others = await three(store)
    await client.hset(JOB + first.job_id, "m", body)
    for _ in range(3):
        assert [job for _, job in await store.active()] == others
        assert [job for _, job in await store.list_page(0, 1)] == others[:1]
        assert await store.get_many(["job-1", "job-2", "job-3"]) == [None, *others]
    assert [page.unreadable_count async for page in store.active_pages()] == [1]
    assert store.counted == 1, "it is told once, however often it is read"
    for call in (store.get, store.request_cancel):
        with pytest.raises(DataLoss, match="the record of job-1 in Redis can't be read") as lost:
            await call("job-1")
        assert (lost.value.reason, lost.value.field) == ("JOB_RECORD_UNREADABLE", "job_id")


async def test_what_is_no_record_at_all_stops_nobody(store: CountingStore, client: aioredis.Redis) -> None:
    await three(store)
    await client.set(JOB + "job-1", "a text")
    await client.hset(JOB + "job-2", "rev", "many")
    await client.hdel(JOB + "job-3", "version")
    await client.sadd(ACTIVE, "job-", b"\xff\xfe", "job-1x")
    assert await store.active() == []
    assert store.counted == 6
    for job_id in ("job-1", "job-2"):
        with pytest.raises(DataLoss):
            await store.get(job_id)
    await three(store)
    # A page of which nothing can be read is not the end of the list.
    assert [job.job_id for _, job in await store.list_page(0, 3)] == ["job-4", "job-5", "job-6"]
    await client.hdel(JOB + "job-4", "state")
    assert (await store.request_cancel("job-4")).cancel_requested


async def test_a_call_for_a_job_that_cannot_be_read_touches_no_other(
    store: CountingStore, client: aioredis.Redis
) -> None:
    new = [NewJob(SPEC, NormalizedJob(), f"r-{number}", 0.0) for number in range(3)]
    await store.create_many(new[:2])
    await client.hset(JOB + "job-1", "m", b"\xff\xff")
    await client.set(JOB + "job-2", "a text")
    revision = await store.revision()
    for job_id in ("job-1", "job-2"):
        with pytest.raises(DataLoss, match=job_id):
            await store.request_cancel(job_id)
    assert await store.revision() == revision, "a follower would meet a change that it can't read"
    lost, also_lost, created = await store.create_many(new)
    assert isinstance(lost, DataLoss)
    assert isinstance(also_lost, DataLoss)
    assert isinstance(created, Created)
    assert (await store.get("job-3")).job_id == created.message.job_id
    with pytest.raises(DataLoss):
        await store.create(SPEC, NormalizedJob(), "r-0", 0.0)


async def test_a_change_that_cannot_be_read_is_not_skipped_silently(
    store: CountingStore, client: aioredis.Redis
) -> None:
    jobs = await three(store)
    await client.xtrim(EVENTS, maxlen=0)
    entry = stream_pb2.JobStreamEntry(change=stream_pb2.JOB_CHANGE_SUBMITTED)
    for revision, body in enumerate((b"\x08\x01\x12\xff", entry.SerializeToString(), None), start=4):
        await client.xadd(EVENTS, {"x": "y"} if body is None else {"m": body}, id=f"{revision}-0")
        await client.incr("adlro:jobs:revision")
    await store.create(SPEC, NormalizedJob(), "", 0.0)
    for revision in (3, 4, 5):
        for read in (store.read_events, store.read_requests):
            with pytest.raises(OutOfRange, match="request a new snapshot") as gone:
                await read(revision)
            assert gone.value.reason == "REVISION_UNREADABLE"
    assert [event.job.job_id for event in await store.read_events(6)] == ["job-4"]
    assert store.counted == 3
    revision, snapshot = await store.snapshot()
    assert revision == 7
    assert [job.job_id async for job in snapshot] == [job.job_id for job in jobs] + ["job-4"]


async def test_what_comes_before_a_change_that_cannot_be_read_is_told(
    store: CountingStore, client: aioredis.Redis
) -> None:
    await three(store)
    await client.xadd(EVENTS, {"m": b"\xff"}, id="4-0")
    assert [event.revision for event in await store.read_events(1)] == [2, 3]
    revision, events = await store.read_requests(1)
    assert (revision, [event.revision for event in events]) == (3, [2, 3])


@pytest.mark.parametrize("part", range(3))
async def test_whatever_stands_there_the_others_are_read(
    store: CountingStore, client: aioredis.Redis, part: int
) -> None:
    first, *others = await three(store)
    body = await client.hget(JOB + first.job_id, "m")
    assert isinstance(body, bytes)
    for seed in SEEDS[part::3]:
        draw = random.Random(seed)
        await client.hset(JOB + first.job_id, "m", damaged(body, draw))
        found = [job for _, job in await store.active()]
        assert found[-2:] == others
        assert all(job.job_id == first.job_id for job in found[:-2])
        try:
            assert (await store.get(first.job_id)) == found[0]
        except DataLoss:
            assert len(found) == 2
        for call in (store.request_cancel, store.get):
            try:
                await call(first.job_id)
            except (DataLoss, Conflict):
                pass
            except AdlroError as error:
                pytest.fail(str(error))


async def test_what_the_orchestrator_kept_and_cannot_read_is_left_out(
    store: CountingStore, client: aioredis.Redis
) -> None:
    await client.hset(ATTAINED, mapping={"ann": "3.5", "bob": "much", "cid": "2.5 7.0", b"\xff": "1"})
    known = await store.user_service()
    assert {user: had.gpu_s for user, had in known.items()} == {"ann": 3.5, "cid": 2.5}
    assert known["cid"].at_s == 7.0
    for field, damage in (("revision", b"x"), ("time_s", b""), ("incarnation", b"\xff")):
        await client.hset(CURSOR, mapping={"incarnation": b"a", "revision": b"1", "time_s": b"2.0", field: damage})
        assert await store.cursor() is None
    assert store.counted == 3
