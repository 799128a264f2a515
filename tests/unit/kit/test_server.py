"""The server in this process: its port, its metrics, its drain."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.request
from typing import Any

import grpc
import pytest

from adlro import __version__
from adlro.errors import InvalidInput, Unavailable
from adlro.kit.addresses import ListenFailed, check_listenable, is_loopback, join_address, split_address
from adlro.kit.channel import open_channel
from adlro.kit.metrics import OnLoop
from adlro.kit.open_calls import OpenCalls
from adlro.kit.server import RunningServer, start_server
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import ServiceEnded, serve
from adlro.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from tests.unit.kit.conditions import until
from tests.unit.kit.fake_service import FakeService, FakeSettings

SPEC = job_pb2.JobSpec(name="train", user="ann", job_type=job_pb2.JOB_TYPE_SIMULATION)


@pytest.mark.parametrize(
    ("address", "host", "port"), [("127.0.0.1:7701", "127.0.0.1", 7701), ("[::1]:0", "::1", 0), ("a.b:1", "a.b", 1)]
)
def test_addresses(address, host, port):
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("ipv4:127.0.0.1:1,127.0.0.2:2", True),
        ("ipv6:[::1]:1,[::1]:2", True),
        ("ipv4:127.0.0.1:1,10.0.0.1:2", False),
        ("decompose:7702", False),
        ("0.0.0.0:1", False),
    ],
)
def test_what_is_loopback(address, loopback):
    assert is_loopback(address) is loopback


@pytest.mark.parametrize("address", ["", "7701", ":7701", "host:", "host:x", "host:-1", "host:65536", "::1:7701"])
def test_what_is_no_address(address):
    with pytest.raises(ValueError, match="must "):
        split_address(address)


@pytest.fixture
def taken():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield f"127.0.0.1:{holder.getsockname()[1]}"


async def test_a_port_in_use_is_said_with_the_way_out(taken):
    settings = FakeSettings(listen=taken)
    with pytest.raises(ListenFailed) as failed:
        await start_server(FakeService(settings), settings)
    assert failed.value.message == (f"listen: {taken} is in use by another process; set ADLRO_INGEST_LISTEN or stop it")


async def test_a_port_that_grpc_listens_on_is_in_use(served):
    settings = FakeSettings(listen=served.address)
    with pytest.raises(ListenFailed, match="is in use by another process"):
        await start_server(FakeService(settings), settings)


async def test_a_metrics_port_in_use_leaves_nothing_behind(taken):
    settings = FakeSettings(metrics_listen=taken)
    with pytest.raises(ListenFailed, match=r"metrics_listen: .* is in use .* set ADLRO_INGEST_METRICS_LISTEN"):
        await start_server(FakeService(settings), settings)


@pytest.mark.parametrize(
    ("address", "text"),
    [("192.0.2.1:7701", "is no address of this machine"), ("no-such-host.invalid:1", "is not known here")],
)
def test_why_one_cannot_listen(address, text):
    with pytest.raises(ListenFailed, match=text):
        check_listenable(address, "listen", "ADLRO_INGEST_LISTEN")


async def test_a_port_can_be_taken_again_at_once():
    settings = FakeSettings()
    async with serve(FakeService(settings), settings) as address, open_channel(address) as channel:
        request = job_service_pb2.GetJobRequest(job_id="job-1")
        await job_service_pb2_grpc.JobServiceStub(channel).GetJob(request, timeout=60)
    again = FakeSettings(listen=address)
    async with serve(FakeService(again), again) as same:
        assert same == address


async def test_metrics_are_served_over_http():
    settings = FakeSettings(metrics_listen="127.0.0.1:0")
    running = await start_server(FakeService(settings), settings)
    try:
        url = f"http://{running.metrics_address}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=60).read().decode())
    finally:
        await running.stop(0)
    assert "process_resident_memory_bytes" in text
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=60))


async def test_a_service_that_cannot_start_frees_its_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = FakeSettings(listen=address, start_problem="no such scenario")
    with pytest.raises(InvalidInput, match="no such scenario"):
        await start_server(FakeService(settings), settings)
    check_listenable(address, "listen", "ADLRO_INGEST_LISTEN")


async def test_a_drain_ends_streams_finishes_calls_and_refuses_new_ones():
    settings = FakeSettings(drain_timeout_s=600)
    service = FakeService(settings)
    release = asyncio.Event()
    service.get["job-1"] = release.wait
    running = await start_server(service, settings)
    async with open_channel(running.address) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        watch: Any = stub.WatchJobs(job_service_pb2.WatchJobsRequest())
        assert (await watch.read()).revision == 1
        call = asyncio.ensure_future(stub.GetJob(job_service_pb2.GetJobRequest(job_id="job-1"), timeout=60))
        await service.in_flight.wait()

        stopping = asyncio.ensure_future(running.stop())
        assert (await watch.read()).revision == 2
        assert not await watch.read()  # grpc.aio.EOF
        assert await watch.code() is grpc.StatusCode.OK
        assert not service.context.health.serving
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetJob(job_service_pb2.GetJobRequest(job_id="job-2"), timeout=60)
        assert type(from_rpc_error(refused.value)) is Unavailable

        assert not stopping.done()
        assert not service.stopped
        release.set()
        assert (await call).job.job_id == "job-1"
        async with asyncio.timeout(60):
            await stopping
    assert service.stopped


async def test_calls_that_do_not_end_are_cancelled_after_the_drain_timeout():
    settings = FakeSettings(drain_timeout_s=0.3)
    service = FakeService(settings)
    running = await start_server(service, settings)

    async def deaf():
        yield job_service_pb2.WatchJobsResponse(revision=1)
        await asyncio.Event().wait()

    service.watch = deaf
    async with open_channel(running.address) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        watch = stub.WatchJobs(job_service_pb2.WatchJobsRequest())
        await watch.read()
        began_s = time.monotonic()
        async with asyncio.timeout(60):
            await running.stop()
        assert time.monotonic() - began_s >= 0.3
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await watch.read()
    assert service.watchers == 0
    assert service.stopped


async def test_a_drain_whose_time_is_over_at_once_crashes_nothing():
    """Where two of its waits end at once, gRPC uses a freed server: on Python 3.12 every second run of this crashed."""
    settings = FakeSettings()
    service = FakeService(settings)
    first = await start_server(service, settings)
    await first.stop(0)
    for _ in range(200):
        server = grpc.aio.server()
        server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await RunningServer(service, first.context, server, OpenCalls(), None).stop(0)


async def test_hurry_cuts_a_drain_short():
    settings = FakeSettings(drain_timeout_s=600)
    service = FakeService(settings)
    service.get["job-1"] = asyncio.Event().wait
    running = await start_server(service, settings)
    async with open_channel(running.address) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        call = asyncio.ensure_future(stub.GetJob(job_service_pb2.GetJobRequest(job_id="job-1"), timeout=600))
        await service.in_flight.wait()
        stopping = asyncio.ensure_future(running.stop())
        await service.context.draining.wait()
        running.hurry()
        async with asyncio.timeout(60):
            await stopping
        with pytest.raises(grpc.aio.AioRpcError):
            await call


async def test_a_service_whose_stop_hangs_does_not_hold_up_the_end(log_lines):
    settings = FakeSettings(stop_s=600)
    running = await start_server(FakeService(settings), settings)
    async with asyncio.timeout(60):
        await running.stop(1.0)
    assert "the service did not stop in time" in [line["event"] for line in log_lines()]


async def test_a_task_that_is_cancelled_though_nobody_asked_counts_as_crashed(log_lines):
    async def lost() -> None:
        raise asyncio.CancelledError

    settings = FakeSettings()
    service = FakeService(settings)

    async def lose_one() -> None:
        async with serve(service, settings):
            service.context.spawn(lost(), "lost")
            await asyncio.wait_for(service.context.crashed.wait(), 60)

    with pytest.raises(ServiceEnded, match="a task of ingest crashed"):
        await lose_one()
    line = next(line for line in log_lines() if "cancelled unexpectedly" in line["event"])
    assert line["task"] == "lost"


async def test_a_crashed_task_is_logged_and_told(log_lines):
    settings = FakeSettings(crash_after_s=0.001)
    service = FakeService(settings)
    with pytest.raises(ServiceEnded, match="a task of ingest crashed"):
        async with serve(service, settings):
            await asyncio.wait_for(service.context.crashed.wait(), 60)
    line = next(line for line in log_lines() if line["event"] == "task crashed")
    assert line["task"] == "crash"
    assert "ZeroDivisionError: a bug in a loop" in line["exception"]


async def test_spawned_tasks_end_with_the_service():
    settings = FakeSettings()
    service = FakeService(settings)
    async with serve(service, settings):
        task = service.context.spawn(asyncio.Event().wait(), "wait for ever")
        done = service.context.spawn(asyncio.sleep(0), "ends by itself")
        await done
        assert not service.context.crashed.is_set()
    assert task.cancelled()


async def test_a_hundred_calls_at_once(served):
    calls = [served.stub.SubmitJob(job_service_pb2.SubmitJobRequest(job=SPEC), timeout=60) for _ in range(100)]
    answers = await asyncio.gather(*calls)
    assert {answer.job.job_id for answer in answers} == {"job-1"}
    await until(lambda: served.service.context.health.serving)


async def test_metrics_say_which_service_it_is_and_whether_it_serves():
    settings = FakeSettings()
    running = await start_server(FakeService(settings), settings)
    try:
        registry = running.context.registry
        assert registry.get_sample_value("adlro_service_info", {"service": "ingest", "version": __version__}) == 1
        assert registry.get_sample_value("adlro_service_serving") == 1
        running.context.health.set_serving(False, "Redis is away", source="redis")
        assert registry.get_sample_value("adlro_service_serving") == 0
    finally:
        await running.stop(0)


async def test_what_belongs_to_the_loop_is_taken_on_the_loop():
    seen: list[int] = []

    def note() -> int:
        seen.append(threading.get_ident())
        return len(seen)

    take = OnLoop(note)
    assert await asyncio.to_thread(take) == 1
    assert take() == 2  # from the loop itself, without waiting for it
    assert seen == [threading.get_ident()] * 2

    def fail() -> None:
        raise ValueError("what take raises")

    with pytest.raises(ValueError, match="what take raises"):
        await asyncio.to_thread(OnLoop(fail))
