"""A cluster that runs programs: what is told of what an adapter does and fails to do, over restarts too."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import pytest

from adlro.clusterside import real_driver
from adlro.clusterside.attempts import Attempt
from adlro.clusterside.cluster_side import ClusterSide
from adlro.clusterside.journal import Journal
from adlro.clusterside.real_driver import RealDriver
from adlro.clusterside.timers import LoopTimers
from adlro.errors import Conflict, InvalidInput
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import Capabilities, ClockMode, EventKind
from adlro.records.jobs import JobSpec, JobType
from tests.unit.clusterside.memory_record import MemoryRecord, kept_of

CLUSTER = Cluster("c", (Node("n", 8, 65536, (Gpu("n/0", "v100_sxm2", 16160), Gpu("n/1", "v100_sxm2", 16160))),))


def spec(time_limit_s: float | None = None) -> JobSpec:
    return JobSpec("j", "ada", JobType.SIMULATION, memory_mib=1, time_limit_s=time_limit_s)


class Programs(RealDriver):
    """An adapter whose programs are names in a set, which outlives it."""

    def __init__(self, programs: set[str]) -> None:
        super().__init__(CLUSTER)
        self.programs = programs
        self.attempts: dict[str, Attempt] = {}
        self.failure: Exception | None = None
        self.deaf = 0  # so many ends fail
        self.lost_answers = 0  # so many questions whether a program is there fail
        self.go = asyncio.Event()
        self.go.set()

    async def start(self, attempt: Attempt) -> None:
        await self.go.wait()
        if self.failure is not None:
            raise self.failure
        self.attempts[attempt.job_id] = attempt
        self.programs.add(attempt.job_id)
        self.runs(attempt)

    async def end(self, attempt: Attempt) -> None:
        if self.deaf:
            self.deaf -= 1
            raise OSError("no answer")
        self.programs.discard(attempt.job_id)
        self.ended(attempt, EventKind.FAILED, "killed")

    async def resume(self, attempt: Attempt) -> bool:
        self.attempts[attempt.job_id] = attempt
        if self.lost_answers:
            self.lost_answers -= 1
            raise OSError("no answer")
        if attempt.job_id not in self.programs:
            return False
        self.runs(attempt)
        return True


class Bench:
    """An adapter's life; `restart` begins another one from what was written down."""

    def __init__(self) -> None:
        self.programs: set[str] = set()
        self.driver = Programs(self.programs)
        self.side = ClusterSide(self.driver, LoopTimers())

    async def restart(self) -> None:
        kept = kept_of(self.side.collect(whole=True))
        await self.driver.close()
        self.driver = Programs(self.programs)
        self.side = ClusterSide(self.driver, LoopTimers())
        self.side.restore(kept)
        await self.driver.begin(kept)

    def launch(self, job_id: str, gpu_id: str = "n/0", attempt: int = 1, time_limit_s: float | None = None):
        return self.side.launch(job_id, attempt, spec(time_limit_s), Placement.on(gpu_id), 0)

    def told(self, job_id: str) -> list[str]:
        events = [event for batch in self.side.log.after(0) for event in batch.events if event.job_id == job_id]
        return [event.kind.name + (f": {event.message}" if event.message else "") for event in events]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60.0):
            while not condition():  # noqa: ASYNC110 - of tasks that tell nobody
                await asyncio.sleep(0.002)

    async def until_told(self, job_id: str, *kinds: str) -> None:
        await self.until(lambda: len(self.told(job_id)) >= len(kinds))
        assert self.told(job_id) == list(kinds)


@pytest.fixture
async def bench():
    made = Bench()
    await made.driver.begin(None)
    yield made
    await made.driver.close()


async def test_a_launch_is_accepted_and_its_start_and_end_are_told_as_they_come(bench):
    launched = bench.launch("a")
    assert (launched.existing, launched.start_s, launched.revision, launched.state.name) == (False, 0.0, 0, "ACCEPTED")
    assert bench.side.describe().running == (), "it has not started yet"
    await bench.until_told("a", "STARTED", "RUNNING")
    assert [job.job_id for job in bench.side.describe().running] == ["a"]
    again = bench.launch("a")
    assert (again.existing, again.state.name) == (True, "RUNNING")
    for _ in range(2):  # the second time changes nothing
        bench.driver.ended(bench.driver.attempts["a"], EventKind.FINISHED)
    await bench.until_told("a", "STARTED", "RUNNING", "FINISHED")
    assert bench.launch("a").state.name == "ENDED"


