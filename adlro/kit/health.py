"""grpc.health.v1 from one state that a service and the kit share: ready for each of its sources, and not draining.

The reference servicer of grpcio-health-checking needs a coroutine for every change and keeps Watch streams open for
ever, which would hold up a drain; this one changes at once and ends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adlro.errors import NotFound
from adlro.kit.log import get_logger
from adlro.kit.status import to_status, to_trailing_metadata

SERVICE_NAME = "grpc.health.v1.Health"
Context = grpc.aio.ServicerContext[Any, Any]


class HealthState:
    """Whether the process serves; the same for each of its proto services and for the empty name.

    Args:
        service_names: full proto names.
    """

    def __init__(self, service_names: Sequence[str]) -> None:
        self.service_names = ("", *service_names)
        self._reasons: dict[str, str] = {"start": "it is starting"}
        self._draining = False
        self._changed = asyncio.Event()
        self._log = get_logger()

    @property
    def serving(self) -> bool:
        """Whether the process reports SERVING."""
        return not self._reasons and not self._draining

    @property
    def draining(self) -> bool:
        """Whether the process drains."""
        return self._draining

    @property
    def reason(self) -> str:
        """The readable reason why it does not serve; empty if it does."""
        if self._draining:
            return "it is draining"
        return "; ".join(reason or source for source, reason in self._reasons.items())

    def set_serving(self, serving: bool, reason: str = "", *, source: str = "service") -> None:
        """Records one source's state; the process serves while every source does.

        Args:
            serving: its state.
            reason: the reason of NOT_SERVING, for the log.
            source: the source's name; sources don't overwrite each other.
        """
        before, before_reason = self.serving, self.reason
        if serving:
            self._reasons.pop(source, None)
        else:
            self._reasons[source] = reason
        if self.serving != before or self.reason != before_reason:
            self._announce(before)

    def drain(self) -> None:
        """Reports NOT_SERVING permanently; Watch streams end."""
        if not self._draining:
            before = self.serving
            self._draining = True
            self._announce(before)

    @property
    def next_change(self) -> asyncio.Event:
        """Set at the next change, however late somebody begins to wait for it."""
        return self._changed

    def _announce(self, before: bool) -> None:
        if self.serving != before:
            self._log.info("serving" if self.serving else "not serving", reason=self.reason)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # no types
    """Answers from a HealthState."""

    def __init__(self, state: HealthState) -> None:
        self._state = state

    async def Check(  # noqa: N802 - named in the .proto
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """One service's state now."""
        if request.service not in self._state.service_names:
            known = ", ".join(self._state.service_names[1:])
            status = to_status(NotFound(f"no service {request.service[:100]!r} here; this process has {known}"))
            await context.abort(grpc.StatusCode.NOT_FOUND, status.message, to_trailing_metadata(status))
        return health_pb2.HealthCheckResponse(status=self._status())

    async def List(  # noqa: N802 - named in the .proto
        self, request: health_pb2.HealthListRequest, context: Context
    ) -> health_pb2.HealthListResponse:
        """Every service's state now."""
        one = health_pb2.HealthCheckResponse(status=self._status())
        return health_pb2.HealthListResponse(statuses=dict.fromkeys(self._state.service_names, one))

    async def Watch(  # noqa: N802 - named in the .proto
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """One service's state now and at each change, until the process drains."""
        known = request.service in self._state.service_names
        last: int | None = None
        while True:
            draining = self._state.draining
            status = self._status() if known else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            # Taken before the answer goes out: a change while it is sent must not be missed.
            changed = self._state.next_change
            if status != last:
                yield health_pb2.HealthCheckResponse(status=status)
                last = status
            if draining:
                return
            await changed.wait()

    def _status(self) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
        response = health_pb2.HealthCheckResponse
        return response.SERVING if self._state.serving else response.NOT_SERVING
