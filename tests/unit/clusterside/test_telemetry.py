"""Samples become blocks; the outbox keeps the newest; blocks become messages."""

from __future__ import annotations

import asyncio

import numpy as np

from adlro.clusterside.telemetry import Outbox, Sampler
from adlro.sim.simulator import ClusterSimulator
from adlro.workload.scenario import load_scenario

CLUSTER = load_scenario("paper").cluster


class Bench:
    def __init__(self, hz: float, size: int = 10) -> None:
        self.simulator = ClusterSimulator(CLUSTER)
        self.outbox = Outbox(size)
        self.unix_s = 1_000_000.0
        self.sampler = Sampler(lambda: (self.simulator.now_s, self.simulator.sample(0.0)), self.outbox, hz, self.time)

    def time(self) -> float:
        return self.unix_s


async def test_at_two_hertz_every_sample_is_a_block():
    bench = Bench(2.0)
    bench.simulator.lose_gpu("volta-0/1")
    bench.sampler.sample()
    block = await bench.outbox.get()
    assert block.power_w.shape == (1, 16)
    assert block.power_w.dtype == np.float32
    assert np.isnan(block.power_w[0]).tolist() == [False, True, *[False] * 14]
    assert block.sample_times_unix_s == (1_000_000.0,)
    assert block.cluster_times_s == (0.0,)


async def test_fast_samples_go_together():
    bench = Bench(20.0)
    for _ in range(25):
        bench.unix_s += 0.05
        bench.sampler.sample()
    first, second = await bench.outbox.get(), await bench.outbox.get()
    assert first.temperature_c.shape == second.temperature_c.shape == (10, 16)
    assert second.sample_times_unix_s[0] > first.sample_times_unix_s[-1]


async def test_sample_times_do_not_fall_when_the_system_clock_is_set_back():
    bench = Bench(4.0)
    bench.sampler.sample()
    bench.unix_s -= 3600
    bench.sampler.sample()
    assert (await bench.outbox.get()).sample_times_unix_s == (1_000_000.0, 1_000_000.0)


async def test_a_full_outbox_drops_the_oldest_and_counts():
    bench = Bench(2.0, size=3)
    for _ in range(5):
        bench.unix_s += 1
        bench.sampler.sample()
    assert bench.outbox.dropped_count == 2
    assert (await bench.outbox.get()).sample_times_unix_s == (1_000_003.0,)
    bench.outbox.clear()
    assert bench.outbox.dropped_count == 4


async def test_who_waits_for_a_block_gets_it():
    bench = Bench(2.0)
    waiting = asyncio.create_task(bench.outbox.get())
    await asyncio.sleep(0)
    bench.sampler.sample()
    async with asyncio.timeout(60):
        assert (await waiting).utilization_ratio.tolist() == [[0.0] * 16]


async def test_the_loop_keeps_its_rate():
    bench = Bench(200.0, size=1000)
    loop = asyncio.create_task(bench.sampler.run())
    async with asyncio.timeout(60):
        start = asyncio.get_running_loop().time()
        await bench.outbox.get()  # 100 samples
        took_s = asyncio.get_running_loop().time() - start
    loop.cancel()
    assert took_s >= 0.45
