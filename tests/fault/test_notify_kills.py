"""notify, ingest and Valkey are killed while jobs end, and the receiver goes and comes: no end is lost."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.client import ClockMode
from adlro.kit.testing import SpawnedService
from adlro.records.jobs import JobSpec, JobType, SimulatedWork
from adlro.webhooks.events import job_ended
from tests.fault.stack import ORDER, Stack, eventually
from tests.unit.webhooks.samples import webhooks_file
from tests.webhook_receiver import SECRET, Receiver, receiver

pytestmark = pytest.mark.slow

JOBS = 400
ROUNDS = 10
SEED = int(os.environ.get("ADLRO_TEST_NOTIFY_SEED", "7"))


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path / "data", ADLRO_ORCHESTRATOR_POLICY="fcfs")
    try:
        made.redis.start()
        made.start(*ORDER)
        yield made
    finally:
        made.stop()


class Notify:
    """notify beside a stack, killed and started again."""

    def __init__(self, stack: Stack, folder: Path, url: str) -> None:
        (folder / "s.secret").write_text(SECRET)
        self._stack = stack
        self._settings = {
            "ADLRO_NOTIFY_WEBHOOKS_FILE": str(webhooks_file(folder, url, unsigned="", secret_file='"s.secret"')),
            "ADLRO_NOTIFY_DATA_DIR": str(folder / "notify"),
            "ADLRO_NOTIFY_LONGEST_PAUSE_S": "0.2",
            "ADLRO_NOTIFY_INGEST_ADDRESS": stack.addresses["ingest"],
            "ADLRO_NOTIFY_DECOMPOSE_ADDRESS": stack.addresses["decompose"],
            "ADLRO_NOTIFY_ORCHESTRATOR_ADDRESS": stack.addresses["orchestrator"],
            "ADLRO_NOTIFY_CLUSTER_ADDRESS": stack.addresses["simcluster"],
        }
        self.process: SpawnedService | None = None

    async def start(self) -> None:
        """Starts it; returns when it listens."""
        self.process = await asyncio.to_thread(self._stack.start_another, "notify", **self._settings)

    async def until_it_notes(self) -> None:
        """Returns when it has begun for the first time: what ended before is none of its business."""
        process = self.process
        assert process is not None

        async def begun() -> bool:
            return any(str(line.get("event", "")).startswith("notes the ends") for line in process.log_lines())

        await eventually(begun, "notify to begin")

    async def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            await asyncio.to_thread(self.process.kill)


async def submitted(stack: Stack, count: int) -> list[str]:
    async with stack.client() as client:
        await client.set_clock(ClockMode.SCALED, scale=20.0)
        specs = [
            JobSpec(f"job {n}", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(2.0 + n % 30))
            for n in range(count)
        ]
        return list((await client.submit_many(specs, "told")).job_ids)


async def ended(stack: Stack, job_ids: list[str]) -> None:
    async with stack.client() as client:
        await client.wait(job_ids, timeout_s=200.0)


async def all_records_told(stack: Stack, there: Receiver, job_ids: list[str]) -> None:
    """Returns when each job's end is told as the record has it at last; a store may have lost an end before."""
    async with stack.client() as client:
        records = [await client.get(job_id) for job_id in job_ids]
    ends = {job_ended(record, "", 0.0).event_id for record in records}
    await there.until(lambda it: ends <= {each["id"] for each in it.accepted}, timeout_s=60.0)


async def more_told(there: Receiver) -> None:
    """Returns when it is told more than now, or all."""
    known = len(there.accepted)
    await there.until(lambda it: len(it.accepted) > known or len(it.accepted) >= JOBS)


def judge(there: Receiver, job_ids: list[str], most_repeated: int) -> None:
    counts = Counter(there.ended_jobs())
    assert set(counts) == set(job_ids), f"{len(set(job_ids) - set(counts))} ends are lost"
    repeated = sum(count - 1 for count in counts.values())
    assert repeated <= most_repeated
    # A repeated message is known by its id.
    ids = {(each["job"]["job_id"], each["id"]) for each in there.accepted if each["event"] == "job_ended"}
    assert len(ids) == len(job_ids)
    assert {each["lost_count"] for each in there.accepted} == {0}


