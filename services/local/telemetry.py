"""What GPUs report, as arrays for telemetry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.devices.records import Reading


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """The metrics of G GPUs at one time, each of shape (G,); NaN: unknown."""

    utilization_ratio: NDArray[np.float64]
    memory_used_mib: NDArray[np.float64]
    memory_bandwidth_gb_per_s: NDArray[np.float64]
    temperature_c: NDArray[np.float64]
    power_w: NDArray[np.float64]


def metrics_of(readings: Sequence[Reading]) -> GpuMetrics:
    """The metrics of GPUs in their order."""

    def column(name: str) -> NDArray[np.float64]:
        return np.array([getattr(each, name) for each in readings], np.float64)

    return GpuMetrics(
        column("utilization"),
        column("memory_used_mib"),
        column("bandwidth_gb_per_s"),
        column("temperature_c"),
        column("power_w"),
    )
