"""The orchestrator's clients: of decompose where there are several replicas, and of a cluster. Servers run here."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from adlro.errors import DeadlineExceeded, InternalError
from adlro.placement import Placement
from adlro.records.events import AttemptState
from adlro.records.jobs import JobSpec, JobType, Preemptible
from adlro.records.outcomes import ApplicationSize
from adlro.services.orchestrator.clients import ClusterClient, DecomposeClient
from adlro.services.orchestrator.ports import Launched
from adlro.v1 import cluster_service_pb2 as cluster_pb
from adlro.v1 import cluster_service_pb2_grpc as cluster_grpc
from adlro.v1 import decompose_service_pb2 as pb
from adlro.v1 import decompose_service_pb2_grpc as pb_grpc

SPECS = [JobSpec("a", "ann", JobType.SIMULATION)]
MODELS = ["v100_sxm2"]
PATIENCE_S = 60.0

_Base: Any = pb_grpc.DecomposeServiceServicer
_ClusterBase: Any = cluster_grpc.ClusterServiceServicer


class Replica(_Base):  # type: ignore[misc]  # a generated class without types
    """Answers with its number as its revision; or never, when it is stuck."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked = 0
        self.stuck = False
        self.wrong: list[float] | None = None
        self.server = grpc.aio.server()
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        pb_grpc.add_DecomposeServiceServicer_to_server(self, self.server)

    async def PredictRuntime(self, request: pb.PredictRuntimeRequest, context: Any) -> pb.PredictRuntimeResponse:
        self.asked += 1
        if self.stuck:
            await asyncio.sleep(600)
        rows = [
            pb.JobPrediction(
                predictions=[pb.RuntimePrediction(gpu_model=MODELS[0], median_s=1.0)],
                restart_s=7.0 if job.HasField("preemptible") else None,
            )
            for job in request.jobs
        ]
        return pb.PredictRuntimeResponse(predictions=rows, prediction_revision=self.number)

    async def PredictPairs(self, request: pb.PredictPairsRequest, context: Any) -> pb.PredictPairsResponse:
        """A pair keeps what its names say: 12 beside 34 on the second model keeps 0.12342."""
        self.asked += 1
        kept = [
            float(f"0.{one.application}{other.application}{number + 1}")
            for one in request.kinds
            for other in request.beside
            for number in range(len(request.gpu_models))
        ]
        if self.wrong is not None:
            kept = self.wrong
        return pb.PredictPairsResponse(kept_share=kept, std=[0.5] * len(kept), revision=self.asked)


@pytest.fixture
async def replicas() -> AsyncIterator[list[Replica]]:
    made = [Replica(number) for number in range(2)]
    for replica in made:
        await replica.server.start()
    yield made
    for replica in made:
        await replica.server.stop(None)


@pytest.fixture
async def client(replicas: list[Replica]) -> AsyncIterator[DecomposeClient]:
    made = client_of(replicas, PATIENCE_S)
    yield made
    await made.close()


@pytest.fixture
async def impatient(replicas: list[Replica]) -> AsyncIterator[DecomposeClient]:
    made = client_of(replicas, 0.2)
    yield made
    await made.close()


def client_of(replicas: list[Replica], timeout_s: float) -> DecomposeClient:
    return DecomposeClient("ipv4:" + ",".join(f"127.0.0.1:{replica.port}" for replica in replicas), timeout_s)


async def answered_by(client: DecomposeClient) -> int:
    return (await client.predict(SPECS, MODELS)).revision


