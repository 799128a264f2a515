"""Common code of both servicers for client streams. Uses asyncio only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar

from adlro.errors import Unavailable

MessageT = TypeVar("MessageT")

SHUTTING_DOWN = Unavailable("this ingest is shutting down", reason="SHUTTING_DOWN", retry_after_s=0.5)


async def until(ended: asyncio.Event, messages: AsyncIterator[MessageT]) -> AsyncGenerator[MessageT]:
    """The messages of a stream, until it ends or `ended` is set."""
    end = asyncio.ensure_future(ended.wait())
    try:
        while True:
            # Not cancelled if the event or a cancellation comes first: gRPC finishes the read when the call ends.
            read = asyncio.ensure_future(messages.__anext__())
            read.add_done_callback(failed)
            await asyncio.wait((read, end), return_when=asyncio.FIRST_COMPLETED)
            if not read.done():
                return
            try:
                message = read.result()
            except StopAsyncIteration:
                return
            yield message
    finally:
        end.cancel()


def failed(future: asyncio.Future[Any]) -> bool:
    """Whether it failed; also marks the exception as retrieved, to avoid a warning."""
    return future.cancelled() or future.exception() is not None
