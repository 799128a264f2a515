"""Job records in a real Redis: each change and its entry in one step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import redis.asyncio as aioredis

from adlro.errors import AlreadyExists, Conflict, NotFound, OutOfRange, Stale
from adlro.kit.redis import connect, connect_blocking
from adlro.placement import Placement
from adlro.records.attained import AttainedService
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobState, JobType, NormalizedJob, SimulatedWork
from adlro.store import Created, Cursor, JobStore, Move, NewJob, Outcome
from adlro.store.keys import CURSOR, EVENTS, OUTCOMES, TOKEN
from adlro.v1 import stream_pb2
from tests.stopwatch import Stopwatch

SPEC = JobSpec(
    "train",
    "ann",
    JobType.MACHINE_LEARNING,
    application="resnet50_fp16",
    priority=0.25,
    cpu_cores=4,
    memory_mib=16384,
    gpu_memory_mib=8000,
    expected_runtime=ExpectedRuntime("v100_sxm2", 12.5),
    begin_time_s=3.0,
    labels={"team": "vision"},
    simulated_work=SimulatedWork(12.5, 0.5),
)

ON_A: Any = {"placement": Placement.on("a/0"), "gpu_model": "v100_sxm2"}


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[JobStore]:
    redis, blocking = connect(redis_url), connect_blocking(redis_url)
    yield JobStore(redis, blocking)
    await redis.aclose()
    await blocking.aclose()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[aioredis.Redis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


async def create(store: JobStore, request_id: str = "", spec: JobSpec = SPEC) -> Created:
    return await store.create(spec, NormalizedJob(0.25), request_id, 1.5)


async def test_a_users_jobs_are_known_as_his_also_after_their_end(store: JobStore) -> None:
    ended = (await create(store)).job
    anns = (await create(store)).job.job_id
    bobs = (await create(store, spec=replace(SPEC, user="bob"))).job.job_id
    await store.move(0, [Move(replace(ended, state=JobState.CANCELLED, submit_s=0.0, end_s=1.0), 0)])
    asked = [ended.job_id, anns, bobs, "job-999", "no job"]
    assert await store.owned("ann", asked) == {ended.job_id, anns}
    assert await store.owned("bob", asked) == {bobs}
    assert await store.owned("eve", asked) == await store.owned("ann", []) == set()


async def test_a_created_job_is_read_back_whole(store: JobStore) -> None:
    created = await create(store)
    job, existing = created.job, created.existing
    assert (job.job_id, job.revision, job.state, existing) == ("job-1", 1, JobState.PENDING, False)
    assert job.spec == SPEC
    assert await store.get("job-1") == job
    (event,) = await store.read_events(0)
    assert (event.revision, event.change, event.job) == (1, 1, job)


async def test_a_repeated_request_gives_the_same_job(store: JobStore) -> None:
    first = await create(store, "r")
    again = await create(store, "r")
    assert (again.job.job_id, again.existing) == (first.job.job_id, True)
    assert await store.last_sequence() == 1
    other_user = await create(store, "r", replace(SPEC, user="bob"))
    assert not other_user.existing


async def test_a_request_id_is_not_reused_for_another_payload(store: JobStore) -> None:
    await create(store, "r")
    with pytest.raises(AlreadyExists, match="request_id: 'r' was used before, for job-1") as caught:
        await create(store, "r", replace(SPEC, priority=0.5))
    assert caught.value.field == "request_id"
    assert await store.last_sequence() == 1
    assert await store.revision() == 1


async def test_many_at_once_are_each_by_itself(store: JobStore) -> None:
    await create(store, "r1")
    answers = await store.create_many(
        [
            NewJob(replace(SPEC, name=name), NormalizedJob(), request, 2.0)
            for name, request in (("train", "r1"), ("x", "r1"), ("y", ""), ("z", "r2"))
        ]
    )
    kinds = [each.job.job_id if isinstance(each, Created) else type(each).__name__ for each in answers]
    assert kinds == ["job-1", "AlreadyExists", "job-2", "job-3"]


async def test_racing_calls_with_one_request_id_make_one_job(store: JobStore) -> None:
    answers = await asyncio.gather(*(create(store, "r") for _ in range(20)))
    assert {answer.job.job_id for answer in answers} == {"job-1"}
    assert sum(not answer.existing for answer in answers) == 1


async def test_cancelling(store: JobStore) -> None:
    await create(store)
    job = await store.request_cancel("job-1")
    assert (job.cancel_requested, job.revision) == (True, 2)
    assert await store.request_cancel("job-1") == job
    assert [event.change for event in await store.read_events(0)] == [1, 2]
    with pytest.raises(NotFound, match="job-9"):
        await store.request_cancel("job-9")
    # The orchestrator's next record keeps the request, though it was made without knowing of it.
    await store.move(1, [Move(replace(job, cancel_requested=False, message="x"), 0)])
    assert (await store.get("job-1")).cancel_requested
    await store.move(1, [Move(replace(job, state=JobState.CANCELLED), 1)])
    with pytest.raises(Conflict, match="CANCELLED already"):
        await store.request_cancel("job-1")


async def test_moves_are_all_or_nothing(store: JobStore) -> None:
    jobs = [(await create(store)).job for _ in range(2)]
    with pytest.raises(Stale, match="job-2 is at version 0, not 7"):
        await store.move(1, [Move(replace(jobs[0], message="new"), 0), Move(jobs[1], 7)], Cursor("i", 5, 1.0))
    assert (await store.get("job-1")).message == jobs[0].message
    assert await store.cursor() is None
    assert await store.revision() == 2


async def test_several_moves_of_one_job_are_seen_one_by_one(store: JobStore) -> None:
    job = (await create(store)).job
    running = replace(job, state=JobState.RUNNING, start_s=4.0, submit_s=3.0, **ON_A)
    done = replace(running, state=JobState.SUCCEEDED, end_s=9.0)
    revisions = await store.move(1, [Move(running, 0), Move(done, 1, Outcome(5.0, True))], Cursor("i", 8, 9.0))
    assert revisions == [2, 3]
    assert [event.job.state for event in await store.read_events(1)] == [JobState.RUNNING, JobState.SUCCEEDED]
    assert await store.active() == []
    assert await store.cursor() == Cursor("i", 8, 9.0)
    assert (await store.get("job-1")).jct_s == 6.0


async def test_what_is_learned_is_written_with_the_end(store: JobStore, redis: aioredis.Redis) -> None:
    job = (await create(store)).job
    done = replace(job, state=JobState.SUCCEEDED, start_s=4.0, end_s=9.0, **ON_A)
    await store.move(1, [Move(done, 0, Outcome(5.0, True))])
    entries: Any = await redis.xrange(OUTCOMES)
    ((_, fields),) = entries
    entry = stream_pb2.OutcomeStreamEntry.FromString(fields[b"m"])
    assert (entry.job_id, entry.gpu_model, entry.runtime_s, entry.succeeded) == ("job-1", "v100_sxm2", 5.0, True)


async def test_what_a_user_has_had_is_written_with_the_end(store: JobStore) -> None:
    assert await store.user_service() == {}
    jobs = [(await create(store)).job for _ in range(3)]
    users = ("ann", "bob", "ann")
    totals = (AttainedService(0.1, 8.0), None, AttainedService(0.1 + 0.2, 9.5))
    moves = [
        Move(replace(job, spec=replace(job.spec, user=user)), 0, user_service=had)
        for job, user, had in zip(jobs, users, totals, strict=True)
    ]
    await store.move(1, moves)
    assert await store.user_service() == {"ann": AttainedService(0.1 + 0.2, 9.5)}, "to the last bit"
    with pytest.raises(Stale):
        await store.move(1, [Move(moves[0].job, 1, user_service=AttainedService(9.0, 3.0)), Move(moves[1].job, 7)])
    assert await store.user_service() == {"ann": AttainedService(0.1 + 0.2, 9.5)}


async def test_the_cursor_keeps_the_hold(store: JobStore) -> None:
    cursor = Cursor("i", 8, 9.1, 8.3, 39.1)
    await store.move(1, [], cursor)
    assert await store.cursor() == cursor
    await store.move(1, [], replace(cursor, hold_until_s=None))
    assert await store.cursor() == replace(cursor, hold_until_s=None)


async def test_the_cursor_keeps_the_reservation(store: JobStore, redis: aioredis.Redis) -> None:
    cursor = Cursor("i", 8, 9.1, 8.3, None, "job-3", 0.1 + 0.2)
    await store.move(1, [], cursor)
    assert await store.cursor() == cursor
    # An older release writes the cursor without it: what it leaves there is out of date.
    await redis.hset(CURSOR, mapping={"revision": 9, "time_s": 10.0})
    assert await store.cursor() == Cursor("i", 9, 10.0, 8.3)
    await store.move(1, [], replace(cursor, reserved_job_id="", reserved_since_s=0.0))
    assert await store.cursor() == Cursor("i", 8, 9.1, 8.3)


async def test_an_older_token_is_refused(store: JobStore, redis: aioredis.Redis) -> None:
    job = (await create(store)).job
    await redis.set(TOKEN, 7)
    with pytest.raises(Stale, match="token 6 is not the newest, 7 is"):
        await store.move(6, [Move(job, 0)])
    assert await store.move(7, [Move(job, 0)]) == [2]


async def test_a_gap_in_the_changes_is_never_passed_over(store: JobStore, redis: aioredis.Redis) -> None:
    for _ in range(5):
        await create(store)
    await redis.xtrim(EVENTS, minid="4-0", approximate=False)
    assert await store.oldest_revision() == 4
    with pytest.raises(OutOfRange, match="request a new snapshot"):
        await store.read_events(1)
    assert [event.revision for event in await store.read_events(3)] == [4, 5]


async def test_a_blocking_read_ends_with_the_next_change_or_empty(store: JobStore) -> None:
    await create(store)
    waiting = asyncio.create_task(store.read_events(1, block_ms=5000))
    await asyncio.sleep(0.05)
    await create(store)
    async with Stopwatch() as watch:
        assert [event.revision for event in await asyncio.wait_for(waiting, 60)] == [2]
        assert watch.read() < 2.0
    assert await store.read_events(2, block_ms=20) == []


async def test_requests_leave_out_what_the_orchestrator_wrote(store: JobStore) -> None:
    job = (await create(store)).job
    await store.move(1, [Move(replace(job, message="x"), 0)])
    await store.request_cancel("job-1")
    await store.move(1, [Move(replace(job, message="y"), 1)])
    revision, events = await store.read_requests(0)
    assert (revision, [event.change for event in events]) == (4, [1, 2])


async def test_a_snapshot_and_the_changes_after_it_miss_nothing(store: JobStore) -> None:
    for _ in range(3):
        await create(store)
    revision, jobs = await store.snapshot()
    await create(store)
    await store.request_cancel("job-2")
    seen = {job.job_id: job.revision async for job in jobs}
    assert seen == {"job-1": 1, "job-2": 5, "job-3": 3}  # job-2 was changed before it was read
    later = [event for event in await store.read_events(revision) if event.revision > seen.get(event.job.job_id, 0)]
    assert [(event.revision, event.job.job_id) for event in later] == [(4, "job-4")]


async def test_pages(store: JobStore) -> None:
    for _ in range(5):
        await create(store)
    assert [number for number, _ in await store.list_page(0, 2)] == [1, 2]
    assert [number for number, _ in await store.list_page(4, 10)] == [5]
    assert await store.list_page(5, 10) == []


async def test_the_index_of_active_jobs(store: JobStore) -> None:
    jobs = [(await create(store)).job for _ in range(11)]
    await store.move(1, [Move(replace(jobs[1], state=JobState.CANCELLED), 0)])
    assert await store.active_sequences() == [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]


async def test_the_next_page_of_active_jobs_is_looked_up_while_one_is_used(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else Redis and the reader wait for each other in turn: of 100,000 jobs a second and a half."""
    monkeypatch.setattr("adlro.store.reads.ACTIVE_AT_ONCE", 3)
    for _ in range(8):
        await create(store)
    read, asked = store._read_many, []

    async def note(args: list[Any]) -> Any:
        asked.append(args[1:])
        return await read(args=args)

    monkeypatch.setattr(store, "_read_many", note)
    pages = store.active_pages()
    seen = [(await anext(pages), len(asked)), (await anext(pages), len(asked)), (await anext(pages), len(asked))]
    assert [([job.job_id for _, job in page.jobs], count) for page, count in seen] == [
        (["job-1", "job-2", "job-3"], 2),
        (["job-4", "job-5", "job-6"], 3),
        (["job-7", "job-8"], 3),
    ]
    assert [page async for page in pages] == []
    stopped = store.active_pages()
    await anext(stopped)
    await stopped.aclose()
    assert len(await store.active()) == 8


