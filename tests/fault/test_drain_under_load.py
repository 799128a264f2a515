"""SIGTERM to each service while jobs come and go, watches are open and telemetry flows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from adlro.client import AsyncClient, ClockMode
from adlro.errors import NotFound
from adlro.records.jobs import JobSpec, JobType, SimulatedWork
from tests.fault import verdict
from tests.fault.followers import ClusterFollower, JobFollower
from tests.fault.stack import ORDER, PATIENCE_S, Stack, eventually, wait_until_serving
from tests.stopwatch import Stopwatch

pytestmark = pytest.mark.slow

EXIT_WITHIN_S = 10.0
SUBMITTERS = 4
ENDED_BEFORE = 50


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(
        tmp_path_factory.mktemp("drain"),
        ADLRO_SIMCLUSTER_CLOCK_MODE="scaled",
        ADLRO_SIMCLUSTER_CLOCK_SCALE="60",
        ADLRO_SIMCLUSTER_TELEMETRY_HZ="50",
    )
    try:
        made.redis.start()
        made.start(*ORDER)
        yield made
    finally:
        made.stop()


class Load:
    """Clients of every kind, until they are told to end."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self._name = name
        self._ending = asyncio.Event()
        self.job_ids: list[str] = []
        self.answers = 0
        self._tasks = [
            *(asyncio.create_task(self._submit(number)) for number in range(SUBMITTERS)),
            asyncio.create_task(self._ask()),
            asyncio.create_task(self._watch(client.watch_decisions())),
            asyncio.create_task(self._watch(client.watch_cluster_state())),
        ]

    async def end(self) -> None:
        """Ends the load; raises what any of the clients met, other than a service that is away for a while."""
        self._ending.set()
        await asyncio.gather(*self._tasks)

    async def _submit(self, number: int) -> None:
        for n in range(1_000_000):
            if self._ending.is_set():
                return
            work = SimulatedWork(5.0 + n % 10)
            spec = JobSpec(f"{self._name}-{number}-{n}", "ada", JobType.SIMULATION, simulated_work=work)
            self.job_ids.append((await self._client.submit(spec, spec.name)).job_id)
            await asyncio.sleep(0.03)  # the load's rate

    async def _ask(self) -> None:
        spec = JobSpec("what if", "ada", JobType.SIMULATION)
        while not self._ending.is_set():
            await self._client.predict([spec], ["v100_sxm2"])
            await self._client.status()
            await self._client.describe_cluster()
            self.answers += 1

    async def _watch(self, stream: AsyncIterator[object]) -> None:
        async def count() -> None:
            async for _ in stream:
                self.answers += 1

        watching = asyncio.create_task(count())
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait([watching, ending], return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if watching.done():
            await watching
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def has_answers(load: Load) -> bool:
    return load.answers > 0


async def is_described(client: AsyncClient) -> bool:
    try:
        await client.cluster_state()
    except NotFound:
        return False
    return True


@pytest.mark.parametrize("name", ORDER)
async def test_it_drains_within_ten_seconds_and_nothing_is_lost(stack: Stack, name: str) -> None:
    drained = stack.services[name]
    async with (
        JobFollower(stack.addresses["ingest"]) as watched,
        ClusterFollower(stack.addresses["simcluster"]) as cluster_log,
        stack.client() as client,
    ):
        await eventually(partial(is_described, client), "simcluster to describe its cluster")
        load = Load(client, name)
        await watched.until(lambda: len(watched.final) >= ENDED_BEFORE, f"{ENDED_BEFORE} jobs to end")
        await eventually(partial(has_answers, load), "an answer to the load")
        async with Stopwatch() as watch:
            drained.terminate()
            code = await asyncio.to_thread(drained.wait, PATIENCE_S)
            assert code == 0
            assert watch.read() < EXIT_WITHIN_S
        await asyncio.to_thread(stack.start, name)
        await wait_until_serving([stack.addresses[name]])
        await client.set_clock(ClockMode.SCALED, scale=60.0)
        more = len(watched.final) + ENDED_BEFORE
        await watched.until(lambda: len(watched.final) >= more, "more jobs to end")
        await load.end()
        await watched.until(lambda: len(watched.final) == len(load.job_ids), "all jobs to end")
        await cluster_log.catch_up()
        assert sorted(load.job_ids) == sorted(watched.latest)
        verdict.check_changes(watched)
        verdict.check_attempts(watched.latest.values())
        verdict.check_cluster_log(cluster_log, watched.latest)
    told = [line for line in drained.log_lines() if line.get("level") in ("error", "critical")]
    assert not told, told
