"""States of Redis in which it can't be used: what callers, health and the log are told of each, by a real Valkey."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import redis as blocking_redis
import redis.asyncio as aioredis
from redis import exceptions

from adlro.errors import LimitExceeded, Unavailable
from adlro.kit import redis as kit_redis
from adlro.kit.channel import open_channel
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.log import get_logger
from adlro.kit.redis import connect, wait_until_up
from adlro.kit.redis_errors import StoreParser, store_error, store_problem
from adlro.kit.redis_scripts import connect_for_scripts
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import serve
from adlro.v1 import job_service_pb2, job_service_pb2_grpc
from tests.unit.kit.conditions import until
from tests.unit.kit.fake_service import FakeService, FakeSettings
from tests.unit.kit.test_redis import is_serving

FULL = "Errors writing to the AOF file: No space left on device"
REPLIES = {
    f"MISCONF {FULL}": ("STORE_CANNOT_WRITE", "free space"),
    f"MISCONF {FULL} script: on @user_script:1.": ("STORE_CANNOT_WRITE", "free space"),
    f"EXECABORT Transaction discarded because of: MISCONF {FULL}": ("STORE_CANNOT_WRITE", "free space"),
    "OOM command not allowed when used memory > 'maxmemory'.": ("STORE_FULL", "maxmemory"),
    "BUSY Valkey is busy running a script.": ("STORE_BUSY", "SCRIPT KILL"),
    "LOADING Valkey is loading the dataset in memory": ("STORE_LOADING", "wait"),
    "READONLY You can't write against a read only replica.": ("STORE_REFUSED", "primary"),
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": ("STORE_REFUSED", "primary"),
    "NOREPLICAS Not enough good replicas to write.": ("STORE_REFUSED", "min-replicas-to-write"),
    "CLUSTERDOWN The cluster is down": ("STORE_REFUSED", "nodes"),
    "ERR max number of clients reached": ("STORE_REFUSED", "maxclients"),
    "NOAUTH Authentication required.": ("STORE_REFUSED", "ADLRO_REDIS_PASSWORD_FILE"),
    "WRONGPASS invalid username-password pair or user is disabled.": ("STORE_REFUSED", "ADLRO_REDIS_PASSWORD_FILE"),
    "NOPERM User ann has no permissions to run the 'set' command": ("STORE_REFUSED", "ACL"),
}


@pytest.mark.parametrize("reply", REPLIES)
def test_each_refusal_names_the_way_out_and_is_worth_another_try(reply):
    reason, way_out = REPLIES[reply]
    told = store_error(StoreParser.parse_error(reply))
    assert isinstance(told, LimitExceeded if reason == "STORE_FULL" else Unavailable)
    assert told.reason == reason
    assert way_out in told.message
    assert told.retry_after_s is not None
    # Redis's own words are for the log: they may name users and places.
    assert reply.partition(" ")[2].rstrip(".") not in told.message
    problem = store_problem(StoreParser.parse_error(reply))
    assert problem is not None
    assert "script: on" not in problem.text


@pytest.mark.parametrize("reply", ["ERR Protocol error: expected '$', got 'x'", "ERR unknown command '$1'"])
def test_a_connection_out_of_step_is_a_lost_one(reply):
    error = StoreParser.parse_error(reply)
    assert isinstance(error, exceptions.ConnectionError)
    told = store_error(error)
    assert told is not None
    assert told.reason == "STORE_UNAVAILABLE"


@pytest.mark.parametrize(
    "reply", ["ERR wrong number of arguments for 'get' command", "STALE job-1", "WRONGTYPE of key"]
)
def test_what_the_caller_did_wrong_is_no_state_of_the_store(reply):
    assert store_error(StoreParser.parse_error(reply)) is None


# ---- a real Valkey


@asynccontextmanager
async def disk_full(server: EmbeddedRedis, admin: Any) -> AsyncIterator[None]:
    """Its snapshots can't be written: a directory stands in their place."""
    in_the_way = server.data_dir / "dump.rdb"
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir()
    await admin.config_set("save", "3600 1")
    await admin.bgsave()
    await until(lambda: _snapshot(admin, "err"))
    try:
        yield
    finally:
        in_the_way.rmdir()
        await admin.bgsave()
        await until(lambda: _snapshot(admin, "ok"))
        await admin.config_set("save", "")


async def _snapshot(admin: Any, status: str) -> bool:
    found = await admin.info("persistence")
    return bool(found["rdb_last_bgsave_status"] == status and not found["rdb_bgsave_in_progress"])


@asynccontextmanager
async def memory_full(_server: EmbeddedRedis, admin: Any) -> AsyncIterator[None]:
    await admin.config_set("maxmemory", 1)
    try:
        yield
    finally:
        await admin.config_set("maxmemory", 0)


@asynccontextmanager
async def endless_script(server: EmbeddedRedis, admin: Any) -> AsyncIterator[None]:
    await admin.config_set("busy-reply-threshold", 20)
    with blocking_redis.Redis.from_url(server.url) as other:
        running = asyncio.create_task(asyncio.to_thread(_run, other))
        try:
            yield
        finally:
            await until(lambda: _killed(admin))
            await running


def _run(other: Any) -> None:
    with pytest.raises(exceptions.ResponseError, match="killed"):
        other.eval("while true do end", 0)


async def _killed(admin: Any) -> bool:
    try:
        await admin.script_kill()
    except exceptions.ResponseError as error:
        return "NOTBUSY" in str(error)
    return False


