"""What is expected of waiting jobs follows what is learned: asked as they join, refreshed as they wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import numpy as np
import pytest

from adlro.errors import AdlroError, Unavailable
from adlro.records.cluster import Cluster
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ports import Predicted
from adlro.services.orchestrator.runtimes.predictions import CHUNK, PAUSE_RATIO, Expected, ExpectedRuntimes
from adlro.services.orchestrator.runtimes.refresh import REFRESH_AT_ONCE, REFRESH_S, RuntimeRefresh
from tests.ledgers import MODELS, job, queue
from tests.unit.orchestrator.core_house import CoreHouse, Declares
from tests.unit.orchestrator.house import Declared, House, answered

BEFORE = (10.0, 10.0, 10.0)


class Learning(Declared):
    """Says the same of every job, until it has learned otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.says_s = 10.0
        self.revision = 1
        self.asked: list[int] = []  # jobs of each question
        self.error: AdlroError | None = None
        self.speed_of: dict[str, float] = {}
        self.time_s = 0.0  # of a clock that steps where the test says so
        self.takes_s = 0.0

    def learn(self, says_s: float) -> None:
        self.says_s, self.revision = says_s, self.revision + 1

    def clock_s(self) -> float:
        return self.time_s

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        self.asked.append(len(specs))
        self.time_s += self.takes_s
        if self.error is not None:
            raise self.error
        return Predicted(np.full((len(specs), len(gpu_models)), self.says_s), self.revision)

    async def gpu_speeds(self, cluster: str) -> Mapping[str, float]:
        if self.error is not None:
            raise self.error
        return self.speed_of


class Bench:
    """RuntimeRefresh of a ledger with a predictor that learns; jobs enter as submissions do."""

    def __init__(self, cluster: Cluster) -> None:
        self.learning = Learning()
        self.errors: list[AdlroError] = []
        self.predictions = ExpectedRuntimes(self.learning, self.errors.append, self.learning.clock_s)
        self.expectations = RuntimeRefresh(self.learning.clock_s, self.predictions.standing)
        self.ledger = Ledger(cluster)
        self.count = 0

    def enqueue(self, count: int, **spec: object) -> list[Entry]:
        entries = []
        for _ in range(count):
            self.count += 1
            entries.append(queue(self.ledger, self.count, BEFORE, **spec))
            entries[-1].generation = self.predictions.generation
        return entries

    async def event(self, joined: Sequence[Entry] = (), *, ended: int = 0, virtual: bool = True) -> bool:
        for _ in range(ended):
            self.expectations.ended()
        course = self.expectations.bring_up_to_date(self.ledger, joined, virtual=virtual)
        return await answered(course, self.predictions)

    def expected_s(self) -> list[float]:
        return [float(entry.expected_s[0]) for entry in self.ledger.queued()]


@pytest.fixture
async def bench(cluster: Cluster) -> Bench:
    made = Bench(cluster)
    await made.predictions.predict([job(0).spec], MODELS)  # as at the start of a session
    made.expectations = RuntimeRefresh(made.learning.clock_s, made.predictions.standing)
    made.learning.asked.clear()
    return made


async def test_who_joins_is_asked_about_in_one_batch(bench: Bench) -> None:
    joined = bench.enqueue(3)
    bench.learning.learn(20.0)
    await bench.event(joined)
    assert bench.learning.asked == [3]
    assert bench.expected_s() == [20.0] * 3
    seen = bench.ledger.observe(0.0).kind_duration_s[0, :3]
    assert (seen == 20.0).all()


async def test_nobody_joins_and_nothing_ended_then_nobody_is_asked(bench: Bench) -> None:
    bench.enqueue(3)
    bench.learning.learn(20.0)
    assert not await bench.event()
    assert bench.learning.asked == []


async def test_of_many_that_join_at_once_the_first_answer_decides_about_the_rest(bench: Bench) -> None:
    count = 2 * CHUNK + 1
    joined = bench.enqueue(count)
    await bench.event(joined)
    assert bench.learning.asked == [CHUNK]  # nothing was learned since they were submitted

    bench.learning.learn(20.0)
    await bench.event(joined)
    assert bench.learning.asked == [CHUNK, CHUNK, CHUNK, 1]
    assert bench.expected_s() == [20.0] * count


