"""The gateway: bytes both ways untouched, replicas in turn, the dead left out, an end that lets calls end."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[3] / "deploy" / "gateway.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deploy_gateway", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


gateway = load()


class Echo:
    """A replica: sends all back, after its name."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open[writer] = asyncio.current_task()
        try:
            writer.write(self.name)
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # the other side broke it
        finally:
            writer.close()
            del self._open[writer]

    async def stop(self) -> None:
        """Closes all, what a failed test has left open too."""
        assert self._server is not None
        self._server.close()
        present = dict(self._open)
        for writer in present:
            writer.transport.abort()
        await asyncio.gather(*(task for task in present.values() if task is not None), return_exceptions=True)
        await asyncio.sleep(0)  # the loop closes the sockets in its next round


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas and their gateway are on one loop: where that stands still, none of them is away."""
    monkeypatch.setattr(gateway, "CONNECT_TIMEOUT_S", 60.0)


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    replica = Echo(b"a")
    await replica.start()
    yield replica
    await replica.stop()


async def started(*routes: Any) -> tuple[Any, list[int]]:
    made = gateway.Gateway(list(routes), "127.0.0.1")
    return made, await made.start()


async def test_bytes_pass_both_ways_untouched_and_an_end_is_passed_on(echo: Echo) -> None:
    made, (port,) = await started(gateway.Route(0, "127.0.0.1", echo.port))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = bytes(range(256)) * 8192  # more than any buffer on the way

    async def send() -> None:
        writer.write(sent)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    assert await reader.read() == b"a" + sent
    await sending
    writer.close()
    await made.stop(0.5)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has one loopback address only, 127.0.0.1")
async def test_replicas_are_taken_in_turn_and_one_that_is_away_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = [Echo(b"a"), Echo(b"b")]
    await replicas[0].start("127.0.0.1")
    port = replicas[0].port
    await replicas[1].start("127.0.0.2", port)

    async def found(*_: object, **__: object) -> list[Any]:
        # A third one has just ended: its name still stands for it too.
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", port)) for n in (1, 2, 3)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found, raising=False)
    made, (front,) = await started(gateway.Route(0, "service", port))
    for _ in range(6):
        reader, writer = await asyncio.open_connection("127.0.0.1", front)
        assert await reader.readexactly(1) in (b"a", b"b")
        writer.close()
    assert min(replica.connections for replica in replicas) >= 2
    await made.stop(0.5)
    for replica in replicas:
        await replica.stop()


async def test_where_no_replica_is_there_the_connection_is_closed(echo: Echo) -> None:
    made, ports = await started(gateway.Route(0, "no-such-service.invalid", 1), gateway.Route(0, "127.0.0.1", 1))
    for port in ports:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), 60.0) == b""
        writer.close()
    await made.stop(0.5)


async def test_an_end_waits_for_what_is_open(echo: Echo) -> None:
    made, (port,) = await started(gateway.Route(0, "127.0.0.1", echo.port))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.readexactly(1) == b"a"
    stopping = asyncio.create_task(made.stop(3600.0))
    await asyncio.sleep(0)  # it has begun
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"still")
    assert await reader.readexactly(5) == b"still"
    await asyncio.sleep(0.2)
    assert not stopping.done()
    writer.close()
    await asyncio.wait_for(stopping, 60.0)


async def test_an_end_cuts_what_is_open_for_too_long(echo: Echo) -> None:
    made, (port,) = await started(gateway.Route(0, "127.0.0.1", echo.port))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.readexactly(1) == b"a"
    async with asyncio.timeout(60.0):
        await made.stop(0.05)
        assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("route", ["7701", "7701=ingest", "x=ingest:7701", "7701=:1", "7701=ingest:x"])
def test_a_malformed_route_is_refused_with_the_form(route: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(PATH), route], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2
    assert "7701=ingest:7701" in ended.stderr
