"""Reading a client's stream until it ends or the service does."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

from adlro.services.ingest.server.streams import until


class Messages:
    """A stream whose next message or end comes when a test says so."""

    def __init__(self) -> None:
        self.next: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        taken = await self.next
        self.next = asyncio.get_running_loop().create_future()
        if not taken:
            raise StopAsyncIteration
        return taken


async def test_messages_come_until_the_stream_ends() -> None:
    messages = Messages()
    reading = until(asyncio.Event(), messages)
    messages.next.set_result("one")
    assert await anext(reading) == "one"
    messages.next.set_result("")
    assert [message async for message in reading] == []


async def test_they_end_with_the_service() -> None:
    messages, ended = Messages(), asyncio.Event()
    asyncio.get_running_loop().call_soon(ended.set)
    assert [message async for message in until(ended, messages)] == []


async def test_a_call_that_is_cancelled_in_a_read_leaves_no_complaint() -> None:
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    messages = Messages()
    reading = asyncio.ensure_future(anext(until(asyncio.Event(), messages)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    # gRPC finishes the read, here with the end of the stream, when nobody waits for it any more.
    messages.next.set_result("")
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert complaints == []
