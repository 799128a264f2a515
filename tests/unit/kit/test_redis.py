from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import grpc
import pytest
import redis.exceptions
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adlro.errors import Unavailable
from adlro.kit.channel import open_channel
from adlro.kit.redis import SOCKET_TIMEOUT_S, connect, connect_blocking, redacted, wait_until_up
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import serve
from adlro.v1 import job_service_pb2, job_service_pb2_grpc
from tests.stopwatch import Stopwatch
from tests.unit.kit.conditions import until
from tests.unit.kit.fake_service import FakeService, FakeSettings


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:secret@host:6379/0", "redis://:***@host:6379/0"),
        ("rediss://ann:secret@host:6379/0?password=secret", "rediss://ann:***@host:6379/0"),
        ("unix:///run/redis.sock?password=secret", "unix:///run/redis.sock"),
    ],
)
def test_passwords_are_not_shown(url, shown):
    assert redacted(url) == shown


@asynccontextmanager
async def losing_replies(redis_url: str, command: bytes):
    """A proxy before Redis that hands `command` on and breaks the connection in place of its reply."""
    seen = []
    port = urlsplit(redis_url).port

    async def carry(reader, writer):
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        try:
            while data := await reader.read(65536):
                forth.write(data)
                reply = await back.read(65536)
                if command in data:
                    seen.append(data)
                    return
                writer.write(reply)
        finally:
            writer.close()
            forth.close()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    async with server:
        yield redis_url.replace(f":{port}/", f":{server.sockets[0].getsockname()[1]}/"), seen


async def test_a_lost_reply_is_an_error_and_never_a_second_write(redis_url):
    async with losing_replies(redis_url, b"XADD") as (url, seen), connect(url) as client:
        with pytest.raises(redis.exceptions.ConnectionError):
            await client.xadd("stream", {"m": b"1"})
        assert len(seen) == 1
    async with connect(redis_url) as client:
        assert await client.xlen("stream") == 1


async def test_a_blocking_read_without_news_comes_back_empty(redis_url):
    async with connect_blocking(redis_url) as client:
        began_s = time.monotonic()
        assert not await client.xread({"stream": "$"}, block=1000)
        assert time.monotonic() - began_s > 0.9


async def test_a_blocking_read_gets_news_at_once(redis_url):
    async with connect_blocking(redis_url) as blocking, connect(redis_url) as client:
        reading = asyncio.ensure_future(blocking.xread({"stream": "0"}, block=5000))
        await client.xadd("stream", {"m": b"1"}, id="1-0")
        assert await reading == [[b"stream", [(b"1-0", {b"m": b"1"})]]]


async def test_scripts_survive_a_server_that_forgot_them(redis_server, redis_url):
    async with connect(redis_url) as client:
        script = client.register_script("return redis.call('INCR', KEYS[1])")
        assert await script(keys=["counter"]) == 1
        redis_server.kill()
        redis_server.start()
        assert redis_server.url == redis_url
        await wait_until_up(client, 60)
        assert await script(keys=["counter"]) == 2
        await client.script_flush()
        async with client.pipeline(transaction=True) as pipe:
            await script(keys=["counter"], client=pipe)
            pipe.incr("other")
            assert await pipe.execute() == [3, 1]


async def test_more_commands_at_once_than_connections(redis_url):
    async with connect(redis_url) as client:
        await asyncio.gather(*(client.incr("counter") for _ in range(300)))
        assert await client.get("counter") == b"300"


async def test_waiting_for_redis_ends_when_it_is_up(redis_server, redis_url):
    redis_server.stop()
    async with connect(redis_url) as client:
        with pytest.raises(Unavailable, match="Redis does not answer"):
            await wait_until_up(client, 0.3)
        waiting = asyncio.ensure_future(wait_until_up(client, 60))
        await asyncio.to_thread(redis_server.start)
        await waiting


@pytest.mark.slow
async def test_a_redis_that_hangs_is_an_error_within_its_timeout(redis_server, redis_url):
    async with connect(redis_url) as client:
        await client.execute_command("PING")
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            async with Stopwatch() as watch:
                with pytest.raises(redis.exceptions.TimeoutError):
                    await asyncio.wait_for(client.incr("counter"), 60)
                assert watch.read() < SOCKET_TIMEOUT_S + 3.0
            assert SOCKET_TIMEOUT_S <= 5.0
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)


async def is_serving(channel) -> bool:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_health_follows_redis(redis_server, redis_url, log_lines):
    redis_server.stop()
    settings = FakeSettings(use_redis=True, redis_url=redis_url)
    seen = []

    def told() -> bool:
        seen.extend(log_lines())
        return any(line["event"] == "redis does not answer" for line in seen)

    async with serve(FakeService(settings), settings) as address, open_channel(address) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        assert not await is_serving(channel)
        await until(told)
        line = next(line for line in seen if line["event"] == "redis does not answer")
        assert line["redis_url"] == redacted(redis_url)
        assert "ADLRO_REDIS_URL" in line["way_out"]
        assert "adlro up" in line["way_out"]

        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.GetJob(job_service_pb2.GetJobRequest(job_id="redis"), timeout=60)
        error = from_rpc_error(failed.value)
        assert type(error) is Unavailable
        assert error.retry_after_s == 1.0

        await asyncio.to_thread(redis_server.start)
        await until(lambda: is_serving(channel))
        await stub.GetJob(job_service_pb2.GetJobRequest(job_id="redis"), timeout=60)

        redis_server.kill()
        await until(lambda: _not(is_serving(channel)))
        await asyncio.to_thread(redis_server.start)
        await until(lambda: is_serving(channel))


async def _not(answer) -> bool:
    return not await answer


async def test_the_log_names_a_wrong_password_and_does_not_show_it(redis_url, log_lines):
    settings = FakeSettings(use_redis=True, redis_url=redis_url.replace("redis://", "redis://:a-secret@"))
    seen = []

    def told() -> bool:
        seen.extend(log_lines())
        return any(line["event"] == "redis refuses" for line in seen)

    async with connect(redis_url) as client:
        await client.config_set("requirepass", "another")
        try:
            async with serve(FakeService(settings), settings):
                await until(told)
        finally:
            await client.config_set("requirepass", "")
    line = next(line for line in seen if line["event"] == "redis refuses")
    assert "WRONGPASS" in line["problem"] or "invalid username-password" in line["problem"]
    assert line["redis_url"].startswith("redis://:***@127.0.0.1")
    assert "a-secret" not in str(seen)
