"""What every JobService does: one suite, run on a server in this process and on a spawned one."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import socket
import subprocess
import sys
from collections import Counter
from typing import Any

import grpc
import pytest
import redis.asyncio as aioredis
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adlro.errors import AlreadyExists, Conflict, InvalidInput, NotFound, OutOfRange, Unavailable
from adlro.kit.channel import open_channel
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.redis import connect
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import ROOT, SpawnedService, spawn_service
from adlro.placement import Placement
from adlro.records.jobs import AttemptRef, JobAttempt, JobReservation, JobState, PendingReason
from adlro.store import JobStore, Move
from adlro.store.keys import EVENTS
from adlro.store.pages import Position, encode
from adlro.v1 import job_pb2, job_service_pb2
from adlro.wire import job_from_proto
from tests.contract.ingest_suite import TIMEOUT_S, Ingest, ingest_here, job, stored

PENDING, RUNNING, SUCCEEDED = JobState.PENDING, JobState.RUNNING, JobState.SUCCEEDED


async def move(redis_url: str, job_id: str, **fields: Any) -> None:
    """Moves a job on, as the orchestrator does."""
    client = connect(redis_url)
    try:
        store = JobStore(client)
        (version,) = [version for version, job in await store.active() if job.job_id == job_id]
        moved = dataclasses.replace(await store.get(job_id), **{"pending_reason": PendingReason.NONE, **fields})
        await store.move(0, [Move(moved, version)])
    finally:
        await client.aclose()


async def logged(service: SpawnedService, event: str) -> dict[str, Any]:
    """The one line of its log that tells of an event, once it is there: its reader is another thread."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (found := [line for line in service.log_lines() if line["event"] == event]):  # noqa: ASYNC110 - its reader is a thread
            await asyncio.sleep(0.01)
    (line,) = found
    return line


# --- SubmitJob ------------------------------------------------------------------------------------------------------


async def test_a_job_gets_its_defaults_and_its_normalised_fields_and_is_recorded(ingest):
    await ingest.describe()
    answer = await ingest.submit_full(job(cpu_cores=10, labels={"a": "b"}))
    assert not answer.existing
    assert answer.job.job_id == "job-1"
    assert (answer.job.state, answer.job.pending_reason, answer.job.revision) == (1, 1, 1)
    assert answer.job.message
    spec = answer.job.spec
    assert (spec.priority, spec.memory_mib, spec.gpu_count) == (0.5, 40_960, 1)
    normalized = answer.job.normalized
    assert (normalized.priority, normalized.cpu_cores, normalized.memory) == (0.5, 0.25, 40_960 / 262_144)
    assert normalized.gpu_memory == 4_000 / 16_160
    assert await ingest.get("job-1") == answer.job
    smallest = (await ingest.submit(job(gpu_memory_mib=0))).spec
    assert (smallest.cpu_cores, smallest.memory_mib, smallest.gpu_memory_mib) == (1, 4096, 0)


async def test_without_a_known_cluster_jobs_are_accepted(ingest):
    assert (await ingest.submit(job(cpu_cores=4096, gpu_memory_mib=1_000_000))).normalized.gpu_memory == 1.0


async def test_the_same_request_id_gives_the_same_job(ingest, redis_url):
    first = await ingest.submit_full(job(), "id-1")
    before = stored(redis_url)
    again = await ingest.submit_full(job(), "id-1")
    assert (again.existing, again.job) == (True, first.job)
    assert stored(redis_url) == before
    assert (await ingest.submit_full(job(user="bob"), "id-1")).job.job_id == "job-2"


async def test_a_request_id_with_another_payload_is_refused_and_changes_nothing(ingest, redis_url):
    await ingest.submit_full(job(), "id-1")
    before = stored(redis_url)
    with pytest.raises(AlreadyExists) as caught:
        await ingest.submit_full(job(cpu_cores=2), "id-1")
    assert caught.value.field == "request_id"
    assert "request_id" in caught.value.message
    assert "new request_id" in caught.value.message
    assert stored(redis_url) == before


async def test_of_many_calls_with_one_request_id_at_once_one_makes_a_job(ingest):
    answers = await asyncio.gather(*(ingest.submit_full(job(), "id-1") for _ in range(64)))
    assert {answer.job.job_id for answer in answers} == {"job-1"}
    assert sum(not answer.existing for answer in answers) == 1


