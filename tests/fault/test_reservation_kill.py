"""A reservation outlasts `kill -9` of the orchestrator: GPUs that were kept free are not kept for nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adlro.client import AsyncClient
from adlro.records.jobs import ExpectedRuntime, JobReservation, JobSpec, JobState, JobType, PendingReason, SimulatedWork
from tests.e2e.running_suite import RunningSuite, marked_pids, start_suite
from tests.fault.replaying import kill, wait_until_back
from tests.fault.stack import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LONG_S = 200_000.0
V100 = "v100_sxm2"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    folder = tmp_path_factory.mktemp("reserved") / "data"
    options = ("--clock", "scaled", "--scale", "300", "--policy", "hold_gang")
    running = start_suite(folder, "--port", "0", *options)
    yield running
    assert running.end() == 0, running.text
    assert marked_pids(running.mark) == []


def spec(work_s: float, gpu_count: int = 1, *gpu_models: str) -> JobSpec:
    return JobSpec(
        "j",
        "ann",
        JobType.MACHINE_LEARNING,
        gpu_count=gpu_count,
        gpu_models=gpu_models,
        max_node_count=1,
        expected_runtime=ExpectedRuntime(V100, work_s),
        simulated_work=SimulatedWork(work_s),
    )


async def running(client: AsyncClient, job: JobSpec) -> str:
    """The id of a job that runs."""
    job_id = (await client.submit(job)).job_id

    async def runs() -> bool:
        return (await client.get(job_id)).state is JobState.RUNNING

    await eventually(runs, f"{job_id} to run")
    return job_id


async def held(client: AsyncClient) -> JobReservation | None:
    found = (await client.status()).reservations
    return found[0] if found else None


async def test_the_reservation_is_the_same_after_kill_9(suite: RunningSuite) -> None:
    async with AsyncClient(suite.server, patience_s=60.0) as client:
        await running(client, spec(LONG_S, 4, V100))
        first = await running(client, spec(LONG_S / 2.0, 3, V100))  # its node is kept, with a GPU that is idle
        gang = (await client.submit(spec(100.0, 4, V100))).job_id
        begun_s = (await client.clock()).time_s

        async def waited_long() -> bool:
            return (await client.clock()).time_s > begun_s + 2000.0

        for _ in range(2):  # the policy is asked when something else could start
            await client.submit(spec(100.0, 1, "radeon_vii"))
            await eventually(waited_long, "the gang to have waited for many times its runtime")
        await client.submit(spec(100.0, 1, "radeon_vii"))

        async def is_held() -> bool:
            return (await held(client)) is not None

        await eventually(is_held, "a reservation", 20.0)
        before = await held(client)
        assert before is not None
        assert (before.job_id, before.gpu_model, before.gpu_count) == (gang, V100, 4)
        late = (await client.submit(spec(2.0 * LONG_S, 1, V100))).job_id

        async def waits_for_it() -> bool:
            job = await client.get(late)
            return job.pending_reason is PendingReason.RESERVED and job.reserved_for_job_id == gang

        await eventually(waits_for_it, "the reason of the job that waits because of it")
        pid = kill(suite, "orchestrator")
        await wait_until_back(suite, "orchestrator", pid)
        await eventually(is_held, "the reservation to be there again")
        after = await held(client)
        assert after is not None
        assert (after.job_id, after.since_s) == (before.job_id, before.since_s)
        assert (await client.get(late)).state is JobState.PENDING
        record = await client.get(gang)
        assert record.reservation is not None
        assert record.reservation.since_s == before.since_s

        await client.cancel(first)

        async def has_ended() -> bool:
            return (await client.get(gang)).state is JobState.SUCCEEDED

        await eventually(has_ended, "the gang to start and to end")
        assert await held(client) is None
