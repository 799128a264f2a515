"""Pages of every order and filter against all jobs, filtered and sorted by force."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.errors import InvalidInput
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.redis import connect
from adlro.records.jobs import Job, JobState, JobType, PendingReason
from adlro.records.watching import JobFilter, JobOrder, JobView
from adlro.services.ingest import listing
from adlro.services.ingest.active import ActiveJobs
from adlro.services.ingest.candidates import Candidates
from adlro.services.ingest.listing import JobList
from adlro.services.ingest.watch import JobWatch
from adlro.store.pages import PageTokens
from tests.unit.ingest.queue_for_tests import REASONS, USERS, Queue
from tests.volume import cases

WAITING = (JobState.PENDING, JobState.RUNNING)
ORDERS_OF_QUEUES = (JobOrder.PRIORITY, JobOrder.WAIT)


def place(order: JobOrder, number: int, job: Job) -> tuple[float, ...]:
    """Where a job stands, said in another way than the list's."""
    match order:
        case JobOrder.SUBMITTED:
            return (number,)
        case JobOrder.NEWEST_FIRST:
            return (-number,)
        case JobOrder.PRIORITY:
            return (-job.spec.priority, number)
        case JobOrder.WAIT:
            return (math.inf if job.submit_s is None else job.submit_s, number)
        case JobOrder.ENDED:
            return (-math.inf if not job.state.final else -(job.end_s or 0.0), -number)


def by_force(queue: Queue, job_filter: JobFilter, order: JobOrder) -> list[str]:
    found = [(place(order, number, job), job.job_id) for number, job in queue.jobs.items() if job_filter.matches(job)]
    return [job_id for _, job_id in sorted(found)]


times = st.one_of(st.none(), st.floats(0.0, 400.0))
filters = st.builds(
    JobFilter,
    states=st.one_of(st.just(()), st.just(WAITING), st.sets(st.sampled_from(JobState), max_size=3)),
    job_types=st.sets(st.sampled_from(list(JobType)[1:]), max_size=1),
    user=st.sampled_from(("", "", *USERS)),
    application=st.sampled_from(("", "", "cfd")),
    labels=st.sampled_from(({}, {}, {"team": "x"})),
    job_ids=st.one_of(st.just(()), st.sets(st.integers(1, 90).map(lambda n: f"job-{n}"), max_size=40)),
    active_after_s=times,
    ended_before_s=times,
    submitted_after_s=st.one_of(st.none(), times),
    submitted_before_s=st.one_of(st.none(), times),
    name_contains=st.sampled_from(("", "", "TRAIN", "old", "strasse")),
    pending_reasons=st.sets(st.sampled_from(REASONS), max_size=2),
    min_priority=st.sampled_from((None, 0.5)),
    max_priority=st.sampled_from((None, 0.75)),
)
# Filters by one field or two, as people have them; the others seldom leave a job.
fields = st.sets(st.sampled_from([each for each in JobFilter.__slots__ if each != "states"]), max_size=2)


@st.composite
def some_filters(draw: Any) -> JobFilter:
    whole = draw(filters)
    return JobFilter(states=whole.states, **{name: getattr(whole, name) for name in draw(fields)})


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def still(runner: asyncio.Runner, redis_server: EmbeddedRedis) -> Iterator[Queue]:
    """A queue that does not change; in a database of its own."""
    redis_server.start()

    async def made() -> Queue:
        queue = Queue(connect(f"{redis_server.url}?db=3"))
        await queue.redis.flushdb()
        await queue.fill(Random(5), 90, 200)
        return queue

    queue = runner.run(made())
    yield queue
    runner.run(queue.redis.aclose())


async def paged(
    queue: Queue, job_filter: JobFilter, order: JobOrder, size: int, view: JobView = JobView.FULL
) -> tuple[list[str], set[int | None]]:
    found: list[str] = []
    totals: set[int | None] = set()
    token = ""
    while True:
        page = await queue.list.page(job_filter, size, token, order, view)
        assert len(page.jobs) <= size
        found += [job.job_id for job in page.jobs]
        totals.add(page.total_count)
        if not page.next_page_token:
            return found, totals
        assert page.jobs, "an empty page of a short list"
        token = page.next_page_token


