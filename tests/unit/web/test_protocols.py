"""Connections that say nothing or read nothing: each lets its place go, so that they do not lock the page."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import uvicorn

from adlro.services.web import protocols

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
UPGRADE = (
    HEAD + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
CONNECTIONS = 5


class Server(uvicorn.Server):
    """uvicorn without its own signals."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        found: tuple[str, int] = self.servers[0].sockets[0].getsockname()
        return found

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while True:  # more than fits into the buffers, to who reads nothing
            async with asyncio.timeout(0.5):
                await send({"type": "websocket.send", "bytes": b"x" * (1 << 20)})
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(protocols, "_REQUEST_WITHIN_S", 0.3)
    monkeypatch.setattr(protocols, "_LAST_BYTES_WITHIN_S", 0.1)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.setblocking(False)
    config = uvicorn.Config(
        app,
        http=protocols.HttpProtocol,
        ws=protocols.SocketProtocol,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=60,
    )
    running = Server(config)
    task = asyncio.create_task(running.serve(sockets=[listener]))
    while not running.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield running
    running.should_exit = running.force_exit = True
    await task


async def answered(server: Server) -> bool:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(HEAD + b"Connection: close\r\n\r\n")
    line = await reader.readline()
    writer.close()
    return line.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("requests", [(b"",), (HEAD,), (HEAD + b"\r\n", HEAD)])
async def test_connections_that_say_nothing_do_not_lock_the_page(server: Server, requests: tuple[bytes, ...]) -> None:
    opened = [await asyncio.open_connection(*server.address) for _ in range(CONNECTIONS - 1)]
    for reader, writer in opened:
        writer.write(requests[0])
        for each in requests[1:]:
            assert await reader.readuntil(b"ok")
            writer.write(each)
    opened.append(await asyncio.open_connection(*server.address))
    async with asyncio.timeout(20.0):
        while not await answered(server):  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.05)
        for reader, _ in opened:
            with contextlib.suppress(ConnectionError):
                await reader.read()


async def test_a_connection_that_asked_is_kept_for_the_next_request(server: Server) -> None:
    reader, writer = await asyncio.open_connection(*server.address)
    for _ in range(3):
        writer.write(HEAD + b"\r\n")
        async with asyncio.timeout(20.0):
            assert await reader.readuntil(b"ok")
        await asyncio.sleep(0.5)
    writer.close()


async def test_a_socket_that_reads_nothing_is_gone_soon_after_its_end(server: Server) -> None:
    reader, writer = await asyncio.open_connection(*server.address, limit=1)
    writer.write(UPGRADE)
    assert await reader.readexactly(1)
    assert len(server.server_state.connections) == 1
    async with asyncio.timeout(20.0):
        while server.server_state.connections:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.05)
    writer.close()
