"""Stores of other formats: older ones are taken over, newer ones refused with the reason, as a whole and by record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import redis.asyncio as aioredis

from adlro.errors import DataLoss, Unsupported
from adlro.kit.redis import connect
from adlro.placement import Placement
from adlro.records.jobs import JobState
from adlro.services.decompose.clients import BadEntry, decode_cluster, decode_outcome, decode_telemetry_entry
from adlro.services.ingest.server import blocks
from adlro.store import Cursor, JobStore, Move
from adlro.store.format import claim
from adlro.store.keys import CLUSTERS, OUTCOMES, STORE, job_key, telemetry_key, telemetry_latest_key
from adlro.v1 import cluster_pb2, job_pb2, stream_pb2, telemetry_pb2
from adlro.wire import FORMAT
from tests.older_stores import restore


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Any]:
    client = connect(redis_url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def old(store: aioredis.Redis, redis_url: str) -> Any:
    """What a suite of commit 2b8a1f0 left when it was killed: format 1, with no mark."""
    restore(redis_url, "2b8a1f0")
    return store


async def test_an_empty_store_is_marked_by_who_writes(store: Any) -> None:
    await claim(store, writes=False)
    assert not await store.exists(STORE)
    await claim(store)
    assert await store.hgetall(STORE) == {
        b"format": str(FORMAT).encode(), b"oldest_user": str(FORMAT).encode(), b"release": b"0.1.0"
    }  # fmt: skip
    await claim(store, writes=False)


async def test_a_store_of_an_older_version_is_taken_over(old: Any) -> None:
    await claim(old, writes=False)
    await claim(old)
    assert int(await old.hget(STORE, "format")) == FORMAT


async def test_a_store_of_a_newer_format_is_refused_with_the_way_out_and_left_as_it_is(store: Any) -> None:
    told = rf"format {FORMAT + 1}, written by ADLRO 9\.1.*ADLRO_REDIS_URL"
    newer = {"format": FORMAT + 1, "oldest_user": FORMAT + 1, "release": "9.1"}
    await store.hset(STORE, mapping=newer)
    for writes in (True, False):
        with pytest.raises(Unsupported, match=told) as refused:
            await claim(store, writes=writes)
        assert refused.value.reason == "STORE_OF_ANOTHER_FORMAT"
    assert await store.hgetall(STORE) == {key.encode(): str(value).encode() for key, value in newer.items()}


@pytest.mark.parametrize("mark", [{"format": "abc"}, {"format": 9, "oldest_user": "x"}, {"format": ""}])
async def test_a_mark_that_is_none_is_told_and_left(store: Any, mark: dict[str, Any]) -> None:
    await store.hset(STORE, mapping=mark)
    before = await store.hgetall(STORE)
    for writes in (True, False):
        with pytest.raises(DataLoss, match=STORE):
            await claim(store, writes=writes)
    assert await store.hgetall(STORE) == before


async def test_a_newer_store_that_lets_this_format_go_on_is_used_and_stays_newer(store: Any) -> None:
    await store.hset(STORE, mapping={"format": FORMAT + 1, "oldest_user": FORMAT, "release": "9.1"})
    await claim(store)
    assert int(await store.hget(STORE, "format")) == FORMAT + 1


async def test_every_record_of_an_older_version_is_read_and_moves_on(old: Any) -> None:
    jobs = JobStore(old)
    found = {job.job_id: job for number in range(1, 24) for job in [await jobs.get(f"job-{number}")]}
    states = [found[f"job-{number}"].state for number in range(1, 24)]
    assert states[:6] == [JobState.SUCCEEDED] * 4 + [JobState.FAILED, JobState.RUNNING]
    assert found["job-20"].state is JobState.CANCELLED
    running = found["job-6"]
    assert running.placement == running.attempts[0].placement == Placement.on("volta-0/0")
    assert found["job-23"].spec.begin_time_s == 99_999.0
    active = await jobs.active()
    assert len(active) == 17
    # Written again, it is of this format.
    version = next(version for version, job in active if job.job_id == "job-6")
    token = await jobs.newest_token()
    await jobs.move(token, [Move(replace(running, message="moved"), version)], Cursor("i", 1, 99.0))
    assert job_pb2.Job.FromString(await old.hget(job_key("job-6"), "m")).format == FORMAT
    assert (await jobs.get("job-6")).placement == Placement.on("volta-0/0")


async def test_every_entry_and_block_of_an_older_version_is_read(old: Any) -> None:
    for _, fields in await old.xrange(OUTCOMES):
        decode_outcome(fields[b"m"])
    for _, fields in await old.xrange(telemetry_key("default")):
        decode_telemetry_entry(fields[b"m"])
        blocks.message_from_entry(fields[b"m"])
    for body in await old.hvals(telemetry_latest_key("default")):
        blocks.from_bytes(body)
    for body in await old.hvals(CLUSTERS):
        assert len(list(decode_cluster(body).gpus())) == 16


async def test_a_record_of_a_newer_format_is_refused_by_itself_with_both_formats(old: Any) -> None:
    jobs = JobStore(old)
    message = job_pb2.Job.FromString(await old.hget(job_key("job-1"), "m"))
    message.format = FORMAT + 1
    await old.hset(job_key("job-1"), "m", message.SerializeToString())
    with pytest.raises(DataLoss, match=rf"format {FORMAT + 1}, and this release reads formats 1 to {FORMAT}"):
        await jobs.get("job-1")
    assert (await jobs.get("job-2")).state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("decode", "message", "error"),
    [
        (decode_outcome, stream_pb2.OutcomeStreamEntry(format=FORMAT + 1), BadEntry),
        (decode_telemetry_entry, stream_pb2.TelemetryStreamEntry(format=FORMAT + 1), BadEntry),
        (decode_cluster, cluster_pb2.Cluster(name="lab", format=FORMAT + 1), BadEntry),
        (blocks.message_from_entry, stream_pb2.TelemetryStreamEntry(format=FORMAT + 1), DataLoss),
        (blocks.from_bytes, telemetry_pb2.NormalizedBlock(format=FORMAT + 1), DataLoss),
    ],
)
def test_what_else_is_kept_says_its_format_too(decode: Any, message: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"format {FORMAT + 1}"):
        decode(message.SerializeToString())
