"""The answer of a stream of jobs: in order, in so few bytes that a client of gRPC takes it, whatever became of them."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from adlro.errors import InvalidInput
from adlro.services.ingest.server import submitted
from adlro.services.ingest.server.submitted import MAX_JOBS, SubmissionAnswers
from adlro.store import Created
from adlro.v1 import job_pb2
from adlro.wire import submitted_to_proto

STOCK_RECEIVE_BYTES = 4 << 20


def recorded(number: int) -> asyncio.Future[Created]:
    future: asyncio.Future[Created] = asyncio.get_running_loop().create_future()
    future.set_result(
        Created(job_pb2.Job(job_id=f"job-{10**17 + number}", spec=job_pb2.JobSpec(name="n" * 253)), False)
    )
    return future


async def test_as_many_refusals_as_a_stream_may_have_fit_a_stock_client():
    jobs = SubmissionAnswers()
    for index in range(MAX_JOBS):
        await jobs.add(InvalidInput(f"message {index} of the stream: " + "€" * 2000), 1000)
    await jobs.decided()
    response = submitted_to_proto(jobs.submitted)
    assert response.ByteSize() < STOCK_RECEIVE_BYTES
    assert [each.index for each in response.rejected] == list(range(MAX_JOBS))
    assert response.rejected[0].message.startswith("message 0 of the stream: €€")
    assert 1020 < len(response.rejected[0].message.encode()) <= 1024
    assert response.rejected[-1].message.startswith(f"message {MAX_JOBS - 1} of the stream: €")
    assert response.rejected[-1].message.endswith("...")


async def test_as_many_jobs_as_a_stream_may_have_fit_a_stock_client():
    jobs = SubmissionAnswers()
    for index in range(MAX_JOBS):
        await jobs.add(recorded(index), 1000)
    await jobs.decided()
    response = submitted_to_proto(jobs.submitted)
    assert response.accepted_count == len(response.job_ids) == MAX_JOBS
    assert response.ByteSize() < STOCK_RECEIVE_BYTES // 4


async def test_what_is_being_written_is_bounded_in_bytes_and_order_is_kept(monkeypatch):
    monkeypatch.setattr(submitted, "_IN_FLIGHT_BYTES", 3000)
    jobs = SubmissionAnswers()
    first: asyncio.Future[Created] = asyncio.get_running_loop().create_future()
    await jobs.add(first, 1000)
    await jobs.add(InvalidInput("no"), 1000)
    await jobs.add(recorded(2), 1000)
    more = asyncio.create_task(jobs.add(recorded(3), 1000))
    await asyncio.sleep(0.01)
    assert not more.done()
    assert list(jobs.submitted.job_ids) == []
    first.set_result(recorded(0).result())
    await more
    await jobs.decided()
    assert [bool(each) for each in jobs.submitted.job_ids] == [True, False, True, True]
    assert len(jobs) == 4


async def test_a_store_that_goes_away_is_told_when_all_else_is_decided():
    jobs = SubmissionAnswers()
    lost: asyncio.Future[Created] = asyncio.get_running_loop().create_future()
    await jobs.add(lost, 10)
    later: asyncio.Future[Created] = asyncio.get_running_loop().create_future()
    await jobs.add(later, 10)
    lost.set_exception(RedisConnectionError("gone"))
    waiting = asyncio.create_task(jobs.decided())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    later.set_result(recorded(1).result())
    with pytest.raises(RedisConnectionError):
        await waiting
    assert submitted_to_proto(jobs.submitted).accepted_count == 1
