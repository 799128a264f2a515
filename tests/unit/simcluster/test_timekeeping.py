"""The clock over restarts: what is told is written down before, what is written down is where the next one begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from adlro.clusterside.cluster_side import ClusterSide
from adlro.errors import DataLoss, InvalidInput, Stale, Unavailable
from adlro.kit.channel import open_channel
from adlro.kit.redis import connect
from adlro.kit.testing import ServiceEnded, serve
from adlro.placement import Placement
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import JobSpec, JobType, SimulatedWork
from adlro.services.simcluster import timekeeping
from adlro.services.simcluster.clock_store import ClockStore
from adlro.services.simcluster.driver import CEILING_AHEAD_S, SimulatedCluster
from adlro.services.simcluster.server import SimclusterServer
from adlro.services.simcluster.settings import SimclusterSettings
from adlro.services.simcluster.timekeeping import Timekeeper
from adlro.sim.simulator import ClusterSimulator
from adlro.v1 import cluster_service_pb2 as pb
from adlro.v1 import cluster_service_pb2_grpc as pb_grpc
from adlro.v1.cluster_pb2 import CLOCK_MODE_SCALED
from adlro.workload.scenario import load_cluster
from tests.unit.simcluster.walltime import HandTimers

REAL = Clock(ClockMode.REAL, 1.0, False, 0.0)
VIRTUAL = Clock(ClockMode.VIRTUAL, 0.0, False, 0.0)
SPEC = JobSpec("j", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(10.0))


class Record:
    """A record that a test holds: `away` refuses writes, `go` lets them happen; `clock` is what a successor finds."""

    def __init__(self) -> None:
        self.clock: Clock | None = None
        self.written: list[Clock] = []
        self.away = False
        self.go = asyncio.Event()
        self.go.set()

    async def write(self, clock: Clock) -> None:
        if self.away:
            raise RedisConnectionError("away")
        await self.go.wait()
        self.clock = clock
        self.written.append(clock)


class Kept:
    """A runtime with hand-moved wall time, and its timekeeper, which runs."""

    def __init__(self, clock: Clock) -> None:
        self.timers = HandTimers()
        self.driver = SimulatedCluster(ClusterSimulator(load_cluster("paper")), clock)
        self.runtime = ClusterSide(self.driver, self.timers)
        self.driver.begin_at(clock)
        self.record = Record()
        self.problem = "none told yet"
        self.keeper = Timekeeper(self.driver, self.record)

    def tell(self, problem: str) -> None:
        self.problem = problem

    @property
    def now_s(self) -> float:
        """As it is told, which must never be beyond what a successor would begin with."""
        now_s = self.runtime.describe().clock.time_s
        assert self.record.clock is not None
        assert now_s <= self.record.clock.time_s or self.record.clock.mode is ClockMode.VIRTUAL
        return now_s

    async def settle(self) -> None:
        """Lets it write what it wants to write."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def look(self) -> None:
        """As after the time between two looks."""
        self.keeper._needed.set()
        await self.settle()


@asynccontextmanager
async def kept(clock: Clock) -> AsyncIterator[Kept]:
    made = Kept(clock)
    running = asyncio.create_task(made.keeper.run(made.tell))
    await made.settle()
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled(), "it must not end by itself"


async def test_a_real_clock_is_written_down_ahead_of_itself() -> None:
    async with kept(replace(REAL, time_s=100.0)) as made:
        assert made.record.clock == replace(REAL, time_s=100.0 + CEILING_AHEAD_S)
        made.timers.move(0.6)
        assert made.now_s == pytest.approx(100.6)
        await made.look()
        made.timers.move(0.9)
        assert made.now_s == pytest.approx(101.5)


async def test_a_clock_that_the_store_does_not_follow_stands_and_loses_nothing() -> None:
    async with kept(REAL) as made:
        made.runtime.launch("a", 1, SPEC, Placement.on("volta-0/0"), 0)
        made.record.away = True
        made.timers.move(30.0)
        await made.look()
        assert made.now_s == CEILING_AHEAD_S
        assert made.problem == "the clock stands, because the store does not accept its time: away"
        assert made.runtime.attempts.running_count == 1, (
            "its end must not be told at a time that nobody has written down"
        )
        made.record.away = False
        async with asyncio.timeout(60.0):
            while made.problem:
                await made.settle()
        assert made.now_s == pytest.approx(30.0)
        batch = made.runtime.log.next_after(1)
        assert batch is not None
        assert batch.events[0].time_s == pytest.approx(10.0)


