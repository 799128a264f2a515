"""decompose's metrics of each GPU for Prometheus: newest telemetry, in base units, and drift. Plain arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from adlro.kit.metrics import WhenScraped
from adlro.records.matrices import GpuDrift
from adlro.records.telemetry import Metric as Telemetry
from adlro.services.decompose.clusters.gpu_matrix import GpuMatrixSnapshot

# A GPU without a report for longer shows no values: it, or its exporter, may be lost.
SHOWN_FOR_S = 60.0

# Metric, name, description, and the factor of a raw value.
_FIGURES: tuple[tuple[Telemetry, str, str, float], ...] = (
    (Telemetry.UTILIZATION, "utilization_ratio", "share of time in which it computes", 1.0),
    (Telemetry.MEMORY_USED, "memory_used_bytes", "memory in use", 2.0**20),
    (Telemetry.MEMORY_BANDWIDTH, "memory_bandwidth_bytes_per_second", "memory traffic", 1e9),
    (Telemetry.TEMPERATURE, "temperature_celsius", "temperature", 1.0),
    (Telemetry.POWER, "power_watts", "power", 1.0),
)
_LABELS = ["cluster", "gpu_id", "node_id", "gpu_model"]


class GpuFigures(NamedTuple):
    """The exported figures.

    Attributes:
        snapshots: the GPU matrix of each cluster.
        drifts: the drift of each GPU that ran jobs, by cluster and id.
        now_unix_s: wall time.
    """

    snapshots: Sequence[GpuMatrixSnapshot]
    drifts: Mapping[Hashable, GpuDrift]
    now_unix_s: float


def show_gpu_figures(take: Callable[[], GpuFigures], registry: CollectorRegistry) -> None:
    """Exports the state of each GPU at each scrape: seven series per GPU."""
    WhenScraped(take, _metrics, GpuFigures((), {}, 0.0), registry)


def _metrics(figures: GpuFigures) -> Iterator[Metric]:
    age_s = GaugeMetricFamily(
        "adlro_decompose_telemetry_age_seconds", "since the newest sample of any GPU", labels=["cluster"]
    )
    shown = []
    for snapshot in figures.snapshots:
        if snapshot.newest_sample_unix_s is not None:
            age_s.add_metric([snapshot.cluster], max(figures.now_unix_s - snapshot.newest_sample_unix_s, 0.0))
        shown.append(snapshot.sample_times_unix_s > figures.now_unix_s - SHOWN_FOR_S)
    yield age_s
    for telemetry, name, what, factor in _FIGURES:
        family = GaugeMetricFamily(f"adlro_decompose_gpu_{name}", f"{what}, newest sample of each GPU", labels=_LABELS)
        for snapshot, is_shown in zip(figures.snapshots, shown, strict=True):
            raw = snapshot.planes[telemetry].raw.astype(np.float64) * factor
            for number in np.flatnonzero(is_shown & ~np.isnan(raw)):
                family.add_metric([snapshot.cluster, *snapshot.gpus[number]], float(raw[number]))
        yield family
    speed = GaugeMetricFamily(
        "adlro_decompose_gpu_speed_ratio", "believed speed of a GPU relative to its model", labels=_LABELS
    )
    flagged = GaugeMetricFamily(
        "adlro_decompose_gpu_flagged",
        "1 while a GPU is taken for slower than its model, at a false-alarm rate of 1 % a look",
        labels=_LABELS,
    )
    for snapshot in figures.snapshots:
        for gpu in snapshot.gpus:
            drift = figures.drifts.get((snapshot.cluster, gpu[0]))
            if drift is not None and math.isfinite(drift.speed_ratio):
                speed.add_metric([snapshot.cluster, *gpu], drift.speed_ratio)
                flagged.add_metric([snapshot.cluster, *gpu], drift.flagged)
    yield speed
    yield flagged
