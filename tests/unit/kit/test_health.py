from __future__ import annotations

import asyncio
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from adlro.kit.channel import open_channel
from adlro.kit.health import HealthServicer, HealthState
from adlro.kit.server import start_server
from tests.unit.kit.fake_service import FakeService, FakeSettings

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_each_source_must_be_ready():
    state = HealthState(["adlro.v1.JobService"])

    def now() -> tuple[bool, str]:
        return state.serving, state.reason

    assert now() == (False, "it is starting")
    state.set_serving(False, "redis is away", source="redis")
    state.set_serving(True, source="start")
    assert now() == (False, "redis is away")
    state.set_serving(True, source="redis")
    assert now() == (True, "")
    state.set_serving(False, "no cluster")
    assert now() == (False, "no cluster")
    state.set_serving(True)
    state.drain()
    assert now() == (False, "it is draining")


async def test_health_answers_for_each_service_and_the_empty_name_without_deadline(served):
    async with open_channel(served.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "adlro.v1.JobService"):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
        statuses = (await stub.List(health_pb2.HealthListRequest())).statuses
        assert {name: one.status for name, one in statuses.items()} == {"": SERVING, "adlro.v1.JobService": SERVING}
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.Check(health_pb2.HealthCheckRequest(service="adlro.v1.NoService"))
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watch_sees_each_change(served):
    async with open_channel(served.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        served.service.context.health.set_serving(False, "no cluster")
        assert (await watch.read()).status == NOT_SERVING
        served.service.context.health.set_serving(True)
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_a_watch_of_an_unknown_service_stays_open(served):
    async with open_channel(served.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="nobody"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


async def test_a_health_watch_does_not_hold_up_the_drain():
    settings = FakeSettings(drain_timeout_s=600)
    running = await start_server(FakeService(settings), settings)
    async with open_channel(running.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        async with asyncio.timeout(60):
            await running.stop()
        assert (await watch.read()).status == NOT_SERVING


async def test_a_drain_that_begins_while_an_answer_is_sent_is_told_too():
    state = HealthState(["adlro.v1.JobService"])
    state.set_serving(True, source="start")
    watch = HealthServicer(state).Watch(health_pb2.HealthCheckRequest(), cast("Any", None))
    assert (await anext(watch)).status == SERVING
    state.drain()  # the answer has not left
    async with asyncio.timeout(20):
        assert [each.status async for each in watch] == [NOT_SERVING]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_tells_services_and_their_files(served, version):
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="adlro.v1.JobService"),
        reflection_pb2.ServerReflectionRequest(file_by_filename="buf/validate/validate.proto"),
    ]
    async with open_channel(served.address) as channel:
        if version == "v1":
            call = channel.stream_stream(
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                reflection_pb2.ServerReflectionRequest.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )
        else:
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        listed, symbol, rules = [answer async for answer in call(iter(requests))]
    names = {service.name for service in listed.list_services_response.service}
    assert names == {
        "adlro.v1.JobService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert symbol.file_descriptor_response.file_descriptor_proto
    assert rules.file_descriptor_response.file_descriptor_proto