@asynccontextmanager
async def replica(_server: EmbeddedRedis, admin: Any) -> AsyncIterator[None]:
    await admin.replicaof("127.0.0.1", 1)
    try:
        yield
    finally:
        await admin.replicaof("NO", "ONE")


@asynccontextmanager
async def another_password(_server: EmbeddedRedis, admin: Any) -> AsyncIterator[None]:
    await admin.config_set("requirepass", "another")
    await admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    try:
        yield
    finally:
        await admin.config_set("requirepass", "")


State = Callable[[EmbeddedRedis, Any], Any]
STATES: dict[State, str] = {
    disk_full: "STORE_CANNOT_WRITE",
    memory_full: "STORE_FULL",
    endless_script: "STORE_BUSY",
    replica: "STORE_REFUSED",
    another_password: "STORE_REFUSED",
}


@pytest.mark.parametrize("state", STATES)
async def test_a_store_that_refuses_is_told_by_calls_health_and_one_line_of_the_log(
    redis_server, redis_url, log_lines, monkeypatch, state
):
    monkeypatch.setattr(kit_redis, "_CHECK_EVERY_S", 0.1)
    monkeypatch.setattr(kit_redis, "_PROBE_TIMEOUT_S", 30.0)  # one that is late would be told as another problem
    settings = FakeSettings(use_redis=True, redis_url=redis_url)
    seen: list[dict[str, Any]] = []

    async def refused(call: Callable[[], Awaitable[Any]]) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call()
        told = from_rpc_error(failed.value)
        assert told.reason == STATES[state], told
        assert failed.value.code() is (
            grpc.StatusCode.RESOURCE_EXHAUSTED if state is memory_full else grpc.StatusCode.UNAVAILABLE
        )

    async with (
        aioredis.Redis.from_url(redis_url, single_connection_client=True) as admin,
        serve(FakeService(settings), settings) as address,
        open_channel(address) as channel,
    ):
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        await until(lambda: is_serving(channel))
        async with state(redis_server, admin):
            await until(lambda: _not_serving(channel))
            for _ in range(20):
                await refused(lambda: stub.GetJob(job_service_pb2.GetJobRequest(job_id="redis"), timeout=60))
        await until(lambda: is_serving(channel))
        await stub.GetJob(job_service_pb2.GetJobRequest(job_id="redis"), timeout=60)
    seen.extend(log_lines())
    assert [line for line in seen if line["event"] == "internal error" or "exception" in line] == []
    (line,) = [line for line in seen if line["level"] == "error"]
    assert line["event"] == "redis refuses"
    assert line["way_out"]
    assert any(each["event"] == "not serving" and line["problem"] in each["reason"] for each in seen)


async def _not_serving(channel: Any) -> bool:
    return not await is_serving(channel)


async def test_who_changes_nothing_serves_while_changes_are_refused(redis_server, redis_url):
    async with aioredis.Redis.from_url(redis_url) as admin, connect(redis_url) as client:
        async with disk_full(redis_server, admin):
            assert await kit_redis._probe(client, kit_redis._READ, 30.0) is None
            problem = await kit_redis._probe(client, kit_redis._WRITE, 30.0)
            assert problem is not None
            assert problem.code == "MISCONF"
            await until(lambda: _told_to_make_room(client))
        await wait_until_up(client, 60.0)
        assert await admin.keys() == []  # the probe leaves nothing


async def _told_to_make_room(client: Any) -> bool:
    """And not that it does not answer, as its last probe may find on a machine that stands still."""
    with pytest.raises(Unavailable) as told:
        await wait_until_up(client, 0.3)
    return re.search(r"can't write to its disk .*; free space", told.value.message) is not None


async def test_scripts_and_transactions_name_the_state_as_commands_do(redis_server, redis_url):
    async with aioredis.Redis.from_url(redis_url) as admin, connect_for_scripts(redis_url) as client:
        add = client.register_script("return redis.call('INCRBY', 'n', ARGV[1])")
        assert await add(args=[1]) == 1
        async with disk_full(redis_server, admin):
            for attempt in (lambda: add(args=[1]), lambda: _transaction(client)):
                with pytest.raises(exceptions.ResponseError) as refused:
                    await attempt()
                told = store_error(refused.value)
                assert told is not None
                assert told.reason == "STORE_CANNOT_WRITE"
        assert await client.get("n") == b"1"
        assert await add(args=[1]) == 2


async def _transaction(client: Any) -> None:
    async with client.pipeline(transaction=True) as commands:
        commands.set("a", 1)
        commands.eval("return redis.call('SET', 'b', 1)", 0)
        await commands.execute()


async def test_the_log_is_told_again_every_minute_and_not_more_often(log_lines, monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    told = kit_redis._Told(get_logger(), "redis://127.0.0.1:1/0")
    full = store_problem(StoreParser.parse_error(f"MISCONF {FULL}"))
    busy = store_problem(StoreParser.parse_error("BUSY Valkey is busy running a script."))
    for _ in range(10 * 60 * 4):  # ten minutes of probes, in which it is well now and then
        told.tell(full)
        told.tell(None)
        now_s += 0.25
    lines = log_lines()
    assert len([line for line in lines if line["event"] == "redis refuses"]) == 10
    assert len([line for line in lines if line["event"] == "redis answers"]) == 10
    told.tell(busy)  # another state is news
    assert [line["problem"] for line in log_lines()] == [busy.text if busy else ""]
