"""Single services as processes on a Valkey of their own, at addresses that stay: for faults that `adlro up` can't show.

Every process is a child of the test and is ended by its own pid.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adlro.cli.ports import ClaimedPorts
from adlro.client import AsyncClient
from adlro.client.endpoints import Endpoints
from adlro.kit.channel import open_channel
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.testing import SpawnedService, spawn_service

ORDER = ("ingest", "decompose", "orchestrator", "simcluster")
PATIENCE_S = 120.0
"""Bounds a hang; a service that starts on a busy machine takes its time."""
_CHECK_TIMEOUT_S = 30.0


class Stack:
    """The four services, each started when asked for; `stop` ends what runs.

    Args:
        data_dir: of Valkey.
        settings: more environment for all services.
    """

    def __init__(self, data_dir: Path, **settings: str) -> None:
        self._ports = ClaimedPorts()
        self.addresses = {name: f"127.0.0.1:{self._ports.base + place}" for place, name in enumerate(ORDER)}
        self.redis = EmbeddedRedis(data_dir)
        self.services: dict[str, SpawnedService] = {}
        self._settings = settings

    def start(self, *names: str) -> None:
        """Starts services, side by side, and returns when they listen."""
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(self._spawn, names))

    def start_another(self, name: str, listen: str = "127.0.0.1:0", **settings: str) -> SpawnedService:
        """One more process of a service, at an address of its own; the caller stops it."""
        # Several start at a time, perhaps where other work is done.
        return spawn_service(name, self._environment(name, listen) | settings)

    def stop(self) -> None:
        """Ends what still runs."""
        for service in self.services.values():
            service.stop()
        self.redis.stop()
        self._ports.release()

    def client(self, *, orchestrator: str | None = None, patience_s: float = PATIENCE_S) -> AsyncClient:
        """A client of all of them."""
        return AsyncClient(
            endpoints=Endpoints(
                ingest=self.addresses["ingest"],
                decompose=self.addresses["decompose"],
                orchestrator=orchestrator or self.addresses["orchestrator"],
                cluster=self.addresses["simcluster"],
            ),
            timeout_s=30.0,
            patience_s=patience_s,
        )

    def _spawn(self, name: str) -> None:
        # Noted here: where another one fails to start, this one must be found by `stop`.
        environment = self._environment(name, self.addresses[name])
        self.services[name] = spawn_service(name, environment)

    def _environment(self, name: str, listen: str) -> dict[str, str]:
        return {
            "ADLRO_REDIS_URL": self.redis.url,
            f"ADLRO_{name.upper()}_LISTEN": listen,
            "ADLRO_SIMCLUSTER_INGEST_ADDRESS": self.addresses["ingest"],
            "ADLRO_ORCHESTRATOR_CLUSTER_ADDRESS": self.addresses["simcluster"],
            "ADLRO_ORCHESTRATOR_DECOMPOSE_ADDRESS": self.addresses["decompose"],
            **self._settings,
        }


async def is_serving(address: str) -> bool | None:
    """What the service says of itself by the health protocol; None where nobody answers."""
    async with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_CHECK_TIMEOUT_S)
        except grpc.RpcError:
            return None
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def eventually(condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = PATIENCE_S) -> float:
    """Asks another process again and again until the condition holds; how long that took."""
    began_s = time.monotonic()
    while not await condition():
        assert time.monotonic() - began_s < timeout_s, f"waited {timeout_s:g} s in vain for {what}"
        await asyncio.sleep(0.05)
    return time.monotonic() - began_s


async def wait_until_serving(addresses: Iterable[str], serving: bool = True, timeout_s: float = PATIENCE_S) -> None:
    """Returns when all say that they serve (or all say that they do not)."""
    for address in addresses:

        async def reached(address: str = address) -> bool:
            return await is_serving(address) is serving

        await eventually(reached, f"{address} to be {'' if serving else 'not '}serving", timeout_s)


def pause(service: SpawnedService) -> None:
    """Stops a process as it stands."""
    os.kill(service.pid, signal.SIGSTOP)


def resume(service: SpawnedService) -> None:
    """Lets a paused process go on."""
    os.kill(service.pid, signal.SIGCONT)
