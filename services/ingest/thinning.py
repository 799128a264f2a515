"""Windows of telemetry in part: some GPUs of a block, and one sample a step. Plain records and arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from adlro.records.matrices import MetricColumn, TelemetryBlock
from adlro.records.telemetry import Metric, Unit

MOST_STEPS = 10_000
"""Of a window."""
_VALUE_BYTES = 2 * 4


def of_gpus(block: TelemetryBlock, gpu_ids: Sequence[str]) -> TelemetryBlock | None:
    """A block with those of some GPUs that it has, in their order; None: it has none of them."""
    place_of = {gpu_id: place for place, gpu_id in enumerate(block.gpu_ids)}
    kept = tuple(gpu_id for gpu_id in gpu_ids if gpu_id in place_of)
    if not kept:
        return None
    places = [place_of[gpu_id] for gpu_id in kept]
    return replace(
        block,
        gpu_ids=kept,
        columns={
            metric: MetricColumn(each.unit, each.raw[:, places], each.normalized[:, places])
            for metric, each in block.columns.items()
        },
    )


class Thinned:
    """A window with one sample a step: the means of each metric of each GPU over the samples of the step.

    Args:
        cluster: its name.
        gpu_ids: the GPUs.
        since_unix_s: samples before that are left out.
        step_s: the steps are the multiples of this many seconds since the epoch.
    """

    def __init__(self, cluster: str, gpu_ids: Sequence[str], since_unix_s: float, step_s: float) -> None:
        self._cluster = cluster
        self._gpu_ids = tuple(gpu_ids)
        self._number = {gpu_id: number for number, gpu_id in enumerate(gpu_ids)}
        self._since_unix_s = since_unix_s
        self._step_s = step_s
        self._steps: dict[int, _Step] = {}
        self._columns_count = 0  # of all steps together

    def add(self, block: TelemetryBlock) -> None:
        """Adds the samples of a block, of the GPUs that it has; blocks may come in any order, each once."""
        places = [place for place, gpu_id in enumerate(block.gpu_ids) if gpu_id in self._number]
        if not places:
            return
        gpus = np.array([self._number[block.gpu_ids[place]] for place in places])
        cluster_times_s = block.cluster_times_s or (math.nan,) * len(block.sample_times_unix_s)
        for row, (time_unix_s, cluster_time_s) in enumerate(
            zip(block.sample_times_unix_s, cluster_times_s, strict=True)
        ):
            if time_unix_s < self._since_unix_s:
                continue
            number = math.floor(time_unix_s / self._step_s)
            step = self._steps.get(number)
            if step is None:
                step = self._steps[number] = _Step(len(self._gpu_ids))
            step.note_time(time_unix_s, cluster_time_s)
            self._columns_count += len(block.columns.keys() - step.units.keys())
            for metric, column in block.columns.items():
                step.add(metric, column.unit, gpus, column.raw[row, places], column.normalized[row, places])

    @property
    def step_count(self) -> int:
        """The number of steps with a sample."""
        return len(self._steps)

    @property
    def least_bytes(self) -> int:
        """What the values take in a message at least: for each GPU, metric and step a raw and a normalised one."""
        return self._columns_count * len(self._gpu_ids) * _VALUE_BYTES

    def block(self) -> TelemetryBlock | None:
        """The window as one block; None: no sample of these GPUs is in it."""
        if not self._steps:
            return None
        steps = [step for _, step in sorted(self._steps.items())]
        units = {metric: unit for step in steps for metric, unit in step.units.items()}
        cluster_times_s = tuple(step.cluster_time_s for step in steps)
        return TelemetryBlock(
            self._cluster,
            self._gpu_ids,
            tuple(step.time_unix_s for step in steps),
            () if any(map(math.isnan, cluster_times_s)) else cluster_times_s,
            {
                metric: MetricColumn(
                    unit, *(np.stack([step.means(metric)[kind] for step in steps]) for kind in range(2))
                )
                for metric, unit in sorted(units.items())
            },
        )


class _Step:
    """The samples of a step: its last one's times, and sums of raw and normalised values."""

    def __init__(self, gpu_count: int) -> None:
        self.time_unix_s = -math.inf
        self.cluster_time_s = math.nan
        self.units: dict[Metric, Unit] = {}
        self._gpu_count = gpu_count
        self._sums: dict[Metric, NDArray[np.float64]] = {}  # raw, normalised, number of values; by GPU

    def note_time(self, time_unix_s: float, cluster_time_s: float) -> None:
        if time_unix_s >= self.time_unix_s:
            self.time_unix_s, self.cluster_time_s = time_unix_s, cluster_time_s

    def add(
        self,
        metric: Metric,
        unit: Unit,
        gpus: NDArray[np.int64],
        raw: NDArray[np.float32],
        normalized: NDArray[np.float32],
    ) -> None:
        self.units[metric] = unit
        sums = self._sums.get(metric)
        if sums is None:
            sums = self._sums[metric] = np.zeros((3, self._gpu_count))
        known = ~np.isnan(raw)
        sums[:, gpus[known]] += np.stack([raw[known], normalized[known], np.ones(int(known.sum()))])

    def means(self, metric: Metric) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Raw and normalised; NaN where nothing was reported."""
        sums = self._sums.get(metric)
        if sums is None:
            nothing = np.full(self._gpu_count, np.nan, dtype=np.float32)
            return nothing, nothing
        count = np.where(sums[2] > 0, sums[2], np.nan)
        return (sums[0] / count).astype(np.float32), (sums[1] / count).astype(np.float32)
