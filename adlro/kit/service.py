"""The interface between a service and the kit (`adlro.kit.server`)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import grpc
import structlog
from prometheus_client import CollectorRegistry

from adlro.kit.credentials import Credentials
from adlro.kit.health import HealthState
from adlro.kit.settings import ServiceSettings

# Seconds that a service's own stop may take, after its calls have ended.
STOP_TIMEOUT_S = 1.2

T = TypeVar("T")


@runtime_checkable
class Service(Protocol):
    """A service's part; services/<name>/server.py implements it."""

    name: str
    # Full proto names, for health and reflection.
    service_names: Sequence[str]

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the servicers."""
        ...

    async def start(self, context: ServiceContext) -> None:
        """Connects and spawns loops. Calls are accepted after it returns, so it must not wait for other services."""
        ...

    async def stop(self) -> None:
        """Ends the service's loops and connections, within `STOP_TIMEOUT_S`; its calls have ended."""
        ...


@dataclass(kw_only=True)
class ServiceContext:
    """The kit's part, for a service.

    Attributes:
        settings: the service's own class of settings.
        log: a logger.
        health: the service's health: whether calls are expected to succeed.
        draining: set when the process must end; server streams must end then.
        registry: for the service's own metrics.
        address: the service's listening address.
        credentials: its credentials for calls of other services.
    """

    settings: ServiceSettings
    log: structlog.typing.FilteringBoundLogger
    health: HealthState
    draining: asyncio.Event
    registry: CollectorRegistry
    address: str = ""
    credentials: Credentials = field(default_factory=Credentials)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _crashed: asyncio.Event = field(default_factory=asyncio.Event)
    _ending: bool = False

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Runs a coroutine beside the calls; if it raises, the process ends with exit code 1.

        Args:
            coro: the loop; it may also return.
            name: for the log.
        """
        task = asyncio.create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    @property
    def crashed(self) -> asyncio.Event:
        """Set when a spawned task crashed."""
        return self._crashed

    async def cancel_tasks(self, timeout_s: float) -> None:
        """Cancels the spawned tasks that still run."""
        self._ending = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if not self._ending and not self.draining.is_set():
                self.log.error("task was cancelled unexpectedly", task=task.get_name())
                self._crashed.set()
            return
        error = task.exception()
        if error is None:
            return
        self.log.error("task crashed", task=task.get_name(), exc_info=error)
        # During the shutdown a loop may raise because of a closed connection.
        if not self.draining.is_set():
            self._crashed.set()
