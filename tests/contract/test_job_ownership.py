"""Whose jobs a caller sees and changes, and how much one user may submit, on ingest with a users' file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from adlro.client import AsyncClient, Credentials, Endpoints, JobEventKind, JobFilter
from adlro.errors import InvalidInput, LimitExceeded, NotFound, PermissionDenied
from adlro.kit.identity import Role, new_token, users_line
from adlro.kit.redis import connect
from adlro.placement import GpuShare, Placement
from adlro.records.jobs import AttemptRef, Job, JobAttempt, JobSpec, JobState, JobType, PendingReason
from adlro.records.outcomes import ApplicationSize, NeighbourTime
from adlro.records.watching import JobEvent, JobView
from adlro.store import JobStore, Move
from tests.contract.ingest_suite import ingest_here

ANN = JobSpec("train", "ann", JobType.MACHINE_LEARNING)
BOB = JobSpec("train", "bob", JobType.MACHINE_LEARNING)

Clients = Callable[[str], AsyncClient]


@asynccontextmanager
async def clients_of(redis_url: str, tmp_path: Path, **settings: object) -> AsyncIterator[Clients]:
    """ingest, and clients by user: ann and bob submit, rea reads, ops operates, both does both."""
    roles = {
        "ann": [Role.SUBMITTER],
        "bob": [Role.SUBMITTER],
        "rea": [Role.READER],
        "ops": [Role.OPERATOR],
        "both": [Role.READER, Role.SUBMITTER],
    }
    tokens = {user: new_token(user) for user in roles}
    users = tmp_path / "users"
    users.write_text("\n".join(users_line(token, roles[user]) for user, token in tokens.items()))
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(ingest_here(redis_url, users_file=str(users), **settings))
        made = {
            user: await stack.enter_async_context(
                AsyncClient(
                    endpoints=Endpoints(*[address] * 4),
                    credentials=Credentials(token=token),
                    timeout_s=60.0,
                    patience_s=60.0,
                )
            )
            for user, token in tokens.items()
        }
        yield made.__getitem__


@pytest.fixture
async def clients(redis_url: str, tmp_path: Path) -> AsyncIterator[Clients]:
    async with clients_of(redis_url, tmp_path) as made:
        yield made


async def ids(client: AsyncClient, job_filter: JobFilter | None = None) -> list[str]:
    return [job.job_id async for job in client.list(job_filter)]


async def test_a_job_is_its_submitters(clients: Clients) -> None:
    with pytest.raises(PermissionDenied, match=r"job\.user: is 'bob', but the token is ann's") as refused:
        await clients("ann").submit(BOB)
    assert refused.value.field == "job.user"
    assert await ids(clients("ops")) == []  # nothing was left behind
    answer = await clients("ann").submit_many([ANN, BOB, ANN])
    assert [bool(job_id) for job_id in answer.job_ids] == [True, False, True]
    assert answer.rejected[0].index == 1
    assert "bob" in answer.rejected[0].message
    assert (await clients("ops").submit(BOB)).spec.user == "bob"


async def test_another_users_job_does_not_exist(clients: Clients) -> None:
    mine = await clients("ann").submit(ANN, "the-same-id")
    other = await clients("bob").submit(BOB, "the-same-id")  # request ids are each user's own
    assert mine.job_id != other.job_id
    with pytest.raises(NotFound) as hidden:
        await clients("ann").get(other.job_id)
    with pytest.raises(NotFound) as absent:
        await clients("ann").get("job-999")
    # Word for word: whether it is there can't be told from the answer.
    assert hidden.value.message.replace(other.job_id, "job-999") == absent.value.message
    assert (hidden.value.reason, set(hidden.value.metadata)) == (absent.value.reason, set(absent.value.metadata))
    with pytest.raises(NotFound):
        await clients("ann").cancel(other.job_id)
    assert not (await clients("bob").get(other.job_id)).cancel_requested
    for user in ("rea", "ops"):
        assert (await clients(user).get(other.job_id)).spec.user == "bob"


async def test_who_may_cancel(clients: Clients) -> None:
    job = await clients("ann").submit(ANN)
    for user in ("rea", "both"):
        with pytest.raises(PermissionDenied):
            await clients(user).cancel(job.job_id)
    assert (await clients("ann").cancel(job.job_id)).cancel_requested
    job = await clients("ann").submit(ANN)
    assert (await clients("ops").cancel(job.job_id)).cancel_requested
    with pytest.raises(PermissionDenied):
        await clients("rea").submit(ANN)


async def test_lists_show_ones_own(clients: Clients) -> None:
    anns = [(await clients("ann").submit(ANN)).job_id for _ in range(3)]
    bobs = [(await clients("bob").submit(BOB)).job_id for _ in range(2)]
    assert await ids(clients("ann")) == anns
    assert await ids(clients("ann"), JobFilter(job_ids=(*anns, *bobs))) == anns
    assert await ids(clients("bob"), JobFilter(user="bob")) == bobs
    with pytest.raises(PermissionDenied, match=r"filter\.user"):
        await ids(clients("bob"), JobFilter(user="ann"))
    for user in ("rea", "ops", "both"):
        assert await ids(clients(user)) == anns + bobs


async def test_who_shared_a_gpu_with_ones_job_is_not_told(clients: Clients, redis_url: str) -> None:
    """How long somebody was there is: it explains how long one's own job took."""
    mine = await clients("ann").submit(ANN, "shares")
    beside = (NeighbourTime(ApplicationSize("bobs-secret"), 3.0), NeighbourTime(ApplicationSize("another"), 2.0))
    placement = Placement((GpuShare("v100-0/0", 0.5),))
    attempt = JobAttempt(1, placement, "v100", start_s=0.0, end_s=5.0, outcome="lost: x", neighbours=beside)
    record = replace(mine, submit_s=0.0, attempts=(attempt,))
    watch = clients("ann").watch(timeout_s=60.0, after_revision=mine.revision)
    async with connect(redis_url) as redis:
        await JobStore(redis).move(0, [Move(record, 0)])
    seen = [
        await clients("ann").get(mine.job_id),
        *[job async for job in clients("ann").list()],
        (await anext(watch)).job,
        (await clients("ann").submit(ANN, "shares")),
        (await clients("ann").cancel(mine.job_id)),
    ]
    for job in seen:
        assert job is not None
        assert job.attempts[0].neighbours == (NeighbourTime(ApplicationSize(""), 5.0),)
    assert (await clients("rea").get(mine.job_id)).attempts[0].neighbours == beside


