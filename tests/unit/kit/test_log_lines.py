"""The fixture `log_lines` tells what this test's loop has logged, and not what gRPC logs of an earlier test's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import grpc
import pytest


def _method(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary("/adlro.Nothing/Nothing", request_serializer=None, response_deserializer=None)


async def _leave_a_call(held: list[Any]) -> None:
    channel = grpc.aio.insecure_channel("127.0.0.1:1")
    held += [channel, _method(channel)(b"", timeout=0.2, wait_for_ready=True)]
    await asyncio.sleep(0.05)


async def _call(logged: list[logging.LogRecord]) -> None:
    """Gives gRPC's poller a reader on this loop, and time to tell of the calls that were left."""
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        for _ in range(200):
            if logged:
                return
            await asyncio.sleep(0.1)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await _method(channel)(b"", timeout=1)


def test_a_call_that_an_earlier_loop_left_is_not_told(log_lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("asyncio"), "makeRecord", _kept_in(logged))
    held: list[Any] = []
    earlier = asyncio.new_event_loop()
    earlier.run_until_complete(_leave_a_call(held))
    earlier.close()
    asyncio.run(_call(logged))
    assert log_lines() == []
    assert logged, "gRPC no longer logs it: the fixture needs no filter"


def _kept_in(records: list[logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    make = logging.getLogger("asyncio").makeRecord

    def make_record(*arguments: Any, **further: Any) -> logging.LogRecord:
        records.append(make(*arguments, **further))
        return records[-1]

    return make_record


def test_any_other_fault_of_a_loop_is_told(log_lines: Any) -> None:
    async def fail_beside() -> None:
        def callback() -> None:
            raise RuntimeError("Event loop is closed")  # the same words, and not from gRPC's poller

        asyncio.get_running_loop().call_soon(callback)
        await asyncio.sleep(0)

    asyncio.run(fail_beside())
    (line,) = log_lines()
    assert line["logger"] == "asyncio"
    assert "Event loop is closed" in line["exception"]
