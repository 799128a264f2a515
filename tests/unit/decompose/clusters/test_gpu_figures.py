"""The figures of each GPU: base units, nothing that is old, and quick for a thousand GPUs."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.matrices import GpuDrift, MetricColumn, TelemetryBlock
from adlro.records.telemetry import Metric
from adlro.services.decompose.clusters.gpu_figures import SHOWN_FOR_S, GpuFigures, show_gpu_figures
from adlro.services.decompose.clusters.gpu_matrix import METRIC_UNITS, GpuMatrix

VOLTA = {"cluster": "lab", "node_id": "n0", "gpu_model": "v100_sxm2"}


def matrix(gpu_count: int, values: dict[Metric, float], times: dict[str, float]) -> GpuMatrix:
    gpus = tuple(Gpu(f"n0/{number}", "v100_sxm2", 16160) for number in range(gpu_count))
    made = GpuMatrix(Cluster("lab", (Node("n0", 8, 1024, gpus),)))
    for gpu_id, time_s in times.items():
        columns = {
            metric: MetricColumn(
                METRIC_UNITS[metric], np.array([[value]], dtype=np.float32), np.array([[0.5]], dtype=np.float32)
            )
            for metric, value in values.items()
        }
        made.fold(TelemetryBlock("lab", (gpu_id,), (time_s,), (), columns))
    return made


def registry_of(figures: GpuFigures) -> CollectorRegistry:
    registry = CollectorRegistry()
    show_gpu_figures(lambda: figures, registry)
    return registry


def test_values_are_in_base_units_and_old_ones_are_not_shown():
    values = {Metric.UTILIZATION: 0.75, Metric.MEMORY_USED: 1024.0, Metric.MEMORY_BANDWIDTH: 2.0, Metric.POWER: 250.0}
    made = matrix(3, values, {"n0/0": 1000.0, "n0/1": 1000.0 - SHOWN_FOR_S - 5})
    registry = registry_of(GpuFigures([made.snapshot()], {}, 1003.0))

    def value(name: str, gpu_id: str) -> float | None:
        return registry.get_sample_value(f"adlro_decompose_gpu_{name}", {**VOLTA, "gpu_id": gpu_id})

    assert value("utilization_ratio", "n0/0") == 0.75
    assert value("memory_used_bytes", "n0/0") == 2.0**30
    assert value("memory_bandwidth_bytes_per_second", "n0/0") == 2e9
    assert value("power_watts", "n0/0") == 250.0
    assert value("temperature_celsius", "n0/0") is None  # not reported
    assert value("utilization_ratio", "n0/1") is None  # long ago
    assert value("utilization_ratio", "n0/2") is None  # never
    assert registry.get_sample_value("adlro_decompose_telemetry_age_seconds", {"cluster": "lab"}) == 3.0


def test_drift_is_shown_of_gpus_that_ran_jobs():
    snapshot = matrix(2, {}, {}).snapshot()
    registry = registry_of(
        GpuFigures(
            [snapshot],
            {("lab", "n0/1"): GpuDrift(0.999, True, 0.7, 30), ("other", "n0/0"): GpuDrift(1.0, True, 0.5, 30)},
            0.0,
        )
    )
    labels = {**VOLTA, "gpu_id": "n0/1"}
    assert registry.get_sample_value("adlro_decompose_gpu_speed_ratio", labels) == 0.7
    assert registry.get_sample_value("adlro_decompose_gpu_flagged", labels) == 1
    assert registry.get_sample_value("adlro_decompose_gpu_flagged", {**VOLTA, "gpu_id": "n0/0"}) is None


@pytest.mark.parametrize("gpu_count", [1000])
def test_a_thousand_gpus_are_seven_thousand_series(gpu_count):
    values = dict.fromkeys(Metric, 1.0)
    made = matrix(gpu_count, {}, {})
    columns = {
        metric: MetricColumn(
            METRIC_UNITS[metric], np.full((1, gpu_count), value, np.float32), np.full((1, gpu_count), 0.5, np.float32)
        )
        for metric, value in values.items()
    }
    gpu_ids = tuple(f"n0/{number}" for number in range(gpu_count))
    made.fold(TelemetryBlock("lab", gpu_ids, (100.0,), (), columns))
    drifts: dict[Hashable, GpuDrift] = {
        ("lab", f"n0/{number}"): GpuDrift(0.1, False, 1.0, 20) for number in range(gpu_count)
    }
    registry = registry_of(GpuFigures([made.snapshot()], drifts, 101.0))
    text = generate_latest(registry).decode()
    assert sum(line.startswith("adlro_decompose_gpu_") for line in text.splitlines()) == 7 * gpu_count
