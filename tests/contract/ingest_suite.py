"""What the contract suites of ingest use: a server in this process, a caller, and a look into Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import redis

from adlro.errors import AdlroError
from adlro.kit.channel import open_channel
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import serve
from adlro.records.cluster import Cluster, Gpu, GpuSpec, Node
from adlro.services.ingest.server import IngestService
from adlro.services.ingest.settings import IngestSettings
from adlro.v1 import (
    job_pb2,
    job_service_pb2,
    job_service_pb2_grpc,
    telemetry_service_pb2,
    telemetry_service_pb2_grpc,
)
from adlro.wire import cluster_to_proto

TIMEOUT_S = 60.0
"""Bounds a hang; a busy machine takes its time."""

CLUSTER = Cluster(
    "default",
    (
        Node("volta-0", 20, 262_144, (Gpu("volta-0/0", "v100_sxm2", 16_160), Gpu("volta-0/1", "v100_sxm2", 16_160))),
        Node("odd-0", 40, 65_536, (Gpu("odd-0/0", "abacus", 4_000, spec=GpuSpec(100.0, 50.0, 80.0)),)),
    ),
)
GPU_IDS = ["volta-0/0", "volta-0/1", "odd-0/0"]


@asynccontextmanager
async def ingest_here(redis_url: str, **settings: Any) -> AsyncIterator[str]:
    """ingest on this loop."""
    made = IngestSettings(redis_url=redis_url, **settings)
    async with serve(IngestService(made), made) as address:
        yield address


def job(**fields: Any) -> job_pb2.JobSpec:
    """A job that fits the cluster."""
    defaults: dict[str, Any] = {"name": "train", "user": "alice", "job_type": 2, "gpu_memory_mib": 4_000}
    return job_pb2.JobSpec(**(defaults | fields))


class Ingest:
    """Calls ingest; raises the error tree."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self.jobs = job_service_pb2_grpc.JobServiceStub(self._channel)
        self.telemetry = telemetry_service_pb2_grpc.TelemetryServiceStub(self._channel)

    async def __aenter__(self) -> Ingest:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    async def submit(self, spec: job_pb2.JobSpec | None = None, request_id: str = "") -> job_pb2.Job:
        return (await self.submit_full(spec, request_id)).job

    async def submit_full(
        self, spec: job_pb2.JobSpec | None = None, request_id: str = ""
    ) -> job_service_pb2.SubmitJobResponse:
        request = job_service_pb2.SubmitJobRequest(job=spec or job(), request_id=request_id)
        answer: job_service_pb2.SubmitJobResponse = await self.call(self.jobs.SubmitJob, request)
        return answer

    async def submit_many(self, specs: list[job_pb2.JobSpec]) -> job_service_pb2.SubmitJobsResponse:
        requests = (job_service_pb2.SubmitJobsRequest(job=each) for each in specs)
        answer: job_service_pb2.SubmitJobsResponse = await self.call(self.jobs.SubmitJobs, requests)
        return answer

    async def get(self, job_id: str) -> job_pb2.Job:
        answer = await self.call(self.jobs.GetJob, job_service_pb2.GetJobRequest(job_id=job_id))
        return cast(job_pb2.Job, answer.job)

    async def cancel(self, job_id: str) -> job_pb2.Job:
        answer = await self.call(self.jobs.CancelJob, job_service_pb2.CancelJobRequest(job_id=job_id))
        return cast(job_pb2.Job, answer.job)

    async def page(self, page_size: int = 0, page_token: str = "", **fields: Any) -> job_service_pb2.ListJobsResponse:
        request = job_service_pb2.ListJobsRequest(
            filter=job_service_pb2.JobFilter(**fields), page_size=page_size, page_token=page_token
        )
        answer: job_service_pb2.ListJobsResponse = await self.call(self.jobs.ListJobs, request)
        return answer

    async def describe(self, cluster: Cluster = CLUSTER) -> telemetry_service_pb2.UpsertClusterResponse:
        request = telemetry_service_pb2.UpsertClusterRequest(cluster=cluster_to_proto(cluster))
        answer: telemetry_service_pb2.UpsertClusterResponse = await self.call(self.telemetry.UpsertCluster, request)
        return answer

    @asynccontextmanager
    async def watch(self, after_revision: int | None = None, **fields: Any) -> AsyncIterator[Watch]:
        request = job_service_pb2.WatchJobsRequest(
            filter=job_service_pb2.JobFilter(**fields), after_revision=after_revision
        )
        call = self.jobs.WatchJobs(request, timeout=4 * TIMEOUT_S)
        try:
            yield Watch(call)
        finally:
            call.cancel()

    async def call(self, method: Any, request: Any, timeout: float | None = TIMEOUT_S) -> Any:
        try:
            return await method(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error


class Watch:
    """A stream of changes."""

    KINDS = job_service_pb2.WatchJobsResponse

    def __init__(self, call: Any) -> None:
        self._answers = call.__aiter__()

    async def next(self) -> job_service_pb2.WatchJobsResponse:
        """The next message; raises the error tree where the stream ended with one."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer: job_service_pb2.WatchJobsResponse = await anext(self._answers)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return answer

    async def snapshot(self) -> tuple[list[job_pb2.Job], int]:
        """The jobs of the snapshot, and its revision."""
        jobs = []
        while (message := await self.next()).kind == self.KINDS.KIND_SNAPSHOT:
            jobs.append(message.job)
        assert message.kind == self.KINDS.KIND_SNAPSHOT_END
        return jobs, message.revision

    async def changes(self, count: int) -> list[job_pb2.Job]:
        """The next changes."""
        out = []
        for _ in range(count):
            message = await self.next()
            assert message.kind == self.KINDS.KIND_CHANGE
            assert message.revision == message.job.revision
            out.append(message.job)
        return out

    async def error(self) -> AdlroError:
        """What the stream ends with, whatever comes before."""
        while True:
            try:
                await self.next()
            except AdlroError as error:
                return error


def stored(redis_url: str) -> dict[bytes, bytes]:
    """All that Redis holds of jobs and telemetry."""
    with redis.Redis.from_url(redis_url) as client:
        keys = sorted(client.scan_iter("adlro:*"))
        others = (b"adlro:clusters", b"adlro:current_cluster", b"adlro:page_secret", b"adlro:store")
        return {key: client.dump(key) for key in keys if key not in others}
