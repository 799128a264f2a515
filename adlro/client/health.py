"""Waits for services by the standard gRPC health protocol; with the credentials of the environment."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adlro.errors import DeadlineExceeded
from adlro.kit.channel import open_channel
from adlro.kit.credentials import Credentials

_RETRY_S = 0.1
# Checks on one connection.
_KEPT_CHECKS = 20


async def check(address: str, timeout_s: float = 1.0, credentials: Credentials | None = None) -> bool:
    """Whether the service at an address answers and reports SERVING; without credentials, those of the environment."""
    async with open_channel(address, credentials or Credentials.from_environment()) as channel:
        return await _check(channel, timeout_s)


class ServingCheck:
    """Asks one service again and again. The connection is kept while the service serves, and made anew otherwise.

    Also now and then: behind an address may be several replicas, of which a connection asks one.

    Args:
        address: of the service.
        credentials: without them, those of the environment.
    """

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        self.address = address
        self._credentials = credentials or Credentials.from_environment()
        self._channel: grpc.aio.Channel | None = None
        self._asked = 0
        self._closed = False

    async def serves(self, timeout_s: float = 1.0) -> bool:
        """Whether it answers in time and reports SERVING."""
        if self._channel is None:
            self._asked = 0
        channel, self._channel = self._channel or open_channel(self.address, self._credentials), None
        serves = False
        try:
            serves = await _check(channel, timeout_s)
        finally:
            self._asked += 1
            if serves and self._asked < _KEPT_CHECKS and not self._closed:
                self._channel = channel
            else:
                await channel.close(None)
        return serves

    def is_connected(self) -> bool:
        """Whether the kept connection is there still; it breaks when its service dies. Asks nobody."""
        return self._channel is not None and self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def aclose(self) -> None:
        """Closes the connection; later ones are not kept."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close(None)
            self._channel = None


async def wait_until_serving(address: str, timeout_s: float | None = None) -> None:
    """Returns when the service at an address reports SERVING.

    Raises:
        DeadlineExceeded: it did not within `timeout_s`; None waits without limit.
    """
    try:
        async with asyncio.timeout(timeout_s), open_channel(address, Credentials.from_environment()) as channel:
            while True:
                if await _check(channel, 1.0):
                    return
                await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        raise DeadlineExceeded(f"{address} was not serving within {timeout_s:g} s") from None


async def _check(channel: grpc.aio.Channel, timeout_s: float) -> bool:
    try:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
