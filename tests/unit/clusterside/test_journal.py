"""Nothing is told before it is written down; what comes together is written together; a store that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from adlro.clusterside import journal as journal_module
from adlro.clusterside.cluster_side import ClusterSide
from adlro.clusterside.journal import Journal
from adlro.errors import OutOfRange, Stale, Unavailable
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import JobSpec, JobType, SimulatedWork
from adlro.services.simcluster.driver import SimulatedCluster
from adlro.sim.simulator import ClusterSimulator
from tests.unit.clusterside.memory_record import MemoryRecord
from tests.unit.simcluster.walltime import HandTimers

GPUS = 40
CLUSTER = Cluster("c", (Node("n", 64, 1 << 20, tuple(Gpu(f"n/{n}", "v100_sxm2", 16160) for n in range(GPUS))),))
SPEC = JobSpec("j", "ada", JobType.SIMULATION, memory_mib=1, simulated_work=SimulatedWork(10.0))


class Bench:
    """A cluster side with a virtual clock, whose journal runs."""

    def __init__(self) -> None:
        self.record = MemoryRecord()
        self.driver = SimulatedCluster(ClusterSimulator(CLUSTER), Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
        self.side = ClusterSide(self.driver, HandTimers(), written_down=True)
        self.journal = self.side.journal = Journal(self.record, self.side.collect, self.side.written)
        self.problems: list[str] = []

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def launch(self, number: int) -> None:
        self.journal.check()
        self.side.launch(f"job-{number}", 1, SPEC, Placement.on(f"n/{number}"), 0)
        await self.side.settled()


@asynccontextmanager
async def journaled() -> AsyncIterator[Bench]:
    made = Bench()
    made.journal.touch()
    running = asyncio.create_task(made.journal.run(made.problems.append))
    await made.settle()
    assert [changes.whole for changes in made.record.writes] == [True], "the first one founds the incarnation"
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_events_are_told_and_launches_answered_when_they_are_written_down():
    async with journaled() as made:
        made.record.go.clear()
        answer = asyncio.create_task(made.launch(1))
        await made.settle()
        assert not answer.done()
        assert made.side.log.revision == 2, "it has started, and ended, for nothing keeps a virtual clock"
        assert made.side.log.next_after(0) is None
        with pytest.raises(OutOfRange):
            made.side.acknowledge(made.side.log.incarnation, 1, 0)
        sampled = made.driver.sample()
        assert sampled is not None
        assert sampled[0] == 0.0, "no time is told before its events are"
        made.record.go.set()
        await answer
        batch = made.side.log.next_after(0)
        assert batch is not None
        assert made.driver.sample()[0] == 10.0
        assert [event.job_id for event in made.record.writes[-1].batches[0].events] == ["job-1"]


async def test_what_comes_together_is_written_together():
    async with journaled() as made:
        await asyncio.gather(*(made.launch(number) for number in range(GPUS)))
        assert len(made.record.writes) <= 3
        assert sum(len(changes.batches) for changes in made.record.writes) == GPUS + 1
        assert not any(changes.whole for changes in made.record.writes[1:])


async def test_a_store_that_is_away_takes_nothing_new_and_what_has_happened_is_told_afterwards(monkeypatch):
    monkeypatch.setattr(journal_module, "AGAIN_S", 0.0)
    async with journaled() as made:
        made.record.away = True
        with pytest.raises(Unavailable, match="can't write its journal"):
            await made.launch(1)  # it has started; whether that will be known is not
        revision = made.side.log.revision
        with pytest.raises(Unavailable):
            await made.launch(2)
        assert made.side.log.revision == revision
        assert made.side.log.next_after(0) is None
        assert made.problems[-1] == "the store does not accept the journal: away"
        made.record.away = False
        async with asyncio.timeout(60.0):
            while made.problems[-1]:
                await made.settle()
        assert made.record.writes[-1].whole, "what of the failed write was done is not known"
        assert made.side.log.next_after(0) is not None
        await made.launch(2)


async def test_a_store_that_has_lost_it_is_given_the_whole():
    async with journaled() as made:
        await made.launch(1)
        made.record.lost = True
        await made.launch(2)
        last = made.record.writes[-1]
        assert last.whole
        assert set(last.attempts) == {"job-1", "job-2"}
        assert last.cluster == CLUSTER


async def test_one_that_another_process_has_taken_over_ends():
    made = Bench()
    made.journal.touch()
    made.record.taken_over = True
    with pytest.raises(Stale):
        await made.journal.run(made.problems.append)
    await made.journal.close()