async def test_a_job_of_several_gpus_tells_what_it_accepts_where_it_runs_and_what_is_kept_for_it(ingest, redis_url):
    await ingest.describe()
    answer = await ingest.submit_full(job(gpu_count=2, max_node_count=1, gpu_models=["v100_sxm2", "t4"]))
    spec = answer.job.spec
    assert (spec.gpu_count, spec.max_node_count, list(spec.gpu_models)) == (2, 1, ["v100_sxm2", "t4"])
    held = JobReservation("job-1", 3.0, "v100_sxm2", ("volta-0",), 50.5, 0, 2)
    waits = {"pending_reason": PendingReason.GANG_NODES, "reservation": held}
    await move(redis_url, "job-1", **waits)
    told = job_from_proto(await ingest.get("job-1"))
    assert (told.pending_reason, told.reservation) == (PendingReason.GANG_NODES, held)
    await ingest.submit(job())
    blocked = {"pending_reason": PendingReason.RESERVED, "reserved_for_job_id": "job-1", "reserved_until_s": 50.5}
    await move(redis_url, "job-2", **blocked)
    told = job_from_proto(await ingest.get("job-2"))
    assert told.pending_reason is PendingReason.RESERVED
    assert (told.reserved_for_job_id, told.reserved_until_s) == ("job-1", 50.5)
    both = Placement.on("volta-0/1", "volta-0/0")
    started = {"state": JobState.RUNNING, "placement": both, "attempts": (JobAttempt(1, both, "v100_sxm2", 50.5),)}
    await move(redis_url, "job-1", reservation=None, **started)
    message = await ingest.get("job-1")
    runs = job_from_proto(message)
    assert runs.placement == runs.attempts[0].placement == both
    assert message.gpu_id == message.attempts[0].gpu_id == "volta-0/1"
    assert runs.reservation is None


async def test_a_job_says_whether_it_can_be_stopped_and_shared_and_tells_of_its_stops(ingest, redis_url):
    await ingest.describe()
    stops = job_pb2.Preemptible(restart_s=60.0, lost_s=600.0, grace_s=0.0)
    spec = (await ingest.submit_full(job(preemptible=stops, shareable=True))).job.spec
    assert (spec.preemptible, spec.shareable) == (stops, True)
    assert spec.preemptible.HasField("grace_s"), "no grace is not the payload's grace"
    free = (await ingest.submit(job(preemptible=job_pb2.Preemptible()))).spec
    assert free.HasField("preemptible"), "a stop costs nothing, but may happen"
    assert not (await ingest.submit(job())).spec.HasField("preemptible")
    on = Placement.on("volta-0/0")
    stopped = JobAttempt(1, on, "v100_sxm2", 3.0, 9.0, "preempted: for job-2", preempted=True)
    await move(redis_url, "job-1", attempts=(stopped,), remaining_ratio=0.4)
    told = job_from_proto(await ingest.get("job-1"))
    assert (told.attempts, told.remaining_ratio, told.resumes) == ((stopped,), 0.4, True)
    instead = JobAttempt(1, on, "v100_sxm2", 9.0, preempts=(AttemptRef("job-1", 1),))
    await move(redis_url, "job-2", state=JobState.RUNNING, placement=on, attempts=(instead,))
    assert job_from_proto(await ingest.get("job-2")).attempts == (instead,)


