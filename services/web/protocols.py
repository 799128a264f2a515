"""uvicorn's protocols with limits of time: who connects and says nothing, or reads nothing, loses his place.

uvicorn itself waits for ever for the first request, for the rest of one, and for the last bytes of a socket to leave.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_REQUEST_WITHIN_S: Final = 10.0
_LAST_BYTES_WITHIN_S: Final = 10.0


class HttpProtocol(H11Protocol):
    """HTTP; a connection is closed that sends no whole head of a request within `_REQUEST_WITHIN_S`.

    After an answer uvicorn's own limit for the next request begins, and ends with its first byte.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A browser has connected."""
        super().connection_made(transport)
        self._late = self.loop.call_later(_REQUEST_WITHIN_S, self._end)

    def data_received(self, data: bytes) -> None:
        """Some bytes have come: a part of a request, or more."""
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self._forget()
        elif self._late is None and not self.transport.is_closing() and self.transport.get_protocol() is self:
            self._late = self.loop.call_later(_REQUEST_WITHIN_S, self._end)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """It becomes a socket, which has limits of its own."""
        self._forget()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._forget()
        super().connection_lost(exc)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._late = None
        self.transport.abort()


class SocketProtocol(WebSocketsSansIOProtocol):
    """Sockets; what the browser has not read some seconds after the end is thrown away."""

    async def run_asgi(self) -> None:
        """One socket, from its handshake to its end."""
        await super().run_asgi()
        self.loop.call_later(_LAST_BYTES_WITHIN_S, self.transport.abort)
