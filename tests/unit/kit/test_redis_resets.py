"""Connections to Redis that break at any moment: nothing but RedisErrors comes out, and the next command finds its way.

On uvloop, as services run: its transports raise RuntimeError where asyncio's raise OSErrors, or nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.exceptions import RedisError

from adlro.cli.certs import make_certificates
from adlro.kit.redis import connect, connect_blocking
from adlro.kit.redis_scripts import connect_for_scripts
from tests.fault.network import reset
from tests.unit.kit.conditions import until

STORM_RESETS = 40
ON_UVLOOP: Callable[[Coroutine[Any, Any, None]], None] = pytest.importorskip("uvloop").run


@asynccontextmanager
async def breakable(redis_url: str, directory: Path, kind: str) -> AsyncIterator[tuple[str, Callable[[], int]]]:
    """A way to Redis over a plain, TLS or Unix socket: its URL, and what resets all its connections (and counts)."""
    login, _, address = urlsplit(redis_url).netloc.rpartition("@")
    port = int(address.rpartition(":")[2])
    near: set[asyncio.StreamWriter] = set()
    tasks: set[asyncio.Task[Any]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, RuntimeError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        near.add(writer)
        try:
            await asyncio.gather(copy(reader, forth), copy(back, writer))
        finally:
            near.discard(writer)
            forth.transport.abort()  # what nobody takes any more would keep it open

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(carry(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def reset_all() -> int:
        for writer in near:
            with contextlib.suppress(ValueError):  # it has broken already
                reset(writer)
        return len(near)

    if kind == "unix":
        server = await asyncio.start_unix_server(accept, directory / "redis.sock")
        url = f"unix://{login}@{directory}/redis.sock?db=0"
    elif kind == "tls":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        make_certificates(directory)
        context.load_cert_chain(directory / "ingest.pem", directory / "ingest.key")
        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
        url = f"rediss://{login}@127.0.0.1:{server.sockets[0].getsockname()[1]}/0?ssl_ca_certs={directory}/ca.pem"
    else:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        url = f"redis://{login}@127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    try:
        yield url, reset_all
    finally:
        server.close()
        reset_all()
        ending = list(tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await asyncio.sleep(0)  # the loop closes the sockets in its next round


@pytest.mark.each_python
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "tls", "unix"])
def test_nothing_but_redis_errors_comes_out_of_a_storm_of_resets(redis_url: str, tmp_path: Path, kind: str) -> None:
    draw = random.Random(1)
    done: Counter[str] = Counter()
    raised: Counter[type[BaseException]] = Counter()

    async def repeat(name: str, command: Callable[[], Awaitable[Any]]) -> None:
        while True:
            try:
                await command()
                done[name] += 1
            except Exception as error:  # what else but RedisErrors there is, this test asks
                raised[type(error)] += 1
            await asyncio.sleep(0)

    async def storm() -> None:
        async with breakable(redis_url, tmp_path, kind) as (url, reset_all):
            plain, scripts, blocking = connect(url), connect_for_scripts(url), connect_blocking(url)
            echo = scripts.register_script("return ARGV[1]")

            async def pipeline() -> None:
                async with plain.pipeline(transaction=True) as commands:
                    commands.set("b", b"x" * 100_000)
                    commands.get("b")
                    await commands.execute()

            commands: dict[str, Callable[[], Awaitable[Any]]] = {
                "set": lambda: plain.set("a", b"x" * draw.choice((10, 300_000))),
                "get": lambda: plain.get("a"),
                "pipeline": pipeline,
                "script": lambda: echo(args=[b"x" * draw.choice((10, 300_000))]),
                "blocking": lambda: blocking.xread({"stream": "$"}, block=20),
            }
            tasks = [asyncio.create_task(repeat(*each)) for each in commands.items() for _ in range(3)]
            for _ in range(STORM_RESETS):
                before = done.total() + raised.total()
                await asyncio.sleep(draw.uniform(0, 0.02))
                reset_all()
                # On a busy machine too each reset meets commands.
                await until(lambda before=before: done.total() + raised.total() > before)  # type: ignore[misc]
            enough = done.copy()
            # The storm is over: all go on.
            await until(lambda: all(done[name] > enough[name] for name in commands))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for client in (plain, scripts, blocking):
                await client.aclose()

    ON_UVLOOP(asyncio.wait_for(storm(), 240))
    assert raised, "no command met a reset"
    assert [kind for kind in raised if not issubclass(kind, RedisError)] == []


def has_heard(client: Any) -> bool:
    """Whether the loop has told all of a client's connections that they are closed."""
    line = getattr(client, "_line", None)
    idle = client.connection_pool._available_connections
    return (line is None or line.closed) and all(each._writer.transport.is_closing() for each in idle)


@pytest.mark.parametrize("made", [connect, connect_for_scripts])
def test_a_reset_while_nothing_is_asked_costs_no_command(redis_url: str, tmp_path: Path, made: Any) -> None:
    async def idle() -> None:
        async with breakable(redis_url, tmp_path, "plain") as (url, reset_all), made(url) as client:
            add = client.register_script("return redis.call('INCRBY', 'n', ARGV[1])")
            for number in range(1, 6):
                await client.set("a", number)
                assert await add(args=[1]) == number
                assert reset_all()
                await until(lambda: has_heard(client))

    ON_UVLOOP(asyncio.wait_for(idle(), 120))