@settings(max_examples=cases(300))
@given(
    job_filter=some_filters(),
    order=st.sampled_from(JobOrder),
    size=st.integers(1, 30),
    view=st.sampled_from(JobView),
)
def test_pages_together_have_each_matching_job_once_in_order(
    runner: asyncio.Runner, still: Queue, job_filter: JobFilter, order: JobOrder, size: int, view: JobView
) -> None:
    if order in ORDERS_OF_QUEUES and not job_filter.active_only:
        with pytest.raises(InvalidInput, match=r"order_by: .* set filter\.states"):
            runner.run(still.list.page(job_filter, size, "", order, view))
        return
    expected = by_force(still, job_filter, order)
    found, totals = runner.run(paged(still, job_filter, order, size, view))
    assert found == expected
    assert totals <= {None, len(expected)}
    if order is not JobOrder.SUBMITTED and job_filter.active_only:
        assert totals == {len(expected)}


def test_the_queue_that_is_paged_has_all_kinds_of_jobs(still: Queue) -> None:
    jobs = still.jobs.values()
    assert {job.state for job in jobs} == set(JobState)
    assert {job.pending_reason for job in jobs} >= {*REASONS, PendingReason.SUBMITTED}
    assert sum(len(job.attempts) > 1 for job in jobs) >= 3
    ends = [job.end_s for job in jobs if job.end_s is not None]
    assert len(set(ends)) < len(ends), "no two end at one time"
    waits = [job.submit_s for job in jobs if not job.state.final and job.submit_s is not None]
    assert waits != sorted(waits), "begin times are like numbers"


def test_the_count_of_all_jobs_and_of_a_users_is_told(still: Queue, runner: asyncio.Runner) -> None:
    for user, order in itertools.product(("", "bob"), (JobOrder.SUBMITTED, JobOrder.NEWEST_FIRST, JobOrder.ENDED)):
        page = runner.run(still.list.page(JobFilter(user=user), 1, "", order))
        assert page.total_count == sum(user in ("", job.spec.user) for job in still.jobs.values())


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with connect(redis_url) as redis:
        yield Queue(redis)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("order", JobOrder)
async def test_what_matches_all_the_time_is_on_some_page_whatever_else_changes(
    queue: Queue, order: JobOrder, seed: int
) -> None:
    random = Random(seed)
    await queue.fill(random, 40, 60)
    job_filter = random.choice(
        [
            JobFilter(states=WAITING),
            JobFilter(states=WAITING, user="ann"),
            JobFilter(states=(JobState.PENDING,)),
            *(
                []
                if order in ORDERS_OF_QUEUES
                else [JobFilter(), JobFilter(active_after_s=20.0), JobFilter(user="ann")]
            ),
        ]
    )
    always = {number for number, job in queue.jobs.items() if job_filter.matches(job)}
    found: list[str] = []
    token = ""
    for _ in range(200):
        # Another replica, which has a table of its own, may answer.
        other = Queue(queue.redis) if random.random() < 0.3 else queue
        page = await other.list.page(job_filter, 4, token, order, random.choice(list(JobView)))
        found += [job.job_id for job in page.jobs]
        token = page.next_page_token
        if not token:
            break
        for _ in range(random.randrange(6)):
            if random.random() < 0.2:
                await queue.submit(random, 2)
            else:
                await queue.step(random.choice(list(queue.jobs)), random)
        always &= {number for number, job in queue.jobs.items() if job_filter.matches(job)}
    assert not token, "it does not end"
    assert {f"job-{number}" for number in always} <= set(found)
    assert set(found) <= {f"job-{number}" for number in queue.jobs}


async def test_a_job_that_was_just_submitted_is_on_the_page(queue: Queue) -> None:
    random = Random(1)
    for count in range(1, 6):
        await queue.submit(random)
        page = await queue.list.page(JobFilter(states=WAITING), 10, "", JobOrder.PRIORITY)
        assert (len(page.jobs), page.total_count) == (count, count)