async def test_what_can_not_be_started_is_lost_and_what_can_never_run_fails(bench):
    bench.driver.failure = OSError("the node does not answer")
    bench.launch("a")
    await bench.until_told("a", "LOST: it could not be started: OSError: the node does not answer")
    bench.driver.failure = InvalidInput("no image is named", field="job.image")
    bench.launch("b")
    await bench.until_told("b", "FAILED: no image is named")
    bench.driver.failure = None
    assert not bench.launch("a", attempt=2).existing, "their GPU is free"


async def test_a_stop_waits_for_the_start_and_is_tried_until_it_is_done(bench, monkeypatch):
    monkeypatch.setattr(real_driver, "AGAIN_S", 0.0)
    bench.driver.go.clear()
    bench.driver.deaf = 2
    bench.launch("a")
    assert bench.side.stop("a", 1, 0)
    assert not bench.side.stop("a", 1, 0), "it is to end already"
    await asyncio.sleep(0.01)
    assert bench.told("a") == []
    bench.driver.go.set()
    await bench.until_told("a", "STARTED", "RUNNING", "STOPPED: stopped")
    assert bench.programs == set()


async def test_a_program_that_ends_before_its_stop_has_finished(bench):
    bench.launch("a")
    await bench.until_told("a", "STARTED", "RUNNING")
    bench.side.stop("a", 0, 0)
    bench.driver.ended(bench.driver.attempts["a"], EventKind.FINISHED)
    await bench.until_told("a", "STARTED", "RUNNING", "FINISHED")


async def test_a_time_limit_is_kept(bench):
    bench.launch("a", time_limit_s=0.05)
    await bench.until_told("a", "STARTED", "RUNNING", "FAILED: time limit of 0.05 s reached")
    start, _, end = (event for batch in bench.side.log.after(0) for event in batch.events)
    assert end.time_s >= start.time_s + 0.05


async def test_a_lost_gpu_loses_its_job_and_wake_ups_come_in_time(bench):
    bench.launch("a")
    await bench.until_told("a", "STARTED", "RUNNING")
    bench.driver.gpu_lost("n/0")
    assert bench.told("a")[-1] == "LOST: GPU n/0 was lost"
    assert bench.side.describe().lost_gpu_ids == ("n/0",)
    bench.driver.gpu_back("n/0")
    assert bench.side.describe().lost_gpu_ids == ()
    clock = bench.side.wake_at([bench.side.describe().clock.time_s + 0.03])
    assert clock.mode is ClockMode.REAL
    await bench.until(lambda: bench.side.event_counts[EventKind.WAKE_UP] == 1)


async def test_after_a_restart_programs_are_found_again_or_told_to_be_gone(bench):
    bench.launch("runs", "n/0", time_limit_s=60.0)
    bench.launch("gone", "n/1")
    await bench.until_told("gone", "STARTED", "RUNNING")
    bench.programs.discard("gone")
    before = bench.side.describe()
    await bench.restart()
    gone = "LOST: its program had ended when the cluster's service came back"
    await bench.until_told("gone", "STARTED", "RUNNING", gone)
    after = bench.side.describe()
    assert after.incarnation == before.incarnation
    assert [job.job_id for job in after.running] == ["runs"]
    assert after.clock.time_s >= before.clock.time_s
    assert bench.launch("runs").existing
    bench.side.stop("runs", 1, 0)
    await bench.until_told("runs", "STARTED", "RUNNING", "STOPPED: stopped")


async def test_what_was_accepted_only_is_started_after_a_restart_and_what_was_to_end_ends(bench):
    bench.launch("stopped", "n/1")
    await bench.until_told("stopped", "STARTED", "RUNNING")
    bench.driver.go.clear()
    bench.launch("accepted", "n/0")
    bench.driver.deaf = 1_000_000
    bench.side.stop("stopped", 1, 0)
    await bench.restart()
    await bench.until_told("accepted", "STARTED", "RUNNING")
    await bench.until_told("stopped", "STARTED", "RUNNING", "STOPPED: stopped")


async def test_no_program_is_started_before_its_attempt_is_written_down():
    record, programs = MemoryRecord(), set[str]()
    driver = Programs(programs)
    side = ClusterSide(driver, LoopTimers(), written_down=True)
    side.journal = Journal(record, side.collect, side.written)
    await driver.begin(None)
    side.journal.touch()
    record.go.clear()
    running = asyncio.create_task(side.journal.run(lambda problem: None))
    side.launch("a", 1, spec(), Placement.on("n/0"), 0)
    await asyncio.sleep(0.02)
    assert programs == set()
    record.go.set()
    async with asyncio.timeout(60.0):
        while not programs:  # noqa: ASYNC110 - of a task that tells nobody
            await asyncio.sleep(0.002)
    running.cancel()
    await asyncio.wait([running])
    await driver.close()