def fat(size: int) -> JobSpec:
    return replace(SPEC, labels={"l": "v" * size})


async def test_jobs_are_read_in_pages_of_so_many_bytes_and_no_more_ahead(store: JobStore, monkeypatch: Any) -> None:
    for size in (10_000, 10, 10_000, 10_000, 40_000, 10, 10):
        await create(store, spec=fat(size))
    read, pages = store._read_many, []

    async def note(args: list[Any]) -> Any:
        found = await read(args=args)
        pages.append([len(body or b"") for body, *_ in found])
        return found

    monkeypatch.setattr(store, "_read_many", note)
    jobs = store.each([1, 2, 99, 3, 4, 5, 6, 7], 25_000)
    assert [number for number, _ in [await anext(jobs) for _ in range(2)]] == [1, 2]
    assert len(pages) == 1
    assert [(number, job.job_id if job else None) async for number, job in jobs] == [
        (99, None),
        *((number, f"job-{number}") for number in range(3, 8)),
    ]
    assert [len(each) for each in pages] == [4, 1, 1, 2]
    assert all(sum(each) <= 25_000 or len(each) == 1 for each in pages)
    assert [job async for job in store.each([])] == []


async def test_a_snapshot_reads_no_further_than_a_page_ahead(store: JobStore, monkeypatch: Any) -> None:
    for _ in range(10):
        await create(store, spec=fat(40_000))
    read, jobs_read = store._read_many, 0

    async def note(args: list[Any]) -> Any:
        nonlocal jobs_read
        found = await read(args=args)
        jobs_read += len(found)
        return found

    monkeypatch.setattr(store, "_read_many", note)
    _, jobs = await store.snapshot()
    assert (await anext(jobs)).job_id == "job-1"
    assert jobs_read == 1
    assert [job.job_id async for job in jobs][-1] == "job-10"


async def test_changes_are_read_in_pages_of_so_many_bytes(store: JobStore, redis: aioredis.Redis) -> None:
    for size in [10_000] * 3 + [10] * 30 + [40_000] * 2:
        await create(store, spec=fat(size))
    position, pages = 0, []
    while events := await store.read_events(position, count=20, max_bytes=25_000):
        assert [event.revision for event in events] == list(range(position + 1, position + 1 + len(events)))
        position = events[-1].revision
        pages.append(len(events))
    assert pages == [2, 20, 11, 1, 1]
    await redis.xtrim(EVENTS, maxlen=3, approximate=False)
    with pytest.raises(OutOfRange):
        await store.read_events(1, max_bytes=25_000)
