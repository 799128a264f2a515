"""Lists in other orders and views, what ran when, and who calls: as a client has them, for every role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from adlro.client import AsyncClient, Endpoints, JobEventKind, JobFilter, JobOrder, JobView
from adlro.errors import InvalidInput, PermissionDenied
from adlro.kit.identity import Role
from adlro.kit.redis import connect
from adlro.records.history import AttemptOutcome
from adlro.records.identity import Identity
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType, PendingReason
from adlro.v1 import job_service_pb2
from tests.contract.ingest_suite import TIMEOUT_S, Ingest, ingest_here, job
from tests.contract.test_job_ownership import Clients, clients_of
from tests.unit.ingest.queue_for_tests import Queue

WAITING = (JobState.PENDING, JobState.RUNNING)


@pytest.fixture
async def clients(redis_url: str, tmp_path: Path) -> AsyncIterator[Clients]:
    async with clients_of(redis_url, tmp_path) as made:
        yield made


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    """Jobs of ann, bob and cy in all states."""
    async with connect(redis_url) as redis:
        made = Queue(redis)
        await made.fill(Random(11), 60, 220)
        yield made


def ids(jobs: list[Job] | tuple[Job, ...]) -> list[str]:
    return [each.job_id for each in jobs]


async def listed(client: AsyncClient, order: JobOrder, job_filter: JobFilter | None = None) -> list[Job]:
    return [job async for job in client.list(job_filter, page_size=7, order=order)]


async def test_lists_come_in_the_order_that_is_asked_for(queue: Queue, clients: Clients) -> None:
    rea = clients("rea")
    jobs = list(queue.jobs.values())
    assert await listed(rea, JobOrder.SUBMITTED) == jobs
    assert await listed(rea, JobOrder.NEWEST_FIRST) == jobs[::-1]
    waiting = [each for each in jobs if not each.state.final]
    by_priority = sorted(waiting, key=lambda each: -each.spec.priority)
    assert await listed(rea, JobOrder.PRIORITY, JobFilter(states=WAITING)) == by_priority
    ended = [each for each in await listed(rea, JobOrder.ENDED) if each.state.final]
    assert [each.end_s for each in ended] == sorted(
        (each.end_s for each in ended if each.end_s is not None), reverse=True
    )
    assert len(ended) == len(jobs) - len(waiting)


async def test_a_page_tells_how_many_there_are(queue: Queue, clients: Clients) -> None:
    rea = clients("rea")
    waiting = JobFilter(states=WAITING, name_contains="TRAIN")
    page = await rea.list_page(waiting, page_size=2, order=JobOrder.WAIT)
    assert page.total_count == sum(waiting.matches(each) for each in queue.jobs.values())
    assert (await rea.list_page(page_size=1)).total_count == len(queue.jobs)
    assert (await rea.list_page(JobFilter(name_contains="t"), page_size=1)).total_count is None


async def test_a_submitters_lists_and_counts_are_of_his_own(queue: Queue, clients: Clients) -> None:
    ann = clients("ann")
    own = [each for each in queue.jobs.values() if each.spec.user == "ann"]
    for order in JobOrder:
        states = WAITING if order in (JobOrder.PRIORITY, JobOrder.WAIT) else ()
        expected = [each for each in own if not states or each.state in states]
        page = await ann.list_page(JobFilter(states=states), page_size=1000, order=order)
        assert sorted(ids(tuple(page.jobs))) == sorted(ids(expected)), order
        assert page.total_count == len(expected)
        others = await ann.list_page(
            JobFilter(states=states, job_ids=tuple(f"job-{n}" for n in range(1, 70))), page_size=1000, order=order
        )
        assert {each.spec.user for each in others.jobs} == {"ann"}
        with pytest.raises(PermissionDenied):
            await ann.list_page(JobFilter(states=states, user="bob"), order=order)


@pytest.mark.parametrize("order", [JobOrder.SUBMITTED, JobOrder.NEWEST_FIRST, JobOrder.PRIORITY])
async def test_the_basic_view_has_what_a_table_shows_and_no_more(
    redis_url: str, clients: Clients, order: JobOrder
) -> None:
    whole = JobSpec(
        "fold",
        "ann",
        JobType.SIMULATION,
        "secret-app",
        0.75,
        cpu_cores=3,
        gpu_count=2,
        labels={"a": "b"},
        begin_time_s=4.0,
    )
    made = await clients("ann").submit(whole)
    async with connect(redis_url) as redis:
        queue = Queue(redis)
        queue.jobs, queue.versions = {1: made}, {1: 0}
        await queue.step(1, Random(3))
        attempt = JobAttempt(1, made.placement, "v100", start_s=1.0)
        await queue.move(1, attempts=(attempt,), pending_reason=PendingReason.POLICY, message="held")
    states = JobFilter(states=WAITING)
    (found,) = (await clients("ann").list_page(states, order=order, view=JobView.BASIC)).jobs
    job = queue.jobs[1]
    spec = JobSpec("fold", "ann", JobType.SIMULATION, "", 0.75, gpu_count=2, begin_time_s=4.0)
    assert found == replace(
        Job(job.job_id, spec, job.state, job.pending_reason, job.message, job.created_unix_s),
        submit_s=job.submit_s,
        revision=job.revision,
    )
    watch = clients("rea").watch(view=JobView.BASIC, timeout_s=TIMEOUT_S)
    event = await anext(watch)
    assert (event.kind, event.job) == (JobEventKind.SNAPSHOT, found)
    assert (await anext(watch)).kind is JobEventKind.SNAPSHOT_END
    cancelled = await clients("ann").cancel("job-1")
    event = await anext(watch)
    assert (event.kind, event.revision) == (JobEventKind.CHANGE, cancelled.revision)
    assert event.job == replace(found, cancel_requested=True, revision=cancelled.revision)


async def test_a_basic_watch_of_a_submitter_hides_as_the_full_one_does(queue: Queue, clients: Clients) -> None:
    seen = set()
    async for event in clients("bob").watch(view=JobView.BASIC, timeout_s=TIMEOUT_S):
        if event.job is None:
            break
        seen.add(event.job.job_id)
    assert seen == {each.job_id for each in queue.jobs.values() if each.spec.user == "bob"}


async def test_what_ran_is_told_to_every_role_and_whose_it_was_to_those_who_see_all(
    queue: Queue, clients: Clients
) -> None:
    whole = (await clients("rea").query_attempts(0.0, 1e6)).bars
    assert whole is not None
    assert {bar.user for bar in whole} == {"ann", "bob", "cy"}
    for user in ("ops", "both"):
        assert (await clients(user).query_attempts(0.0, 1e6)).bars == whole
    seen = (await clients("ann").query_attempts(0.0, 1e6)).bars
    assert seen is not None
    assert [bar for bar in seen if bar.user] == [bar for bar in whole if bar.user == "ann"]
    assert {(bar.job_id, bar.attempt, bar.job_type, bar.outcome) for bar in seen if not bar.user} == {
        ("", 0, JobType.UNSPECIFIED, AttemptOutcome.UNSPECIFIED)
    }
    assert [(bar.gpu_id, bar.start_s, bar.end_s) for bar in seen] == [
        (bar.gpu_id, bar.start_s, bar.end_s) for bar in whole
    ]
    texts = " ".join((*seen.job_ids, *seen.users))
    assert "bob" not in texts
    assert not {each.job_id for each in queue.jobs.values() if each.spec.user != "ann"} & set(seen.job_ids)
    folded = await clients("ann").query_attempts(0.0, 1e6, max_bars=3, bucket_count=10)
    assert folded == await clients("rea").query_attempts(0.0, 1e6, max_bars=3, bucket_count=10)
    assert folded.occupancy is not None
    assert folded.occupancy.folded_bar_count == folded.bar_count == len(whole)
    assert len(folded.occupancy.held) == 10 * len(folded.occupancy.row_names)


async def test_everybody_is_told_who_he_is(clients: Clients) -> None:
    assert await clients("ann").whoami() == Identity("ann", (Role.SUBMITTER,), True)
    assert await clients("rea").whoami() == Identity("rea", (Role.READER,), True)
    assert await clients("ops").whoami() == Identity("ops", (Role.OPERATOR,), True)
    assert await clients("both").whoami() == Identity("both", (Role.SUBMITTER, Role.READER), True)


async def test_without_a_users_file_a_caller_is_nobody_with_every_right(redis_url: str) -> None:
    async with ingest_here(redis_url) as address, AsyncClient(endpoints=Endpoints(*[address] * 4)) as client:
        assert await client.whoami() == Identity("", tuple(Role), False)


@pytest.fixture
async def ingest(redis_url: str) -> AsyncIterator[Ingest]:
    async with ingest_here(redis_url) as address, Ingest(address) as made:
        yield made


@pytest.mark.parametrize(
    ("method", "request_message", "field"),
    [
        ("ListJobs", job_service_pb2.ListJobsRequest(order_by=99), "order_by"),  # type: ignore[arg-type]
        ("ListJobs", job_service_pb2.ListJobsRequest(order_by=3), "order_by"),  # type: ignore[arg-type]
        ("ListJobs", job_service_pb2.ListJobsRequest(view=99), "view"),  # type: ignore[arg-type]
        (
            "ListJobs",
            job_service_pb2.ListJobsRequest(filter=job_service_pb2.JobFilter(active_after_s=float("nan"))),
            "filter.active_after_s",
        ),
        (
            "ListJobs",
            job_service_pb2.ListJobsRequest(filter=job_service_pb2.JobFilter(name_contains="a\u202eb")),
            "filter.name_contains",
        ),
        (
            "ListJobs",
            job_service_pb2.ListJobsRequest(filter=job_service_pb2.JobFilter(min_priority=1.5)),
            "filter.min_priority",
        ),
        ("QueryAttempts", job_service_pb2.QueryAttemptsRequest(from_s=float("inf")), "from_s"),
        ("QueryAttempts", job_service_pb2.QueryAttemptsRequest(from_s=2.0, to_s=1.0), "to_s"),
        ("QueryAttempts", job_service_pb2.QueryAttemptsRequest(max_bars=100_001), "max_bars"),
        ("QueryAttempts", job_service_pb2.QueryAttemptsRequest(bucket_count=-1), "bucket_count"),
    ],
)
async def test_what_can_not_be_answered_is_refused_by_field(
    ingest: Ingest, method: str, request_message: object, field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await ingest.call(getattr(ingest.jobs, method), request_message)
    assert field in (refused.value.field, *(each.field for each in refused.value.violations))


async def test_an_answer_stays_below_the_limit_of_messages_whatever_is_asked_for(redis_url: str) -> None:
    async with connect(redis_url) as redis:
        queue = Queue(redis)
        random = Random(7)
        await queue.submit(random, 300)
        for number in queue.jobs:
            for _ in range(3):
                await queue.step(number, random)
    async with ingest_here(redis_url, max_message_bytes=64 * 1024) as address, Ingest(address) as ingest:
        request = job_service_pb2.QueryAttemptsRequest(from_s=0.0, to_s=1e9, max_bars=100_000)
        answer = await ingest.call(ingest.jobs.QueryAttempts, request)
        assert answer.ByteSize() < 64 * 1024
        small = job_service_pb2.QueryAttemptsRequest(from_s=0.0, to_s=1e9, max_bars=10, bucket_count=2000)
        assert (await ingest.call(ingest.jobs.QueryAttempts, small)).HasField("occupancy")


async def test_pages_of_large_jobs_fit_into_messages_in_every_order(ingest: Ingest) -> None:
    labels = {f"k{n}": "€" * 255 for n in range(64)}
    await ingest.submit_many([job(labels=labels) for _ in range(120)])
    for order in (1, 2, 3, 4, 5):
        request = job_service_pb2.ListJobsRequest(
            filter=job_service_pb2.JobFilter(states=[1]),  # type: ignore[list-item]
            page_size=1000,
            order_by=order,  # type: ignore[arg-type]
        )
        page = await ingest.call(ingest.jobs.ListJobs, request)
        assert page.ByteSize() < 4 << 20
        assert page.next_page_token
