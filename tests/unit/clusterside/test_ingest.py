"""What ingest gets: the cluster first, then blocks; both anew when ingest comes back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import numpy as np
import pytest
from structlog.testing import capture_logs

from adlro.clusterside.ingest import IngestClient
from adlro.clusterside.telemetry import Outbox, Sampler
from adlro.kit.log import get_logger
from adlro.sim.simulator import ClusterSimulator
from adlro.v1 import telemetry_pb2
from adlro.v1 import telemetry_service_pb2 as pb
from adlro.v1 import telemetry_service_pb2_grpc as pb_grpc
from adlro.workload.scenario import load_scenario
from tests.unit.client.fake_suite import until

CLUSTER = load_scenario("paper").cluster


class FakeIngest(pb_grpc.TelemetryServiceServicer):
    """Notes what arrives."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[str | telemetry_pb2.TelemetryBlock] = asyncio.Queue()
        self.refuses = False
        self.refused = asyncio.Event()

    async def UpsertCluster(self, request, context):
        if self.refuses:
            self.refused.set()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "redis is away")
        await self.arrived.put(f"cluster {request.cluster.name} of {len(request.cluster.nodes)} nodes")
        return pb.UpsertClusterResponse()

    async def PushTelemetry(self, request_iterator, context):
        async for request in request_iterator:
            await self.arrived.put(request.block)
        return pb.PushTelemetryResponse()

    async def GetCluster(self, request, context):
        raise NotImplementedError

    async def GetTelemetry(self, request, context):
        raise NotImplementedError

    async def next(self):
        async with asyncio.timeout(60):
            return await self.arrived.get()


@pytest.fixture
def kept_port() -> Iterator[int]:
    """A port that nobody else gets while no server listens there."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@asynccontextmanager
async def serving(ingest: FakeIngest, port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", int(port != 0))])
    pb_grpc.add_TelemetryServiceServicer_to_server(ingest, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(0)


@asynccontextmanager
async def pushing(port: int, *, hz: float) -> AsyncIterator[ClusterSimulator]:
    simulator, outbox = ClusterSimulator(CLUSTER), Outbox()
    client = IngestClient(f"127.0.0.1:{port}", get_logger())
    tasks = [asyncio.create_task(client.run(lambda: CLUSTER, outbox, telemetry=hz > 0))]
    if hz > 0:
        sampler = Sampler(lambda: (simulator.now_s, simulator.sample(simulator.now_s)), outbox, hz)
        tasks.append(asyncio.create_task(sampler.run()))
    try:
        yield simulator
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await client.close()


def values(block: telemetry_pb2.TelemetryBlock, metric: int) -> np.ndarray:
    (column,) = (column for column in block.columns if column.metric == metric)
    return np.frombuffer(column.values_f32, "<f4").reshape(len(block.sample_times_unix_s), -1)


async def test_the_cluster_comes_first_then_blocks_which_name_their_gpus_once():
    ingest = FakeIngest()
    async with serving(ingest) as port, pushing(port, hz=20) as simulator:
        simulator.lose_gpu("volta-0/0")
        assert await ingest.next() == "cluster default of 4 nodes"
        first, second = await ingest.next(), await ingest.next()
    assert list(first.gpu_ids) == [gpu.gpu_id for _, gpu in CLUSTER.gpus()]
    assert list(second.gpu_ids) == []
    for block in (first, second):
        assert block.cluster == "default"
        assert len(block.sample_times_unix_s) == len(block.cluster_times_s) == 10
        assert {(column.metric, column.unit) for column in block.columns} == {
            (telemetry_pb2.METRIC_UTILIZATION, telemetry_pb2.UNIT_RATIO),
            (telemetry_pb2.METRIC_MEMORY_USED, telemetry_pb2.UNIT_MIB),
            (telemetry_pb2.METRIC_MEMORY_BANDWIDTH, telemetry_pb2.UNIT_GB_PER_S),
            (telemetry_pb2.METRIC_TEMPERATURE, telemetry_pb2.UNIT_CELSIUS),
            (telemetry_pb2.METRIC_POWER, telemetry_pb2.UNIT_W),
        }
    power_w = values(second, telemetry_pb2.METRIC_POWER)
    assert power_w.shape == (10, 16)
    assert np.isnan(power_w[:, 0]).all()
    assert np.isfinite(power_w[:, 1:]).all()


@pytest.mark.parametrize("hz", [20, 0])
async def test_when_ingest_comes_back_it_is_told_the_cluster_again(hz, kept_port):
    first, second = FakeIngest(), FakeIngest()
    async with AsyncExitStack() as stack:
        async with serving(first, kept_port):
            await stack.enter_async_context(pushing(kept_port, hz=hz))
            assert await first.next() == "cluster default of 4 nodes"
            if hz:  # a stream that had not begun would not break: ingest refuses what it does not know
                assert len((await first.next()).gpu_ids) == 16
        async with serving(second, kept_port):
            assert await second.next() == "cluster default of 4 nodes"
            if hz:
                assert len((await second.next()).gpu_ids) == 16


async def test_what_ingest_refuses_is_tried_again():
    ingest = FakeIngest()
    ingest.refuses = True
    async with serving(ingest) as port, pushing(port, hz=20):
        async with asyncio.timeout(60):
            await ingest.refused.wait()
        assert ingest.arrived.empty()
        ingest.refuses = False
        assert await ingest.next() == "cluster default of 4 nodes"


async def test_ingest_that_is_not_there_yet_is_waited_for(kept_port):
    ingest = FakeIngest()
    with capture_logs() as logged:
        async with pushing(kept_port, hz=20):
            await until(lambda: any("trying again" in each["event"] for each in logged))
            async with serving(ingest, kept_port):
                assert await ingest.next() == "cluster default of 4 nodes"