async def test_those_that_wait_are_refreshed_when_enough_was_learned(bench: Bench) -> None:
    bench.enqueue(4)
    bench.learning.learn(20.0)
    joined = bench.enqueue(1)
    assert await bench.event(joined)
    assert bench.learning.asked == [1, 4]
    assert bench.expected_s() == [20.0] * 5
    # The same revision again: those that wait are left in peace.
    assert not await bench.event(bench.enqueue(1))
    assert bench.learning.asked == [1, 4, 1]


async def test_a_refresh_that_finds_the_same_changes_nothing(bench: Bench) -> None:
    bench.enqueue(4)
    bench.learning.learn(10.0)
    changes = bench.ledger.changes
    assert not await bench.event(bench.enqueue(1))
    assert bench.learning.asked == [1, 4]
    assert bench.ledger.changes == changes


async def test_ends_alone_are_reason_to_ask_ever_more_rarely(bench: Bench) -> None:
    bench.enqueue(2)
    for _ in range(1000):
        await bench.event(ended=1)
    assert 50 + 100 < len(bench.learning.asked) < 50 + 200  # 50, then one for each 2 % more
    assert set(bench.learning.asked) == {1}
    bench.learning.learn(20.0)
    for _ in range(21):
        await bench.event(ended=1)
    assert bench.expected_s() == [20.0] * 2


async def test_what_the_first_of_the_queue_is_expected_to_take_after_an_end_is_a_change(bench: Bench) -> None:
    bench.enqueue(1)
    bench.learning.learn(20.0)
    assert await bench.event(ended=1)
    assert bench.expected_s() == [20.0]
    assert not await bench.event(ended=1), "the same again"


async def test_a_long_queue_is_refreshed_bit_by_bit_the_oldest_first(bench: Bench) -> None:
    bench.enqueue(2 * REFRESH_AT_ONCE + 1)
    bench.learning.learn(20.0)
    await bench.event(ended=1)
    assert bench.expected_s().count(20.0) == REFRESH_AT_ONCE + 1  # and the one that was asked about first
    bench.learning.learn(30.0)
    await bench.event(ended=1)
    # The new news does not push the rest of the queue back.
    assert bench.expected_s().count(10.0) == 0
    for _ in range(3):
        await bench.event()
    assert set(bench.expected_s()) == {30.0}
    asked = len(bench.learning.asked)
    await bench.event()
    assert len(bench.learning.asked) == asked


async def test_in_wall_time_the_queue_is_refreshed_once_a_second_at_most(bench: Bench) -> None:
    bench.enqueue(2)
    for says_s in (20.0, 30.0):
        bench.learning.learn(says_s)
        await bench.event(ended=1, virtual=False)
    assert bench.expected_s() == [20.0] * 2
    bench.learning.time_s += REFRESH_S
    await bench.event(ended=1, virtual=False)
    assert bench.expected_s() == [30.0] * 2


async def test_in_wall_time_a_queue_that_is_far_behind_is_caught_up_with_in_a_share_of_the_time(bench: Bench) -> None:
    """Else 100,000 jobs are behind for minutes, and every hold is called in question meanwhile."""
    bench.enqueue(4 * REFRESH_AT_ONCE)
    bench.learning.learn(20.0)
    bench.learning.takes_s = 0.05
    await bench.event(ended=1, virtual=False)
    for count in (1, 2, 3):
        assert bench.expected_s().count(20.0) == count * REFRESH_AT_ONCE + 1  # and the one that was asked about first
        bench.learning.time_s += 0.15
        await bench.event(virtual=False)
        assert bench.expected_s().count(20.0) == count * REFRESH_AT_ONCE + 1
        bench.learning.time_s += 0.06
        await bench.event(virtual=False)
    assert set(bench.expected_s()) == {20.0}
    bench.learning.learn(30.0)
    bench.learning.time_s += 0.9
    await bench.event(ended=100, virtual=False)
    assert set(bench.expected_s()) == {20.0}  # nothing is behind: once a second will do


