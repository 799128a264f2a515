"""Script calls on one connection: replies find their callers, errors are redis-py's, a lost connection heals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis.asyncio as aioredis
from redis import exceptions

from adlro.kit import redis_scripts
from adlro.kit.redis_scripts import ScriptRedis, connect_for_scripts
from tests.unit.kit.conditions import until

ECHO = "return ARGV[1]"
ADD = "return redis.call('INCRBY', 'n', ARGV[1])"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Any]:
    client = connect_for_scripts(redis_url)
    yield client
    await client.aclose()


async def test_each_caller_gets_its_own_reply(client):
    echo = client.register_script(ECHO)
    values = [f"value {index}".encode() * (index % 7 + 1) for index in range(500)]
    assert await asyncio.gather(*(echo(args=[value]) for value in values)) == values
    assert await client.get("missing") is None


async def test_all_calls_share_one_connection_besides_the_pool(client, redis_url):
    add = client.register_script(ADD)
    await asyncio.gather(*(add(args=[1]) for _ in range(100)))
    assert await client.get("n") == b"100"
    async with aioredis.Redis.from_url(redis_url) as other:
        clients = await other.client_list()
    assert len([each for each in clients if each["cmd"] == "evalsha"]) == 1


async def test_what_redis_refuses_is_raised_and_the_others_go_on(client):
    broken = client.register_script("return redis.error_reply('STALE it is old')")
    add = client.register_script(ADD)
    replies: Any = await asyncio.gather(add(args=[1]), broken(), add(args=[1]), return_exceptions=True)
    first, refused, second = replies
    assert (first, second) == (1, 2)
    assert isinstance(refused, exceptions.ResponseError)
    assert "STALE" in str(refused)


async def test_an_unknown_script_is_loaded(client, redis_url):
    add = client.register_script(ADD)
    async with aioredis.Redis.from_url(redis_url) as other:
        await other.script_flush()
        assert await add(args=[5]) == 5
        await other.script_flush()
        assert await add(args=[5]) == 10


async def test_a_caller_that_goes_away_leaves_the_others_their_replies(client):
    echo = client.register_script(ECHO)
    await echo(args=["loaded"])
    calls = [asyncio.ensure_future(echo(args=[str(index)])) for index in range(10)]
    await asyncio.sleep(0)
    calls[3].cancel()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(replies[3], asyncio.CancelledError)
    assert [reply for index, reply in enumerate(replies) if index != 3] == [
        str(index).encode() for index in range(10) if index != 3
    ]


async def test_a_lost_connection_fails_what_is_in_flight_and_the_next_call_connects_anew(client, redis_server):
    add = client.register_script(ADD)
    assert await add(args=[1]) == 1
    redis_server.kill()
    with pytest.raises(exceptions.ConnectionError):
        await add(args=[1])
    with pytest.raises(exceptions.ConnectionError):
        await add(args=[1])
    await asyncio.to_thread(redis_server.start)
    assert await add(args=[1]) == 2


async def test_a_reply_that_does_not_come_is_a_timeout(client, redis_url, monkeypatch):
    monkeypatch.setattr(redis_scripts, "SOCKET_TIMEOUT_S", 0.2)
    echo = client.register_script(ECHO)

    async def loaded() -> bool:
        try:
            return bool(await echo(args=["loaded"]))
        except exceptions.TimeoutError:  # it may be late without a pause too
            return False

    await until(loaded)
    async with aioredis.Redis.from_url(redis_url) as other:
        await other.execute_command("CLIENT", "PAUSE", "600000", "WRITE")  # and scripts
        try:
            with pytest.raises(exceptions.TimeoutError):
                await echo(args=["late"])
        finally:
            await other.execute_command("CLIENT", "UNPAUSE")
    monkeypatch.undo()
    assert await echo(args=["again"]) == b"again"


async def test_password_and_database_of_the_url_are_used(redis_url):
    async with aioredis.Redis.from_url(redis_url) as admin:
        await admin.execute_command("ACL", "SETUSER", "ann", "on", ">secret", "~*", "+@all")
        try:
            where = urlsplit(redis_url).netloc.rpartition("@")[2]
            async with connect_for_scripts(f"redis://ann:secret@{where}/3") as client:
                await client.register_script(ADD)(args=[7])
                assert await client.get("n") == b"7"
            assert await admin.get("n") is None
            async with connect_for_scripts(f"redis://ann:wrong@{where}/3") as client:
                with pytest.raises(exceptions.AuthenticationError):
                    await client.evalsha("0" * 40, 0)
        finally:
            await admin.execute_command("ACL", "DELUSER", "ann")


def test_over_tls_the_client_is_an_ordinary_one():
    assert not isinstance(connect_for_scripts("rediss://127.0.0.1:1/0"), ScriptRedis)
