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


SUSPECTED = 0.99
"""Score from which a GPU is suspected to be slower, or the mix of jobs counts as changed: 1 % of tests by chance."""


@dataclass(frozen=True, slots=True)
class GpuDrift:
    """Whether a GPU is slower than its model; flagged at a false-alarm rate of 1 % per check of all GPUs together.

    `score` is the share of healthy GPUs with a lower one; `speed_ratio` its estimated speed relative to its model, from
    `job_count` finished jobs.
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
    """decompose's GPU matrix, GPUs in the order of the cluster's description.

    Attributes:
        flagged_count: GPUs that are flagged as slower than their model.
        suspected_count: GPUs with a score of at least 0.99; so many healthy ones have it by chance:
            `suspected_by_chance_count`.
    """

    cluster: str
    gpus: tuple[GpuState, ...]
    planes: Mapping[Metric, StatePlane]
    newest_sample_unix_s: float | None
    revision: int
    mix_drift: MixDrift = MixDrift()
    flagged_count: int = 0
    suspected_count: int = 0
    suspected_by_chance_count: float = 0.0

    def value(self, metric: Metric, gpu_index: int) -> float:
        """The raw value of one metric of one GPU; NaN if it is unknown."""
        plane = self.planes.get(metric)
        return float(plane.raw[gpu_index]) if plane is not None else float("nan")


@dataclass(frozen=True, slots=True)
class DriftSummary:
    """The drift of a cluster; the fields are those of `ClusterState`."""

    mix_drift: MixDrift = MixDrift()
    flagged_count: int = 0
    suspected_count: int = 0
    suspected_by_chance_count: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterPlanes:
    """decompose's GPU matrix in short: what a stream of planes has told so far.

    Attributes:
        gpus: (gpu_id, node_id, gpu_model), in the order of the cluster's description.
        planes: by metric, (G,) float32 in 0..1 in steps of 1/254; NaN: not reported.
        variables: by name, each GPU's value, such as `0.85..0.90`.
        drifts: by GPU id, those of GPUs that ran jobs.
        newest_sample_unix_s: wall time of the newest sample of all; None: none yet.
        revision: grows with every change, while decompose's process lives.
    """

    cluster: str
    gpus: tuple[tuple[str, str, str], ...]
    planes: Mapping[Metric, FloatArray]
    variables: Mapping[str, tuple[str, ...]]
    drifts: Mapping[str, GpuDrift]
    drift_summary: DriftSummary
    newest_sample_unix_s: float | None
    revision: int
