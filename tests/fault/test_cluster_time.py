"""Cluster time over kills and stops: it never goes back behind what anybody was told, and the clock goes on as set."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from adlro.client import AsyncClient, ClockMode, JobEventKind
from adlro.errors import AdlroError
from adlro.records.events import RunningJob
from adlro.records.jobs import JobSpec, JobState, JobType, SimulatedWork
from tests.e2e.running_suite import marked_pids, start_suite
from tests.fault import verdict
from tests.fault.followers import JobFollower
from tests.fault.stack import ORDER, Stack

pytestmark = pytest.mark.slow

SCALE = 20.0
JOBS = 60
KILLS = 2
# What a client hears of the cluster's time may be so old.
LOOK_S = 0.02


class Told:
    """Cluster times as clients are told them, in the order of the answers.

    Attributes:
        newest_s: the newest of all; a question asked now must not be answered with an older clock.
        problems: what went back.
        looks: answers, by whom.
    """

    def __init__(self) -> None:
        self.newest_s = 0.0
        self.problems: list[str] = []
        self.looks: dict[str, int] = {}
        self._last: dict[str, float] = {}

    def note(self, who: str, time_s: float, not_before_s: float = 0.0) -> None:
        """An answer; `not_before_s`: what had been told to somebody when the question was asked."""
        limit_s = max(self._last.get(who, 0.0), not_before_s)
        if time_s < limit_s:
            self.problems.append(f"{who} told {time_s:.2f} s after {limit_s:.2f} s was told")
        self._last[who] = max(time_s, limit_s)
        self.newest_s = max(self.newest_s, time_s)
        self.looks[who] = self.looks.get(who, 0) + 1

    @asynccontextmanager
    async def asking(self, client: AsyncClient) -> AsyncIterator[None]:
        """Asks all the time, over whatever happens."""

        async def clock() -> None:
            told_s = self.newest_s
            self.note("DescribeCluster", (await client.clock()).time_s, told_s)

        async def status() -> None:
            if time_s := (await client.status()).cluster_time_s:  # 0: it has heard of none
                self.note("GetStatus", time_s)

        async def telemetry() -> None:
            for time_s in (await client.telemetry()).latest.cluster_times_s:
                self.note("GetTelemetry", time_s)

        async def jobs() -> None:
            async for event in client.watch():
                if event.kind is JobEventKind.CHANGE and event.job is not None:
                    times = (event.job.start_s, event.job.end_s, *(each.end_s for each in event.job.attempts))
                    self.newest_s = max(self.newest_s, *(time_s or 0.0 for time_s in times))

        tasks = [asyncio.create_task(_again_and_again(ask)) for ask in (clock, status, telemetry, jobs)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


async def _again_and_again(ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        with contextlib.suppress(AdlroError):  # it is away
            await ask()
        await asyncio.sleep(LOOK_S)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path / "data", ADLRO_SIMCLUSTER_TELEMETRY_HZ="20")
    try:
        made.redis.start()
        made.start(*ORDER)
        yield made
    finally:
        made.stop()


async def test_cluster_and_orchestrator_killed_together_lose_no_time(stack: Stack) -> None:
    told = Told()
    async with (
        stack.client(patience_s=120.0) as client,
        stack.client(patience_s=0.0) as witness,
        JobFollower(stack.addresses["ingest"]) as watched,
        told.asking(witness),
    ):
        await client.set_clock(ClockMode.SCALED, scale=SCALE)
        works = [SimulatedWork(5.0 + 3.0 * (n % 25)) for n in range(JOBS)]
        specs = [JobSpec(f"job {n}", "ada", JobType.SIMULATION, simulated_work=work) for n, work in enumerate(works)]
        await client.submit_many(specs, "together")
        ran: set[RunningJob] = set()
        for kill in range(1, KILLS + 1):
            many = kill * JOBS // (KILLS + 2)
            await watched.until(lambda many=many: len(watched.final) >= many, f"{many} jobs to end")  # type: ignore[misc]
            ran.update((await witness.describe_cluster()).running)
            for name in ("simcluster", "orchestrator"):
                stack.services[name].kill()
            told_s = told.newest_s
            await asyncio.to_thread(stack.start, "simcluster", "orchestrator")
            clock = await client.clock()
            assert (clock.mode, clock.scale, clock.paused) == (ClockMode.SCALED, SCALE, False)
            assert clock.time_s >= told_s
        await watched.until(lambda: len(watched.final) == JOBS, "all jobs to end", 120.0)
    assert not told.problems, told.problems[:5]
    assert told.looks.keys() == {"DescribeCluster", "GetStatus", "GetTelemetry"}
    verdict.check_changes(watched)
    verdict.check_attempts(watched.latest.values())
    assert ran, "nothing ran when they were killed"
    assert {job.attempt_count for job in watched.latest.values()} == {1}, "what ran was killed with its service"
    for job in ran:
        assert watched.latest[job.job_id].start_s == job.start_s


async def test_a_stop_and_another_start_go_on_where_they_were(tmp_path: Path) -> None:
    """Ctrl-C and `adlro up` again: the same clock, and what ran runs on."""
    settings = {"ADLRO_ORCHESTRATOR_MAX_ATTEMPTS": "1"}
    first = start_suite(tmp_path / "data", "--port", "0", **settings)
    try:
        async with AsyncClient(first.server) as client:
            await client.set_clock(ClockMode.SCALED, scale=SCALE)
            spec = JobSpec("long", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(2000.0))
            job = await client.submit(spec)
            async with asyncio.timeout(120.0):
                async for event in client.watch():
                    if event.job is not None and event.job.state is JobState.RUNNING:
                        break
            told = await client.clock()
    finally:
        assert first.end(signal.SIGINT) == 0, first.text
    second = start_suite(tmp_path / "data", "--port", "0", **settings)
    try:
        async with AsyncClient(second.server) as client:
            clock = await client.clock()
            assert (clock.mode, clock.scale, clock.paused) == (told.mode, told.scale, False)
            assert clock.time_s >= told.time_s
            await client.set_clock(ClockMode.VIRTUAL)
            (done,) = await client.wait([job.job_id], timeout_s=120.0)
    finally:
        assert second.end(signal.SIGINT) == 0, second.text
    assert marked_pids(first.mark) == marked_pids(second.mark) == []
    assert (done.state, done.attempt_count) == (JobState.SUCCEEDED, 1), done.message
    verdict.check_attempts([done])
