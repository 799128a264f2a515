"""ClusterService over gRPC: translates between messages and the runtime; decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from adlro.events import Clock, ClockMode
from adlro.kit.server import ServiceContext
from adlro.sim.scenario import load_cluster, load_speeds
from adlro.sim.simulator import ClusterSimulator, warm
from adlro.v1 import cluster_service_pb2 as pb
from adlro.v1 import cluster_service_pb2_grpc as pb_grpc
from adlro.wire import batch_to_proto, clock_to_proto, description_to_proto, spec_from_proto
from services.simcluster.clients import IngestClient
from services.simcluster.clock import clock_scale
from services.simcluster.metrics import Metrics
from services.simcluster.runtime import ClusterRuntime, LoopTimers
from services.simcluster.settings import SimclusterSettings
from services.simcluster.telemetry import Outbox, Sampler

Context = grpc.aio.ServicerContext[Any, Any]


class SimclusterServer(pb_grpc.ClusterServiceServicer):
    """The simulated cluster as a service of the kit.

    Args:
        settings: which cluster, which clock, where telemetry goes.

    Raises:
        InvalidInput: the cluster or the clock's scale is not right.
    """

    name = "simcluster"
    service_names: Sequence[str] = ("adlro.v1.ClusterService",)

    def __init__(self, settings: SimclusterSettings) -> None:
        self._settings = settings
        self._simulator = ClusterSimulator(
            load_cluster(settings.cluster), speeds=load_speeds(settings.cluster), start_cost_s=settings.start_cost_s
        )
        mode = ClockMode[settings.clock_mode.upper()]
        self._clock = Clock(mode, clock_scale(mode, settings.clock_scale), settings.clock_paused, 0.0)
        self._ingest: IngestClient | None = None
        self._runtime: ClusterRuntime

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the servicer."""
        pb_grpc.add_ClusterServiceServicer_to_server(self, server)

    async def start(self, context: ServiceContext) -> None:
        """Starts the clock, and telemetry where it is wanted."""
        settings = self._settings
        # Where no compiled code is kept this takes seconds: not at the first launch, and a signal must get through.
        await asyncio.to_thread(warm)
        self._runtime = ClusterRuntime(self._simulator, self._clock, LoopTimers())
        outbox = Outbox()
        Metrics(self._runtime, outbox, context.registry)
        if settings.ingest_address:
            self._ingest = IngestClient(settings.ingest_address, context.log, context.credentials)
            telemetry = settings.telemetry_hz > 0
            context.spawn(
                self._ingest.run(self._simulator.cluster, outbox, telemetry=telemetry), "describe and push to ingest"
            )
            if telemetry:
                sampler = Sampler(self._runtime.sample, outbox, settings.telemetry_hz)
                context.spawn(sampler.run(), "sample telemetry")
        context.spawn(self._end_streams(context.draining), "end event streams at the drain")
        context.log.info(
            "cluster simulated",
            cluster=self._simulator.cluster.name,
            gpu_count=len(self._simulator.gpus),
            incarnation=self._runtime.log.incarnation,
            clock_mode=self._clock.mode.name,
            clock_scale=self._clock.scale,
            clock_paused=self._clock.paused,
        )

    async def _end_streams(self, draining: asyncio.Event) -> None:
        await draining.wait()
        self._runtime.log.close()

    async def stop(self) -> None:
        """Ends the clock."""
        self._runtime.close()
        if self._ingest is not None:
            await self._ingest.close()

    # ---- ClusterService

    async def DescribeCluster(self, request: pb.DescribeClusterRequest, context: Context) -> pb.DescribeClusterResponse:
        """How things stand."""
        return description_to_proto(self._runtime.describe())

    async def LaunchJob(self, request: pb.LaunchJobRequest, context: Context) -> pb.LaunchJobResponse:
        """Starts an attempt."""
        if request.incarnation:
            self._runtime.log.check_incarnation(request.incarnation)
        launched = self._runtime.launch(
            request.job_id, request.attempt, spec_from_proto(request.spec), request.gpu_id, request.fencing_token
        )
        return pb.LaunchJobResponse(existing=launched.existing, start_s=launched.start_s, revision=launched.revision)

    async def StopJob(self, request: pb.StopJobRequest, context: Context) -> pb.StopJobResponse:
        """Ends an attempt."""
        if request.incarnation:
            self._runtime.log.check_incarnation(request.incarnation)
        stopped = self._runtime.stop(request.job_id, request.attempt, request.fencing_token)
        return pb.StopJobResponse(stopped=stopped)

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        """Every event after a revision."""
        log = self._runtime.log
        if request.incarnation:
            log.check_incarnation(request.incarnation)
        async for batch in log.follow(request.after_revision):
            yield batch_to_proto(batch)

    async def AcknowledgeEvents(
        self, request: pb.AcknowledgeEventsRequest, context: Context
    ) -> pb.AcknowledgeEventsResponse:
        """A virtual clock may go on."""
        self._runtime.acknowledge(request.incarnation, request.revision, request.fencing_token)
        return pb.AcknowledgeEventsResponse()

    async def WakeAt(self, request: pb.WakeAtRequest, context: Context) -> pb.WakeAtResponse:
        """Wake-ups to come."""
        return pb.WakeAtResponse(clock=clock_to_proto(self._runtime.wake_at(request.times_s)))

    async def SetClock(self, request: pb.SetClockRequest, context: Context) -> pb.SetClockResponse:
        """Sets the clock."""
        clock = self._runtime.set_clock(
            mode=ClockMode(request.mode) if request.mode else None,
            scale=request.scale if request.HasField("scale") else None,
            paused=request.paused if request.HasField("paused") else None,
            not_before_s=request.not_before_s if request.HasField("not_before_s") else None,
        )
        return pb.SetClockResponse(clock=clock_to_proto(clock))

    async def SetGpuAvailability(
        self, request: pb.SetGpuAvailabilityRequest, context: Context
    ) -> pb.SetGpuAvailabilityResponse:
        """Takes a GPU away or gives it back."""
        lost = self._runtime.set_gpu_availability(request.gpu_id, request.available)
        return pb.SetGpuAvailabilityResponse(lost_job_id=lost)