async def test_no_record_names_another_users_job(clients: Clients, redis_url: str) -> None:
    """Whatever the orchestrator writes into a record, in both views; his own jobs are named, also when they ended."""
    bobs = (await clients("bob").submit(BOB)).job_id
    ended = await clients("ann").submit(ANN)
    mine = await clients("ann").submit(ANN, "names")
    attempt = JobAttempt(
        1,
        Placement.on("v100-0/0"),
        "v100",
        outcome=f"stopped for {bobs}",
        preempts=(AttemptRef(bobs, 1), AttemptRef(ended.job_id, 1)),
    )
    record = replace(
        mine,
        submit_s=0.0,
        attempts=(attempt,),
        pending_reason=PendingReason.RESERVED,
        message=f"could start, but GPUs are kept free for {bobs}, which waits for {ended.job_id}",
        reserved_for_job_id=bobs,
        reserved_until_s=50.0,
    )
    job_filter = JobFilter(job_ids=(mine.job_id,))
    views = (JobView.BASIC, JobView.FULL)
    watches = [clients("ann").watch(mine.revision, job_filter, view=view, timeout_s=60.0) for view in views]
    gone = replace(ended, submit_s=0.0, end_s=1.0, state=JobState.CANCELLED, pending_reason=PendingReason.NONE)
    async with connect(redis_url) as redis:
        await JobStore(redis).move(0, [Move(record, 0), Move(gone, 0)])
    seen = [
        await clients("ann").get(mine.job_id),
        *[job for view in views async for job in clients("ann").list(job_filter, view=view)],
        *[(await anext(watch)).job for watch in watches],
        *[(await anext(clients("ann").watch(None, job_filter, view=view, timeout_s=60.0))).job for view in views],
        await clients("ann").submit(ANN, "names"),
        await clients("ann").cancel(mine.job_id),
    ]
    assert len(seen) == 9
    for job in seen:
        assert job is not None
        assert bobs not in str(job)
        assert job.message.endswith(f"kept free for another job, which waits for {ended.job_id}")
        assert job.reserved_for_job_id == ""
        assert job.reserved_until_s in (50.0, None)  # which the basic view does not have
        for each in job.attempts:
            assert (each.outcome, each.preempts) == ("stopped for another job", (AttemptRef(ended.job_id, 1),))
    whole = await clients("rea").get(mine.job_id)
    assert (whole.reserved_for_job_id, whole.attempts[0].preempts) == (bobs, attempt.preempts)


async def test_a_page_token_of_another_user_opens_nothing(clients: Clients) -> None:
    for _ in range(3):
        await clients("ann").submit(ANN)
        await clients("bob").submit(BOB)
    pages = [job async for job in clients("ann").list(page_size=1)]
    assert {job.spec.user for job in pages} == {"ann"}
    assert len(pages) == 3


