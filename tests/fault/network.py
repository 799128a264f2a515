"""A network of the tests' own between the processes of the suite: a TCP proxy for each pair, and what can befall it.

Nothing is known here of what goes over the wire. All of it runs on the test's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import weakref
from dataclasses import dataclass, field
from enum import Enum, auto

_CHUNK_BYTES = 65536
_LONGEST_DELAY_S = 5.0
# A connection is reset after so many bytes at most, so that some break within a message, and some before the first.
_RESET_AFTER_BYTES = 4096
_DROPPED_BYTES = 200
# Data of a direction that nobody takes waits here, as it would in the buffers of a network.
_HELD_CHUNKS = 64


class Kind(Enum):
    """What befalls a link while a fault lasts."""

    RESET = auto()
    """Its connections are reset (RST): all of them now and then, and each after some bytes."""
    HALF_CLOSE = auto()
    """One direction of each of its connections is shut down, at once and again after some bytes."""
    DELAY = auto()
    """What is sent arrives late, by up to 5 s."""
    BLACK_HOLE = auto()
    """Nothing arrives until the fault is over; then what was sent does."""
    VANISH = auto()
    """Nothing arrives; the connections that there were stay dead afterwards, and no end is told of it."""
    DROP = auto()
    """Bytes are missing from the middle of what is sent, in each of its connections once; then it goes on."""
    REFUSE = auto()
    """Connections are reset, and new ones refused."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one link, `begin_s` after the round's beginning, for `duration_s`."""

    kind: Kind
    link: str
    begin_s: float
    duration_s: float