async def test_a_virtual_clock_goes_with_its_events_and_is_not_written_down_for_each() -> None:
    """The cluster side writes events down before they are told: tests/unit/clusterside/test_journal.py."""
    async with kept(VIRTUAL) as made:
        assert made.record.clock == VIRTUAL
        writes = len(made.record.written)
        made.runtime.launch("a", 1, SPEC, Placement.on("volta-0/0"), 0)
        made.runtime.launch("b", 1, replace(SPEC, simulated_work=SimulatedWork(500.0)), Placement.on("volta-0/1"), 0)
        assert made.now_s == 10.0
        made.runtime.acknowledge(made.runtime.log.incarnation, made.runtime.log.revision, 0)
        assert made.now_s == 500.0 + 10.0
        await made.look()
        assert len(made.record.written) == writes, "nothing to wait for"
        await made.keeper.set_clock(paused=True)
        assert made.record.clock == replace(VIRTUAL, paused=True, time_s=510.0)


async def test_a_virtual_clock_with_a_speed_limit_is_not_written_far_ahead() -> None:
    async with kept(replace(VIRTUAL, scale=10.0)) as made:
        made.runtime.launch("a", 1, replace(SPEC, simulated_work=SimulatedWork(500.0)), Placement.on("volta-0/0"), 0)
        await made.look()
        assert made.record.clock == replace(VIRTUAL, scale=10.0)
        made.timers.move(51.0)
        await made.settle()
        assert made.now_s == 500.0


async def test_a_clock_that_waits_for_its_acknowledgement_keeps_nobody_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timekeeping, "LOOK_S", 3600.0)  # only looks that something asks for
    async with kept(replace(VIRTUAL, scale=10.0)) as made:
        made.runtime.wake_at([0.0])  # not acknowledged
        made.runtime.launch("a", 1, replace(SPEC, simulated_work=SimulatedWork(500.0)), Placement.on("volta-0/0"), 0)
        await made.settle()
        looks: list[Clock] = []
        wanted_ceiling = made.driver.wanted_ceiling

        def counted() -> Clock:
            looks.append(wanted_ceiling())
            return looks[-1]

        monkeypatch.setattr(made.driver, "wanted_ceiling", counted)
        await made.look()
        assert len(looks) <= 2


async def test_while_a_lower_ceiling_is_written_neither_is_passed() -> None:
    async with kept(REAL) as made:
        made.timers.move(0.5)
        made.record.go.clear()
        setting = asyncio.create_task(made.keeper.set_clock(paused=True))
        await made.settle()
        made.timers.move(0.4)
        assert made.now_s == pytest.approx(0.5)
        made.record.go.set()
        clock = await setting
        assert clock == made.record.clock == Clock(ClockMode.REAL, 1.0, True, clock.time_s)
        assert clock.time_s == pytest.approx(0.5)


async def test_a_clock_that_is_set_is_written_down_first_or_not_set() -> None:
    async with kept(VIRTUAL) as made:
        clock = await made.keeper.set_clock(ClockMode.SCALED, 20.0, not_before_s=50.0)
        assert clock == Clock(ClockMode.SCALED, 20.0, False, 50.0)
        assert made.record.clock == replace(clock, time_s=50.0 + 20.0 * CEILING_AHEAD_S)
        made.record.away = True
        with pytest.raises(RedisConnectionError):
            await made.keeper.set_clock(ClockMode.REAL)
        with pytest.raises(InvalidInput):
            await made.keeper.set_clock(ClockMode.REAL, 7.0)
        assert made.runtime.describe().clock.mode is ClockMode.SCALED


async def test_the_end_is_written_exactly_and_nothing_is_told_after_it() -> None:
    made = Kept(replace(REAL, time_s=5.0))
    running = asyncio.create_task(made.keeper.run(made.tell))
    await made.settle()
    made.runtime.launch("a", 1, SPEC, Placement.on("volta-0/0"), 0)
    made.timers.move(0.75)
    running.cancel()
    await made.keeper.close()
    assert made.record.clock == replace(REAL, time_s=5.75)
    made.timers.move(100.0)
    assert made.now_s == 5.75
    assert made.timers.pending == []


async def test_one_that_a_successor_has_replaced_ends_in_order() -> None:
    made = Kept(REAL)

    async def taken_over(clock: Clock) -> None:
        raise Stale("another process has taken over")

    made.record.write = taken_over  # type: ignore[method-assign]
    await made.keeper.close()
    assert made.timers.pending == []


# ---- the record in Redis


