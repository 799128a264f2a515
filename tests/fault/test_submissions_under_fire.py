"""Clients that submit and repeat while ingest and Valkey are killed under them: no job lost, none made twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from adlro.client import AsyncClient
from adlro.errors import AlreadyExists
from adlro.records.jobs import Job, JobSpec, JobType
from tests.fault import verdict
from tests.fault.followers import JobFollower
from tests.fault.stack import Stack

pytestmark = pytest.mark.slow

CLIENTS = 8
JOBS_EACH = 100
STREAMED = 400
# So many jobs recorded, and the next process is killed.
KILL_AT = {150: "ingest", 350: "valkey", 600: "both", 850: "ingest", 1000: "valkey"}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """ingest alone: nobody takes the jobs up."""
    made = Stack(tmp_path)
    try:
        made.redis.start()
        made.start("ingest")
        yield made
    finally:
        made.stop()


@pytest.fixture
async def clients(stack: Stack) -> AsyncIterator[list[AsyncClient]]:
    """Each with a connection of its own."""
    made = [stack.client() for _ in range(CLIENTS)]
    yield made
    for client in made:
        await client.close()


def spec(request_id: str) -> JobSpec:
    return JobSpec(request_id, "ada", JobType.MACHINE_LEARNING, gpu_memory_mib=4000, labels={"request": request_id})


def kill_and_start(stack: Stack, what: str) -> None:
    if what in ("ingest", "both"):
        stack.services["ingest"].kill()
    if what in ("valkey", "both"):
        stack.redis.kill()
        stack.redis.start()
    if what in ("ingest", "both"):
        stack.start("ingest")


async def test_no_acknowledged_job_is_lost_and_no_request_makes_two(stack: Stack, clients: list[AsyncClient]) -> None:
    acknowledged: dict[str, str] = {}

    async def submit_one_by_one(number: int) -> None:
        # Each request goes out twice at the same time, as when a client believes too early that an answer is lost.
        twins = clients[number], clients[(number + 1) % CLIENTS]
        for n in range(JOBS_EACH):
            request_id = f"client-{number}-{n}"
            one, other = await asyncio.gather(*(each.submit(spec(request_id), request_id) for each in twins))
            assert one.job_id == other.job_id
            assert one.spec == other.spec == spec(request_id)
            acknowledged[request_id] = one.job_id

    async def submit_in_streams() -> None:
        for start in range(0, STREAMED, 100):
            names = [f"stream-{start}-{n}" for n in range(100)]
            answer = await clients[0].submit_many(map(spec, names), f"stream-{start}")
            assert not answer.rejected
            acknowledged.update(zip(names, answer.job_ids, strict=True))

    async with JobFollower(stack.addresses["ingest"]) as watched:

        async def fire() -> list[int]:
            hits = []
            for at, what in KILL_AT.items():
                await watched.until(lambda at=at: len(watched.latest) >= at, f"{at} jobs")  # type: ignore[misc]
                hits.append(len(watched.latest))
                await asyncio.to_thread(kill_and_start, stack, what)
            return hits

        firing = asyncio.create_task(fire())
        await asyncio.gather(firing, submit_in_streams(), *map(submit_one_by_one, range(CLIENTS)))
        total = CLIENTS * JOBS_EACH + STREAMED
        assert firing.result()[-1] < total, "the last kill came too late to matter"
        await watched.until(lambda: len(watched.latest) >= total, "every job")
        assert len(acknowledged) == total
        listed = {job.job_id: job async for job in clients[0].list()}
        assert len(listed) == total, "a request made two jobs"
        assert {job.spec.name: job_id for job_id, job in listed.items()} == acknowledged
        assert listed == watched.latest
        verdict.check_changes(watched)


async def test_a_request_id_means_the_same_job_after_ingest_and_valkey_were_killed(
    stack: Stack, clients: list[AsyncClient]
) -> None:
    async def submit_all() -> dict[str, Job]:
        async def submit(n: int) -> Job:
            return await clients[n % CLIENTS].submit(spec(f"job-{n}"), f"request-{n}")

        jobs = await asyncio.gather(*(submit(n) for n in range(100)))
        return {job.job_id: job for job in jobs}

    first = await submit_all()
    assert len(first) == 100
    await asyncio.to_thread(kill_and_start, stack, "both")
    assert await submit_all() == first
    for n in (0, 99):
        with pytest.raises(AlreadyExists) as refused:
            await clients[0].submit(replace(spec(f"job-{n}"), priority=0.75), f"request-{n}")
        assert refused.value.reason == "REQUEST_ID_REUSED"
        assert refused.value.metadata["job_id"] in first
    # Another user's request of that id is another one.
    assert (await clients[0].submit(replace(spec("job-0"), user="bob"), "request-0")).job_id not in first
    assert [job.job_id async for job in clients[0].list()] == [f"job-{n}" for n in range(1, 102)]
