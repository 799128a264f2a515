from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from redis import exceptions as redis_errors

from adlro.errors import OutOfRange, Unavailable
from adlro.records.jobs import Job, JobSpec, JobState, JobType
from adlro.records.watching import JobFilter, JobView
from adlro.services.ingest.watch import Batch, Change, Form, JobWatch
from adlro.store import PAGE_BYTES, JobChange, JobStreamEntry

EVERY = JobFilter()
TIMEOUT_S = 60.0


def job(number: int, revision: int = 0, state: JobState = JobState.PENDING) -> Job:
    return Job(f"job-{number}", JobSpec("n", "u", JobType.SIMULATION), state=state, revision=revision)


class Store:
    """Changes in memory, with the methods of JobStore that a watch calls."""

    def __init__(self) -> None:
        self.events: list[JobStreamEntry] = []
        self.grew = asyncio.Event()
        self.fails: Exception | None = None
        self.blocking_reads = 0
        self.began_read = asyncio.Event()
        self.reads_of_the_past = 0
        self.encoded: list[int] = []

    def add(self, *jobs: Job) -> None:
        for each in jobs:
            self.events.append(JobStreamEntry(len(self.events) + 1, JobChange.MOVED, each))
        self.grew.set()
        self.grew = asyncio.Event()

    async def until_blocking_reads(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.blocking_reads < count:
                await self.began_read.wait()

    async def revision(self) -> int:
        if self.fails is not None:
            raise self.fails
        return len(self.events)

    async def read_events(
        self, after: int, *, block_ms: int | None = None, count: int = 1000, max_bytes: int | None = None
    ) -> list[JobStreamEntry]:
        if block_ms is not None:
            self.blocking_reads += 1
            self.began_read.set()
            self.began_read = asyncio.Event()
            if after >= len(self.events) and self.fails is None:
                try:
                    async with asyncio.timeout(0.05):
                        await self.grew.wait()
                except TimeoutError:
                    pass
        else:
            self.reads_of_the_past += 1
        if self.fails is not None:
            raise self.fails
        return self.events[after : after + count]

    async def snapshot(self, turn: asyncio.Semaphore | None = None, user: str = "") -> tuple[int, AsyncIterator[Job]]:
        newest = {event.job.job_id: event for event in self.events}

        async def jobs() -> AsyncIterator[Job]:
            for event in newest.values():
                yield job(int(event.job.job_id[4:]), event.revision)

        return len(self.events), jobs()

    def encode(self, revision: int, job: Job, form: Form) -> bytes:
        self.encoded.append(revision)
        return f"{revision}{'' if form.view is JobView.FULL else ' basic'}".encode()


@pytest.fixture
async def store() -> Store:
    return Store()


@pytest.fixture
async def watch(store: Store) -> AsyncIterator[JobWatch]:
    made = JobWatch(store, store.encode, changes_kept=10)  # type: ignore[arg-type]  # it has what is called
    reader = asyncio.ensure_future(made.run())
    yield made
    assert not reader.done()
    reader.cancel()
    await asyncio.wait([reader])


async def take(changes: AsyncIterator[Change], count: int) -> list[int]:
    async with asyncio.timeout(TIMEOUT_S):
        return [(await anext(changes)).revision for _ in range(count)]


async def test_while_nobody_watches_nothing_is_read(store, watch):
    store.add(job(1))
    await asyncio.sleep(0)
    assert store.blocking_reads == 0
    async with aclosing(watch.changes(0, EVERY)) as changes:
        assert await take(changes, 1) == [1]
        assert watch.watcher_count == 1
    assert watch.watcher_count == 0


async def test_each_change_is_encoded_once_for_all_that_keep_up(store, watch):
    watchers: list[Any] = [watch.changes(0, EVERY) for _ in range(20)]
    firsts = [asyncio.ensure_future(take(each, 5)) for each in watchers]
    # The reader must have begun, or the changes are of the past.
    await store.until_blocking_reads(1)
    assert watch.watcher_count == 20
    store.add(*(job(n) for n in range(1, 6)))
    assert await asyncio.gather(*firsts) == [[1, 2, 3, 4, 5]] * 20
    assert store.encoded == [1, 2, 3, 4, 5]
    for each in watchers:
        await each.aclose()


async def test_a_change_is_encoded_once_for_all_watchers_of_the_basic_view(store, watch):
    watchers: list[Any] = [watch.changes(0, EVERY) for _ in range(5)]
    firsts = [asyncio.ensure_future(anext(each)) for each in watchers]
    await store.until_blocking_reads(1)
    store.add(job(1), job(2))
    changes = [[await first, await anext(each)] for first, each in zip(firsts, watchers, strict=True)]
    held = watch.bytes_held
    messages = [[watch.message_of(change, Form(JobView.BASIC)) for change in each] for each in changes]
    assert messages == [[b"1 basic", b"2 basic"]] * 5
    assert watch.message_of(changes[0][0], Form(JobView.FULL)) == b"1"
    assert store.encoded == [1, 2, 1, 2]
    assert watch.bytes_held == held + len(b"1 basic2 basic")
    for each in watchers:
        await each.aclose()


async def test_one_that_is_behind_what_memory_holds_reads_from_the_store_and_misses_nothing(store, watch):
    fast, slow = watch.changes(0, EVERY), watch.changes(0, EVERY)
    store.add(job(1))
    assert await take(fast, 1) == await take(slow, 1) == [1]
    for first in range(2, 1202, 5):
        store.add(*(job(n) for n in range(first, first + 5)))
        assert await take(fast, 5) == list(range(first, first + 5))
    before = store.reads_of_the_past
    assert await take(slow, 1200) == list(range(2, 1202))
    assert store.reads_of_the_past > before
    # And is back among those that are served from memory.
    before = store.reads_of_the_past
    store.add(job(1))
    assert await take(slow, 1) == [1202]
    assert store.reads_of_the_past == before
    await fast.aclose()
    await slow.aclose()


async def batch_of(batches: AsyncIterator[Batch]) -> tuple[list[tuple[str, int]], int]:
    async with asyncio.timeout(TIMEOUT_S):
        found = await anext(batches)
    return [(change.job.job_id, change.revision) for change in found.changes], found.revision


async def test_changes_come_together_and_of_each_job_the_last_one(store, watch):
    async with aclosing(watch.batches(0, EVERY, 0.2)) as batches:
        store.add(job(1), job(2), job(1))
        assert await batch_of(batches) == ([("job-2", 2), ("job-1", 3)], 3)
        store.add(job(1))
        assert await batch_of(batches) == ([("job-1", 4)], 4)
        following = asyncio.ensure_future(batch_of(batches))
        # What changes between two messages waits for the second one.
        store.add(job(3))
        await asyncio.sleep(0.05)
        store.add(job(2), job(3), job(2))
        assert await following == ([("job-3", 7), ("job-2", 8)], 8)


async def test_messages_of_changes_come_so_often_at_most(store, watch):
    began_s = time.monotonic()
    async with aclosing(watch.batches(0, EVERY, 0.1)) as batches:
        for number in range(5):
            store.add(job(number))
            await batch_of(batches)
    assert time.monotonic() - began_s >= 0.4


async def test_a_batch_has_the_last_change_that_matches_and_what_the_snapshot_held_is_left_out(store, watch):
    running = JobFilter(states=frozenset({JobState.RUNNING}))
    store.add(job(1, state=JobState.RUNNING), job(2, state=JobState.RUNNING), job(1), job(3, state=JobState.RUNNING))
    async with aclosing(watch.batches(0, running, 0.1, {"job-2": 2})) as batches:
        assert await batch_of(batches) == ([("job-1", 1), ("job-3", 4)], 4)


async def test_what_came_between_two_messages_comes_in_the_next_one_however_much(store, watch):
    async with aclosing(watch.batches(0, EVERY, 0.3)) as batches:
        store.add(job(1))
        assert await batch_of(batches) == ([("job-1", 1)], 1)
        for _ in range(2):
            last = len(store.events) + 250
            following = asyncio.ensure_future(batch_of(batches))
            await asyncio.sleep(0.1)
            store.add(*(job(number) for number in range(last - 249, last + 1)))
            told, revision = await following
            while revision < last:  # more than a message holds comes at once
                more, revision = await asyncio.wait_for(batch_of(batches), 0.25)
                told += more
            assert [number for _, number in told] == list(range(last - 249, last + 1))


@pytest.mark.parametrize("failure", ["redis", "end"])
async def test_what_was_read_is_told_before_the_error_that_tells_where_to_resume(store, monkeypatch, failure):
    made = JobWatch(store, store.encode, changes_kept=5)
    reader = asyncio.ensure_future(made.run())
    store.add(*(job(number) for number in range(1, 1001)))
    read = store.read_events

    async def fails_after_a_page(after: int, **how: Any) -> Any:
        if after and "block_ms" not in how:
            if failure == "end":
                made.close()
            else:
                raise redis_errors.ConnectionError("gone")
        return await read(after, **how)

    monkeypatch.setattr(store, "read_events", fails_after_a_page)
    told: list[int] = []

    async def take_all() -> None:
        async for batch in made.batches(0, EVERY, 60.0):
            told.extend(change.revision for change in batch.changes)

    with pytest.raises(Unavailable) as caught:
        await asyncio.wait_for(take_all(), TIMEOUT_S)
    last = int((caught.value.metadata or {})["revision"])
    assert told == list(range(1, last + 1))
    assert last in (100, 200)
    reader.cancel()
    await asyncio.wait([reader])


async def test_a_loss_is_found_while_every_watcher_is_between_two_messages(store, watch):
    async with aclosing(watch.batches(0, EVERY, 1.5)) as batches:
        store.add(job(1), job(2), job(3))
        assert await batch_of(batches) == ([("job-1", 1), ("job-2", 2), ("job-3", 3)], 3)
        first = asyncio.ensure_future(batch_of(batches))
        await asyncio.sleep(0.1)
        del store.events[1:]
        await asyncio.sleep(1.3)
        # By the time of its next message there is as much as before.
        store.add(job(4), job(5), job(6))
        with pytest.raises(OutOfRange, match="request a new snapshot"):
            await first


async def test_a_batch_without_a_match_is_not_told(store, watch):
    running = JobFilter(states=frozenset({JobState.RUNNING}))
    async with aclosing(watch.batches(0, running, 0.01)) as batches:
        first = asyncio.ensure_future(batch_of(batches))
        store.add(job(1))
        await store.until_blocking_reads(store.blocking_reads + 2)
        store.add(job(2, state=JobState.RUNNING))
        assert await first == ([("job-2", 2)], 2)


async def test_who_is_far_behind_gets_a_page_after_the_other_without_a_pause(store):
    made = JobWatch(store, lambda revision, job, form: b"m" * 10_000, changes_kept=5)
    reader = asyncio.ensure_future(made.run())
    store.add(*(job(number) for number in range(1, 1001)))
    told: list[int] = []
    async with aclosing(made.batches(0, EVERY, 3600.0)) as batches, asyncio.timeout(TIMEOUT_S):
        async for batch in batches:
            assert sum(change.size for change in batch.changes) <= PAGE_BYTES + 100 * 10_000
            told += [change.revision for change in batch.changes]
            if batch.revision == 1000:
                break
    assert told == list(range(1, 1001))
    reader.cancel()
    await asyncio.wait([reader])


async def test_the_reader_rests_only_while_nobody_wants_to_be_told_at_once(store, watch):
    async with aclosing(watch.batches(0, EVERY, 3600.0)) as patient:
        store.add(job(1))
        assert await batch_of(patient) == ([("job-1", 1)], 1)
        await asyncio.sleep(0.1)
        reads = store.blocking_reads
        store.add(job(2))
        await asyncio.sleep(0.2)
        assert store.blocking_reads == reads
        async with aclosing(watch.changes(2, EVERY)) as eager:
            first = asyncio.ensure_future(take(eager, 1))
            await store.until_blocking_reads(reads + 2)
            store.add(job(3))
            assert await first == [3]


async def test_closing_ends_a_watch_that_waits_for_its_next_message(store, watch):
    batches = watch.batches(0, EVERY, 3600.0)
    store.add(job(1))
    assert await batch_of(batches) == ([("job-1", 1)], 1)
    waiting = asyncio.ensure_future(batch_of(batches))
    await asyncio.sleep(0.05)
    watch.close()
    with pytest.raises(Unavailable, match="resume with after_revision = 1"):
        await waiting


async def test_changes_that_the_snapshot_held_are_left_out(store, watch):
    store.add(job(1), job(2), job(3), job(1))
    seen = {"job-1": 4, "job-3": 3}
    async with aclosing(watch.changes(1, EVERY, seen)) as changes:
        store.add(job(1))
        assert await take(changes, 2) == [2, 5]


async def test_a_snapshot_notes_what_is_newer_than_its_revision(store, watch):
    store.add(job(1), job(2))
    seen: dict[str, int] = {}
    revision, jobs = await watch.snapshot(EVERY, seen)
    store.add(job(2))
    got = [each.job_id async for each in jobs]
    assert (revision, got, seen) == (2, ["job-1", "job-2"], {})
    revision, jobs = await watch.snapshot(EVERY, seen)
    first = await anext(jobs)
    assert (revision, first.revision) == (3, 1)


async def test_a_filter_lets_only_matching_changes_through(store, watch):
    running = JobFilter(states=frozenset({JobState.RUNNING}))
    store.add(job(1), job(1, state=JobState.RUNNING), job(2), job(2, state=JobState.RUNNING))
    async with aclosing(watch.changes(0, running)) as changes:
        assert await take(changes, 2) == [2, 4]


async def test_the_reader_outlives_failures_of_the_store(store, watch):
    async with aclosing(watch.changes(0, EVERY)) as changes:
        store.add(job(1))
        assert await take(changes, 1) == [1]
        store.fails = redis_errors.ConnectionError("gone")
        store.add(job(2))
        await store.until_blocking_reads(store.blocking_reads + 2)
        store.fails = None
        assert await take(changes, 1) == [2]


async def test_a_watch_that_needs_the_store_while_it_is_away_tells_where_to_resume(store, watch):
    store.add(job(1))
    store.fails = redis_errors.ConnectionError("gone")
    with pytest.raises(Unavailable, match="resume with after_revision = 1") as caught:
        await take(watch.changes(1, EVERY), 1)
    assert caught.value.metadata == {"revision": "1"}


async def test_when_the_store_has_lost_changes_all_watches_end(store, watch):
    watchers = [watch.changes(0, EVERY) for _ in range(3)]
    store.add(job(1), job(2), job(3))
    for each in watchers:
        assert await take(each, 3) == [1, 2, 3]
    del store.events[1:]
    for each in watchers:
        with pytest.raises(OutOfRange, match="request a new snapshot"):
            await take(each, 1)
    # A new one begins with what there is.
    async with aclosing(watch.changes(0, EVERY)) as changes:
        assert await take(changes, 1) == [1]
        store.add(job(2))
        assert await take(changes, 1) == [2]


async def test_a_new_watch_notices_at_once_that_changes_were_lost(store, watch):
    old = watch.changes(0, EVERY)
    store.add(job(1), job(2), job(3))
    assert await take(old, 3) == [1, 2, 3]
    store.events[:] = [JobStreamEntry(1, JobChange.MOVED, job(9))]
    new = watch.changes(0, EVERY)
    async with asyncio.timeout(TIMEOUT_S):
        assert (await anext(new)).job.job_id == "job-9"
    with pytest.raises(OutOfRange):
        await take(old, 1)
    await new.aclose()


async def test_closing_ends_watches_with_the_place_to_resume(store, watch):
    waiting = watch.changes(0, EVERY)
    store.add(job(1))
    assert await take(waiting, 1) == [1]
    _, jobs = await watch.snapshot(EVERY, {})
    watch.close()
    with pytest.raises(Unavailable, match="resume with after_revision = 1"):
        await take(waiting, 1)
    with pytest.raises(Unavailable):
        await anext(jobs)
    with pytest.raises(Unavailable):
        await take(watch.changes(1, EVERY), 1)


async def test_a_revision_of_the_future_is_refused(store, watch):
    with pytest.raises(OutOfRange) as caught:
        await take(watch.changes(1, EVERY), 1)
    assert caught.value.field == "after_revision"
    assert watch.watcher_count == 0


async def test_a_change_on_the_way_to_a_state_that_does_not_match_is_told(store, watch, monkeypatch):
    """The snapshot read the job when it had already ended; that it ran before is news for who watches running jobs."""
    running = JobFilter(states=frozenset({JobState.RUNNING}))

    async def snapshot(_turn, _user):
        async def jobs():
            yield job(1, 2, JobState.SUCCEEDED)

        return 0, jobs()

    monkeypatch.setattr(store, "snapshot", snapshot)
    store.add(job(1, 1, JobState.RUNNING), job(1, 2, JobState.SUCCEEDED))
    seen: dict[str, int] = {}
    revision, jobs = await watch.snapshot(running, seen)
    assert [each async for each in jobs] == []
    assert await take(watch.changes(revision, running, seen), 1) == [1]


async def test_what_is_kept_for_watchers_is_bounded_in_bytes(store):
    made = JobWatch(store, lambda revision, job, form: b"m" * 1000, changes_kept=8192, bytes_kept=10_000)
    reader = asyncio.ensure_future(made.run())
    changes: Any = made.changes(0, EVERY)
    async with aclosing(changes):
        store.add(job(1))
        assert await take(changes, 1) == [1]
        store.add(*(job(n) for n in range(2, 102)))
        assert await take(changes, 100) == list(range(2, 102))
        assert made.bytes_held <= 10_000
    reader.cancel()
    await asyncio.wait([reader])


async def test_a_watcher_takes_a_page_of_bytes_at_a_time_however_far_it_is_behind(store, monkeypatch):
    asked: list[int | None] = []
    read = store.read_events

    async def note(after: int, **how: Any) -> Any:
        if "block_ms" not in how:
            asked.append(how.get("max_bytes"))
        return await read(after, **how)

    monkeypatch.setattr(store, "read_events", note)
    made = JobWatch(store, lambda revision, job, form: b"m" * 40_000, changes_kept=5)
    reader = asyncio.ensure_future(made.run())
    live: Any = made.changes(0, EVERY)
    late: Any = made.changes(0, EVERY)
    async with aclosing(live), aclosing(late):
        store.add(job(1))
        assert await take(live, 1) == await take(late, 1) == [1]
        for first in range(2, 22, 2):
            store.add(job(first), job(first + 1))
            assert await take(live, 2) == [first, first + 1]
        assert await take(late, 20) == list(range(2, 22))
    assert asked
    assert set(asked) == {PAGE_BYTES}
    reader.cancel()
    await asyncio.wait([reader])