BAD_JOBS: dict[str, tuple[dict[str, Any], str, str]] = {
    "priority 1.5": ({"priority": 1.5}, "job.priority", "1"),
    "priority NaN": ({"priority": math.nan}, "job.priority", "finite"),
    "priority negative": ({"priority": -0.1}, "job.priority", "0"),
    "memory negative": ({"memory_mib": -1}, "job.memory_mib", "0"),
    "memory absurd": ({"memory_mib": 2**60}, "job.memory_mib", "16777216"),
    "GPU memory negative": ({"gpu_memory_mib": -5}, "job.gpu_memory_mib", "0"),
    "cores absurd": ({"cpu_cores": 2**30}, "job.cpu_cores", "4096"),
    "job type unknown": ({"job_type": 99}, "job.job_type", "JOB_TYPE_SIMULATION"),
    "job type missing": ({"job_type": 0}, "job.job_type", "JOB_TYPE_SIMULATION"),
    "name empty": ({"name": ""}, "job.name", "empty"),
    "name of 50 kB": ({"name": "x" * 50_000}, "job.name", "253"),
    "name of 3 MB": ({"name": "x" * 3_000_000}, "job.name", "shorten it"),
    "name with a newline": ({"name": "a\nb"}, "job.name", "remove U+000A"),
    "name turned round": ({"name": "a\u202eb"}, "job.name", "remove U+202E RIGHT-TO-LEFT OVERRIDE"),
    "label that a terminal obeys": ({"labels": {"x": "\x1b[2J"}}, 'job.labels["x"]', "remove U+001B"),
    "label's key with a NUL": ({"labels": {"x\0": "y"}}, 'job.labels["x\\x00"]', "its key must"),
    "user empty": ({"user": ""}, "job.user", "empty"),
    "more GPUs than there are": ({"gpu_count": 4}, "job.gpu_count", "2 of v100_sxm2"),
    "GPUs absurd": ({"gpu_count": 2**20}, "job.gpu_count", "1024"),
    "nodes negative": ({"gpu_count": 2, "max_node_count": -1}, "job.max_node_count", "0"),
    "accepted model unknown": ({"gpu_models": ["v1000"]}, "job.gpu_models[0]", "v100_sxm2"),
    "accepted model not there": ({"gpu_models": ["t4"]}, "job.gpu_models", "v100_sxm2"),
    "accepted model twice": ({"gpu_models": ["t4", "t4"]}, "job.gpu_models", "unique"),
    "node unknown": ({"node_ids": ["volta-0", "nowhere"]}, "job.node_ids[1]", "adlro nodes"),
    "excluded node unknown": ({"excluded_node_ids": ["nowhere"]}, "job.excluded_node_ids[0]", "adlro nodes"),
    "excludes what it names": (
        {"node_ids": ["volta-0"], "excluded_node_ids": ["volta-0"]},
        "job.excluded_node_ids",
        "excluded ones too",
    ),
    "node twice": ({"node_ids": ["volta-0", "volta-0"]}, "job.node_ids", "unique"),
    "exclusive and shared": ({"exclusive": True, "shareable": True}, "job.exclusive", "leave out"),
    "shares several GPUs": ({"gpu_count": 2, "shareable": True}, "job.shareable", "ask for one GPU"),
    "restart negative": (
        {"preemptible": job_pb2.Preemptible(restart_s=-1)},
        "job.preemptible.restart_s",
        "greater than or equal to 0",
    ),
    "lost work without end": ({"preemptible": job_pb2.Preemptible(lost_s=math.inf)}, "job.preemptible.lost_s", ""),
    "grace of a day": ({"preemptible": job_pb2.Preemptible(grace_s=86_400)}, "job.preemptible.grace_s", "3600"),
    "time limit infinite": ({"time_limit_s": math.inf}, "job.time_limit_s", ""),
    "runtime zero": (
        {"expected_runtime": job_pb2.ExpectedRuntime(gpu_model="t4", runtime_s=0)},
        "job.expected_runtime.runtime_s",
        "0",
    ),
    "GPU model unknown": (
        {"expected_runtime": job_pb2.ExpectedRuntime(gpu_model="v1000", runtime_s=1)},
        "job.expected_runtime.gpu_model",
        "v100_sxm2",
    ),
    "fits no GPU's memory": ({"gpu_memory_mib": 16_161}, "job.gpu_memory_mib", "16160"),
    "fits no node's cores": ({"cpu_cores": 41}, "job.cpu_cores", "40"),
    "fits no node's memory": ({"memory_mib": 300_000}, "job.memory_mib", "262144"),
    "fits only in parts": ({"cpu_cores": 30, "gpu_memory_mib": 8_000}, "job.cpu_cores", "at most 20 CPU cores"),
}


@pytest.mark.parametrize("case", BAD_JOBS)
async def test_a_bad_job_is_refused_by_field_with_the_way_out_and_nothing_is_recorded(ingest, redis_url, case):
    fields, field, way_out = BAD_JOBS[case]
    await ingest.describe()
    with pytest.raises(InvalidInput) as caught:
        await ingest.submit(job(**fields), "id-1")
    assert caught.value.field == field
    assert field in caught.value.message
    assert way_out in caught.value.message
    assert len(caught.value.message) < 1_000
    assert stored(redis_url) == {}