async def test_watches_show_ones_own(clients: Clients) -> None:
    await clients("bob").submit(BOB)
    first = await clients("ann").submit(ANN)
    watch = clients("ann").watch(timeout_s=60)
    event = await anext(watch)
    assert event.job is not None
    assert event.job.job_id == first.job_id
    assert (await anext(watch)).kind is JobEventKind.SNAPSHOT_END
    await clients("bob").submit(BOB)
    second = await clients("ann").submit(ANN)
    event = await anext(watch)
    assert event.job is not None
    assert event.job.job_id == second.job_id
    with pytest.raises(PermissionDenied, match=r"filter\.user"):
        await anext(clients("ann").watch(job_filter=JobFilter(user="bob")))


async def test_changes_that_come_together_show_ones_own(clients: Clients) -> None:
    watch = clients("ann").watch(timeout_s=60, min_interval_s=0.3)
    assert (await anext(watch)).kind is JobEventKind.SNAPSHOT_END
    told = asyncio.ensure_future(_changes(watch, "job-5"))
    for number in range(1, 6):
        await clients("bob" if number % 2 == 0 else "ann").submit(BOB if number % 2 == 0 else ANN)
    await clients("ann").cancel("job-3")
    await clients("ann").cancel("job-5")
    # Of a job that changes twice meanwhile only the last change may come; the order is that of the changes.
    found = await told
    assert {event.job.job_id for event in found if event.job} == {"job-1", "job-3", "job-5"}
    assert [event.revision for event in found] == sorted(event.revision for event in found)
    assert all(event.job and event.job.revision == event.revision for event in found)


@pytest.mark.parametrize("interval_s", [-0.1, 61.0, float("nan"), float("inf")])
async def test_an_interval_that_no_watch_has_is_refused(clients: Clients, interval_s: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        await anext(clients("rea").watch(min_interval_s=interval_s, patience_s=0.0))
    assert caught.value.field == "min_interval_s"


async def _changes(watch: AsyncIterator[JobEvent], last_job_id: str) -> list[JobEvent]:
    """Changes up to the cancel request of a job."""
    found = []
    async for event in watch:
        assert event.kind is JobEventKind.CHANGE
        found.append(event)
        if event.job is not None and event.job.job_id == last_job_id and event.job.cancel_requested:
            break
    return found


async def test_a_flood_of_one_user_is_refused_and_others_are_served(redis_url: str, tmp_path: Path) -> None:
    rate_per_s, burst = 0.5, 5
    limits = {"submit_rate_per_user": rate_per_s, "submit_burst_per_user": burst}
    async with clients_of(redis_url, tmp_path, **limits) as clients:
        began_s = time.monotonic()
        answers = await asyncio.gather(*(clients("ann").submit(ANN) for _ in range(50)), return_exceptions=True)
        most = burst + rate_per_s * (time.monotonic() - began_s) + 1
        refused = [each for each in answers if isinstance(each, LimitExceeded)]
        taken = sum(isinstance(each, Job) for each in answers)
        assert len(refused) + taken == 50
        assert burst <= taken <= most
        assert {each.reason for each in refused} == {"TOO_FAST"}
        assert all(each.field == "job.user" and 0 < (each.retry_after_s or 0) <= 1 / rate_per_s for each in refused)
        await clients("bob").submit(BOB)
        many = await clients("bob").submit_many([BOB] * 20)
        assert sum(map(bool, many.job_ids)) >= burst - 1
        assert "try again after" in many.rejected[0].message


async def test_a_user_has_so_many_jobs_and_no_more(redis_url: str, tmp_path: Path) -> None:
    async with clients_of(redis_url, tmp_path, max_jobs_per_user=3) as clients:
        assert sum(map(bool, (await clients("ann").submit_many([ANN] * 5)).job_ids)) == 3
        with pytest.raises(LimitExceeded, match="ann has 3 unfinished jobs") as refused:
            await clients("ann").submit(ANN)
        assert (refused.value.reason, refused.value.field) == ("TOO_MANY_JOBS", "job.user")
        await clients("bob").submit(BOB)


async def test_a_stream_of_submissions_ends_somewhere(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.services.ingest.server.jobs.MAX_JOBS", 10)
    refused = replace(ANN, priority=2.0)
    with pytest.raises(
        LimitExceeded, match=r"a stream may have .* jobs; .* of the 10 received jobs 9 are recorded"
    ) as told:
        await clients("ann").submit_many([ANN, refused, *[ANN] * 28], "batch")
    assert (told.value.metadata["index"], told.value.metadata["accepted_count"]) == ("10", "9")
    found = await ids(clients("ann"))
    assert len(found) == 9
    # What became of each is learned by sending it again; the rest goes on from there.
    again = await clients("ann").submit_many([ANN, refused, *[ANN] * 8], "batch")
    assert [each for each in again.job_ids if each] == found
    assert [each.index for each in again.rejected] == [1]
