"""ingest as a gRPC service: assembles its parts. Only this package uses gRPC and protobuf."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
from google.protobuf.message import DecodeError
from prometheus_client import Gauge
from redis.exceptions import RedisError

from adlro.errors import DataLoss
from adlro.kit.credentials import Credentials
from adlro.kit.redis import connect_blocking, watch_redis
from adlro.kit.redis_errors import store_problem
from adlro.kit.redis_scripts import connect_for_scripts
from adlro.kit.server import ServiceContext
from adlro.records.cluster import Cluster
from adlro.services.ingest.active import ActiveJobs
from adlro.services.ingest.admission import Admission
from adlro.services.ingest.candidates import Candidates
from adlro.services.ingest.clusters import ClusterRegistry
from adlro.services.ingest.groups import GroupedWrites
from adlro.services.ingest.history import AttemptHistories
from adlro.services.ingest.listing import JobList
from adlro.services.ingest.metrics import CountedStore, JobMetrics
from adlro.services.ingest.ownership import may_know
from adlro.services.ingest.server import blocks
from adlro.services.ingest.server.jobs import JobServicer, change_message
from adlro.services.ingest.server.logs import JobLogs
from adlro.services.ingest.server.telemetry import TelemetryServicer
from adlro.services.ingest.settings import IngestSettings
from adlro.services.ingest.telemetry_store import StoredBlock, TelemetryStore
from adlro.services.ingest.watch import JobWatch
from adlro.store import Created, NewJob, SubmitLimits
from adlro.store.ended import EndedJobs
from adlro.store.format import checked, claim_at_start
from adlro.store.pages import PageTokens
from adlro.v1 import cluster_pb2, job_service_pb2_grpc, telemetry_service_pb2_grpc
from adlro.wire import check_format, cluster_from_proto, cluster_to_proto

# In one round trip: a job takes the script some 15 us, during which Redis serves nobody else.
_JOBS_TOGETHER = 128
_BLOCKS_TOGETHER = 32
_INDEX_EVERY_S = 30.0


def decode_cluster(body: bytes) -> Cluster:
    """A cluster's description from Redis.

    Raises:
        DataLoss: it can't be read.
    """
    try:
        message = cluster_pb2.Cluster.FromString(body)
        check_format(message)
        return cluster_from_proto(message)
    except (DecodeError, ValueError) as error:
        raise DataLoss(
            f"the description of the cluster in Redis can't be read ({error}); describe it again with UpsertCluster, "
            "as its service does when it starts"
        ) from error


class IngestService:
    """The service that the kit runs: JobService and TelemetryService over one Redis."""

    name: str = "ingest"
    service_names: Sequence[str] = ("adlro.v1.JobService", "adlro.v1.TelemetryService")

    def __init__(self, settings: IngestSettings) -> None:
        self._redis = connect_for_scripts(settings.redis_url)
        self._blocking_redis = connect_blocking(settings.redis_url)
        clusters = ClusterRegistry(
            self._redis,
            encode=lambda cluster: cluster_to_proto(cluster).SerializeToString(),
            decode=decode_cluster,
            cache_s=settings.cluster_cache_s,
        )
        self._job_metrics = JobMetrics()
        limits = SubmitLimits(settings.max_jobs_per_user, settings.submit_rate_per_user, settings.submit_burst_per_user)
        self._store = store = CountedStore(self._redis, self._blocking_redis, self._job_metrics, limits)
        self._ended = EndedJobs(self._redis, store)
        self._watch = JobWatch(
            store,
            change_message,
            settings.watch_changes_kept,
            settings.watch_kept_mib << 20,
            Candidates(store, self._ended).numbers,
        )
        creates: GroupedWrites[NewJob, Created] = GroupedWrites(store.create_many, _JOBS_TOGETHER)
        active = ActiveJobs(store)
        listing = JobList(store, PageTokens(self._redis), active, self._ended)
        self._logs = JobLogs(settings.cluster_address, Credentials.of_service(settings), store, self._watch)
        admission = Admission(clusters, settings.cluster, store)
        histories = AttemptHistories(
            store, active, self._ended, clusters, settings.cluster, settings.max_message_bytes, may_know
        )
        tokens_needed = bool(settings.users_file)
        self._jobs = JobServicer(
            store, creates, admission, listing, self._watch, self._logs, histories, tokens_needed=tokens_needed
        )
        telemetry = TelemetryStore(
            self._redis,
            settings.telemetry_entries_kept,
            settings.telemetry_kept_mib << 20,
            blocks.from_bytes,
            store.unreadable,
        )
        writes: GroupedWrites[StoredBlock, None] = GroupedWrites(telemetry.append, _BLOCKS_TOGETHER)
        self._telemetry = TelemetryServicer(settings, clusters, telemetry, writes)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers both proto services."""
        job_service_pb2_grpc.add_JobServiceServicer_to_server(self._jobs, server)
        telemetry_service_pb2_grpc.add_TelemetryServiceServicer_to_server(self._telemetry, server)

    async def start(self, context: ServiceContext) -> None:
        """Spawns the loops; serves from the moment that Redis answers."""
        watchers = Gauge("adlro_ingest_watchers", "open WatchJobs streams", registry=context.registry)
        watchers.set_function(lambda: self._watch.watcher_count)
        self._job_metrics.register(context.registry)
        context.registry.register(self._telemetry.samples)
        context.registry.register(self._telemetry.clipped)
        await claim_at_start(self._redis)
        context.spawn(watch_redis(context, self._redis, check=checked(self._redis)), "watch-redis")
        context.spawn(self._watch.run(), "watch-jobs")
        context.spawn(self._index_jobs(context), "index-jobs")
        context.spawn(self._end_streams(context.draining), "end-streams")

    async def stop(self) -> None:
        """Closes the connections."""
        await self._logs.close()
        await self._redis.aclose()
        await self._blocking_redis.aclose()

    async def _index_jobs(self, context: ServiceContext) -> None:
        """Indexes repeatedly: processes of an older version may record jobs for a while."""
        while True:
            try:
                if count := await self._store.index_jobs():
                    context.log.info("jobs of an older version are in the index of users now", count=count)
                if count := await self._ended.index():
                    context.log.info("jobs that an older version ended are in the index by time now", count=count)
            except RedisError as error:
                if store_problem(error) is None:  # else watch-redis tells of it
                    context.log.error("the indexes of jobs can't be made", problem=str(error))
            await asyncio.sleep(_INDEX_EVERY_S)

    async def _end_streams(self, draining: asyncio.Event) -> None:
        """Ends each stream at a drain, with the place to resume for its client."""
        await draining.wait()
        self._jobs.end_streams()
        self._telemetry.end_streams()
        self._watch.close()