async def test_a_message_without_a_job_is_refused(ingest):
    with pytest.raises(InvalidInput) as caught:
        await ingest.call(ingest.jobs.SubmitJob, job_service_pb2.SubmitJobRequest())
    assert caught.value.field == "job"


async def test_a_call_without_deadline_is_refused_with_the_way_to_set_one(ingest, redis_url):
    with pytest.raises(InvalidInput) as caught:
        await ingest.call(ingest.jobs.SubmitJob, job_service_pb2.SubmitJobRequest(job=job()), timeout=None)
    assert "deadline" in caught.value.message
    assert "timeout=" in caught.value.message
    assert stored(redis_url) == {}


# --- SubmitJobs -----------------------------------------------------------------------------------------------------


async def test_of_a_stream_each_job_is_accepted_or_refused_by_itself(ingest):
    await ingest.describe()
    specs = [job(), job(priority=1.5), job(user="bob"), job(cpu_cores=41), job()]
    answer = await ingest.submit_many(specs)
    assert list(answer.job_ids) == ["job-1", "", "job-2", "", "job-3"]
    assert answer.accepted_count == 3
    assert [(each.index, each.code) for each in answer.rejected] == [(1, 3), (3, 3)]
    assert "job.priority" in answer.rejected[0].message
    assert "job.cpu_cores" in answer.rejected[1].message
    assert (await ingest.get("job-2")).spec.user == "bob"


async def test_a_reused_request_id_in_a_stream_is_one_rejection(ingest):
    requests = [
        job_service_pb2.SubmitJobsRequest(job=spec, request_id="r") for spec in (job(), job(), job(cpu_cores=2))
    ]
    answer = await ingest.call(ingest.jobs.SubmitJobs, iter(requests))
    assert list(answer.job_ids) == ["job-1", "job-1", ""]
    assert [(each.index, each.code) for each in answer.rejected] == [(2, grpc.StatusCode.ALREADY_EXISTS.value[0])]


async def test_a_long_stream_keeps_its_order(ingest):
    answer = await ingest.submit_many([job(name=f"n{index}") for index in range(3000)])
    assert list(answer.job_ids) == [f"job-{index + 1}" for index in range(3000)]
    assert (await ingest.get("job-2718")).spec.name == "n2717"


# --- GetJob, ListJobs, CancelJob ------------------------------------------------------------------------------------


@pytest.mark.parametrize("job_id", ["job-1", "nonsense"])
async def test_an_unknown_job_is_not_found_by_name(ingest, job_id):
    for method in (ingest.get, ingest.cancel):
        with pytest.raises(NotFound) as caught:
            await method(job_id)
        assert job_id in caught.value.message
        assert caught.value.field == "job_id"


async def test_pages_hold_every_job_once_in_the_order_of_submission(ingest):
    await ingest.submit_many([job(user="bob" if index % 3 == 0 else "alice") for index in range(50)])
    seen: list[str] = []
    token, pages = "", 0
    while True:
        page = await ingest.page(page_size=7, page_token=token, user="alice")
        seen += [each.job_id for each in page.jobs]
        pages += 1
        token = page.next_page_token
        if not token:
            break
        assert len(page.jobs) == 7
        if pages == 2:
            # Jobs that come meanwhile are at the end.
            await ingest.submit(job())
    assert seen == [f"job-{index + 1}" for index in range(51) if index % 3 or index == 50]


async def test_a_page_size_of_0_is_100_and_more_than_1000_is_1000(ingest):
    await ingest.submit_many([job() for _ in range(1001)])
    assert len((await ingest.page()).jobs) == 100
    page = await ingest.page(page_size=5000)
    assert len(page.jobs) == 1000
    rest = await ingest.page(page_size=5000, page_token=page.next_page_token)
    assert ([each.job_id for each in rest.jobs], rest.next_page_token) == (["job-1001"], "")
    assert (await ingest.page(page_size=1000, job_ids=["job-3", "job-2", "x"])).next_page_token == ""
    with pytest.raises(InvalidInput) as caught:
        await ingest.page(page_size=-1)
    assert caught.value.field == "page_size"


