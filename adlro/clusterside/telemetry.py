"""Samples a cluster's GPUs at a capped wall-clock rate into columnar blocks. Plain arrays; `ingest` sends them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# A block is sent when it spans this long, however fast samples are taken.
BLOCK_S = 0.5
# Blocks that wait for ingest; older ones are dropped, since telemetry is worth little when it is late.
BLOCKS_WAITING = 120


Floats = NDArray[np.float64]


class Sample(Protocol):
    """The metrics of G GPUs at one time, each an array of shape (G,); NaN for a lost GPU, or an unknown value."""

    @property
    def utilization_ratio(self) -> Floats:
        """Share of the time in which the GPU computes, 0..1."""

    @property
    def memory_used_mib(self) -> Floats:
        """Of its own memory."""

    @property
    def memory_bandwidth_gb_per_s(self) -> Floats:
        """To its own memory."""

    @property
    def temperature_c(self) -> Floats:
        """Of the chip."""

    @property
    def power_w(self) -> Floats:
        """Drawn by the whole of it."""


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """T samples of all G GPUs; columns are float32 of shape (T, G), NaN for a lost GPU."""

    sample_times_unix_s: tuple[float, ...]
    cluster_times_s: tuple[float, ...]
    utilization_ratio: NDArray[np.float32]
    memory_used_mib: NDArray[np.float32]
    memory_bandwidth_gb_per_s: NDArray[np.float32]
    temperature_c: NDArray[np.float32]
    power_w: NDArray[np.float32]

    @property
    def gpu_count(self) -> int:
        """G."""
        return int(self.power_w.shape[1])


class Outbox:
    """Blocks on their way out: the newest `BLOCKS_WAITING` are kept, the rest is dropped and counted."""

    def __init__(self, size: int = BLOCKS_WAITING) -> None:
        self._blocks: deque[SampleBlock] = deque(maxlen=size)
        self._filled = asyncio.Event()
        self.dropped_count = 0

    def put(self, block: SampleBlock) -> None:
        """Adds a block, at the cost of the oldest where it is full."""
        self.dropped_count += len(self._blocks) == self._blocks.maxlen
        self._blocks.append(block)
        self._filled.set()

    async def get(self) -> SampleBlock:
        """The oldest block; waits for one."""
        while not self._blocks:
            self._filled.clear()
            await self._filled.wait()
        return self._blocks.popleft()

    def clear(self) -> None:
        """Drops waiting blocks: after an outage only new ones are useful."""
        self.dropped_count += len(self._blocks)
        self._blocks.clear()


class Sampler:
    """Turns samples into blocks.

    Args:
        take: returns the present cluster time and the GPUs' metrics; None: none available.
        outbox: where blocks go.
        hz: samples a second of wall time.
        unix_time: wall time of a sample.
    """

    def __init__(
        self,
        take: Callable[[], tuple[float, Sample] | None],
        outbox: Outbox,
        hz: float,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._take = take
        self._outbox = outbox
        self._unix_time = unix_time
        self._period_s = 1.0 / hz
        self._samples_per_block = max(1, round(BLOCK_S * hz))
        self._samples: list[tuple[float, float, Sample]] = []
        self._last_unix_s = 0.0

    def sample(self) -> None:
        """Takes one sample; a full block goes out."""
        # The system's clock may be set back; sample times must not fall.
        self._last_unix_s = max(self._unix_time(), self._last_unix_s)
        taken = self._take()
        if taken is None:
            return
        cluster_s, metrics = taken
        if self._samples and len(self._samples[-1][2].power_w) != len(metrics.power_w):
            self._samples = []  # of the cluster as it was before
        self._samples.append((self._last_unix_s, cluster_s, metrics))
        if len(self._samples) >= self._samples_per_block:
            self._outbox.put(_block(self._samples))
            self._samples = []

    async def run(self) -> None:
        """Samples at its rate, endlessly; skips missed ticks."""
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        while True:
            self.sample()
            next_at = max(next_at + self._period_s, loop.time())
            await asyncio.sleep(next_at - loop.time())


def _block(samples: list[tuple[float, float, Sample]]) -> SampleBlock:
    metrics = [each for _, _, each in samples]
    return SampleBlock(
        sample_times_unix_s=tuple(unix_s for unix_s, _, _ in samples),
        cluster_times_s=tuple(cluster_s for _, cluster_s, _ in samples),
        utilization_ratio=np.stack([each.utilization_ratio for each in metrics]).astype(np.float32),
        memory_used_mib=np.stack([each.memory_used_mib for each in metrics]).astype(np.float32),
        memory_bandwidth_gb_per_s=np.stack([each.memory_bandwidth_gb_per_s for each in metrics]).astype(np.float32),
        temperature_c=np.stack([each.temperature_c for each in metrics]).astype(np.float32),
        power_w=np.stack([each.power_w for each in metrics]).astype(np.float32),
    )
