"""The record in Redis: it goes from one process to the next, whole; who was replaced writes nothing more."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis as redis_sync

from adlro.clusterside.attempts import Attempt
from adlro.clusterside.kept import Changes
from adlro.clusterside.record import Record
from adlro.errors import DataLoss, Stale
from adlro.kit.redis import connect
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import Clock, ClockMode, ClusterEvent, EventBatch, EventKind
from adlro.records.jobs import JobSpec, JobType, SimulatedWork

CLUSTER = Cluster("c", (Node("n", 8, 65536, (Gpu("n/0", "v100_sxm2", 16160),)),))
CLOCK = Clock(ClockMode.VIRTUAL, 0.0, False, 3.25)
SPEC = JobSpec("j", "ada", JobType.SIMULATION, memory_mib=4096, simulated_work=SimulatedWork(10.0))


def batch(*revisions: int) -> EventBatch:
    events = (
        ClusterEvent(revision, EventKind.STARTED, 3.25, "job-1", 1, Placement.on("n/0")) for revision in revisions
    )
    return EventBatch("one", tuple(events), CLOCK)


FIRST = Changes(
    whole=True,
    incarnation="one",
    revision=3,
    acknowledged=1,
    token=7,
    lost_gpu_ids=("n/0", "n/1"),
    note="0.0 3.25 3.25",
    first_revision=1,
    cluster=CLUSTER,
    batches=[batch(1, 2), batch(3)],
    attempts={
        "job-1": Attempt("job-1", 1, Placement.on("n/0"), SPEC, 3.25, 3, runs=True, stop_asked=True, note="3.25"),
        "job-2": Attempt("job-2", 4, Placement.on("n/0"), None, 1.0, 1, end_revision=2),
        "job-4": Attempt("job-4", 2, Placement.on("n/3", "m/1", "m/0"), replace(SPEC, gpu_count=3), 2.0, 2),
    },
    wake_ups_s=[5.0, 0.1 + 0.2],
    woken_s=float("-inf"),
)
NEXT = replace(
    FIRST,
    whole=False,
    revision=4,
    acknowledged=3,
    token=8,
    lost_gpu_ids=(),
    note="next",
    first_revision=3,
    cluster=None,
    batches=[batch(4)],
    attempts={"job-2": None, "job-3": Attempt("job-3", 1, Placement.on("n/0"), SPEC)},
    wake_ups_s=[9.0],
    woken_s=5.0,
)


@pytest.fixture
async def redis(redis_url):
    client = connect(redis_url)
    yield client
    await client.aclose()


async def test_what_was_written_goes_to_the_next_process(redis):
    record = Record(redis, "c")
    assert await record.take(5.0) is None
    assert await record.write(FIRST)
    kept = await Record(redis, "c").take(5.0)
    assert kept is not None
    assert (kept.incarnation, kept.revision, kept.acknowledged, kept.token) == ("one", 3, 1, 7)
    assert (kept.lost_gpu_ids, kept.note, kept.cluster) == (["n/0", "n/1"], "0.0 3.25 3.25", CLUSTER)
    assert kept.batches == FIRST.batches
    assert {each.job_id: each for each in kept.attempts} == FIRST.attempts
    assert kept.wake_ups_s == [0.1 + 0.2, 5.0], "to the last bit"
    assert kept.time_s == 3.25
    assert await Record(redis, "another").take(5.0) is None


async def test_an_attempt_that_an_older_version_wrote_is_read(redis, redis_url):
    record = Record(redis, "c")
    await record.take(5.0)
    await record.write(FIRST)
    # It has `gpu_id`, and no placement.
    old = (
        "0a056a6f622d3110011a036e2f3022250a016a1203616461180129000000000000e03f30013880204801720909000000000000244029"
        "0000000000000a403003380148015204332e32355802"
    )
    with redis_sync.Redis.from_url(redis_url) as store:
        store.hset("adlro:cluster:c:attempts", "job-1", bytes.fromhex(old))
    kept = await Record(redis, "c").take(5.0)
    assert kept is not None
    assert {each.job_id: each for each in kept.attempts} == FIRST.attempts


async def test_changes_follow_what_was_written_before(redis):
    record = Record(redis, "c")
    await record.take(5.0)
    await record.write(FIRST)
    assert await record.write(NEXT)
    kept = await Record(redis, "c").take(5.0)
    assert kept is not None
    assert (kept.revision, kept.acknowledged, kept.token, kept.note) == (4, 3, 8, "next")
    assert kept.batches == [batch(3), batch(4)], "what is acknowledged is dropped"
    assert {each.job_id for each in kept.attempts} == {"job-1", "job-3", "job-4"}
    assert kept.wake_ups_s == [9.0]
    assert kept.cluster == CLUSTER


async def test_who_was_replaced_writes_nothing_more(redis):
    first, second = Record(redis, "c"), Record(redis, "c")
    await first.take(5.0)
    await first.write(FIRST)
    assert await second.take(5.0) is not None
    for changes in (NEXT, FIRST):
        with pytest.raises(Stale, match="another process has taken over"):
            await first.write(changes)
    assert await second.write(NEXT)


@pytest.mark.parametrize("forget", ["everything", "a write"])
async def test_what_builds_on_something_that_is_not_there_is_not_written(redis, redis_url, forget):
    record = Record(redis, "c")
    await record.take(5.0)
    await record.write(FIRST)
    with redis_sync.Redis.from_url(redis_url) as store:
        if forget == "everything":
            store.flushall()
        else:
            store.hset("adlro:cluster:c:side", "write", 0)
    assert not await record.write(NEXT)
    assert await record.write(replace(FIRST, note="whole"))
    assert await record.write(NEXT)
    kept = await Record(redis, "c").take(5.0)
    assert kept is not None
    assert (kept.revision, len(kept.batches)) == (4, 2)


async def test_an_older_write_that_comes_late_changes_nothing(redis):
    record = Record(redis, "c")
    await record.take(5.0)
    await record.write(FIRST)
    await record.write(NEXT)
    for late in (NEXT, FIRST):
        record._writes = 0
        assert not await record.write(late)
    kept = await Record(redis, "c").take(5.0)
    assert kept is not None
    assert kept.note == "next"


@pytest.mark.parametrize("damage", [{"revision": "soon"}, {"m": b"\xff"}, {"incarnation": b"\xff"}])
async def test_a_record_that_can_not_be_read_is_told_with_the_way_out(redis, damage):
    record = Record(redis, "c")
    await record.take(5.0)
    await record.write(FIRST)
    await redis.hset("adlro:cluster:c:side", mapping=damage)
    with pytest.raises(DataLoss, match=r"adlro:cluster:c:side.*delete adlro:cluster:c:side, adlro:cluster:c:events"):
        await Record(redis, "c").take(5.0)
