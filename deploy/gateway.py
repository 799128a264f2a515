"""The host's fixed ports for services in containers: each TCP connection goes on to one of a service's replicas.

    python -I -S gateway.py 7701=ingest:7701 7702=decompose:7702

A replica's own port on the host can't be known beforehand, and changes when it is restarted; a name on the containers'
network stands for all replicas of a service. Bytes pass through untouched, TLS too. On SIGTERM nothing new is taken,
and open connections get `DRAIN_S` to end. Knows sockets only; the standard library alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import socket
import sys
from dataclasses import dataclass, field

CONNECT_TIMEOUT_S = 1.0
DRAIN_S = 5.0
# In both directions together; a client has one connection to a service.
MAX_CONNECTIONS = 1024
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Route:
    """A port here, and the name and port that it leads to."""

    port: int
    host: str
    target_port: int

    @classmethod
    def parse(cls, text: str) -> Route:
        """`7701=ingest:7701`. Raises ValueError where it is not of that form."""
        port, equals, target = text.partition("=")
        host, colon, target_port = target.rpartition(":")
        if not equals or not colon or not host or not port.isdecimal() or not target_port.isdecimal():
            raise ValueError(f"{text!r}: write PORT=HOST:PORT, such as 7701=ingest:7701")
        return cls(int(port), host, int(target_port))


@dataclass(slots=True)
class Gateway:
    """Routes and their open connections.

    Args:
        routes: what leads where; port 0 takes a free one.
        listen_host: where to listen.
    """

    routes: list[Route]
    listen_host: str = "0.0.0.0"
    _servers: list[asyncio.Server] = field(default_factory=list)
    _connections: set[asyncio.Task[None]] = field(default_factory=set)
    _turns: dict[Route, int] = field(default_factory=dict)

    async def start(self) -> list[int]:
        """Listens; the ports, in the order of the routes."""
        for route in self.routes:
            take = functools.partial(self._take, route)
            self._servers.append(await asyncio.start_server(take, self.listen_host, route.port))
        return [server.sockets[0].getsockname()[1] for server in self._servers]

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Takes nothing more, and cuts what is still open after that time."""
        for server in self._servers:
            server.close()
        if self._connections:
            _, open_still = await asyncio.wait(set(self._connections), timeout=drain_s)
            for task in open_still:
                task.cancel()
            if open_still:
                await asyncio.wait(open_still)

    async def _take(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= MAX_CONNECTIONS:
                await self._serve(route, reader, writer)
        except asyncio.CancelledError:
            pass  # asked to end: the connection ends below
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = await self._connect(route)
        if target is None:
            return  # the client sees a closed connection, and tries again as it does when a service is away
        target_reader, target_writer = target
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass_on(reader, target_writer))
                both.create_task(_pass_on(target_reader, writer))
        except* OSError:
            pass  # one side is gone: both are closed
        finally:
            target_writer.close()

    async def _connect(self, route: Route) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to the next replica in turn that takes one."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                route.host, route.target_port, type=socket.SOCK_STREAM, family=socket.AF_UNSPEC
            )
        except OSError:
            return None
        addresses = sorted({str(entry[4][0]) for entry in found})
        turn = self._turns.get(route, 0)
        self._turns[route] = turn + 1
        for number in range(len(addresses)):
            address = addresses[(turn + number) % len(addresses)]
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await asyncio.open_connection(address, route.target_port)
        return None


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies until the reader's side has said all; then the writer's side is told so."""
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def run(routes: list[Route]) -> None:
    """Serves until SIGTERM or SIGINT."""
    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    gateway = Gateway(routes)
    await gateway.start()
    for route in routes:
        sys.stderr.write(f"port {route.port} leads to {route.host}:{route.target_port}\n")
    await ending.wait()
    await gateway.stop()


def main(arguments: list[str]) -> int:
    """Routes as arguments; exit code 2 where one is malformed, or none is given."""
    try:
        routes = [Route.parse(each) for each in arguments]
    except ValueError as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 2
    if not routes:
        sys.stderr.write("gateway: no routes; write PORT=HOST:PORT, such as 7701=ingest:7701\n")
        return 2
    asyncio.run(run(routes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
