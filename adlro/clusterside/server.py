"""ClusterService over gRPC, for every cluster: translates between messages and the cluster side; decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, ClassVar

import grpc
import redis.asyncio as aioredis
from redis.exceptions import RedisError

from adlro.clusterside.cluster_side import ClusterSide
from adlro.clusterside.driver import Driver
from adlro.clusterside.ingest import IngestClient
from adlro.clusterside.journal import Journal
from adlro.clusterside.log_follower import LogFollower
from adlro.clusterside.metrics import ClusterMetrics
from adlro.clusterside.record import Record
from adlro.clusterside.settings import ClusterSettings
from adlro.clusterside.telemetry import Outbox, Sampler
from adlro.clusterside.timers import LoopTimers
from adlro.errors import Unavailable
from adlro.kit.closed import check_closed_store, require_closed
from adlro.kit.redis import redacted, watch_redis
from adlro.kit.redis_scripts import connect_for_scripts
from adlro.kit.server import ServiceContext
from adlro.records.events import ClockMode
from adlro.records.payloads import LogStream
from adlro.store import JobReads
from adlro.store.format import checked, claim_at_start
from adlro.v1 import cluster_service_pb2 as pb
from adlro.v1 import cluster_service_pb2_grpc as pb_grpc
from adlro.wire import (
    attempt_ref_from_proto,
    batch_to_proto,
    chunk_to_proto,
    clock_to_proto,
    description_to_proto,
    launch_placement,
    spec_from_proto,
)

Context = grpc.aio.ServicerContext[Any, Any]

# How long the store is waited for when what was before is read, and how soon it is asked again. The record of a large
# cluster takes a busy store its time, so each wait is twice the one before, up to the other.
TAKE_TIMEOUT_S, MOST_TAKE_TIMEOUT_S = 2.0, 60.0
TAKE_AGAIN_S = 0.25


class ClusterServer(pb_grpc.ClusterServiceServicer):
    """A cluster as a service of the kit.

    Attributes:
        driver: the cluster.
        side: the rules around it; there once the service is started.
        closed: it runs programs on real machines: it does not start, or go on, unless only authenticated callers can
            reach it and its store (`adlro.kit.closed`).

    Args:
        driver: starts and ends attempts, and keeps the time.
        settings: where telemetry goes.
    """

    name = "cluster"
    service_names: Sequence[str] = ("adlro.v1.ClusterService",)
    closed: ClassVar[bool] = False

    def __init__(self, driver: Driver, settings: ClusterSettings) -> None:
        self.driver = driver
        self.side: ClusterSide
        self._settings = settings
        self._ingest: IngestClient | None = None
        self._begun = False
        self._draining: asyncio.Event
        self._redis: aioredis.Redis
        self._jobs: JobReads
        self._record: Record
        self._journal: Journal
        self._keeping: asyncio.Task[None]

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the servicer."""
        pb_grpc.add_ClusterServiceServicer_to_server(self, server)

    async def start(self, context: ServiceContext) -> None:
        """Restores the previous state once the store answers, and starts telemetry if configured.

        Raises:
            InvalidInput: callers without authentication could reach this `closed` cluster, or its store.
        """
        settings = self._settings
        self._draining = context.draining
        if self.closed:
            require_closed(settings)
        await self.driver.prepare()
        self._redis = connect_for_scripts(settings.redis_url)
        self._jobs = JobReads(self._redis)
        self._record = Record(self._redis, self.driver.cluster.name)
        self.side = ClusterSide(self.driver, LoopTimers(), written_down=True)
        self._journal = self.side.journal = Journal(self._record, self.side.collect, self.side.written)

        def tell(problem: str) -> None:
            context.health.set_serving(not problem, problem, source="cluster")

        tell("the cluster's record is not read yet")
        outbox = Outbox()
        ClusterMetrics(self.name, self.side, outbox, context.registry)
        if settings.ingest_address:
            self._ingest = IngestClient(settings.ingest_address, context.log, context.credentials)
        await claim_at_start(self._redis)
        context.spawn(watch_redis(context, self._redis, check=self._check_store), "watch redis")
        await self._begin(tell)  # where the store answers, the first call finds the clock
        self._keeping = context.spawn(self._run(context, tell, outbox), "run the cluster")
        context.spawn(self._end_streams(context.draining), "end event streams at the drain")

    async def _begin(self, tell: Callable[[str], None], timeout_s: float = TAKE_TIMEOUT_S) -> None:
        """Restores the previous state, unless the store does not answer."""
        try:
            if self.closed:
                await check_closed_store(self._settings.redis_url)
            kept = await self._record.take(timeout_s)
            if kept is not None:
                self.side.restore(kept)
                self._journal.go_on()
            # A lease that was given since, or used without being written down yet: older ones are refused at once.
            async with asyncio.timeout(timeout_s):
                self.side.fence.note(await self._jobs.newest_token())
                await self.driver.begin(kept)
        except (RedisError, OSError, TimeoutError) as error:
            tell(f"the cluster's record is not read yet: {str(error) or type(error).__name__}")
            return
        self._begun = True
        if kept is not None and kept.cluster != self.driver.cluster:
            self.side.change_cluster(self.driver.cluster)
        self._journal.touch()
        tell("")

    async def _check_store(self) -> None:
        if self.closed:  # another store may have replaced the one of the start
            await check_closed_store(self._settings.redis_url)
        await checked(self._redis)()

    async def _run(self, context: ServiceContext, tell: Callable[[str], None], outbox: Outbox) -> None:
        settings = self._settings
        timeout_s = TAKE_TIMEOUT_S
        while not self._begun:
            await asyncio.sleep(TAKE_AGAIN_S)
            timeout_s = min(2.0 * timeout_s, MOST_TAKE_TIMEOUT_S)
            await self._begin(tell, timeout_s)
        if self._ingest is not None:
            telemetry = settings.telemetry_hz > 0
            context.spawn(
                self._ingest.run(lambda: self.driver.cluster, outbox, telemetry=telemetry),
                "describe and push to ingest",
            )
            if telemetry:
                sampler = Sampler(self.driver.sample, outbox, settings.telemetry_hz)
                context.spawn(sampler.run(), "sample telemetry")

        def tell_of_journal(problem: str) -> None:
            context.health.set_serving(not problem, problem, source="journal")

        context.spawn(self._journal.run(tell_of_journal), "write the journal")
        description = self.side.describe()
        clock = description.clock
        context.log.info(
            "cluster served",
            cluster=description.cluster.name,
            gpu_count=sum(1 for _ in description.cluster.gpus()),
            incarnation=description.incarnation,
            clock_mode=clock.mode.name,
            clock_scale=clock.scale,
            clock_paused=clock.paused,
            cluster_time_s=clock.time_s,
        )
        await self.driver.run(tell)

    async def _end_streams(self, draining: asyncio.Event) -> None:
        await draining.wait()
        self.side.close()

    async def stop(self) -> None:
        """Closes the driver."""
        self._keeping.cancel()
        await self.driver.close()
        if self._begun:
            await self._journal.close()
        self.side.close()
        await self._redis.aclose()
        if self._ingest is not None:
            await self._ingest.close()

    def _known(self) -> ClusterSide:
        """The cluster; raises while its previous state is unknown."""
        if not self._begun:
            raise Unavailable(
                f"the cluster's record is not read yet: Redis at {redacted(self._settings.redis_url)} does not answer",
                retry_after_s=1.0,
            )
        return self.side

    async def _fenced(self, fencing_token: int) -> ClusterSide:
        """The cluster, after it has looked up an unknown token in the store, once for each new one."""
        side = self._known()
        if fencing_token > side.fence.newest:
            side.fence.note(await self._jobs.newest_token())
        return side

    # ---- ClusterService

    async def DescribeCluster(self, request: pb.DescribeClusterRequest, context: Context) -> pb.DescribeClusterResponse:
        """The cluster's state."""
        side = self._known()
        described = side.describe()
        if described.revision > side.log.told_revision:
            await side.settled()
        return description_to_proto(described)

    async def LaunchJob(self, request: pb.LaunchJobRequest, context: Context) -> pb.LaunchJobResponse:
        """Accepts an attempt."""
        if request.incarnation:
            self._known().log.check_incarnation(request.incarnation)
        side = await self._fenced(request.fencing_token)
        self._journal.check()
        launched = side.launch(
            request.job_id,
            request.attempt,
            spec_from_proto(request.spec),
            launch_placement(request),
            request.fencing_token,
            preempts=tuple(map(attempt_ref_from_proto, request.preempts)),
            remaining_ratio=request.remaining_ratio if request.HasField("remaining_ratio") else 1.0,
            resumes=request.resumes,
        )
        await side.settled()
        return pb.LaunchJobResponse(
            existing=launched.existing,
            start_s=launched.start_s,
            revision=launched.revision,
            state=int(launched.state),  # type: ignore[arg-type]  # the numbers of AttemptState
        )

    async def StopJob(self, request: pb.StopJobRequest, context: Context) -> pb.StopJobResponse:
        """Stops an attempt."""
        if request.incarnation:
            self._known().log.check_incarnation(request.incarnation)
        side = await self._fenced(request.fencing_token)
        self._journal.check()
        stopped = side.stop(request.job_id, request.attempt, request.fencing_token, preempt=request.preempt)
        await side.settled()
        return pb.StopJobResponse(stopped=stopped)

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        """Every event after a revision."""
        log = self._known().log
        if request.incarnation:
            log.check_incarnation(request.incarnation)
        async for batch in log.follow(request.after_revision):
            message = batch_to_proto(batch)
            message.newest_revision = log.told_revision
            yield message

    async def AcknowledgeEvents(
        self, request: pb.AcknowledgeEventsRequest, context: Context
    ) -> pb.AcknowledgeEventsResponse:
        """Acknowledges events; a virtual clock may continue."""
        side = await self._fenced(request.fencing_token)
        side.acknowledge(request.incarnation, request.revision, request.fencing_token)
        return pb.AcknowledgeEventsResponse()

    async def WakeAt(self, request: pb.WakeAtRequest, context: Context) -> pb.WakeAtResponse:
        """Requests wake-ups."""
        side = self._known()
        self._journal.check()
        clock = side.wake_at(request.times_s)
        await side.settled()
        return pb.WakeAtResponse(clock=clock_to_proto(clock))

    async def SetClock(self, request: pb.SetClockRequest, context: Context) -> pb.SetClockResponse:
        """Sets the clock."""
        side = self._known()
        self._journal.check()
        clock = await self.driver.set_clock(
            mode=ClockMode(request.mode) if request.mode else None,
            scale=request.scale if request.HasField("scale") else None,
            paused=request.paused if request.HasField("paused") else None,
            not_before_s=request.not_before_s if request.HasField("not_before_s") else None,
        )
        await side.settled()
        return pb.SetClockResponse(clock=clock_to_proto(clock))

    async def SetGpuAvailability(
        self, request: pb.SetGpuAvailabilityRequest, context: Context
    ) -> pb.SetGpuAvailabilityResponse:
        """Removes a GPU or brings it back."""
        side = self._known()
        self._journal.check()
        lost = self.driver.set_gpu_availability(request.gpu_id, request.available)
        await side.settled()
        return pb.SetGpuAvailabilityResponse(lost_job_id=lost)

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: Context) -> AsyncIterator[pb.ReadLogsResponse]:
        """The output of an attempt."""
        self._known()
        follower = LogFollower(
            self.driver, request.job_id, request.attempt, LogStream(request.stream), self._draining, request.rank
        )
        offset = request.offset if request.HasField("offset") else None
        async for chunk in follower.chunks(offset, request.tail_bytes, follow=request.follow):
            yield pb.ReadLogsResponse(chunk=chunk_to_proto(chunk), attempt=follower.attempt)
