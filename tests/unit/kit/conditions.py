"""Waiting for what a test can't be told of."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 60.0) -> None:
    """Returns when the condition holds; TimeoutError where it does not in time."""
    async with asyncio.timeout(timeout_s):
        while True:
            answer = condition()
            if await answer if inspect.isawaitable(answer) else answer:
                return
            await asyncio.sleep(0.01)
