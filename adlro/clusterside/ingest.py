"""A cluster's client of ingest, over gRPC: sends the cluster's description and telemetry. Only translates."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import grpc

from adlro.clusterside.telemetry import Outbox, SampleBlock
from adlro.errors import AdlroError, Unavailable
from adlro.kit.channel import open_channel
from adlro.kit.credentials import Credentials
from adlro.kit.status import from_rpc_error
from adlro.records.cluster import Cluster
from adlro.v1 import telemetry_pb2, telemetry_service_pb2, telemetry_service_pb2_grpc
from adlro.wire import cluster_to_proto

CALL_TIMEOUT_S = 5.0
# A stream of telemetry is ended and begun anew this often, so that it has a deadline and an answer.
STREAM_S = 60.0
# Without telemetry it is looked so often whether the cluster is another one.
LOOK_S = 2.0
FIRST_RETRY_S, LAST_RETRY_S = 0.2, 10.0

_COLUMNS = (
    (telemetry_pb2.METRIC_UTILIZATION, telemetry_pb2.UNIT_RATIO, "utilization_ratio"),
    (telemetry_pb2.METRIC_MEMORY_USED, telemetry_pb2.UNIT_MIB, "memory_used_mib"),
    (telemetry_pb2.METRIC_MEMORY_BANDWIDTH, telemetry_pb2.UNIT_GB_PER_S, "memory_bandwidth_gb_per_s"),
    (telemetry_pb2.METRIC_TEMPERATURE, telemetry_pb2.UNIT_CELSIUS, "temperature_c"),
    (telemetry_pb2.METRIC_POWER, telemetry_pb2.UNIT_W, "power_w"),
)


class IngestClient:
    """Ingest's TelemetryService, as a cluster uses it.

    Args:
        address: of ingest.
        log: a structlog logger.
        credentials: certificates and token.
    """

    def __init__(self, address: str, log: Any, credentials: Credentials | None = None) -> None:
        self._channel = open_channel(address, credentials)
        self._stub = telemetry_service_pb2_grpc.TelemetryServiceStub(self._channel)
        self._log = log.bind(ingest=address)

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close(None)

    async def run(self, current: Callable[[], Cluster], outbox: Outbox, *, telemetry: bool) -> None:
        """Sends the description and telemetry, endlessly; after a broken connection both again.

        Args:
            current: the cluster; sent again after a change.
            outbox: blocks to send.
            telemetry: False: only the description is sent.
        """
        retry_s, problem = FIRST_RETRY_S, ""
        while True:
            try:
                cluster = current()
                await self._describe(cluster)
                self._log.info("cluster described to ingest", cluster=cluster.name)
                retry_s, problem = FIRST_RETRY_S, ""
                outbox.clear()
                if not telemetry:
                    await self._until_disconnected(cluster, current)
                while telemetry and current() is cluster:
                    await self._push(cluster, current, outbox)
                if current() is not cluster:
                    continue
            except AdlroError as error:
                if error.message != problem:
                    self._log.warning(
                        "ingest does not accept the cluster's telemetry; trying again", error=error.message
                    )
                problem = error.message
            # Several clusters must not come back all at once.
            await asyncio.sleep(retry_s * random.uniform(0.5, 1.0))
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _describe(self, cluster: Cluster) -> None:
        request = telemetry_service_pb2.UpsertClusterRequest(cluster=cluster_to_proto(cluster))
        try:
            await self._stub.UpsertCluster(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def _push(self, cluster: Cluster, current: Callable[[], Cluster], outbox: Outbox) -> None:
        """One stream of `STREAM_S`, or until the cluster has changed."""
        loop = asyncio.get_running_loop()
        end_at = loop.time() + STREAM_S
        all_gpu_ids = [gpu.gpu_id for _, gpu in cluster.gpus()]
        gpu_ids = all_gpu_ids
        # The type stubs want an iterator; without one, messages are written one by one.
        call = self._stub.PushTelemetry(timeout=STREAM_S + CALL_TIMEOUT_S)  # type: ignore[call-arg]
        try:
            while True:
                try:
                    async with asyncio.timeout_at(end_at):
                        block = await outbox.get()
                except TimeoutError:
                    break
                if current() is not cluster:
                    break
                if block.gpu_count != len(all_gpu_ids):
                    continue  # of the cluster as it was before
                if call.done():
                    await call
                    # Ended well, but not by us: ingest drains, and what comes in its place may not know the cluster.
                    raise Unavailable("ingest ended the stream of telemetry")
                message = block_to_proto(cluster.name, gpu_ids, block)
                await call.write(telemetry_service_pb2.PushTelemetryRequest(block=message))
                gpu_ids = []  # the same as in the block before
            await call.done_writing()
            await call
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        except asyncio.InvalidStateError as error:
            raise Unavailable("ingest ended the stream of telemetry") from error
        finally:
            call.cancel()

    async def _until_disconnected(self, cluster: Cluster, current: Callable[[], Cluster]) -> None:
        while current() is cluster and (state := self._channel.get_state()) is grpc.ChannelConnectivity.READY:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._channel.wait_for_state_change(state)


def block_to_proto(cluster: str, gpu_ids: list[str], block: SampleBlock) -> telemetry_pb2.TelemetryBlock:
    """The message of a block; empty `gpu_ids`: those of the block before in the stream."""
    return telemetry_pb2.TelemetryBlock(
        cluster=cluster,
        gpu_ids=gpu_ids,
        sample_times_unix_s=block.sample_times_unix_s,
        cluster_times_s=block.cluster_times_s,
        columns=[
            telemetry_pb2.MetricColumn(
                metric=metric, unit=unit, values_f32=getattr(block, name).astype("<f4", copy=False).tobytes()
            )
            for metric, unit, name in _COLUMNS
        ],
    )
