"""Figures of the GPU models that ADLRO knows. Plain records; the file has each figure's source."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from adlro.records.cluster import Gpu, GpuSpec
from adlro.tables import csv_rows

GPU_SPECS: Mapping[str, GpuSpec] = MappingProxyType(
    {
        row["gpu_model"]: GpuSpec(
            memory_bandwidth_gb_per_s=float(row["memory_bandwidth_gb_per_s"]),
            power_limit_w=float(row["power_limit_w"]),
            max_temperature_c=float(row["max_temperature_c"]),
        )
        for row in csv_rows("adlro.hardware", "gpu_specs.csv")
    }
)
"""By GPU model."""


def known_spec(gpu: Gpu) -> GpuSpec | None:
    """The GPU's own figures, or else those of its model; None: unknown."""
    return gpu.spec or GPU_SPECS.get(gpu.gpu_model)
