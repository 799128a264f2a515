"""A long queue is loaded, taken up and written in parts: the loop, and Redis, serve others between them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from adlro.errors import DeadlineExceeded
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType, NormalizedJob, PendingReason, SimulatedWork
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ports import Predicted
from adlro.services.orchestrator.session.session import Session
from adlro.store import JobStore, NewJob
from tests.unit.orchestrator.house import Declared, House

JOBS = 1600
AT_ONCE = 1000


class Asked(Declared):
    """Notes who it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        self.names += [spec.name for spec in specs]
        return await super().predict(specs, gpu_models)


class Hanging(Asked):
    """Answers as a call that ran into its deadline, after a moment."""

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        await super().predict(specs, gpu_models)
        await asyncio.sleep(0.2)
        raise DeadlineExceeded("no answer")


class Waiting(Asked):
    """Answers once the store is asked for its last page."""

    def __init__(self) -> None:
        super().__init__()
        self.read = asyncio.Event()

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        async with asyncio.timeout(60.0):
            await self.read.wait()
        return await super().predict(specs, gpu_models)


async def submit(store: JobStore, jobs: int = JOBS) -> None:
    runtime = ExpectedRuntime("v100_sxm2", 100.0)
    for start in range(0, jobs, 500):
        specs = [
            JobSpec(f"{n}", "ann", JobType.SIMULATION, expected_runtime=runtime, simulated_work=SimulatedWork(100.0))
            for n in range(start, min(start + 500, jobs))
        ]
        await store.create_many([NewJob(spec, NormalizedJob(), "", 0.0) for spec in specs])


async def taken_up(house: House) -> None:
    async def all_have_reasons() -> bool:
        jobs = [job for _, job in await house.store.active()]
        return all(job.pending_reason is not PendingReason.SUBMITTED for job in jobs)

    await house.until(all_have_reasons)


async def test_a_long_queue_is_loaded_and_written_in_parts(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the lease, health and callers wait for the whole of it: of 100,000 jobs many seconds."""
    turns = 0
    entered: dict[int, int] = {}
    written: list[int] = []
    enter, move = Ledger.enter, house.store.move

    def counted(ledger: Ledger, *args: Any) -> Any:
        entered[turns] = entered.get(turns, 0) + 1
        return enter(ledger, *args)

    async def noted(token: int, moves: Sequence[Any], cursor: Any = None) -> list[int]:
        written.append(len(moves))
        return await move(token, moves, cursor)

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(Ledger, "enter", counted)
    monkeypatch.setattr(house.store, "move", noted)
    await house.pause()
    await submit(house.store)
    turning = asyncio.create_task(turn())
    try:
        for _ in range(2):  # new jobs, then those that an earlier session has taken up
            entered.clear()
            house.start("fcfs", lease_s=10.0)
            await house.until_acting()
            await taken_up(house)
            assert sum(entered.values()) >= JOBS
            assert max(entered.values()) <= AT_ONCE
            await house.kill()
    finally:
        turning.cancel()
    assert sum(written) >= JOBS
    assert max(written) <= AT_ONCE


@pytest.mark.each_python
@pytest.mark.slow
async def test_of_a_long_queue_the_first_are_predicted_before_and_all_in_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = house.predictor = Asked()
    house.start("fcfs", lease_s=10.0)
    await house.until_acting()
    await house.pause()
    await submit(house.store, 1200)
    await taken_up(house)
    await house.kill()
    asked.names.clear()
    before_acting: list[str] = []
    monkeypatch.setattr("adlro.services.orchestrator.session.loading.PREDICTED_FIRST", 100)
    monkeypatch.setattr("adlro.services.orchestrator.runtimes.refresh.REFRESH_S", 0.01)
    house.start("fcfs", lease_s=10.0)
    await house.until_acting()
    before_acting += asked.names[:105]
    placed = {job.spec.name for _, job in await house.store.active() if job.attempts}
    assert placed
    assert set(before_acting) == placed | {str(n) for n in range(len(placed), 100 + len(placed))}

    async def all_asked() -> bool:
        await house.cluster.wake_at([0.0])
        return len(set(asked.names)) == 1200

    await house.until(all_asked)


async def test_a_session_that_failed_is_freed_while_the_next_one_acts(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100,000 jobs it holds half a gibibyte."""
    sessions: list[weakref.ref[Session]] = []
    run, read_requests = Session.run, JobStore.read_requests

    async def noted(session: Session) -> None:
        sessions.append(weakref.ref(session))
        await run(session)

    async def failing(store: JobStore, revision: int, *, block_ms: int) -> Any:
        if len(sessions) == 1:
            raise ConnectionError("no more")
        return await read_requests(store, revision, block_ms=block_ms)

    monkeypatch.setattr(Session, "run", noted)
    monkeypatch.setattr(JobStore, "read_requests", failing)
    house.start("fcfs", lease_s=10.0)

    async def again() -> bool:
        return len(sessions) == 2 and (await house.orchestrator.status()).acting

    await house.until(again)
    gc.collect()
    assert sessions[0]() is None
    assert sessions[1]() is not None


async def test_records_are_read_on_while_decompose_is_asked(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = house.predictor = Waiting()
    await submit(house.store)
    read = house.store._read_many

    async def note(args: list[Any]) -> Any:
        if f"job-{JOBS}" in args:
            waiting.read.set()
        return await read(args=args)

    monkeypatch.setattr(house.store, "_read_many", note)
    house.start("fcfs", lease_s=30.0)
    await house.until_acting()
    await taken_up(house)
    assert waiting.names[:JOBS] == [str(n) for n in range(JOBS)]


async def test_a_decompose_that_hangs_holds_up_a_load_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    # So long that it is over on no machine, however slow, before all is loaded.
    monkeypatch.setattr("adlro.services.orchestrator.runtimes.predictions.LEAST_PAUSE_S", 3600.0)
    hanging = house.predictor = Hanging()
    await submit(house.store)
    house.start("fcfs", lease_s=10.0)
    await house.until_acting()
    assert len(hanging.names) <= AT_ONCE
    await taken_up(house)