async def test_the_record_goes_from_one_process_to_the_next(redis_url: str) -> None:
    redis = connect(redis_url)
    first, second = (ClockStore(redis, "paper", REAL) for _ in range(2))
    assert await first.take() == REAL
    await first.write(Clock(ClockMode.SCALED, 20.0, True, 630.25))
    assert await second.take() == Clock(ClockMode.SCALED, 20.0, True, 630.25)
    with pytest.raises(Stale):
        await first.write(REAL)
    await second.write(Clock(ClockMode.SCALED, 20.0, True, 700.0))
    assert await ClockStore(redis, "another", VIRTUAL).take() == VIRTUAL
    # What a late answer brings of an older write changes nothing.
    second._writes -= 2
    await second.write(replace(REAL, time_s=1.0))
    assert (await ClockStore(redis, "paper", REAL).take()).time_s == 700.0
    await redis.aclose()


async def test_of_a_new_process_the_first_write_counts_however_much_the_one_before_wrote(redis_url: str) -> None:
    redis = connect(redis_url)
    first, second = (ClockStore(redis, "paper", REAL) for _ in range(2))
    await first.take()
    for time_s in range(50):
        await first.write(replace(REAL, time_s=float(time_s)))
    await second.take()
    await second.write(replace(REAL, time_s=60.0))
    assert (await ClockStore(redis, "paper", REAL).take()).time_s == 60.0
    await redis.aclose()


async def test_settings_that_were_changed_hold_and_time_goes_on(redis_url: str) -> None:
    redis = connect(redis_url)
    store = ClockStore(redis, "paper", REAL)
    await store.take()
    await store.write(Clock(ClockMode.SCALED, 20.0, False, 630.25))
    assert await ClockStore(redis, "paper", VIRTUAL).take() == replace(VIRTUAL, time_s=630.25)
    await redis.aclose()


@pytest.mark.parametrize(
    "damage", [{"mode": "9"}, {"time_s": "nan"}, {"time_s": "soon"}, {"scale": "-1"}, {"settings": b"\xff"}]
)
async def test_a_record_that_can_not_be_read_is_told_with_the_way_out(redis_url: str, damage: Any) -> None:
    redis = connect(redis_url)
    store = ClockStore(redis, "paper", REAL)
    await store.take()
    await store.write(Clock(ClockMode.SCALED, 20.0, False, 630.25))
    await redis.hset("adlro:cluster:paper:clock", mapping=damage)
    with pytest.raises(DataLoss, match=r"adlro:cluster:paper:clock.*delete it"):
        await ClockStore(redis, "paper", REAL).take()
    await redis.aclose()


async def test_a_store_that_lost_the_record_has_it_again(redis_url: str) -> None:
    redis = connect(redis_url)
    store = ClockStore(redis, "paper", REAL)
    await store.take()
    await redis.flushall()
    await store.write(replace(REAL, time_s=12.0))
    assert await ClockStore(redis, "paper", REAL).take() == replace(REAL, time_s=12.0)
    await redis.aclose()


async def test_the_service_goes_on_where_it_was_killed(redis_url: str) -> None:
    """The next one is started while the first still believes that it is the only one."""
    settings = SimclusterSettings(clock_mode="virtual", clock_paused=True, redis_url=redis_url)
    told: list[pb.DescribeClusterResponse] = []

    async def is_superseded() -> None:
        first = SimclusterServer(settings)
        async with serve(first, settings) as address, open_channel(address) as channel:
            stub = pb_grpc.ClusterServiceStub(channel)
            await stub.SetClock(
                pb.SetClockRequest(mode=CLOCK_MODE_SCALED, scale=20.0, not_before_s=630.25, paused=False), timeout=60
            )
            told.append(await stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=60))
            second = SimclusterServer(settings)
            async with serve(second, settings) as other, open_channel(other) as to_other:
                stub = pb_grpc.ClusterServiceStub(to_other)
                told.append(await stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=60))
            await asyncio.wait([first._keeping], timeout=60.0)

    with pytest.raises(ServiceEnded):  # its clock was taken over
        await is_superseded()
    for each in told:
        assert (each.clock.mode, each.clock.scale, each.clock.paused) == (CLOCK_MODE_SCALED, 20.0, False)
    assert told[1].clock.time_s >= told[0].clock.time_s >= 630.25
    # Where nothing was written since, the exact time of the second one's end.
    async with serve(SimclusterServer(settings), settings) as address, open_channel(address) as channel:
        stub = pb_grpc.ClusterServiceStub(channel)
        last = await stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=60)
    assert last.clock.time_s >= told[1].clock.time_s


async def test_without_its_store_the_service_says_so_and_tells_no_time() -> None:
    settings = SimclusterSettings(redis_url="redis://127.0.0.1:1/0")
    server = SimclusterServer(settings)
    async with serve(server, settings):
        for call in (
            server.DescribeCluster(pb.DescribeClusterRequest(), None),  # type: ignore[arg-type]
            server.SetClock(pb.SetClockRequest(paused=True), None),  # type: ignore[arg-type]
        ):
            with pytest.raises(Unavailable, match=r"Redis at .* does not answer"):
                await call