async def test_while_nobody_answers_the_queue_is_not_gone_through(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold 100,000 jobs, and an event come every moment."""
    bench.enqueue(2 * REFRESH_AT_ONCE)
    bench.learning.learn(20.0)
    await bench.event(ended=1)
    bench.learning.error, bench.learning.takes_s = Unavailable("away"), 1.0
    await bench.event()
    looks = 0
    queued = Ledger.queued

    def noted(ledger: Ledger, start: int = 0, end: int | None = None) -> list[Entry]:
        nonlocal looks
        looks += end is None
        return queued(ledger, start, end)

    monkeypatch.setattr(Ledger, "queued", noted)
    for _ in range(10):
        await bench.event()
    assert looks == 0
    bench.learning.error, bench.learning.time_s = None, bench.learning.time_s + PAUSE_RATIO
    await bench.event()
    assert looks == 1
    assert set(bench.expected_s()) == {20.0}


async def test_while_nobody_answers_what_was_predicted_at_submission_stands(bench: Bench) -> None:
    bench.learning.learn(20.0)
    bench.learning.error, bench.learning.takes_s = Unavailable("away"), 2.0
    await bench.event(bench.enqueue(2))
    assert bench.expected_s() == [10.0] * 2
    assert len(bench.errors) == 1
    # One that hangs is not asked at every event.
    for _ in range(10):
        await bench.event(bench.enqueue(1))
    assert bench.learning.asked == [2]
    assert len(bench.errors) == 1
    # Each time that it still hangs it is left alone for longer.
    bench.learning.time_s += 2.0
    await bench.event(bench.enqueue(1))
    bench.learning.time_s += 2.0
    await bench.event(bench.enqueue(1))
    assert bench.learning.asked == [2, 1]
    # Once it is back, those that it was not asked about are made up for.
    bench.learning.error, bench.learning.takes_s = None, 0.0
    bench.learning.time_s += PAUSE_RATIO * 2.0
    await bench.event(bench.enqueue(1))
    assert bench.expected_s() == [20.0] * 15


async def test_answers_that_cannot_be_are_not_believed(bench: Bench) -> None:
    bench.learning.learn(float("nan"))
    await bench.event(bench.enqueue(1))
    assert bench.expected_s() == [10.0]
    assert len(bench.errors) == 1


async def test_a_predictor_that_was_started_anew_is_asked_anew(bench: Bench) -> None:
    bench.enqueue(2)
    bench.learning.learn(20.0)
    bench.learning.revision = 0
    await bench.event(ended=1)
    assert bench.expected_s() == [20.0] * 2


def test_a_gpu_that_was_found_slower_is_expected_to_take_longer(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    first, second = queue(ledger, 1, (10.0, 20.0, 30.0)), queue(ledger, 2, (10.0, 20.0, 30.0))
    ledger.set_speeds({"volta-0/1": 0.8})
    assert ledger.durations_s(first).tolist() == [10.0, 12.5, 20.0, 20.0, 30.0]
    assert ledger.observe(0.0).durations_s(0, 0).tolist() == [10.0, 12.5, 20.0, 20.0, 30.0]
    ledger.place(first, (1,), 5.0)
    assert ledger.occupancy.expected_end_s[1] == 17.5
    ledger.set_speeds({})
    assert ledger.observe(5.0).durations_s(0, 0).tolist() == [10.0, 10.0, 20.0, 20.0, 30.0]
    assert second.gpus == ()


async def test_exact_declarations_are_believed_on_every_gpu(bench: Bench) -> None:
    bench.expectations.gpu_speeds = {"volta-0/1": 0.5}
    (declared,) = bench.enqueue(1, expected_runtime=ExpectedRuntime("v100_sxm2", 10.0))
    bench.expectations.use_gpu_speeds(bench.ledger)
    assert bench.ledger.durations_s(declared)[:2].tolist() == [10.0, 10.0]
    # One that nobody declared is waiting too.
    (undeclared,) = bench.enqueue(1)
    bench.expectations.use_gpu_speeds(bench.ledger)
    assert bench.ledger.durations_s(undeclared)[:2].tolist() == [10.0, 20.0]
    bench.ledger.forget(undeclared)
    bench.expectations.use_gpu_speeds(bench.ledger)
    assert bench.ledger.durations_s(declared)[:2].tolist() == [10.0, 10.0]
    # Declarations that were found to be off are no evidence against it.
    bench.ledger.expect(declared, np.array([11.0, 11.0, 11.0]))
    bench.expectations.use_gpu_speeds(bench.ledger)
    assert bench.ledger.durations_s(declared)[:2].tolist() == [11.0, 22.0]
    bench.expectations.gpu_speeds = {}
    bench.expectations.use_gpu_speeds(bench.ledger)
    assert bench.ledger.durations_s(declared)[:2].tolist() == [11.0, 11.0]


async def test_only_speeds_that_slow_down_count(bench: Bench) -> None:
    bench.learning.speed_of = {"a": 0.5, "b": 1.2, "c": 0.0, "d": float("nan")}
    assert await bench.predictions.gpu_speeds("default") == {"a": 0.5}
    bench.learning.error = Unavailable("away")
    assert await bench.predictions.gpu_speeds("default") is None


# ---- whole sessions


class ReversingInCore(Declares):
    """Knows nothing at submission; once it has learned, it knows each job's work."""

    def expected(self, specs: Sequence[JobSpec], models: Sequence[str]) -> list[Expected]:
        if self.generation > 1:
            return super().expected(specs, models)
        return [Expected(np.full(len(models), 10.0), 0.0, 1) for _ in specs]


@pytest.fixture
async def learning_house(redis_url: str, cluster: Cluster) -> AsyncIterator[tuple[House, Learning]]:
    learning = Learning()
    made = House(redis_url, cluster, learning)
    yield made, learning
    await made.close()


def by_start(jobs: Sequence[Job]) -> list[str]:
    return [each.job_id for each in sorted(jobs, key=lambda each: each.start_s or 0.0)]


def test_a_replay_uses_what_was_learned_after_its_jobs_were_submitted(core_house: CoreHouse) -> None:
    core_house.predictor = reversing = ReversingInCore()
    core_house.pause()
    core_house.start("sjf")
    # One holds all cores of each node, then three wait for one of them: the shortest is to be first.
    for n in range(3):
        core_house.submit(10.0 + n, begin_time_s=1.0, cpu_cores=8)
    waiting = [core_house.submit(work_s, begin_time_s=2.0, cpu_cores=8) for work_s in (90.0, 60.0, 30.0)]
    core_house.settle()
    reversing.generation = 2
    core_house.resume()
    done = core_house.until_final(6)
    assert by_start(done)[3:] == [each.job_id for each in reversed(waiting)]


def test_without_anything_learned_they_are_served_as_submitted(core_house: CoreHouse) -> None:
    core_house.predictor = ReversingInCore()
    core_house.pause()
    core_house.start("sjf")
    for n in range(3):
        core_house.submit(10.0 + n, begin_time_s=1.0, cpu_cores=8)
    waiting = [core_house.submit(work_s, begin_time_s=2.0, cpu_cores=8) for work_s in (90.0, 60.0, 30.0)]
    core_house.settle()
    core_house.resume()
    assert by_start(core_house.until_final(6))[3:] == [each.job_id for each in waiting]


async def test_a_replay_goes_on_while_the_predictor_is_away(
    learning_house: tuple[House, Learning], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that does not answer is left alone for this long, in which a slow machine too is done.
    monkeypatch.setattr("adlro.services.orchestrator.runtimes.predictions.LEAST_PAUSE_S", 3600.0)
    house, learning = learning_house
    await house.pause()
    house.start("sjf")
    for n in range(20):
        await house.submit(5.0, begin_time_s=1.0 + n)
    await house.until_taken_up()
    asked = len(learning.asked)
    learning.error = Unavailable("away")
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    await house.until_final(20)
    assert len(learning.asked) - asked < 10  # not at each of the 40 events


def test_a_slow_gpu_is_left_out_where_another_is_faster(core_house: CoreHouse) -> None:
    core_house.predictor = ReversingInCore()
    core_house.start("mct")
    core_house.find_slow({"volta-0/0": 0.5})
    core_house.submit(5.0, expected_runtime=None)
    (done,) = core_house.until_final(1)
    assert done.gpu_id != "volta-0/0"