async def answered_in_time_by(client: DecomposeClient) -> int:
    """As soon as one does: a machine that stands still, and chance, may lead to one that doesn't."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await answered_by(client)
            except DeadlineExceeded:
                continue


async def test_pairs_are_asked_about_in_parts_and_come_in_order(client: DecomposeClient, replicas: list[Replica]):
    kinds = [ApplicationSize(str(number)) for number in range(10, 60)]
    found = await client.pairs(kinds, ["v100_sxm2", "k80"])
    assert found.kept.shape == found.std.shape == (50, 50, 2)
    assert (found.kept[2, 24, 1], found.kept[49, 0, 0]) == (0.12342, 0.59101)
    assert found.revision == sum(replica.asked for replica in replicas) == 3
    assert (await client.pairs([], ["v100_sxm2"])).kept.shape == (0, 0, 1)


@pytest.mark.parametrize("wrong", [[], [0.5, 0.5], [math.nan], [-1.0]])
async def test_pairs_that_cannot_be_are_no_answer(client: DecomposeClient, replicas: list[Replica], wrong: list[float]):
    for replica in replicas:
        replica.wrong = wrong
    with pytest.raises(InternalError, match="invalid kept shares"):
        await client.pairs([ApplicationSize("12")], ["v100_sxm2"])


async def test_a_restart_is_reported_for_preemptible_jobs(client: DecomposeClient):
    assert (await client.predict(SPECS, MODELS)).restart_s is None
    found = await client.predict([*SPECS, replace(SPECS[0], preemptible=Preemptible(3.0))], MODELS)
    assert found.restart_s is not None
    assert np.array_equal(found.restart_s, [math.nan, 7.0], equal_nan=True)


async def test_one_replica_is_asked_as_long_as_it_answers(client: DecomposeClient, replicas: list[Replica]) -> None:
    # Revisions of two replicas can't be compared: going back and forth would look like news with every answer.
    first = await answered_by(client)
    assert {await answered_by(client) for _ in range(20)} == {first}
    assert replicas[1 - first].asked == 0


async def test_another_replica_is_asked_when_that_one_is_gone(client: DecomposeClient, replicas: list[Replica]) -> None:
    first = await answered_by(client)
    await replicas[first].server.stop(None)
    assert {await answered_by(client) for _ in range(5)} == {1 - first}


async def test_another_replica_is_asked_when_that_one_is_stuck(
    impatient: DecomposeClient, replicas: list[Replica]
) -> None:
    first = await answered_in_time_by(impatient)
    replicas[first].stuck = True
    with pytest.raises(DeadlineExceeded):
        await answered_by(impatient)
    assert await answered_in_time_by(impatient) == 1 - first


async def test_clients_are_spread_over_the_replicas(replicas: list[Replica]) -> None:
    clients = [client_of(replicas, PATIENCE_S) for _ in range(20)]
    assert {await answered_by(client) for client in clients} == {0, 1}
    for client in clients:
        await client.close()


# ---- the cluster


class Cluster(_ClusterBase):  # type: ignore[misc]  # a generated class without types
    """Answers as it is told to."""

    def __init__(self) -> None:
        self.launched = cluster_pb.LaunchJobResponse()
        self.stopped = False

    async def LaunchJob(self, request: cluster_pb.LaunchJobRequest, context: Any) -> cluster_pb.LaunchJobResponse:
        return self.launched

    async def StopJob(self, request: cluster_pb.StopJobRequest, context: Any) -> cluster_pb.StopJobResponse:
        return cluster_pb.StopJobResponse(stopped=self.stopped)


async def test_how_far_an_attempt_has_come_and_whether_it_ends_is_heard() -> None:
    cluster, server = Cluster(), grpc.aio.server()
    cluster_grpc.add_ClusterServiceServicer_to_server(cluster, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = ClusterClient(f"127.0.0.1:{port}")
    try:
        for state, heard in ((0, None), (1, AttemptState.ACCEPTED), (4, AttemptState.ENDED), (99, None)):
            cluster.launched = cluster_pb.LaunchJobResponse(revision=7, state=state)  # type: ignore[arg-type]
            assert await client.launch("job-1", 1, SPECS[0], Placement.on("n/0"), 1, "") == Launched(7, heard)
        for stopped in (True, False):
            cluster.stopped = stopped
            assert await client.stop("job-1", 1, 1, "") is stopped
    finally:
        await client.close()
        await server.stop(None)