async def test_filters(ingest, redis_url):
    await ingest.submit_many(
        [job(application="cfd"), job(job_type=1, labels={"a": "1"}), job(labels={"a": "1", "b": "2"}), job()]
    )
    await move(redis_url, "job-4", state=RUNNING)

    async def found(**fields: Any) -> list[str]:
        return [each.job_id for each in (await ingest.page(**fields)).jobs]

    assert await found(states=[RUNNING]) == ["job-4"]
    assert await found(states=[RUNNING, PENDING], job_types=[2]) == ["job-1", "job-3", "job-4"]
    assert await found(application="cfd") == ["job-1"]
    assert await found(labels={"a": "1"}) == ["job-2", "job-3"]
    assert await found(labels={"a": "1", "b": "2"}) == ["job-3"]
    assert await found(job_ids=["job-3", "job-9", "job-1"]) == ["job-1", "job-3"]
    assert await found(user="nobody") == []


async def test_a_tampered_page_token_is_refused_with_the_way_out(ingest):
    await ingest.submit_many([job() for _ in range(5)])
    token = (await ingest.page(page_size=2)).next_page_token
    forged = encode(b"0" * 32, Position(0), b"0" * 16)
    for bad in (token[:-1], token[:10] + ("A" if token[10] != "A" else "B") + token[11:], "x", forged):
        with pytest.raises(InvalidInput) as caught:
            await ingest.page(page_size=2, page_token=bad)
        assert caught.value.field == "page_token"
        assert "page_token" in caught.value.message
        assert "leave page_token empty" in caught.value.message


async def test_a_page_token_of_another_filter_is_refused(ingest):
    await ingest.submit_many([job() for _ in range(5)])
    token = (await ingest.page(page_size=2, user="alice")).next_page_token
    with pytest.raises(InvalidInput) as caught:
        await ingest.page(page_size=2, page_token=token, user="bob")
    assert "another filter" in caught.value.message


async def test_replicas_accept_each_others_page_tokens(ingest, redis_url):
    await ingest.submit_many([job() for _ in range(5)])
    token = (await ingest.page(page_size=2)).next_page_token
    async with ingest_here(redis_url) as there, Ingest(there) as other:
        page = await other.page(page_size=2, page_token=token)
        assert [each.job_id for each in page.jobs] == ["job-3", "job-4"]


async def test_cancelling_is_noted_once(ingest, redis_url):
    await ingest.submit()
    cancelled = await ingest.cancel("job-1")
    assert (cancelled.cancel_requested, cancelled.state, cancelled.revision) == (True, PENDING, 2)
    before = stored(redis_url)
    assert await ingest.cancel("job-1") == cancelled
    assert stored(redis_url) == before


async def test_a_final_job_can_not_be_cancelled(ingest, redis_url):
    await ingest.submit()
    await move(redis_url, "job-1", state=SUCCEEDED, end_s=5.0)
    before = stored(redis_url)
    with pytest.raises(Conflict) as caught:
        await ingest.cancel("job-1")
    assert "SUCCEEDED" in caught.value.message
    assert stored(redis_url) == before


# --- WatchJobs ------------------------------------------------------------------------------------------------------


async def test_a_watch_begins_with_a_snapshot_and_goes_on_with_every_change(ingest, redis_url):
    await ingest.submit_many([job(), job()])
    async with ingest.watch() as watch:
        jobs, revision = await watch.snapshot()
        assert ([each.job_id for each in jobs], revision) == (["job-1", "job-2"], 2)
        assert jobs[0] == await ingest.get("job-1")
        submitted = await ingest.submit()
        await ingest.cancel("job-1")
        await move(redis_url, "job-2", state=RUNNING, placement=Placement.on("volta-0/0"))
        changes = await watch.changes(3)
        assert changes[0] == submitted
        assert [(each.revision, each.job_id) for each in changes] == [(3, "job-3"), (4, "job-1"), (5, "job-2")]
        assert changes[1].cancel_requested
        assert (changes[2].state, changes[2].gpu_id) == (RUNNING, "volta-0/0")


async def test_a_watch_resumes_after_a_revision_without_loss_or_repetition(ingest):
    await ingest.submit_many([job() for _ in range(10)])
    for after in (0, 4, 10):
        async with ingest.watch(after_revision=after) as watch:
            extra = await ingest.submit()
            changes = await watch.changes(extra.revision - after)
            assert [each.revision for each in changes] == list(range(after + 1, extra.revision + 1))


