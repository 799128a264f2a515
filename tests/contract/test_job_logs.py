"""ReadJobLogs: who sees which output, and what passes through ingest unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from adlro.errors import AdlroError, Conflict, LimitExceeded, NotFound, Unavailable, Unsupported
from adlro.kit.channel import open_channel
from adlro.kit.credentials import Credentials
from adlro.kit.identity import Role, new_token, users_line
from adlro.kit.redis import connect
from adlro.kit.server import ServiceContext
from adlro.kit.settings import ServiceSettings
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import serve
from adlro.placement import Placement
from adlro.records.jobs import Job, PendingReason
from adlro.services.orchestrator.ledger import transitions
from adlro.store import JobStore, Move
from adlro.v1 import cluster_service_pb2, job_pb2, job_service_pb2, job_service_pb2_grpc, payload_pb2
from adlro.v1 import cluster_service_pb2_grpc as cluster_grpc
from tests.contract.ingest_suite import TIMEOUT_S, Ingest, ingest_here, job

STDOUT, STDERR = payload_pb2.LOG_STREAM_STDOUT, payload_pb2.LOG_STREAM_STDERR
HOSTILE = b"\x00\xff\x1b[2J" + bytes(range(256))
GPU = Placement.on("gpu-0")


class OutputCluster(cluster_grpc.ClusterServiceServicer):
    """A cluster that has nothing but output: what a test puts into `output`, by job, attempt and stream."""

    name = "cluster"
    service_names: Sequence[str] = ("adlro.v1.ClusterService",)

    def __init__(self) -> None:
        self.output: dict[tuple[str, int, int], bytearray] = {}
        self.ended = asyncio.Event()
        self.asked: list[cluster_service_pb2.ReadLogsRequest] = []
        self.stores_output = True
        self.reading = 0
        self._news = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        cluster_grpc.add_ClusterServiceServicer_to_server(self, server)

    async def start(self, context: ServiceContext) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def until_read_by(self, count: int) -> None:
        """Returns when so many calls read output."""
        async with asyncio.timeout(TIMEOUT_S):
            while self.reading != count:
                await self._news.wait()

    def _count(self, more: int) -> None:
        self.reading += more
        self._news.set()
        self._news = asyncio.Event()

    async def ReadLogs(
        self, request: cluster_service_pb2.ReadLogsRequest, context: Any
    ) -> AsyncIterator[cluster_service_pb2.ReadLogsResponse]:
        self.asked.append(request)
        if not self.stores_output:
            raise Unsupported("cluster 'paper' stores no output of jobs", reason="NO_LOGS")
        found = self.output.get((request.job_id, request.attempt, request.stream))
        if found is None:
            raise NotFound("there is no output", field="job_id", reason="NO_OUTPUT")
        offset = request.offset if request.HasField("offset") else max(0, len(found) - request.tail_bytes)
        self._count(1)
        try:
            while True:
                data = bytes(found[offset : offset + 1000])
                end = self.ended.is_set() and offset + len(data) == len(found)
                yield cluster_service_pb2.ReadLogsResponse(
                    chunk=payload_pb2.LogChunk(offset=offset, data=data, size=len(found), end=end),
                    attempt=request.attempt,
                )
                offset += len(data)
                if end or (not request.follow and offset >= len(found)):
                    return
                await asyncio.sleep(0 if data else 0.01)
        finally:
            self._count(-1)


@pytest.fixture
async def cluster() -> OutputCluster:
    return OutputCluster()  # type: ignore[abstract]  # the other methods are not called


@asynccontextmanager
async def suite(redis_url: str, cluster: OutputCluster, **settings: Any) -> AsyncIterator[Ingest]:
    async with AsyncExitStack() as stack:
        where = await stack.enter_async_context(serve(cluster, ServiceSettings()))
        address = await stack.enter_async_context(ingest_here(redis_url, cluster_address=where, **settings))
        yield await stack.enter_async_context(Ingest(address))


@pytest.fixture
async def ingest(redis_url: str, cluster: OutputCluster) -> AsyncIterator[Ingest]:
    async with suite(redis_url, cluster) as caller:
        yield caller


async def read(ingest: Ingest, job_id: str, stream: int = STDOUT, **fields: Any) -> list[Any]:
    request = job_service_pb2.ReadJobLogsRequest(job_id=job_id, stream=stream, **fields)  # type: ignore[arg-type]
    try:
        return [message async for message in ingest.jobs.ReadJobLogs(request, timeout=TIMEOUT_S)]
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


def text_of(messages: Sequence[Any]) -> bytes:
    return b"".join(each.chunk.data for each in messages)


async def change(redis_url: str, job_id: str, *changes: Any) -> Job:
    """Applies transitions to a job, as the orchestrator does."""
    client = connect(redis_url)
    try:
        store = JobStore(client)
        (version,) = [version for version, each in await store.active() if each.job_id == job_id]
        now = await store.get(job_id)
        for number, step in enumerate(changes):
            now = step(now)
            await store.move(0, [Move(now, version + number)])
        return now
    finally:
        await client.aclose()


def taken_up(job: Job) -> Job:
    return transitions.taken_up(job, 1.0, PendingReason.RESOURCES, "waits for a GPU")


def launched(job: Job) -> Job:
    return transitions.launching(job, GPU, "v100_sxm2")


def started(job: Job) -> Job:
    return transitions.started(job, 2.0)


def lost(job: Job) -> Job:
    return transitions.lost(job, 3.0, "the GPU was lost", 5)


async def test_output_passes_unchanged_and_can_be_resumed_at_any_offset(ingest, cluster, redis_url):
    job_id = (await ingest.submit()).job_id
    await change(redis_url, job_id, taken_up, launched, started)
    whole = HOSTILE * 20
    cluster.output[job_id, 1, STDOUT] = bytearray(whole)
    cluster.output[job_id, 1, STDERR] = bytearray(b"error")
    messages = await read(ingest, job_id, offset=0)
    assert text_of(messages) == whole
    assert {each.attempt for each in messages} == {1}
    assert [each.chunk.offset for each in messages] == list(range(0, len(whole), 1000))
    assert not messages[-1].chunk.end
    assert text_of(await read(ingest, job_id, offset=1234)) == whole[1234:]
    assert text_of(await read(ingest, job_id, tail_bytes=7)) == whole[-7:]
    assert not cluster.asked[-1].HasField("offset")
    assert text_of(await read(ingest, job_id, STDERR, offset=0)) == b"error"


async def test_a_follower_waits_for_the_start_and_reads_to_the_end(ingest, cluster, redis_url):
    job_id = (await ingest.submit()).job_id
    reading = asyncio.create_task(read(ingest, job_id, offset=0, follow=True))
    await change(redis_url, job_id, taken_up, launched)
    for _ in range(3):  # changes of other jobs are none of his
        await ingest.submit()
    await asyncio.sleep(0.1)
    assert not cluster.asked
    cluster.output[job_id, 1, STDOUT] = output = bytearray(b"first ")
    await change(redis_url, job_id, started)
    await cluster.until_read_by(1)
    output += b"last"
    cluster.ended.set()
    messages = await asyncio.wait_for(reading, TIMEOUT_S)
    assert text_of(messages) == b"first last"
    assert messages[-1].chunk.end


async def test_a_job_that_has_not_started_says_why_it_waits(ingest, redis_url):
    job_id = (await ingest.submit()).job_id
    await change(redis_url, job_id, taken_up)
    with pytest.raises(Conflict, match=f"{job_id} has no output yet, it has not started: waits for a GPU") as waits:
        await read(ingest, job_id, offset=0)
    assert waits.value.reason == "NOT_STARTED"
    assert waits.value.metadata["pending_reason"] == "RESOURCES"


async def test_a_job_that_never_runs_ends_its_followers(ingest, redis_url):
    job_id = (await ingest.submit()).job_id
    reading = asyncio.create_task(read(ingest, job_id, offset=0, follow=True))
    await change(redis_url, job_id, taken_up, lambda job: transitions.cancelled_while_waiting(job, 2.0))
    with pytest.raises(Conflict, match=f"{job_id} has no output, it ended before it started: cancelled on request"):
        await asyncio.wait_for(reading, TIMEOUT_S)


async def test_the_newest_started_attempt_is_read_unless_another_is_asked_for(ingest, cluster, redis_url):
    job_id = (await ingest.submit()).job_id
    await change(redis_url, job_id, taken_up, launched, started, lost, launched)
    cluster.output[job_id, 1, STDOUT] = bytearray(b"one")
    assert text_of(await read(ingest, job_id, offset=0)) == b"one"  # the second one is being launched
    cluster.output[job_id, 2, STDOUT] = bytearray(b"two")
    await change(redis_url, job_id, started)
    assert text_of(await read(ingest, job_id, offset=0)) == b"two"
    assert text_of(await read(ingest, job_id, offset=0, attempt=1)) == b"one"
    with pytest.raises(NotFound, match=f"{job_id} has 2 attempts so far, no attempt 3") as missing:
        await read(ingest, job_id, offset=0, attempt=3)
    assert missing.value.field == "attempt"


async def test_the_clusters_refusals_are_told_in_words(ingest, cluster, redis_url):
    job_id = (await ingest.submit()).job_id
    await change(redis_url, job_id, taken_up, launched, started)
    with pytest.raises(NotFound, match="there is no output"):
        await read(ingest, job_id, offset=0)
    cluster.stores_output = False
    with pytest.raises(Conflict, match="there is no output: cluster 'paper' stores no output of jobs") as refused:
        await read(ingest, job_id, offset=0)
    assert refused.value.reason == "NO_LOGS"


async def test_a_suite_without_a_cluster_has_no_output(redis_url):
    async with ingest_here(redis_url) as address, Ingest(address) as caller:
        job_id = (await caller.submit()).job_id
        with pytest.raises(Conflict, match="this suite has no cluster with output"):
            await read(caller, job_id, offset=0)
        with pytest.raises(NotFound, match="job-99"):
            await read(caller, "job-99", offset=0)


async def test_a_cluster_that_is_away_is_unavailable(redis_url):
    async with ingest_here(redis_url, cluster_address="127.0.0.1:1") as address, Ingest(address) as caller:
        job_id = (await caller.submit()).job_id
        await change(redis_url, job_id, taken_up, launched, started)
        with pytest.raises(Unavailable, match="the cluster does not answer"):
            await read(caller, job_id, offset=0)


@pytest.mark.parametrize("started_already", [True, False])
async def test_a_drain_ends_followers(redis_url, cluster, started_already):
    async with serve(cluster, ServiceSettings()) as where:
        async with ingest_here(redis_url, cluster_address=where) as address:
            caller = Ingest(address)
            job_id = (await caller.submit()).job_id
            cluster.output[job_id, 1, STDOUT] = bytearray(b"text")
            if started_already:
                await change(redis_url, job_id, taken_up, launched, started)
            reading = asyncio.create_task(read(caller, job_id, offset=0, follow=True))
            await cluster.until_read_by(int(started_already))
            await asyncio.sleep(0.1)
        async with caller:
            with pytest.raises(Unavailable, match="shutting down"):
                await asyncio.wait_for(reading, TIMEOUT_S)
        await cluster.until_read_by(0)


async def test_a_follower_that_goes_away_leaves_no_call_behind(ingest, cluster, redis_url):
    job_id = (await ingest.submit()).job_id
    await change(redis_url, job_id, taken_up, launched, started)
    cluster.output[job_id, 1, STDOUT] = bytearray(b"text")
    request = job_service_pb2.ReadJobLogsRequest(job_id=job_id, stream=STDOUT, offset=0, follow=True)
    call = ingest.jobs.ReadJobLogs(request, timeout=TIMEOUT_S)
    assert (await call.read()).chunk.data == b"text"
    assert cluster.reading == 1
    call.cancel()
    await cluster.until_read_by(0)


async def test_output_is_its_submitters_and_a_stream_of_his(redis_url: str, cluster: OutputCluster, tmp_path: Path):
    roles = {"ann": Role.SUBMITTER, "bob": Role.SUBMITTER, "ops": Role.OPERATOR, "ingest": Role.SERVICE}
    tokens = {user: new_token(user) for user in roles}
    users, own = tmp_path / "users", tmp_path / "token"
    users.write_text("\n".join(users_line(token, [roles[user]]) for user, token in tokens.items()))
    own.write_text(tokens["ingest"])
    own.chmod(0o600)
    async with AsyncExitStack() as stack:
        where = await stack.enter_async_context(serve(cluster, ServiceSettings(users_file=str(users))))
        settings = {"users_file": str(users), "service_token_file": str(own), "max_streams_per_user": 2}
        address = await stack.enter_async_context(ingest_here(redis_url, cluster_address=where, **settings))

        async def as_user(user: str) -> Ingest:
            caller = Ingest(address)
            await caller.__aexit__()
            channel = await stack.enter_async_context(open_channel(address, Credentials(token=tokens[user])))
            caller.jobs = job_service_pb2_grpc.JobServiceStub(channel)
            return caller

        ann, bob, ops = [await as_user(user) for user in ("ann", "bob", "ops")]
        job_id = (await ann.submit(job(user="ann"))).job_id
        await change(redis_url, job_id, taken_up, launched, started)
        cluster.output[job_id, 1, STDOUT] = bytearray(b"text")
        for caller in (ann, ops):
            assert text_of(await read(caller, job_id, offset=0)) == b"text"
        with pytest.raises(NotFound) as hidden:
            await read(bob, job_id, offset=0)
        with pytest.raises(NotFound) as absent:
            await read(bob, "job-99", offset=0)
        assert hidden.value.message.replace(job_id, "job-99") == absent.value.message
        following = [asyncio.create_task(read(ann, job_id, offset=0, follow=True)) for _ in range(2)]
        await cluster.until_read_by(2)
        with pytest.raises(LimitExceeded, match="2 open streams"):
            await read(ann, job_id, offset=0)
        cluster.ended.set()
        await asyncio.gather(*following)


def test_both_services_messages_have_the_same_fields():
    ours, clusters = job_service_pb2.ReadJobLogsResponse.DESCRIPTOR, cluster_service_pb2.ReadLogsResponse.DESCRIPTOR
    assert [(each.number, each.name, each.type, each.message_type) for each in ours.fields] == [
        (each.number, each.name, each.type, each.message_type) for each in clusters.fields
    ]


async def test_a_program_without_a_type_is_accepted_with_its_application(ingest):
    payload = payload_pb2.Payload(process=payload_pb2.Process(argv=["python", "/home/a/train.py", "--lr", "1"]))
    spec = job(job_type=0, payload=payload)
    submitted = await ingest.submit(spec, "an-id")
    assert submitted.spec.application == "python:train.py"
    assert submitted.spec.job_type == job_pb2.JOB_TYPE_UNSPECIFIED
    assert await ingest.submit(spec, "an-id") == await ingest.get(submitted.job_id)
    own = await ingest.submit(job(job_type=0, payload=payload, application="own"))
    assert own.spec.application == "own"
    answer = await ingest.submit_many([spec, job(job_type=0)])
    assert [bool(each) for each in answer.job_ids] == [True, False]
    assert "job.job_type: must be one of JOB_TYPE_SIMULATION" in answer.rejected[0].message


async def test_a_payload_that_no_node_can_run_is_refused_by_field(ingest):
    process = payload_pb2.Process(argv=["true"], workdir="relative")
    payload = payload_pb2.Payload(process=process, environment={"LD_PRELOAD": "evil.so"})
    with pytest.raises(AdlroError) as refused:
        await ingest.submit(job(payload=payload))
    assert [each.field for each in refused.value.violations] == [
        "job.payload.process.workdir",
        "job.payload.environment",
    ]
    answer = await ingest.submit_many([job(payload=payload)])
    assert answer.rejected[0].code == 3


async def test_pages_of_jobs_with_large_payloads_stay_readable(ingest):
    large = payload_pb2.Payload(process=payload_pb2.Process(argv=["true", "x" * 30_000, "y" * 30_000, "z" * 30_000]))
    await asyncio.gather(*(ingest.submit(job(payload=large)) for _ in range(60)))
    seen, token = 0, ""
    while True:
        page = await ingest.page(page_size=1000, page_token=token)
        assert page.ByteSize() < 4 << 20
        seen, token = seen + len(page.jobs), page.next_page_token
        if not token:
            break
    assert seen == 60
