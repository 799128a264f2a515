"""gRPC over connections that break, lose a direction, or lose bytes: callers may try again; nobody is told of a bug."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from adlro.client import AsyncClient
from adlro.client.endpoints import Endpoints
from adlro.errors import InternalError, Unavailable
from adlro.kit import channel as channel_module
from adlro.kit.channel import open_channel
from adlro.kit.status import from_rpc_error
from adlro.v1 import job_pb2, job_service_pb2, job_service_pb2_grpc
from tests.fault.network import Kind, Link
from tests.unit.kit.conditions import until

SPEC = job_pb2.JobSpec(name="x" * 200, user="ann", job_type=job_pb2.JOB_TYPE_SIMULATION)
STRIKES = {Kind.RESET: 12, Kind.HALF_CLOSE: 12, Kind.DROP: 6}
# A connection that lost bytes may look sound until a ping of its keepalive is missing; here after seconds.
KEEPALIVE_S = 1.0
RECOVERY_S = 60.0


@pytest.mark.parametrize("kind", [Kind.RESET, Kind.HALF_CLOSE, Kind.DROP])
async def test_no_broken_connection_is_told_as_a_bug(served, log_lines, monkeypatch, kind):
    monkeypatch.setattr(channel_module, "KEEPALIVE_S", KEEPALIVE_S)
    monkeypatch.setattr(channel_module, "KEEPALIVE_TIMEOUT_S", KEEPALIVE_S)
    link = Link("client-service", served.address, random.Random(3))
    await link.start()
    told: Counter[type[Exception]] = Counter()
    answered = 0

    async def call(stub: Any, streaming: bool) -> None:
        nonlocal answered
        while True:
            try:
                if streaming:
                    messages = [job_service_pb2.SubmitJobsRequest(job=SPEC)] * 30
                    await stub.SubmitJobs(iter(messages), timeout=1)
                else:
                    await stub.SubmitJob(job_service_pb2.SubmitJobRequest(job=SPEC), timeout=1)
                answered += 1
            except grpc.aio.AioRpcError as error:
                told[type(from_rpc_error(error))] += 1
            await asyncio.sleep(0.001)

    async def strike_until_told() -> None:
        # What is missing may be one whole frame that nobody misses, such as the answer to a ping.
        failed = told.total()
        async with asyncio.timeout(RECOVERY_S):
            while told.total() == failed:
                await link.begin(kind)
                with contextlib.suppress(TimeoutError):
                    await until(lambda: told.total() > failed, timeout_s=3.0)

    try:
        async with open_channel(link.address) as channel:
            stub = job_service_pb2_grpc.JobServiceStub(channel)
            tasks = [asyncio.create_task(call(stub, streaming)) for streaming in (False, False, True)]
            try:
                for _ in range(STRIKES[kind]):
                    await strike_until_told()
                    await link.end()
                    before = answered
                    await until(lambda before=before: answered > before, timeout_s=RECOVERY_S)  # type: ignore[misc]
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
    finally:
        await link.stop()
    assert told
    assert told[InternalError] == 0
    assert [line for line in log_lines() if line.get("level") == "error"] == []


async def test_an_answer_that_can_not_be_read_is_a_broken_connection(served):
    async def cut() -> AsyncIterator[bytes]:
        yield b"\xff\xff"

    served.service.watch = cut
    endpoints = Endpoints(*[served.address] * 4)
    async with AsyncClient(endpoints=endpoints, patience_s=0.0) as client:
        with pytest.raises(Unavailable) as told:
            await anext(client.watch())
    assert told.value.reason == "CONNECTION_BROKEN"


async def test_a_connection_that_has_fallen_silent_is_left(served, monkeypatch):
    monkeypatch.setattr(channel_module, "KEEPALIVE_S", KEEPALIVE_S)
    monkeypatch.setattr(channel_module, "KEEPALIVE_TIMEOUT_S", KEEPALIVE_S)
    link = Link("client-service", served.address, random.Random(4))
    await link.start()
    try:
        async with open_channel(link.address) as channel:
            stub = job_service_pb2_grpc.JobServiceStub(channel)
            request = job_service_pb2.SubmitJobRequest(job=SPEC)
            await stub.SubmitJob(request, timeout=60)
            watching = stub.WatchJobs(job_service_pb2.WatchJobsRequest())
            await watching.read()
            await link.begin(Kind.VANISH)
            await link.end()

            async def answers() -> bool:
                try:
                    await stub.SubmitJob(request, timeout=1)
                except grpc.aio.AioRpcError:
                    return False
                return True

            await until(answers, timeout_s=40.0)  # gRPC by itself would take a minute
            # Who waits for news without a deadline is told as well.
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await asyncio.wait_for(watching.read(), 40.0)
            assert isinstance(from_rpc_error(ended.value), Unavailable)
    finally:
        await link.stop()