async def test_a_watch_that_is_far_behind_reads_what_memory_no_longer_holds(redis_url):
    async with (
        ingest_here(redis_url, watch_changes_kept=5) as there,
        Ingest(there) as ingest,
        ingest.watch() as live,
        ingest.watch() as slow,
    ):
        await live.snapshot()
        await slow.snapshot()
        # Enough that what is not read fills gRPC's buffers, and the slow one falls out of the five in memory.
        labels = {f"key{index}": "v" * 255 for index in range(60)}
        await ingest.submit_many([job(labels=labels) for _ in range(500)])
        assert [each.revision for each in await live.changes(500)] == list(range(1, 501))
        assert [each.revision for each in await slow.changes(500)] == list(range(1, 501))


async def test_a_revision_of_the_future_is_out_of_range(ingest):
    await ingest.submit()
    async with ingest.watch(after_revision=2) as watch:
        error = await watch.error()
    assert isinstance(error, OutOfRange)
    assert error.field == "after_revision"
    assert "snapshot" in error.message


async def test_a_revision_that_is_no_longer_kept_is_out_of_range(ingest, redis_url):
    await ingest.submit_many([job() for _ in range(10)])
    async with aioredis.Redis.from_url(redis_url) as client:
        await client.xtrim(EVENTS, maxlen=3, approximate=False)
    async with ingest.watch(after_revision=6) as watch:
        error = await watch.error()
    assert isinstance(error, OutOfRange)
    assert "request a new snapshot" in error.message
    async with ingest.watch(after_revision=7) as watch:
        assert [each.revision for each in await watch.changes(3)] == [8, 9, 10]


async def test_a_filter_looks_at_the_job_as_it_is_after_the_change(ingest, redis_url):
    await ingest.submit_many([job(), job(user="bob")])
    async with (
        ingest.watch(states=[RUNNING]) as running,
        ingest.watch(user="bob") as bob,
        ingest.watch(job_ids=["job-1", "job-4"]) as named,
    ):
        assert await running.snapshot() == ([], 2)
        assert [each.job_id for each in (await bob.snapshot())[0]] == ["job-2"]
        assert [each.job_id for each in (await named.snapshot())[0]] == ["job-1"]
        await move(redis_url, "job-1", state=RUNNING)
        await ingest.submit(job(user="bob"))
        await move(redis_url, "job-1", state=SUCCEEDED, end_s=1.0)
        await move(redis_url, "job-3", state=RUNNING)
        await ingest.submit()
        assert [(each.job_id, each.revision) for each in await running.changes(2)] == [("job-1", 3), ("job-3", 6)]
        assert [each.revision for each in await bob.changes(2)] == [4, 6]
        assert [each.revision for each in await named.changes(3)] == [3, 5, 7]


