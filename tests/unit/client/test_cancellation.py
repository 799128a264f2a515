"""A cancellation that comes in the moment of an answer ends its task, though gRPC forgets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from adlro.client.channels import AsyncChannels
from adlro.kit.credentials import Credentials


async def forgetful(answers: asyncio.Event) -> str:
    """As a call of gRPC whose answer is there when it is cancelled."""
    try:
        await answers.wait()
    except asyncio.CancelledError:
        return "late"
    return "in time"


async def stream(answers: asyncio.Event) -> AsyncIterator[str]:
    while True:
        yield await forgetful(answers)


@pytest.fixture
def channels() -> AsyncChannels:
    return AsyncChannels(Credentials(), 1.0)


async def test_of_one_answer(channels: AsyncChannels) -> None:
    answers = asyncio.Event()
    calling = asyncio.create_task(channels.answer(forgetful(answers)))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    answers.set()
    assert await channels.answer(forgetful(answers)) == "in time"


async def test_of_a_stream(channels: AsyncChannels) -> None:
    answers, seen = asyncio.Event(), []

    async def read() -> None:
        async for message in channels.messages(stream(answers)):
            seen.append(message)

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not seen


async def test_within_a_limit_of_time(channels: AsyncChannels) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await channels.answer(forgetful(asyncio.Event()))


async def test_a_task_that_cleans_up_may_call_on(channels: AsyncChannels) -> None:
    """As `adlro run` does after Ctrl-C: it was cancelled before this call."""
    answers = asyncio.Event()
    answers.set()
    said: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            said.append(await channels.answer(forgetful(answers)))

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    working.cancel()
    await working
    assert said == ["in time"]