async def test_a_store_that_lost_its_last_changes_is_read_anew(queue: Queue) -> None:
    random = Random(2)
    await queue.submit(random, 3)
    kept = {key: await queue.redis.dump(key) for key in await queue.redis.keys("*")}
    await queue.submit(random, 2)
    jobs = JobFilter(states=WAITING)
    assert (await queue.list.page(jobs, 10, "", JobOrder.WAIT)).total_count == 5
    await queue.redis.flushall()
    for key, body in kept.items():
        await queue.redis.restore(key, 0, body)
    # As many changes as were lost: the revision is the same.
    await queue.store.request_cancel("job-1")
    await queue.store.request_cancel("job-2")
    page = await queue.list.page(jobs, 10, "", JobOrder.WAIT)
    assert [job.job_id for job in page.jobs] == ["job-1", "job-2", "job-3"]
    assert [job.cancel_requested for job in page.jobs] == [True, True, False]


async def test_changes_that_went_by_are_read_as_jobs(queue: Queue) -> None:
    random = Random(3)
    await queue.submit(random, 3)
    jobs = JobFilter(states=WAITING)
    await queue.list.page(jobs, 10, "", JobOrder.WAIT)
    await queue.submit(random, 3)
    await queue.redis.xtrim("adlro:jobs:events", maxlen=1, approximate=False)
    assert (await queue.list.page(jobs, 10, "", JobOrder.WAIT)).total_count == 6


@pytest.mark.parametrize("same_replica", [True, False])
async def test_pages_by_wait_tell_no_job_anew_that_did_not_change(queue: Queue, same_replica: bool) -> None:
    """Also where the table was read anew between two pages: then it is not known since when jobs have their places."""
    jobs = JobFilter(states=WAITING)
    await queue.submit(Random(8), 12)
    for number in range(1, 11):
        await queue.move(number, submit_s=float(number), pending_reason=PendingReason.POLICY)
    pages = [await queue.list.page(jobs, 4, "", JobOrder.WAIT)]
    pages.append(await queue.list.page(jobs, 4, pages[0].next_page_token, JobOrder.WAIT))
    for number in range(1, 5):
        await queue.move(number, message="still waits")
    await queue.move(11, submit_s=2.5, pending_reason=PendingReason.POLICY)  # would be on no page
    if same_replica:
        await queue.redis.xtrim("adlro:jobs:events", maxlen=1, approximate=False)
    else:
        queue.active = ActiveJobs(queue.store)
        queue.list = JobList(queue.store, PageTokens(queue.redis), queue.active, queue.ended)
    while pages[-1].next_page_token:
        pages.append(await queue.list.page(jobs, 4 if same_replica else 5, pages[-1].next_page_token, JobOrder.WAIT))
    found = [int(job.job_id[4:]) for page in pages for job in page.jobs]
    late = [11] if same_replica else [1, 2, 11, 3, 4]
    assert found == [*range(1, 9), *late, 9, 10, 12]


@pytest.mark.parametrize("order", [JobOrder.NEWEST_FIRST, JobOrder.ENDED])
@pytest.mark.parametrize("user", ["", "ann"])
async def test_the_first_page_of_a_long_history_reads_little_more_than_it_shows(
    queue: Queue, order: JobOrder, user: str
) -> None:
    random = Random(4)
    await queue.submit(random, 900)
    for number in list(queue.jobs):
        await queue.move(
            number, state=JobState.SUCCEEDED, submit_s=1.0, end_s=float(number), pending_reason=PendingReason.NONE
        )
    await queue.redis.config_resetstat()
    page = await queue.list.page(JobFilter(user=user), 10, "", order)
    assert [job.job_id for job in page.jobs] == by_force(queue, JobFilter(user=user), order)[:10]
    statistics = await queue.redis.info("commandstats")
    assert statistics["cmdstat_hmget"]["calls"] <= 11 + 3
    again = await queue.list.page(JobFilter(user=user), 10, page.next_page_token, order)
    assert [job.job_id for job in again.jobs] == by_force(queue, JobFilter(user=user), order)[10:20]


async def ended_jobs(queue: Queue, count: int) -> None:
    await queue.submit(Random(7), count)
    for number in list(queue.jobs):
        await queue.move(
            number, state=JobState.SUCCEEDED, submit_s=1.0, end_s=float(number), pending_reason=PendingReason.NONE
        )


