"""Asking a service again and again whether it serves."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adlro.client import health
from adlro.kit.credentials import Credentials


class Channel:
    """Counts those that are open."""

    opened = 0

    def __init__(self, *_: object) -> None:
        type(self).opened += 1
        self.closed = False

    async def close(self, _grace: float | None) -> None:
        self.closed = True


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool | Exception]:
    """What the service says, one after the other."""
    given: list[bool | Exception] = []
    used: list[Channel] = []

    async def asked(channel: Channel, _timeout_s: float) -> bool:
        assert not channel.closed
        assert all(each.closed for each in used if each is not channel)
        used.append(channel)
        answer = given.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    Channel.opened = 0
    monkeypatch.setattr(health, "open_channel", Channel)
    monkeypatch.setattr(health, "_check", asked)
    return given


async def test_a_connection_is_kept_while_the_service_serves_and_made_anew_otherwise(
    answers: list[bool | Exception],
) -> None:
    check = health.ServingCheck("127.0.0.1:1", Credentials())
    answers += [True, True, False, True, True]
    told = [(await check.serves(), Channel.opened) for _ in range(5)]
    assert told == [(True, 1), (True, 1), (False, 1), (True, 2), (True, 2)]
    await check.aclose()
    answers += [True, True]
    assert [(await check.serves(), Channel.opened) for _ in range(2)] == [(True, 3), (True, 4)]


async def test_now_and_then_another_replica_is_asked(answers: list[bool | Exception]) -> None:
    check = health.ServingCheck("127.0.0.1:1", Credentials())
    answers += [True] * 50
    for _ in range(50):
        assert await check.serves()
    assert Channel.opened == 3
    await check.aclose()


async def test_a_connection_is_not_left_open_by_what_was_interrupted(answers: list[bool | Exception]) -> None:
    check = health.ServingCheck("127.0.0.1:1", Credentials())
    answers += [TimeoutError(), True]
    with pytest.raises(TimeoutError):
        await check.serves()
    assert (await check.serves(), Channel.opened) == (True, 2)
    await check.aclose()


class Serving(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # no types
    """A service that always serves."""

    async def Check(self, _request: object, _context: object) -> health_pb2.HealthCheckResponse:
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


async def test_a_connection_that_breaks_is_told_before_anyone_asks() -> None:
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(Serving(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    check = health.ServingCheck(f"127.0.0.1:{port}", Credentials())
    assert not check.is_connected(), "nothing is kept yet"
    assert await check.serves(20.0)
    await asyncio.sleep(0.3)
    assert check.is_connected()
    await server.stop(None)
    async with asyncio.timeout(20.0):
        while check.is_connected():  # noqa: ASYNC110 - the channel has no event for it
            await asyncio.sleep(0.01)
    await check.aclose()
    assert not check.is_connected()
