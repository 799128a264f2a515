"""Records that can't be read: the jobs that they stand for are set aside and counted, every other one goes on."""

from __future__ import annotations

import random

import pytest

from adlro.errors import DataLoss
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import JobState
from adlro.store.keys import EVENTS, JOB, REVISION
from adlro.v1 import job_pb2
from tests.unit.orchestrator.house import House


def counted(house: House) -> float | None:
    return house.registry.get_sample_value("adlro_unreadable_records_total")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        random.Random(1).randbytes(120),
        job_pb2.Job(job_id="job-1", state=job_pb2.JOB_STATE_PENDING).SerializeToString(),
        job_pb2.Job(
            job_id="job-1",
            state=job_pb2.JOB_STATE_RUNNING,
            spec=job_pb2.JobSpec(job_type=job_pb2.JOB_TYPE_SIMULATION),
            gpu_id="volta-0/0",
        ).SerializeToString(),
    ],
    ids=["empty", "random", "no spec", "runs without an attempt"],
)
async def test_one_that_cannot_be_read_stops_nobody_else(house: House, body: bytes) -> None:
    for _ in range(3):
        await house.submit(2.0)
    await house.redis.hset(JOB + "job-1", "m", body)
    house.start()
    await house.until_acting()
    status = await house.orchestrator.status()
    assert status.unreadable_job_count == 1
    assert counted(house) == 1

    async def others_ended() -> bool:
        jobs = [job for job in await house.store.get_many(["job-2", "job-3"]) if job is not None]
        return [job.state for job in jobs] == [JobState.SUCCEEDED] * 2

    await house.until(others_ended)
    await house.kill()
    house.start()
    await house.submit(2.0)

    async def new_one_ended() -> bool:
        return (await house.store.get("job-4")).state is JobState.SUCCEEDED

    await house.until(new_one_ended)
    assert (await house.orchestrator.status()).unreadable_job_count == 1
    assert counted(house) == 1, "each is counted once in a process"


async def test_a_job_whose_submission_cannot_be_read_is_taken_up_all_the_same(house: House) -> None:
    """Its record can be: the next session reads it."""
    house.start()
    await house.until_acting()
    await house.redis.xadd(EVENTS, {"m": b"\x08\x01\x12\xff"}, id="1-0")
    await house.redis.set(REVISION, 1)
    first = await house.submit(2.0)
    (done,) = await house.until_final(1)
    assert done.job_id == first.job_id
    assert counted(house) == 1
    await house.submit(2.0)
    await house.until_final(2)


async def test_a_record_that_is_lost_while_it_waits_holds_up_no_other(house: House) -> None:
    await house.pause()
    house.start("fcfs")
    for _ in range(7):
        await house.submit(2.0)

    async def five_run() -> bool:
        return sum(job.state is JobState.RUNNING for _, job in await house.store.active()) == 5

    await house.until(five_run)
    await house.redis.hset(JOB + "job-6", "m", b"\xff")
    with pytest.raises(DataLoss):
        await house.store.get("job-6")
    await house.kill()
    house.start("fcfs")
    await house.until_acting()
    assert (await house.orchestrator.status()).unreadable_job_count == 1


async def test_a_job_whose_record_is_brought_back_after_its_attempt_ended_runs_again(house: House) -> None:
    """Nobody will tell of that end again: it was told while nobody knew the job."""
    await house.pause()
    house.start("fcfs")
    job = await house.submit(50.0)

    async def runs() -> bool:
        return (await house.store.get(job.job_id)).state is JobState.RUNNING

    await house.until(runs)
    await house.kill()
    whole = await house.redis.hget(JOB + job.job_id, "m")
    await house.redis.hset(JOB + job.job_id, "m", b"\xff")
    house.start("fcfs")
    await house.until_acting()
    assert not house.cluster.running, "an attempt that nobody knows holds no GPU"
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    other = await house.submit(2.0)

    async def other_ended() -> bool:
        return (await house.store.get(other.job_id)).state is JobState.SUCCEEDED

    await house.until(other_ended)
    await house.kill()
    await house.redis.hset(JOB + job.job_id, "m", whole)
    house.start("fcfs")
    await house.submit(2.0)  # time goes on
    first, *_ = await house.until_final(3)
    assert first.state is JobState.SUCCEEDED
    assert first.attempt_count == 2
    assert first.attempts[0].excused
