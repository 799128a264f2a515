"""A task that is busy with Redis can be cancelled."""

from __future__ import annotations

import asyncio
import random

import pytest

from adlro.kit.redis import connect


async def test_no_cancellation_is_lost(redis_url: str) -> None:
    redis = connect(redis_url)
    draw = random.Random(0)

    async def busy() -> None:
        while True:
            await redis.set("a", 1)

    for _ in range(100):
        task = asyncio.create_task(busy())
        await asyncio.sleep(draw.uniform(0, 0.005))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)
    assert await redis.get("a") == b"1"
    await redis.aclose()
