"""For the tests of DecomposeService: its implementations, a caller, and what the other services write into Redis.

Entries go through the messages of stream.proto, as ingest and the orchestrator write them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adlro.kit.channel import open_channel
from adlro.kit.redis import connect
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import serve, spawn_service
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobSpec, JobType
from adlro.records.outcomes import NeighbourTime, StoppedRun
from adlro.services.decompose.server import DecomposeServer
from adlro.services.decompose.settings import DecomposeSettings
from adlro.store.keys import CLUSTERS, OUTCOMES, telemetry_key
from adlro.v1 import decompose_service_pb2 as pb
from adlro.v1 import decompose_service_pb2_grpc as pb_grpc
from adlro.v1 import job_pb2, stream_pb2, telemetry_pb2
from adlro.wire import (
    cluster_to_proto,
    neighbour_time_to_proto,
    placement_to_proto,
    spec_to_proto,
    stopped_run_to_proto,
)

TIMEOUT_S = 60.0
"""Bounds a hang; a busy machine takes its time."""
REFIT_PATIENCE_S = 60.0
"""However slow the machine: no answer from a fit that is older than what was learned."""
MODELS = ["v100_sxm2", "rtx_2080_ti", "radeon_vii"]
CLUSTER = Cluster(
    "default",
    (
        Node("volta-0", 20, 262144, (Gpu("volta-0/0", "v100_sxm2", 16160), Gpu("volta-0/1", "v100_sxm2", 16160))),
        Node("lab-0", 20, 262144, (Gpu("lab-0/0", "a100_pcie", 40960),)),
    ),
)


@asynccontextmanager
async def in_process(redis_url: str) -> AsyncIterator[str]:
    settings = DecomposeSettings(redis_url=redis_url, refit_patience_s=REFIT_PATIENCE_S)
    async with serve(DecomposeServer(settings), settings) as address:
        yield address


@asynccontextmanager
async def spawned(redis_url: str) -> AsyncIterator[str]:
    environment = {"ADLRO_REDIS_URL": redis_url, "ADLRO_DECOMPOSE_REFIT_PATIENCE_S": f"{REFIT_PATIENCE_S:g}"}
    with spawn_service("decompose", environment) as service:
        yield service.address


IMPLEMENTATIONS: dict[str, Callable[[str], AbstractAsyncContextManager[str]]] = {
    "in-process": in_process,
    "spawned": spawned,
}


class Caller:
    """Calls a DecomposeService; raises the error tree."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self.stub = pb_grpc.DecomposeServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def close(self) -> None:
        await self._channel.close(None)

    async def _call(self, method: str, request) -> Any:
        try:
            return await getattr(self.stub, method)(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def decompose(self, *records: pb.Record) -> list[dict[str, tuple[str, int]]]:
        answer = await self._call("Decompose", pb.DecomposeRequest(records=records))
        return [{each.name: (each.value, each.index) for each in one.variables} for one in answer.decompositions]

    async def state(self, cluster: str = "") -> pb.ClusterState:
        answer: pb.GetClusterStateResponse
        answer = await self._call("GetClusterState", pb.GetClusterStateRequest(cluster=cluster))
        return answer.state

    async def predict(self, jobs, models=MODELS, max_evidence: int = 0) -> pb.PredictRuntimeResponse:
        messages = [each if isinstance(each, job_pb2.JobSpec) else spec_to_proto(each) for each in jobs]
        request = pb.PredictRuntimeRequest(jobs=messages, gpu_models=models, max_evidence=max_evidence)
        answer: pb.PredictRuntimeResponse = await self._call("PredictRuntime", request)
        return answer

    async def pairs(self, kinds, gpu_models=("v100_sxm2",), beside=()) -> pb.PredictPairsResponse:
        """Of applications, or (application, batch size)."""
        request = pb.PredictPairsRequest(gpu_models=gpu_models)
        for target, names in ((request.kinds, kinds), (request.beside, beside)):
            for name in names:
                application, batch_size = (name, "") if isinstance(name, str) else name
                target.add(application=application, batch_size=batch_size)
        answer: pb.PredictPairsResponse = await self._call("PredictPairs", request)
        return answer

    async def recall(self, job: JobSpec, k: int = 0) -> list[pb.Recollection]:
        return list((await self._call("Recall", pb.RecallRequest(job=spec_to_proto(job), k=k))).recollections)

    @asynccontextmanager
    async def watch(self, cluster: str = "", min_interval_s: float = 0.0):
        call = self.stub.WatchClusterState(
            pb.WatchClusterStateRequest(cluster=cluster, min_interval_s=min_interval_s), timeout=4 * TIMEOUT_S
        )
        try:
            yield Watch(call)
        finally:
            call.cancel()

    async def serving(self) -> bool:
        request = health_pb2.HealthCheckRequest(service="adlro.v1.DecomposeService")
        answer = await self._health.Check(request, timeout=TIMEOUT_S)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def until_serving(self, wanted: bool = True) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while await self.serving() is not wanted:  # noqa: ASYNC110 - it is in another process
                await asyncio.sleep(0.01)


class Watch:
    """A stream of states."""

    def __init__(self, call) -> None:
        self._answers: AsyncIterator[pb.WatchClusterStateResponse] = call.__aiter__()

    async def next(self) -> pb.ClusterState:
        """The next state.

        Raises:
            StopAsyncIteration: the stream has ended.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return (await anext(self._answers)).state
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error


class Store:
    """Writes what the other services write."""

    def __init__(self, redis_url: str) -> None:
        self.redis = connect(redis_url)

    async def describe(self, cluster: Cluster = CLUSTER) -> None:
        await self.redis.hset(CLUSTERS, cluster.name, cluster_to_proto(cluster).SerializeToString())

    async def finish(
        self,
        number: int,
        spec: JobSpec,
        gpu_model: str,
        runtime_s: float,
        succeeded=True,
        gpu_id="volta-0/0",
        gpus=(),
        stopped: Sequence[StoppedRun] = (),
        neighbours: Sequence[NeighbourTime] = (),
    ) -> None:
        # GPUs of several nodes are taken to be more nodes than needed.
        entry = stream_pb2.OutcomeStreamEntry(
            job_id=f"job-{number}",
            spec=spec_to_proto(spec),
            gpu_id=gpu_id,
            gpu_model=gpu_model,
            runtime_s=runtime_s,
            end_s=float(number),
            succeeded=succeeded,
            placement=placement_to_proto(Placement.on(*gpus)),
            spread=len({each.partition("/")[0] for each in gpus}) > 1,
            stopped_runs=map(stopped_run_to_proto, stopped),
            neighbours=map(neighbour_time_to_proto, neighbours),
        )
        await self.redis.xadd(OUTCOMES, {"m": entry.SerializeToString()})

    async def report(self, gpu_ids: list[str], time_unix_s: float, cluster="default", **values: list[float]) -> None:
        """One sample of GPUs: `utilization=[0.5, ...]` in the metric's own unit; normalised: a hundredth of it."""
        units = {"utilization": "RATIO", "memory_used": "MIB", "temperature": "CELSIUS", "power": "W"}
        block = telemetry_pb2.NormalizedBlock(cluster=cluster, gpu_ids=gpu_ids, sample_times_unix_s=[time_unix_s])
        for name, of_gpus in values.items():
            raw = np.array(of_gpus, dtype="<f4")
            block.columns.add(
                metric=telemetry_pb2.Metric.Value(f"METRIC_{name.upper()}"),
                unit=telemetry_pb2.Unit.Value(f"UNIT_{units[name]}"),
                raw_f32=raw.tobytes(),
                normalized_f32=(raw / np.float32(100)).tobytes(),
            )
        entry = stream_pb2.TelemetryStreamEntry(block=block)
        await self.redis.xadd(telemetry_key(cluster), {"m": entry.SerializeToString()}, maxlen=1000)


def spec(user="ann", application="tealeaf", **changes) -> JobSpec:
    return JobSpec(**{"name": "a", "user": user, "job_type": JobType.SIMULATION, "application": application, **changes})


def plane(state: pb.ClusterState, metric: str) -> tuple[list[float], list[float]]:
    """(raw, normalised) of a metric."""
    number = telemetry_pb2.Metric.Value(f"METRIC_{metric.upper()}")
    found = next(each for each in state.planes if each.metric == number)
    return np.frombuffer(found.raw_f32, "<f4").tolist(), np.frombuffer(found.normalized_f32, "<f4").tolist()


async def learned(caller: Caller, count: int) -> None:
    """Waits until so many finished jobs have been learned from."""
    async with asyncio.timeout(TIMEOUT_S):
        while (await caller.predict([spec()])).memory_revision < count:  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(0.005)


async def forgotten(caller: Caller) -> None:
    """Waits until nothing is known of finished jobs."""
    async with asyncio.timeout(TIMEOUT_S):
        while await caller.recall(spec()):  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(0.005)
