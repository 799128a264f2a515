"""Stands between an orchestrator and its cluster, passes calls on as bytes, and can look at them or answer itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc

SERVICE = "/adlro.v1.ClusterService/"
TIMEOUT_S = 60.0

if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[Any, Any]
else:
    _Handler = grpc.GenericRpcHandler


class ClusterProxy(_Handler):
    """Passes on what it is asked.

    Args:
        upstream: channel to the cluster.
    """

    def __init__(self, upstream: grpc.aio.Channel) -> None:
        self._upstream = upstream

    async def serve(self) -> tuple[grpc.aio.Server, int]:
        """Begins; the server is to be stopped by the caller, and listens on the port."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    async def on_launch(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Called before a launch is passed on; it may abort it."""

    def on_events(self, answer: bytes) -> None:
        """Called before a batch of events is passed on."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """For each method of the service one that passes it on."""
        method = handler_call_details.method
        if method == f"{SERVICE}WatchEvents":
            return grpc.unary_stream_rpc_method_handler(self._watch)

        async def unary(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            if method == f"{SERVICE}LaunchJob":
                await self.on_launch(request, context)
            return await self._call(method, request, context)

        return grpc.unary_unary_rpc_method_handler(unary)

    async def _call(self, method: str, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        try:
            answer: bytes = await self._upstream.unary_unary(method, None, None)(
                request, timeout=context.time_remaining() or TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(error.trailing_metadata())  # type: ignore[arg-type]
            await context.abort(error.code(), error.details() or "")
        return answer

    async def _watch(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        async for answer in self._upstream.unary_stream(f"{SERVICE}WatchEvents", None, None)(request):
            self.on_events(answer)
            yield answer