async def counted_pages(queue: Queue, job_filter: JobFilter, order: JobOrder) -> tuple[list[str], list[int]]:
    """The ids on all pages of 10, and how many members of indexes and records Redis looked at for each page."""
    found: list[str] = []
    looked_at: list[int] = []
    token = ""
    while True:
        await queue.redis.config_resetstat()
        page = await queue.list.page(job_filter, 10, token, order)
        statistics = await queue.redis.info("commandstats")
        looked_at.append(sum(statistics.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("hmget", "zscore")))
        found += [job.job_id for job in page.jobs]
        if not page.next_page_token:
            return found, looked_at
        token = page.next_page_token


async def test_a_page_of_ends_stops_looking_for_a_users_jobs_that_are_not_there(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each end of others' jobs is looked at, in vain; a page does that for so many, and the next one goes on."""
    monkeypatch.setattr(listing, "_SCAN_LIMIT", 100)
    monkeypatch.setattr(listing, "_ENDED_AT_ONCE", 20)
    await ended_jobs(queue, 500)
    found, looked_at = await counted_pages(queue, JobFilter(user="nobody"), JobOrder.ENDED)
    assert found == []
    assert len(looked_at) >= 4
    # 40 at a time, up to two steps more; in two indexes: of his jobs, and of those of nobody knows whom.
    assert max(looked_at) <= 2 * (100 + 2 * 40) + 10
    rare = JobFilter(user="ann", labels={"team": "x"})
    found, looked_at = await counted_pages(queue, rare, JobOrder.ENDED)
    assert found == by_force(queue, rare, JobOrder.ENDED)


@pytest.mark.parametrize("order", [JobOrder.SUBMITTED, JobOrder.NEWEST_FIRST])
@pytest.mark.parametrize("job_filter", [JobFilter(active_after_s=0.0), JobFilter(ended_before_s=450.0, user="ann")])
async def test_a_page_does_not_read_a_long_range_of_ends_anew(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, job_filter: JobFilter, order: JobOrder
) -> None:
    monkeypatch.setattr(listing, "_SCAN_LIMIT", 100)
    queue.list = JobList(queue.store, PageTokens(queue.redis), queue.active, queue.ended)
    steps = []
    whole = queue.ended.steps

    def noted(*given: Any) -> Any:
        steps.append(given)
        return whole(*given)

    await ended_jobs(queue, 500)
    monkeypatch.setattr(queue.ended, "steps", noted)
    found, _ = await counted_pages(queue, job_filter, order)
    assert found == by_force(queue, job_filter, order)
    assert not steps, "the index of ends has 450 and more in the range"
    short = JobFilter(active_after_s=450.0)
    found, looked_at = await counted_pages(queue, short, order)
    assert found == by_force(queue, short, order)
    assert steps, "a short range is read in it"
    assert max(looked_at) <= 15


async def test_a_page_of_one_order_does_not_go_on_in_another(queue: Queue) -> None:
    await queue.submit(Random(5), 5)
    page = await queue.list.page(JobFilter(states=WAITING), 2, "", JobOrder.WAIT)
    for order in (JobOrder.SUBMITTED, JobOrder.PRIORITY):
        with pytest.raises(InvalidInput, match="belongs to another filter or order"):
            await queue.list.page(JobFilter(states=WAITING), 2, page.next_page_token, order)


@pytest.mark.parametrize(
    "job_filter",
    [JobFilter(states=WAITING), JobFilter(active_after_s=890.0), JobFilter(user="ann", active_after_s=850.0)],
)
async def test_a_watch_of_the_present_does_not_read_a_long_past(queue: Queue, job_filter: JobFilter) -> None:
    await queue.submit(Random(6), 905)
    for number in list(queue.jobs)[:900]:
        await queue.move(
            number, state=JobState.SUCCEEDED, submit_s=1.0, end_s=float(number), pending_reason=PendingReason.NONE
        )
    may_match = Candidates(queue.store, queue.ended).numbers
    watch = JobWatch(queue.store, lambda revision, job, form: b"", 8, may_match=may_match)
    await queue.redis.config_resetstat()
    revision, jobs = await watch.snapshot(job_filter, {})
    assert [job.job_id async for job in jobs] == by_force(queue, job_filter, JobOrder.SUBMITTED)
    assert revision == await queue.store.revision()
    assert (await queue.redis.info("commandstats"))["cmdstat_hmget"]["calls"] <= 35
