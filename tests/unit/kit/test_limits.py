"""What one client may take of a served process: memory for its requests, and for what it does not read."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adlro import errors
from adlro.kit import interceptor, unread
from adlro.kit.budget import RequestBudget
from adlro.kit.channel import open_channel
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import serve
from adlro.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from tests.unit.kit.conditions import until
from tests.unit.kit.fake_service import FakeService, FakeSettings

GET = job_service_pb2.GetJobRequest(job_id="job-1")
SPEC = job_pb2.JobSpec(name="train", user="ann", job_type=job_pb2.JOB_TYPE_SIMULATION)


@asynccontextmanager
async def served_with(**settings: Any) -> AsyncIterator[tuple[FakeService, str]]:
    made = FakeSettings(**settings)
    service = FakeService(made)
    async with serve(service, made) as address:
        yield service, address


async def failure(call: Any) -> errors.AdlroError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return from_rpc_error(failed.value)


def silent_calls(channel: Any, method: str, count: int) -> list[Any]:
    """Calls of a unary method whose message never comes."""
    return [channel.stream_unary(f"/adlro.v1.JobService/{method}", None, None)(timeout=600) for _ in range(count)]


@pytest.fixture
def budgets(monkeypatch) -> Iterator[list[RequestBudget]]:
    """Of the service that is served: for calls, for streams, for health. No silent client has to give way."""
    made: list[RequestBudget] = []
    patience_s: list[float] = []

    def noted(total_bytes: int, given_s: float) -> RequestBudget:
        patience_s.append(given_s)
        made.append(RequestBudget(total_bytes, 3600.0))
        return made[-1]

    monkeypatch.setattr(interceptor, "RequestBudget", noted)
    yield made
    assert patience_s == [interceptor._CALL_PATIENCE_S, interceptor._STREAM_PATIENCE_S, interceptor._CALL_PATIENCE_S]


async def test_calls_whose_message_never_comes_hold_up_no_other_client(budgets):
    # Of calls a half, of that half each connection: two messages of 1 MiB.
    async with (
        served_with(max_message_bytes=1 << 20, request_memory_mib=8) as (_, address),
        open_channel(address) as theirs,
        open_channel(address) as ours,
    ):
        silent = silent_calls(theirs, "GetJob", 50)
        await until(lambda: budgets[0].waiting_count > 0)
        stub: Any = job_service_pb2_grpc.JobServiceStub(ours)
        for _ in range(20):
            assert (await stub.GetJob(GET, timeout=60)).job.job_id == "job-1"
        for each in silent:
            each.cancel()


async def test_who_takes_all_memory_for_calls_does_not_make_a_service_look_ill(budgets):
    async with served_with(max_message_bytes=1 << 20, request_memory_mib=4) as (_, address), AsyncExitStack() as stack:
        silent = []
        for _ in range(3):  # more connections than the calls' half has room for
            silent += silent_calls(await stack.enter_async_context(open_channel(address)), "GetJob", 5)
        await until(lambda: budgets[0].used_bytes == 2 << 20)
        health: Any = health_pb2_grpc.HealthStub(await stack.enter_async_context(open_channel(address)))
        for _ in range(5):
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        for each in silent:
            each.cancel()


@pytest.mark.slow
async def test_a_call_whose_message_does_not_come_gives_way_to_one_that_waits(budgets):
    async with (
        served_with(max_message_bytes=1 << 20, request_memory_mib=8) as (_, address),
        open_channel(address) as channel,
    ):
        budgets[0].patience_s = 3.0  # in which a message that was sent has come, on a busy machine too
        silent = silent_calls(channel, "GetJob", 2)
        await until(lambda: budgets[0].used_bytes == 2 << 20)
        stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
        answers = await asyncio.gather(*(stub.GetJob(GET, timeout=60) for _ in range(10)))
        assert {each.job.job_id for each in answers} == {"job-1"}
        told = [await failure(each) for each in silent]
        assert {(type(each), each.reason) for each in told} == {(errors.LimitExceeded, "TOO_SLOW")}
        assert told[0].retry_after_s == 1.0


async def test_memory_is_given_back_whatever_becomes_of_a_call():
    async with served_with(max_message_bytes=1 << 20, request_memory_mib=4) as (service, address):

        async def hang() -> None:
            await asyncio.Event().wait()

        async def fail() -> None:
            raise errors.Conflict("no")

        service.get |= {"hang": hang, "fail": fail}
        async with open_channel(address) as channel:
            stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
            for _ in range(5):  # more than fits at once
                await failure(stub.GetJob(job_service_pb2.GetJobRequest(job_id="fail"), timeout=60))
                await failure(stub.GetJob(job_service_pb2.GetJobRequest(job_id="hang"), timeout=0.05))
                await failure(stub.GetJob(job_service_pb2.GetJobRequest(), timeout=60))
                for each in silent_calls(channel, "GetJob", 2):
                    each.cancel()
                await stub.SubmitJobs(iter([job_service_pb2.SubmitJobsRequest(job=SPEC)]), timeout=60)
                watch = stub.WatchJobs(job_service_pb2.WatchJobsRequest())
                await watch.read()
                watch.cancel()
                assert (await stub.GetJob(GET, timeout=60)).job.job_id == "job-1"


async def test_silent_streams_of_one_client_keep_no_other_from_streaming(budgets):
    async with (
        served_with(max_message_bytes=1 << 20, request_memory_mib=8) as (_, address),
        open_channel(address) as theirs,
        open_channel(address) as ours,
    ):
        stub: Any = job_service_pb2_grpc.JobServiceStub(theirs)
        silent = [stub.SubmitJobs(timeout=600) for _ in range(50)]
        await until(lambda: budgets[1].waiting_count > 0)
        mine: Any = job_service_pb2_grpc.JobServiceStub(ours)
        answer = await mine.SubmitJobs(iter([job_service_pb2.SubmitJobsRequest(job=SPEC)]), timeout=60)
        assert answer.accepted_count == 1
        for each in silent:
            each.cancel()


async def test_a_message_above_what_its_rules_allow_is_refused_unread_and_the_field_named():
    async with served_with() as (service, address), open_channel(address) as channel:
        stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
        request = job_service_pb2.SubmitJobRequest(job=SPEC)
        request.job.name = "n" * 3_000_000
        told = await failure(stub.SubmitJob(request, timeout=60))
        assert isinstance(told, errors.InvalidInput)
        assert (told.reason, told.field) == ("REQUEST_TOO_LARGE", "job.name")
        assert "3000000 of them" in told.message
        watch = stub.WatchJobs(job_service_pb2.WatchJobsRequest(filter=job_service_pb2.JobFilter(user="u" * 3_000_000)))
        assert (await failure(watch.read())).field == "filter.user"
        # In a stream it is one bad message, told by its index.
        service.skip_bad = True
        good = job_service_pb2.SubmitJobsRequest(job=SPEC)
        large = job_service_pb2.SubmitJobsRequest(job=request.job)
        answer = await stub.SubmitJobs(iter([good, large, good]), timeout=60)
        assert list(answer.job_ids) == ["job", "", "job"]
        # Nor does the open health check read what is no name.
        health: Any = health_pb2_grpc.HealthStub(channel)
        told = await failure(health.Check(health_pb2.HealthCheckRequest(service="s" * 10_000), timeout=60))
        assert isinstance(told, errors.InvalidInput)


async def test_an_answer_that_no_client_could_take_is_an_error_with_its_size(monkeypatch):
    async with served_with(max_message_bytes=65_536) as (_, address), open_channel(address) as channel:
        stub: Any = job_service_pb2_grpc.JobServiceStub(channel)

        async def large(*_: Any) -> job_service_pb2.SubmitJobResponse:
            return job_service_pb2.SubmitJobResponse(job=job_pb2.Job(message="m" * 70_000))

        monkeypatch.setattr(FakeService, "SubmitJob", large)
    async with served_with(max_message_bytes=65_536) as (_, address), open_channel(address) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        told = await failure(stub.SubmitJob(job_service_pb2.SubmitJobRequest(job=SPEC), timeout=60))
    assert isinstance(told, errors.LimitExceeded)
    assert (told.reason, told.metadata["limit_bytes"]) == ("ANSWER_TOO_LARGE", "65536")


async def test_a_stream_that_nobody_reads_is_ended(monkeypatch):
    monkeypatch.setattr(interceptor, "_LAST_WORDS_S", 0.2)
    async with served_with(unread_timeout_s=0.2) as (service, address):
        begun = 0

        async def flood() -> AsyncIterator[Any]:
            nonlocal begun
            begun += 1
            while True:
                yield job_service_pb2.WatchJobsResponse(job=job_pb2.Job(message="m" * 100_000))

        service.watch = flood
        async with open_channel(address) as channel:
            stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
            unread = [stub.WatchJobs(job_service_pb2.WatchJobsRequest()) for _ in range(3)]
            await until(lambda: begun == 3)
            await until(lambda: service.watchers == 0)
            # One that comes back has the reason, or that it was ended: both mean to watch again.
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                async for _ in unread[0]:
                    pass
            told = from_rpc_error(failed.value)
            assert isinstance(told, errors.LimitExceeded | errors.Unavailable), told
            registry = service.context.registry
            labels = {"method": "/adlro.v1.JobService/WatchJobs", "code": "RESOURCE_EXHAUSTED"}
            await until(lambda: registry.get_sample_value("adlro_grpc_requests_total", labels) == 3)


async def test_a_quiet_stream_is_not_ended(monkeypatch):
    quiet, looks = asyncio.Event(), 0

    async def once() -> AsyncIterator[Any]:
        yield job_service_pb2.WatchJobsResponse(revision=1)
        quiet.set()  # the message is with the client
        await asyncio.Event().wait()

    def monotonic() -> float:
        """Of who looks for streams that wait for too long."""
        nonlocal looks
        looks += quiet.is_set()
        return time.monotonic() + (3600.0 if quiet.is_set() else 0.0)

    monkeypatch.setattr(unread, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(unread, "_LOOKS_PER_TIMEOUT", 6000)
    async with served_with(unread_timeout_s=60.0) as (service, address), open_channel(address) as channel:
        service.watch = once
        stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
        watch = stub.WatchJobs(job_service_pb2.WatchJobsRequest())
        assert (await watch.read()).revision == 1
        await until(lambda: looks >= 3)
        assert service.watchers == 1
        assert not watch.done()
        watch.cancel()


async def test_what_a_refused_call_held_is_gone_with_it():
    """Not only when the garbage collector comes by: by then a hundred large requests would have been held."""
    held: list[weakref.ref[Any]] = []

    class Held:
        pass

    async def refuse() -> None:
        large = Held()
        held.append(weakref.ref(large))
        raise errors.Conflict("no")

    async with served_with() as (service, address), open_channel(address) as channel:
        service.get["job-1"] = refuse
        stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
        await failure(stub.GetJob(GET, timeout=60))
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                assert isinstance(await failure(stub.GetJob(GET, timeout=60)), errors.Conflict)
            await until(lambda: not any(each() for each in held))
        finally:
            gc.enable()


async def test_a_task_that_tells_several_calls_of_an_error_goes_on():
    """What the first refused call drops of the error is not the task that found it."""
    asked: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()

    async def finds() -> None:
        while True:
            answer = await asked.get()
            try:
                raise errors.Conflict("no")
            except errors.Conflict as error:
                answer.set_exception(error)

    async def ask() -> Any:
        answer = asyncio.get_running_loop().create_future()
        await asked.put(answer)
        return await answer

    finder = asyncio.create_task(finds())
    async with served_with() as (service, address), open_channel(address) as channel:
        service.get["job-1"] = ask
        stub: Any = job_service_pb2_grpc.JobServiceStub(channel)
        for _ in range(2):
            assert isinstance(await failure(stub.GetJob(GET, timeout=60)), errors.Conflict)
        assert not finder.done()
    finder.cancel()
