"""TelemetryService: only translates between messages and plain records."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import Any

import grpc
from prometheus_client import Counter
from redis.exceptions import RedisError

from adlro.errors import AdlroError, DataLoss, InvalidInput, LimitExceeded, NotFound
from adlro.kit.redis_errors import store_error
from adlro.services.ingest.clusters import ClusterRegistry, ClusterView, listed
from adlro.services.ingest.groups import GroupedWrites
from adlro.services.ingest.normalize import GpuSelection, TimeLimits, merge_newest, newest_sample, normalize_block
from adlro.services.ingest.server import blocks
from adlro.services.ingest.server.streams import SHUTTING_DOWN, failed, until
from adlro.services.ingest.settings import IngestSettings
from adlro.services.ingest.telemetry_store import StoredBlock, TelemetryStore, source_of
from adlro.services.ingest.thinning import MOST_STEPS, Thinned, of_gpus
from adlro.v1 import telemetry_pb2, telemetry_service_pb2, telemetry_service_pb2_grpc
from adlro.wire import block_from_proto, block_to_proto, cluster_from_proto, cluster_to_proto

Context = grpc.aio.ServicerContext[Any, Any]

_DEFAULT_MAX_BLOCKS = 100
# Of a block in an answer: its tag and its length.
_TAG_BYTES = 6
# Of one PushTelemetry stream; large blocks reach the limit in bytes first.
_BLOCKS_IN_FLIGHT = 256


class TelemetryServicer(telemetry_service_pb2_grpc.TelemetryServiceServicer):
    """Serves TelemetryService.

    Args:
        settings: limits.
        clusters: cluster descriptions.
        store: the store of blocks.
        writes: appends blocks to the store.

    Attributes:
        samples, clipped: metrics, for registration by the owner of the registry.
    """

    def __init__(
        self,
        settings: IngestSettings,
        clusters: ClusterRegistry,
        store: TelemetryStore,
        writes: GroupedWrites[StoredBlock, None],
    ) -> None:
        self._settings = settings
        self._limits = TimeLimits(settings.telemetry_past_limit_s, settings.telemetry_future_limit_s)
        self._clusters = clusters
        self._store = store
        self._writes = writes
        self.samples = Counter("adlro_ingest_telemetry_samples", "samples taken", registry=None)
        self.clipped = Counter("adlro_ingest_telemetry_clipped", "values outside their range", registry=None)
        self._draining = False
        self._streams: set[asyncio.Event] = set()
        self._in_flight_limit = settings.telemetry_in_flight_mib * 2**20

    def end_streams(self) -> None:
        """Ends open and later streams after their received blocks are stored; each error gives the place to resume."""
        self._draining = True
        for ended in self._streams:
            ended.set()

    async def UpsertCluster(
        self, request: telemetry_service_pb2.UpsertClusterRequest, context: Context
    ) -> telemetry_service_pb2.UpsertClusterResponse:
        """Records or replaces a cluster."""
        created = await self._clusters.put(cluster_from_proto(request.cluster))
        return telemetry_service_pb2.UpsertClusterResponse(cluster=request.cluster, created=created)

    async def GetCluster(
        self, request: telemetry_service_pb2.GetClusterRequest, context: Context
    ) -> telemetry_service_pb2.GetClusterResponse:
        """A cluster's description."""
        view = await self._cluster(request.cluster or self._settings.cluster, "cluster", newest=True)
        return telemetry_service_pb2.GetClusterResponse(cluster=cluster_to_proto(view.cluster))

    async def PushTelemetry(
        self,
        request_iterator: AsyncIterator[telemetry_service_pb2.PushTelemetryRequest],
        context: Context,
    ) -> telemetry_service_pb2.PushTelemetryResponse:
        """Normalises and stores a stream of blocks; a refused block ends it after the earlier blocks are stored."""
        response = telemetry_service_pb2.PushTelemetryResponse()
        in_flight: deque[tuple[int, asyncio.Future[None]]] = deque()  # size and answer of each block not stored yet
        in_flight_bytes = 0
        gpus: GpuSelection | None = None
        failure: AdlroError | None = None
        ended = asyncio.Event()  # a write failed, or the process is to end
        self._streams.add(ended)
        if self._draining:
            ended.set()
        requests = until(ended, request_iterator)
        try:
            async for request in requests:
                gpus = await self._select(request.block, gpus)
                raw = blocks.raw_from_proto(request.block, gpus.gpu_ids)
                block = normalize_block(raw, gpus, self._limits, time.time())
                stored = StoredBlock(
                    cluster=block.cluster,
                    source=source_of(gpus, block),
                    entry=blocks.entry_to_bytes(block),
                    newest=block_to_proto(newest_sample(block)).SerializeToString(),
                    newest_unix_s=block.sample_times_unix_s[-1],
                )
                written = self._writes.add(stored)
                written.add_done_callback(lambda future: ended.set() if failed(future) else None)
                in_flight.append((len(stored.entry), written))
                in_flight_bytes += len(stored.entry)
                samples = len(block.sample_times_unix_s) * len(block.gpu_ids)
                response.sample_count += samples
                response.clipped_count += block.clipped_count
                self.samples.inc(samples)
                self.clipped.inc(block.clipped_count)
                while in_flight and (
                    in_flight[0][1].done()
                    or in_flight_bytes > self._in_flight_limit
                    or len(in_flight) > _BLOCKS_IN_FLIGHT
                ):
                    await in_flight[0][1]
                    response.block_count += 1
                    in_flight_bytes -= in_flight.popleft()[0]
            if self._draining:
                failure = SHUTTING_DOWN
        except AdlroError as error:
            failure = error
        except RedisError as error:
            failure = _of_store(error)
        finally:
            self._streams.discard(ended)
            await requests.aclose()
        try:
            while in_flight:
                await in_flight.popleft()[1]
                response.block_count += 1
        except RedisError as error:
            failure = _of_store(error)
        if failure is not None:
            raise _after_blocks(failure, response.block_count)
        return response

    async def GetTelemetry(
        self, request: telemetry_service_pb2.GetTelemetryRequest, context: Context
    ) -> telemetry_service_pb2.GetTelemetryResponse:
        """The newest value of every GPU, and the blocks of a window."""
        view = await self._cluster(request.cluster or self._settings.cluster, "cluster")
        gpu_ids = _known_gpus(view, request.gpu_ids)
        _check_steps(request)
        latest = merge_newest(view, await self._store.newest_samples(view.cluster.name))
        if gpu_ids:
            latest = of_gpus(latest, gpu_ids) or latest
        response = telemetry_service_pb2.GetTelemetryResponse(latest=block_to_proto(latest))
        room_bytes = self._settings.max_message_bytes - response.ByteSize()
        if request.step_s > 0:
            response.window.extend(await self._thinned(view, gpu_ids, request, room_bytes))
        elif request.window_s > 0:
            max_blocks = request.max_blocks or _DEFAULT_MAX_BLOCKS
            window = await self._window(view.cluster.name, request.window_s, max_blocks, room_bytes, gpu_ids)
            response.window.extend(window)
        return response

    async def _thinned(
        self,
        view: ClusterView,
        gpu_ids: tuple[str, ...],
        request: telemetry_service_pb2.GetTelemetryRequest,
        room_bytes: int,
    ) -> list[telemetry_pb2.NormalizedBlock]:
        """The window as one block with a sample a step; none where nothing was reported."""
        cluster, since_unix_s = view.cluster.name, time.time() - request.window_s
        shown = gpu_ids or tuple(view.number_of)
        thinned = Thinned(cluster, shown, since_unix_s, request.step_s)
        left = request.max_blocks or MOST_STEPS
        async for body in self._store.entries(cluster, since_unix_s - self._limits.future_s):
            block = self._readable(cluster, body)
            if block is None or block.sample_times_unix_s[-1] < since_unix_s:
                continue
            thinned.add(block_from_proto(block))
            if thinned.least_bytes > room_bytes:
                raise _too_many(f"{thinned.step_count} samples and more", len(shown))
            left -= 1
            if not left:
                break
            await asyncio.sleep(0)  # other calls have their turn
        window = thinned.block()
        if window is None:
            return []
        message = block_to_proto(window)
        if message.ByteSize() > room_bytes:
            raise _too_many(f"{len(window.sample_times_unix_s)} samples", len(window.gpu_ids))
        return [message]

    def _readable(self, cluster: str, body: bytes) -> telemetry_pb2.NormalizedBlock | None:
        """The block of an entry; None: it can't be read, which is counted."""
        try:
            return blocks.message_from_entry(body)
        except DataLoss as error:
            self._store.unreadable.add(f"telemetry of {cluster}, {sha256(body).hexdigest()[:16]}", error)
            return None

    async def _window(
        self, cluster: str, window_s: float, max_blocks: int, room_bytes: int, gpu_ids: tuple[str, ...]
    ) -> list[telemetry_pb2.NormalizedBlock]:
        """The newest blocks with a sample of the last `window_s` seconds, oldest first."""
        since_unix_s = time.time() - window_s
        out: list[telemetry_pb2.NormalizedBlock] = []
        size = 0
        # A sample may be ahead of the wall clock by this much when it arrives.
        async for body in self._store.entries(cluster, since_unix_s - self._limits.future_s):
            block = self._readable(cluster, body)
            if block is None or block.sample_times_unix_s[-1] < since_unix_s:
                continue
            block_bytes = len(body)  # as in the answer: an entry is a block with tag and length
            if gpu_ids:
                part = of_gpus(block_from_proto(block), gpu_ids)
                if part is None:
                    continue
                block = block_to_proto(part)
                block_bytes = block.ByteSize() + _TAG_BYTES
            size += block_bytes
            if size > room_bytes:
                way_out = f"set max_blocks to {len(out)} or less, or " if out else ""
                raise LimitExceeded(
                    f"window_s: the blocks of the last {window_s:g} s do not fit into one message "
                    f"(only {len(out)} of them do); {way_out}request a shorter window, or steps (step_s)",
                    field="window_s",
                    reason="WINDOW_TOO_LARGE",
                    metadata={"fitting_blocks": str(len(out))},
                )
            out.append(block)
            if len(out) == max_blocks:
                break
        return out[::-1]

    async def _select(self, block: telemetry_pb2.TelemetryBlock, before: GpuSelection | None) -> GpuSelection:
        """The GPUs of a block: its own, or those of the previous block."""
        view = await self._cluster(block.cluster, "block.cluster")
        gpu_ids = tuple(block.gpu_ids)
        if not gpu_ids:
            if before is None or before.view.cluster.name != block.cluster:
                raise InvalidInput(
                    "block.gpu_ids: is empty, and the stream has no earlier block of this cluster; "
                    "name the GPUs of the columns",
                    field="block.gpu_ids",
                    reason="INVALID_TELEMETRY",
                )
            gpu_ids = before.gpu_ids
        if before is not None and before.view is view and before.gpu_ids == gpu_ids:
            return before
        try:
            return GpuSelection(view, gpu_ids)
        except InvalidInput:
            # The cached description may be outdated; refuse only by the newest one.
            newest = await self._cluster(block.cluster, "block.cluster", newest=True)
            return GpuSelection(newest, gpu_ids)

    async def _cluster(self, name: str, path: str, *, newest: bool = False) -> ClusterView:
        view = None if newest else await self._clusters.recent(name)
        view = view or await self._clusters.newest(name)
        if view is None:
            names = await self._clusters.names()
            known = f"known are {listed(names)}" if names else "no cluster is known yet"
            missing = f"there is no cluster {name!r}" if name else "no cluster is named, and none is described yet"
            raise NotFound(
                f"{path}: {missing}, {known}; record it with TelemetryService.UpsertCluster first",
                field=path,
                reason="CLUSTER_NOT_FOUND",
                metadata={"cluster": name},
            )
        return view