async def test_a_gpu_that_is_lost_while_a_program_starts_leaves_no_program(bench):
    bench.driver.go.clear()
    bench.launch("a")
    await asyncio.sleep(0.01)  # it is being started
    bench.driver.gpu_lost("n/0")
    await bench.until_told("a", "LOST: GPU n/0 was lost")
    bench.driver.go.set()
    await bench.until(lambda: "a" in bench.driver.attempts and not bench.programs)
    assert len(bench.told("a")) == 1


async def test_an_attempt_that_is_lost_before_it_is_written_down_is_not_started(bench, monkeypatch):
    written = asyncio.Event()
    monkeypatch.setattr(bench.side, "settled", written.wait)
    bench.launch("a")
    bench.driver.gpu_lost("n/0")
    written.set()
    await bench.until(lambda: not bench.driver._work)
    assert "a" not in bench.driver.attempts


async def test_an_adapter_that_can_not_say_whether_a_program_is_there_is_asked_again(bench, monkeypatch):
    monkeypatch.setattr(real_driver, "AGAIN_S", 0.002)
    bench.launch("a")
    await bench.until_told("a", "STARTED", "RUNNING")
    monkeypatch.setattr(Programs, "lost_answers", 3, raising=False)
    before = bench.driver
    await bench.restart()
    bench.driver.lost_answers = 3
    await bench.until(lambda: bench.driver is not before and bench.driver.lost_answers == 0)
    await bench.until(lambda: not any(work.starting for work in bench.driver._work.values()))
    assert bench.told("a") == ["STARTED", "RUNNING"]
    assert bench.programs == {"a"}


async def test_the_time_limit_of_an_attempt_that_was_lost_ends_no_later_one(bench):
    bench.launch("a", time_limit_s=0.05)
    await bench.until_told("a", "STARTED", "RUNNING")
    bench.side.change_cluster(Cluster("c", (Node("n", 8, 65536, CLUSTER.nodes[0].gpus[1:]),)))
    bench.launch("a", "n/1", attempt=2)
    await asyncio.sleep(0.1)
    bench.driver.ended(bench.driver.attempts["a"], EventKind.FAILED, "an error of its own")
    await bench.until(lambda: any("FAILED" in each for each in bench.told("a")))
    assert "FAILED: an error of its own" in bench.told("a")


async def test_an_attempt_that_the_record_lacks_is_listed_once_and_holds_its_gpu(bench):
    bench.launch("known")
    await bench.until_told("known", "STARTED", "RUNNING")
    side = bench.side

    def lost(job_id: str, gpu_id: str, attempt: int = 1) -> Attempt:
        return Attempt(job_id, attempt, Placement.on(gpu_id), spec())

    assert not side.adopt(lost("other", "n/0")), "its GPU runs another job"
    assert not side.adopt(lost("known", "n/1")), "the record has it"
    assert not side.adopt(lost("known", "n/1", 2)), "the job has an open attempt"
    assert not side.adopt(lost("other", "elsewhere/0"))
    found = lost("forgotten", "n/1", 3)
    assert side.adopt(found)
    bench.driver.started(found)
    assert [(each.job_id, each.attempt) for each in side.describe().running] == [("known", 1), ("forgotten", 3)]
    with pytest.raises(Conflict, match="runs forgotten"):
        bench.launch("new", "n/1")
    assert side.knows("forgotten", 2)
    assert not side.knows("forgotten", 4)
    bench.driver.ended(found, EventKind.FINISHED)
    assert not side.is_over("forgotten", 3), "nobody has acknowledged it"
    side.acknowledge(side.incarnation, side.log.revision, 0)
    assert side.is_over("forgotten", 3)
    assert not side.is_over("known", 1)
    assert side.is_over("unheard-of", 1)


async def test_a_lost_gpu_ends_what_runs_of_its_attempt_on_others(bench, monkeypatch):
    monkeypatch.setattr(real_driver, "AGAIN_S", 0.0)
    bench.driver.capabilities = Capabilities(stop=True, gangs=True)
    both = dataclasses.replace(spec(), gpu_count=2)
    bench.side.launch("a", 1, both, Placement.on("n/0", "n/1"), 0)
    await bench.until_told("a", "STARTED", "RUNNING")
    bench.driver.deaf = 2
    bench.driver.gpu_lost("n/0")
    await bench.until(lambda: not bench.programs)
    assert bench.told("a") == ["STARTED", "RUNNING", "LOST: GPU n/0 was lost"]