async def test_snapshots_taken_while_jobs_change_repeat_nothing_and_lose_nothing(ingest):
    total = 600

    async def submit_all() -> None:
        for _ in range(total // 20):
            await ingest.submit_many([job() for _ in range(20)])

    async def follow() -> None:
        async with ingest.watch() as watch:
            jobs, _ = await watch.snapshot()
            seen = Counter(each.job_id for each in jobs)
            while len(seen) < total:
                (change,) = await watch.changes(1)
                seen[change.job_id] += 1
            assert set(seen.values()) == {1}

    async def follow_late(number: int) -> None:
        async with ingest.watch() as gate:
            await gate.snapshot()
            while (await gate.next()).revision < number * 50:
                pass
        await follow()

    await asyncio.gather(submit_all(), follow(), *(follow_late(number) for number in range(1, 9)))


async def test_many_watchers_see_the_same(ingest):
    async def follow(started: asyncio.Semaphore) -> list[int]:
        async with ingest.watch() as watch:
            await watch.snapshot()
            started.release()
            return [each.revision for each in await watch.changes(20)]

    started = asyncio.Semaphore(0)
    followers = [asyncio.ensure_future(follow(started)) for _ in range(40)]
    for _ in followers:
        await started.acquire()
    await ingest.submit_many([job() for _ in range(20)])
    for each in await asyncio.gather(*followers):
        assert each == list(range(1, 21))


# --- failures around it ---------------------------------------------------------------------------------------------


async def test_a_watch_outlives_a_restart_of_redis(ingest, redis_server):
    async with ingest.watch() as watch:
        await watch.snapshot()
        await ingest.submit()
        (first,) = await watch.changes(1)
        await asyncio.gather(*(ingest.get("job-1") for _ in range(20)))  # so that several connections are open
        redis_server.kill()
        with pytest.raises(Unavailable) as caught:
            await ingest.submit(job(), "id-2")
        assert caught.value.retry_after_s
        await asyncio.to_thread(redis_server.start)
        # None of them is broken now.
        await asyncio.gather(*(ingest.get("job-1") for _ in range(20)))
        again = await ingest.submit(job(), "id-2")
        (change,) = await watch.changes(1)
        assert (first.revision, change.revision, change.job_id) == (1, 2, again.job_id)


async def test_a_watch_ends_where_redis_came_back_without_its_data(ingest, redis_url):
    await ingest.submit_many([job() for _ in range(5)])
    async with ingest.watch() as watch:
        await watch.snapshot()
        await ingest.submit()
        await watch.changes(1)
        async with aioredis.Redis.from_url(redis_url) as client:
            await client.flushall()
        error = await watch.error()
    assert isinstance(error, OutOfRange)
    assert "request a new snapshot" in error.message


@pytest.mark.slow
async def test_a_drain_ends_watches_with_the_revision_to_resume_with(redis_url):
    with spawn_service("ingest", {"ADLRO_REDIS_URL": redis_url}) as service:
        async with Ingest(service.address) as ingest, ingest.watch() as watch:
            await watch.snapshot()
            await ingest.submit()
            await watch.changes(1)
            service.terminate()
            error = await watch.error()
        assert isinstance(error, Unavailable)
        assert "resume with after_revision = 1" in error.message
        assert error.metadata["revision"] == "1"
        assert await asyncio.to_thread(service.wait) == 0


@pytest.mark.slow
async def test_a_drain_ends_a_stream_of_jobs_and_tells_how_to_go_on(redis_url):
    with spawn_service("ingest", {"ADLRO_REDIS_URL": redis_url}) as service:
        async with Ingest(service.address) as ingest:
            call: Any = ingest.jobs.SubmitJobs(timeout=4 * TIMEOUT_S)  # type: ignore[call-arg]  # written to below
            await call.write(job_service_pb2.SubmitJobsRequest(job=job(), request_id="id-1"))
            while (await ingest.submit(job(), "id-1")).job_id != "job-1":
                pass
            service.terminate()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
        error = from_rpc_error(caught.value)
        assert isinstance(error, Unavailable)
        assert "repeat the stream with the same request ids" in error.message
        assert error.retry_after_s
        assert await asyncio.to_thread(service.wait) == 0


@pytest.mark.slow
async def test_without_redis_at_the_start_calls_are_unavailable_until_it_is_there(tmp_path):
    with EmbeddedRedis(tmp_path) as server:
        server.kill()
        with spawn_service("ingest", {"ADLRO_REDIS_URL": server.url}) as service:
            async with Ingest(service.address) as ingest, open_channel(service.address) as channel:
                with pytest.raises(Unavailable) as caught:
                    await ingest.submit(job(), "id-1")
                assert "Redis" in caught.value.message
                assert caught.value.retry_after_s
                health = health_pb2_grpc.HealthStub(channel)
                request = health_pb2.HealthCheckRequest(service="adlro.v1.JobService")
                assert (
                    await health.Check(request, timeout=TIMEOUT_S)
                ).status == health_pb2.HealthCheckResponse.NOT_SERVING
                line = await logged(service, "redis does not answer")
                assert "ADLRO_REDIS_URL" in line["way_out"]
                server.start()
                async for answer in health.Watch(request, timeout=TIMEOUT_S):
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        break
                assert (await ingest.submit(job(), "id-1")).job_id == "job-1"


@pytest.mark.slow
def test_a_port_in_use_ends_the_start_with_the_key_to_change(redis_url):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = subprocess.run(
            [sys.executable, "-m", "adlro.services.ingest"],
            cwd=ROOT,
            env={"ADLRO_INGEST_LISTEN": where, "ADLRO_REDIS_URL": redis_url},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 2
    assert where in ended.stderr
    assert "ADLRO_INGEST_LISTEN" in ended.stderr
    assert "Traceback" not in ended.stderr
