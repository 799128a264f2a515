"""ClusterService over gRPC: translates between messages and the runtime; decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import redis.asyncio as aioredis
from redis.exceptions import RedisError

from adlro.errors import Unavailable, Unsupported
from adlro.kit.redis import redacted, watch_redis
from adlro.kit.redis_scripts import connect_for_scripts
from adlro.kit.server import ServiceContext
from adlro.placement import Placement
from adlro.records.events import Clock, ClockMode
from adlro.services.simcluster.clients import IngestClient
from adlro.services.simcluster.clock import clock_scale
from adlro.services.simcluster.clock_store import ClockStore
from adlro.services.simcluster.metrics import Metrics
from adlro.services.simcluster.runtime import ClusterRuntime, LoopTimers
from adlro.services.simcluster.settings import SimclusterSettings
from adlro.services.simcluster.telemetry import Outbox, Sampler
from adlro.services.simcluster.timekeeping import Timekeeper
from adlro.sim.simulator import ClusterSimulator, warm
from adlro.store import JobReads
from adlro.store.format import checked, claim_at_start
from adlro.v1 import cluster_service_pb2 as pb
from adlro.v1 import cluster_service_pb2_grpc as pb_grpc
from adlro.wire import batch_to_proto, clock_to_proto, description_to_proto, launch_placement, spec_from_proto
from adlro.workload.scenario import load_cluster, load_speeds

Context = grpc.aio.ServicerContext[Any, Any]

# How long the store is waited for when the clock is read, and how soon it is asked again.
TAKE_TIMEOUT_S = 2.0
TAKE_AGAIN_S = 0.25


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
        self._begun = False
        self._redis: aioredis.Redis
        self._jobs: JobReads
        self._record: ClockStore
        self._keeper: Timekeeper
        self._keeping: asyncio.Task[None]
        self._cluster: ClusterRuntime

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the servicer."""
        pb_grpc.add_ClusterServiceServicer_to_server(self, server)

    async def start(self, context: ServiceContext) -> None:
        """Starts the clock, as soon as it is known how it stood, and telemetry where it is wanted."""
        settings = self._settings
        # Where no compiled code is kept this takes seconds: not at the first launch, and a signal must get through.
        await asyncio.to_thread(warm)
        self._redis = connect_for_scripts(settings.redis_url)
        self._jobs = JobReads(self._redis)
        self._record = ClockStore(self._redis, self._simulator.cluster.name, self._clock)
        self._cluster = ClusterRuntime(self._simulator, self._clock, LoopTimers())

        def tell(problem: str) -> None:
            context.health.set_serving(not problem, problem, source="clock")

        tell("its clock is not read yet")
        self._keeper = Timekeeper(self._cluster, self._record, tell)
        outbox = Outbox()
        Metrics(self._cluster, outbox, context.registry)
        if settings.ingest_address:
            self._ingest = IngestClient(settings.ingest_address, context.log, context.credentials)
        await claim_at_start(self._redis)
        context.spawn(watch_redis(context, self._redis, check=checked(self._redis)), "watch redis")
        await self._begin(tell)  # where the store answers, the first call finds the clock
        self._keeping = context.spawn(self._keep_time(context, tell, outbox), "keep cluster time")
        context.spawn(self._end_streams(context.draining), "end event streams at the drain")

    async def _begin(self, tell: Callable[[str], None]) -> None:
        """Takes the clock over from the process before, unless the store does not answer."""
        try:
            async with asyncio.timeout(TAKE_TIMEOUT_S):
                clock = await self._record.take()
        except (RedisError, OSError, TimeoutError) as error:
            tell(f"its clock is not read yet: {str(error) or type(error).__name__}")
            return
        self._cluster.begin(clock)
        self._begun = True
        tell("")

    async def _keep_time(self, context: ServiceContext, tell: Callable[[str], None], outbox: Outbox) -> None:
        settings = self._settings
        while not self._begun:
            await asyncio.sleep(TAKE_AGAIN_S)
            await self._begin(tell)
        if self._ingest is not None:
            telemetry = settings.telemetry_hz > 0
            context.spawn(
                self._ingest.run(self._simulator.cluster, outbox, telemetry=telemetry), "describe and push to ingest"
            )
            if telemetry:
                sampler = Sampler(self._cluster.sample, outbox, settings.telemetry_hz)
                context.spawn(sampler.run(), "sample telemetry")
        clock = self._cluster.describe().clock
        context.log.info(
            "cluster simulated",
            cluster=self._simulator.cluster.name,
            gpu_count=len(self._simulator.gpus),
            incarnation=self._cluster.log.incarnation,
            clock_mode=clock.mode.name,
            clock_scale=clock.scale,
            clock_paused=clock.paused,
            cluster_time_s=clock.time_s,
        )
        await self._keeper.run()

    async def _end_streams(self, draining: asyncio.Event) -> None:
        await draining.wait()
        self._cluster.log.close()

    async def stop(self) -> None:
        """Ends the clock, and writes down where it stands."""
        self._keeping.cancel()
        if self._begun:
            await self._keeper.close()
        await self._redis.aclose()
        if self._ingest is not None:
            await self._ingest.close()

    @property
    def _runtime(self) -> ClusterRuntime:
        self._refuse_before_its_time()
        return self._cluster

    def _refuse_before_its_time(self) -> None:
        """Raises Unavailable while it is not known where the clock stood before."""
        if not self._begun:
            raise Unavailable(
                f"the cluster's clock is not known yet: Redis at {redacted(self._settings.redis_url)} does not answer",
                retry_after_s=1.0,
            )

    async def _fenced(self, fencing_token: int) -> ClusterRuntime:
        """The cluster, when it knows whether a token was given; the store is asked once for each new one."""
        runtime = self._runtime
        if fencing_token > runtime.fencing_token:
            runtime.note_token(await self._jobs.newest_token())
        return runtime

    # ---- ClusterService

    async def DescribeCluster(self, request: pb.DescribeClusterRequest, context: Context) -> pb.DescribeClusterResponse:
        """How things stand."""
        return description_to_proto(self._runtime.describe())

    async def LaunchJob(self, request: pb.LaunchJobRequest, context: Context) -> pb.LaunchJobResponse:
        """Starts an attempt."""
        if request.incarnation:
            self._runtime.log.check_incarnation(request.incarnation)
        runtime = await self._fenced(request.fencing_token)
        launched = runtime.launch(
            request.job_id,
            request.attempt,
            spec_from_proto(request.spec),
            _whole_gpu(launch_placement(request)),
            request.fencing_token,
        )
        return pb.LaunchJobResponse(existing=launched.existing, start_s=launched.start_s, revision=launched.revision)

    async def StopJob(self, request: pb.StopJobRequest, context: Context) -> pb.StopJobResponse:
        """Ends an attempt."""
        if request.incarnation:
            self._runtime.log.check_incarnation(request.incarnation)
        runtime = await self._fenced(request.fencing_token)
        stopped = runtime.stop(request.job_id, request.attempt, request.fencing_token)
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
        runtime = await self._fenced(request.fencing_token)
        runtime.acknowledge(request.incarnation, request.revision, request.fencing_token)
        return pb.AcknowledgeEventsResponse()

    async def WakeAt(self, request: pb.WakeAtRequest, context: Context) -> pb.WakeAtResponse:
        """Wake-ups to come."""
        return pb.WakeAtResponse(clock=clock_to_proto(self._runtime.wake_at(request.times_s)))

    async def SetClock(self, request: pb.SetClockRequest, context: Context) -> pb.SetClockResponse:
        """Sets the clock."""
        self._refuse_before_its_time()
        clock = await self._keeper.set_clock(
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


def _whole_gpu(placement: Placement) -> str:
    """The one GPU of a placement.

    Raises:
        Unsupported: several GPUs, or a share of one.
    """
    if len(placement.gpus) > 1 or placement.gpus[0].share < 1.0:
        raise Unsupported(
            "placement: this cluster gives an attempt one whole GPU: name one, with share 1", field="placement"
        )
    return placement.gpu_id
