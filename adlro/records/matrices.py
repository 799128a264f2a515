"""Reports of GPUs as arrays: blocks of telemetry, and the matrix of a cluster's GPUs.

The one module of `adlro.records` that knows numpy. Times named `*_s` are seconds of cluster time, `*_unix_s` seconds of
wall time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.records.telemetry import Metric, Unit

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """One metric of a block: `raw` in `unit` and `normalized` in 0..1, both (T, G) float32; NaN: not reported."""

    unit: Unit
    raw: FloatArray
    normalized: FloatArray


@dataclass(frozen=True, slots=True)
class TelemetryBlock:
    """T samples of G GPUs, metric by metric."""

    cluster: str
    gpu_ids: tuple[str, ...]
    sample_times_unix_s: tuple[float, ...]
    cluster_times_s: tuple[float, ...]
    columns: Mapping[Metric, MetricColumn]
    clipped_count: int = 0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The newest sample of every GPU and the blocks of the requested window, oldest first.

    `latest` has one sample time and a column for every metric; values that were never reported are NaN, and so is the
    time before the first report.
    """

    latest: TelemetryBlock
    window: tuple[TelemetryBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """One discrete variable of a record, such as `utilization_level` = `0.85..0.90`."""

    name: str
    value: str
    index: int


@dataclass(frozen=True, slots=True)
class GpuDrift:
    """Whether a GPU is slower than its model; flagged at a false-alarm rate of 1 % per check.

    `speed_ratio` is its estimated speed relative to its model, from `job_count` finished jobs.
    """

    score: float = 0.0
    flagged: bool = False
    speed_ratio: float = 1.0
    job_count: int = 0


@dataclass(frozen=True, slots=True)
class MixDrift:
    """Whether the mix of finished jobs has changed, the variable with the largest change, and its total variation."""

    score: float = 0.0
    flagged: bool = False
    variable: str = ""
    total_variation: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU of the cluster's state; `sample_time_unix_s` is None before its first report."""

    gpu_id: str
    node_id: str
    gpu_model: str
    sample_time_unix_s: float | None
    variables: tuple[Variable, ...]
    drift: GpuDrift = GpuDrift()


@dataclass(frozen=True, slots=True)
class StatePlane:
    """One metric of all GPUs: `raw` in `unit` and `normalized` in 0..1, both (G,) float32; NaN: not reported."""

    unit: Unit
    raw: FloatArray
    normalized: FloatArray


@dataclass(frozen=True, slots=True)
class ClusterState:
    """decompose's GPU matrix, GPUs in the order of the cluster's description."""

    cluster: str
    gpus: tuple[GpuState, ...]
    planes: Mapping[Metric, StatePlane]
    newest_sample_unix_s: float | None
    revision: int
    mix_drift: MixDrift = MixDrift()

    def value(self, metric: Metric, gpu_index: int) -> float:
        """The raw value of one metric of one GPU; NaN if it is unknown."""
        plane = self.planes.get(metric)
        return float(plane.raw[gpu_index]) if plane is not None else float("nan")