class _Connection:
    """Two ends that are tied together."""

    def __init__(self, link: Link, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self._ends = (near, far)
        self._tasks: list[asyncio.Task[None]] = []
        self.dead = False
        """Whatever comes from now on is lost, and nobody is told."""
        self._link = link
        self.bytes_left = link.rng.randrange(_RESET_AFTER_BYTES)
        """Until the fault of the link befalls this connection."""
        self.struck = False

    async def run(self, near: asyncio.StreamReader, far: asyncio.StreamReader) -> None:
        """Carries both directions until both have ended."""
        self._tasks = [
            asyncio.create_task(self._carry(near, side=0)),
            asyncio.create_task(self._carry(far, side=1)),
        ]
        try:
            await asyncio.wait(self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            for end in self._ends:
                end.close()

    def reset(self) -> None:
        """Ends both sides by RST."""
        for end in self._ends:
            reset(end)
        for task in self._tasks:
            task.cancel()

    def half_close(self, side: int) -> None:
        """Shuts the direction from one side down: who reads there sees the end of the stream; the other goes on."""
        with contextlib.suppress(OSError, RuntimeError):
            self._ends[1 - side].write_eof()
        if self._tasks:
            self._tasks[side].cancel()

    async def _carry(self, reader: asyncio.StreamReader, side: int) -> None:
        held: asyncio.Queue[bytes] = asyncio.Queue(_HELD_CHUNKS)
        giving = asyncio.create_task(self._give(held, side))
        try:
            while data := await reader.read(_CHUNK_BYTES):
                await held.put(data)
            await held.put(b"")
            await giving
        except OSError:
            self.reset()  # as the kernel of one side would tell the other
        finally:
            giving.cancel()

    async def _give(self, held: asyncio.Queue[bytes], side: int) -> None:
        writer = self._ends[1 - side]
        while True:
            data = await held.get()
            await self._link.pass_on(self)
            if self.dead and data:
                continue
            if self.dead:
                return
            if not data:
                with contextlib.suppress(OSError, RuntimeError):
                    writer.write_eof()
                return
            data = self._struck(data, side)
            with contextlib.suppress(OSError, RuntimeError):  # the reader of the other direction finds out
                writer.write(data)
                await writer.drain()

    def _struck(self, data: bytes, side: int) -> bytes:
        """What is left of the data where it is this connection's turn."""
        kind = self._link.kind
        self.bytes_left -= len(data)
        if kind not in (Kind.RESET, Kind.HALF_CLOSE, Kind.DROP) or self.bytes_left > 0 or self.struck:
            return data
        kept = max(0, len(data) + self.bytes_left)
        asyncio.get_running_loop().call_soon(self._strike, kind, side)
        self.struck = True
        return data[:kept] + data[kept + _DROPPED_BYTES :] if kind is Kind.DROP else data[:kept]

    def _strike(self, kind: Kind, side: int) -> None:
        if kind is Kind.RESET:
            self.reset()
        elif kind is Kind.HALF_CLOSE:
            self.half_close(side)


class Link:
    """A proxy at a port of its own, before one address.

    Args:
        name: for messages.
        target: `host:port` or a Unix socket that it leads to; nobody needs to listen there yet.
        rng: draws where and when connections break.
    """

    def __init__(self, name: str, target: str, rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self.kind: Kind | None = None
        """The fault that it has at present."""
        self.address = ""
        self._target = target
        self._server: asyncio.Server | None = None
        self._kept: socket.socket | None = None
        """Keeps the port for this link while it does not listen; nobody answers there."""
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._transports: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        """All there were: one that is closed stays open as long as nobody takes what was written to it."""
        self._clear = asyncio.Event()
        self._clear.set()

    async def start(self) -> None:
        """Begins to listen: at any port, or where it did before."""
        if self._kept is None:
            self._kept = socket.socket()
            self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._kept.bind(("127.0.0.1", 0))
            self.address = "{}:{}".format(*self._kept.getsockname())
        host, _, port = self.address.rpartition(":")
        self._server = await asyncio.start_server(self._accepted, host, int(port), reuse_port=True)

    async def stop(self) -> None:
        """Ends all."""
        await self._stop_listening()
        self.reset_all()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0)  # the loop closes their sockets in its next round
        if self._kept is not None:
            self._kept.close()

    async def begin(self, kind: Kind) -> None:
        """The fault begins."""
        self.kind = kind
        present = list(self._connections)
        for connection in present:
            connection.struck = False
            connection.bytes_left = self.rng.randrange(_RESET_AFTER_BYTES)
        if kind in (Kind.BLACK_HOLE, Kind.VANISH):
            self._clear.clear()
        elif kind is Kind.REFUSE:
            await self._stop_listening()
        for connection in present:
            if kind is Kind.REFUSE:
                connection.reset()
            elif kind is Kind.HALF_CLOSE and self.rng.random() < 0.5:
                connection.half_close(self.rng.randrange(2))
            elif kind is Kind.VANISH:
                connection.dead = True

    def reset_all(self) -> None:
        """Ends all its connections."""
        for connection in list(self._connections):
            connection.reset()

    async def end(self) -> None:
        """The fault is over."""
        kind, self.kind = self.kind, None
        if kind is Kind.REFUSE:
            await self.start()
        self._clear.set()

    async def pass_on(self, connection: _Connection) -> None:
        """Returns when the data may go on."""
        if self.kind is Kind.DELAY:
            await asyncio.sleep(self.rng.uniform(0, _LONGEST_DELAY_S) * self.rng.random() ** 3)
        if not connection.dead:
            await self._clear.wait()

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.add(writer.transport)
        task = asyncio.create_task(self._tie(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.startswith("/"):
            return await asyncio.open_unix_connection(self._target)
        host, _, port = self._target.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _tie(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._clear.wait()
            far_reader, far_writer = await self._reach()
        except BaseException as error:
            reset(writer)
            if isinstance(error, OSError):
                return
            raise
        self._transports.add(far_writer.transport)
        connection = _Connection(self, writer, far_writer)
        self._connections.add(connection)
        try:
            await connection.run(reader, far_reader)
        finally:
            self._connections.discard(connection)


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection by RST."""
    with contextlib.suppress(OSError, AttributeError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass
class Network:
    """All links, by name."""

    rng: random.Random
    links: dict[str, Link] = field(default_factory=dict)

    async def add(self, name: str, target: str) -> str:
        """A new link; its address."""
        link = self.links[name] = Link(name, target, random.Random(self.rng.random()))
        await link.start()
        return link.address

    async def stop(self) -> None:
        """Ends all links."""
        for link in self.links.values():
            await link.stop()

    async def suffer(self, fault: Fault) -> None:
        """Lets one fault happen, from its beginning to its end."""
        await asyncio.sleep(fault.begin_s)
        link = self.links[fault.link]
        await link.begin(fault.kind)
        try:
            async with asyncio.timeout(fault.duration_s):
                while True:
                    if fault.kind is Kind.RESET:
                        link.reset_all()
                    await asyncio.sleep(link.rng.uniform(0.05, 0.6))
        except TimeoutError:
            pass
        finally:
            await link.end()