def _of_store(error: RedisError) -> AdlroError:
    """The error for the client; raises errors that the store did not cause."""
    known = store_error(error, unsure="")
    if known is None:
        raise error
    return known


def _after_blocks(error: AdlroError, count: int) -> AdlroError:
    """The error, with the number of stored blocks: the place in the stream to resume at."""
    # Broken field rules name the place already.
    where = "" if "index" in error.metadata else f"message {count} of the stream: "
    stored = f"the {count} blocks before it are stored" if count else "nothing is stored"
    return type(error)(
        f"{where}{error.message}; {stored}",
        violations=error.violations,
        reason=error.reason,
        metadata={**error.metadata, "index": str(count)},
        retry_after_s=error.retry_after_s,
    )


def _known_gpus(view: ClusterView, gpu_ids: Sequence[str]) -> tuple[str, ...]:
    for number, gpu_id in enumerate(gpu_ids):
        if gpu_id not in view.number_of:
            field = f"gpu_ids[{number}]"
            raise InvalidInput(
                f"{field}: cluster {view.cluster.name!r} has no GPU {gpu_id!r}", field=field, reason="UNKNOWN_GPU"
            )
    return tuple(gpu_ids)


def _too_many(samples: str, gpu_count: int) -> LimitExceeded:
    return LimitExceeded(
        f"step_s: {samples} of {gpu_count} GPUs do not fit into one message; make steps longer, request a shorter "
        "window, or name fewer gpu_ids",
        field="step_s",
        reason="WINDOW_TOO_LARGE",
    )


def _check_steps(request: telemetry_service_pb2.GetTelemetryRequest) -> None:
    if not request.step_s:
        return
    if not request.window_s:
        raise InvalidInput("step_s: steps are those of a window; set window_s too", field="step_s")
    if request.window_s / request.step_s > MOST_STEPS:
        raise InvalidInput(
            f"step_s: the window of {request.window_s:g} s has more than {MOST_STEPS} steps of {request.step_s:g} s; "
            f"set step_s to {request.window_s / MOST_STEPS:g} or more",
            field="step_s",
        )