@pytest.mark.timeout(600)
async def test_kills_of_notify_and_a_receiver_that_goes_and_comes_lose_no_end(stack: Stack, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    with receiver() as there:
        notify = Notify(stack, tmp_path, there.url)
        await notify.start()
        await notify.until_it_notes()
        job_ids = await submitted(stack, JOBS)
        middle = 0
        try:
            for number in range(ROUNDS):
                middle += len(there.accepted) < JOBS
                if number % 3 == 1:
                    there.stop()
                    await asyncio.sleep(chance.uniform(0.1, 0.5))
                else:
                    # In the middle of deliveries, where there are any.
                    await more_told(there)
                    await asyncio.sleep(chance.uniform(0.0, 0.1))
                await notify.kill()
                if number % 3 == 1:
                    there.start()
                await notify.start()
            await ended(stack, job_ids)
            await there.until(lambda it: len(set(it.ended_jobs())) >= JOBS, timeout_s=120.0)
        finally:
            await notify.kill()
    judge(there, job_ids, most_repeated=ROUNDS)
    assert middle > ROUNDS // 2, "most kills came when all was told"


@pytest.mark.timeout(600)
async def test_kills_of_ingest_and_valkey_lose_no_end(stack: Stack, tmp_path: Path) -> None:
    chance = random.Random(SEED + 1)
    with receiver() as there:
        notify = Notify(stack, tmp_path, there.url)
        await notify.start()
        await notify.until_it_notes()
        job_ids = await submitted(stack, JOBS)
        try:
            for number in range(4):
                await more_told(there)
                await asyncio.sleep(chance.uniform(0.0, 0.3))
                if number % 2:
                    stack.redis.kill()
                    await asyncio.to_thread(stack.redis.start)
                else:
                    await asyncio.to_thread(stack.services["ingest"].kill)
                    await asyncio.to_thread(stack.start, "ingest")
            await ended(stack, job_ids)
            await there.until(lambda it: len(set(it.ended_jobs())) >= JOBS, timeout_s=120.0)
            await all_records_told(stack, there, job_ids)
        finally:
            await notify.kill()
    # Valkey may have lost its last changes: a job then ends again, at another time, and that is told.
    counts = Counter(there.ended_jobs())
    assert set(counts) == set(job_ids)
    assert {each["lost_count"] for each in there.accepted} == {0}


@pytest.mark.timeout(600)
async def test_a_valkey_that_comes_back_without_its_last_changes_loses_no_end(stack: Stack, tmp_path: Path) -> None:
    """The revisions of what was lost are given again: our place alone would not show it."""
    kept, file = tmp_path / "kept", tmp_path / "data" / "appendonlydir"
    with receiver() as there:
        notify = Notify(stack, tmp_path, there.url)
        await notify.start()
        await notify.until_it_notes()
        job_ids = await submitted(stack, JOBS)
        try:
            for _ in range(3):
                await more_told(there)
                await asyncio.to_thread(shutil.copytree, file, kept)
                known = len(there.accepted)
                await there.until(lambda it, known=known: len(it.accepted) >= known + 8)  # type: ignore[misc]
                stack.redis.kill()
                shutil.rmtree(file)
                kept.rename(file)
                await asyncio.to_thread(stack.redis.start)
            await ended(stack, job_ids)
            await there.until(lambda it: len(set(it.ended_jobs())) >= JOBS, timeout_s=120.0)
            await all_records_told(stack, there, job_ids)
        finally:
            await notify.kill()


async def test_a_receiver_that_never_answers_delays_no_job(stack: Stack, tmp_path: Path) -> None:
    """The suite does not know that notify exists: jobs end as fast as without it."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            pass

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    notify = Notify(stack, tmp_path, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    await notify.start()
    try:
        await notify.until_it_notes()
        job_ids = await submitted(stack, 60)
        await ended(stack, job_ids)
        process = notify.process
        assert process is not None
        assert await asyncio.to_thread(process.stop, 20.0) == 0  # it drains in time, too
    finally:
        await notify.kill()
        server.close()
