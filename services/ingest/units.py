"""The table for the normalisation of every metric and job field to 0..1. Data only: no arithmetic, no I/O.

A metric has one canonical unit (`canonical`); values in another accepted unit are converted:

    raw        = value * factor + offset      (or value * factor * full scale, where `of_full_scale`)
    normalized = (raw - lowest) / (full scale - lowest), clipped to 0..1

A GPU's full scale is a constant, its own memory, or a figure of its model (adlro/hardware/specs.py).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from adlro.records.telemetry import Metric, Unit


class FullScale(enum.Enum):
    """Which value of a GPU is 1.0."""

    ONE = "1"
    OWN_MEMORY_MIB = "the GPU's memory"
    SPEC_MEMORY_BANDWIDTH = "the memory bandwidth of its model"
    SPEC_MAX_TEMPERATURE = "the highest temperature of its model"
    SPEC_POWER_LIMIT = "the power limit of its model"


@dataclass(frozen=True, slots=True)
class Conversion:
    """From an accepted unit to the canonical one; `of_full_scale`: the result is a share of the GPU's full scale."""

    factor: float = 1.0
    offset: float = 0.0
    of_full_scale: bool = False


@dataclass(frozen=True, slots=True)
class MetricRule:
    """One metric: its own unit, the units it is accepted in, and its range."""

    canonical: Unit
    full_scale: FullScale
    accepted: Mapping[Unit, Conversion]
    lowest: float = 0.0


_AS_IT_IS = Conversion()
_RATIO = Conversion(of_full_scale=True)
_PERCENT = Conversion(factor=0.01, of_full_scale=True)

METRIC_RULES: Mapping[Metric, MetricRule] = MappingProxyType(
    {
        Metric.UTILIZATION: MetricRule(
            Unit.RATIO,
            FullScale.ONE,
            {Unit.RATIO: _AS_IT_IS, Unit.PERCENT: Conversion(factor=0.01)},
        ),
        Metric.MEMORY_USED: MetricRule(
            Unit.MIB,
            FullScale.OWN_MEMORY_MIB,
            {
                Unit.MIB: _AS_IT_IS,
                Unit.MB: Conversion(factor=1e6 / 2**20),
                Unit.BYTES: Conversion(factor=1 / 2**20),
                Unit.RATIO: _RATIO,
                Unit.PERCENT: _PERCENT,
            },
        ),
        Metric.MEMORY_BANDWIDTH: MetricRule(
            Unit.GB_PER_S,
            FullScale.SPEC_MEMORY_BANDWIDTH,
            {Unit.GB_PER_S: _AS_IT_IS, Unit.RATIO: _RATIO, Unit.PERCENT: _PERCENT},
        ),
        # 0 degrees Celsius is the lower end: a GPU in a room is never below it.
        Metric.TEMPERATURE: MetricRule(
            Unit.CELSIUS,
            FullScale.SPEC_MAX_TEMPERATURE,
            {Unit.CELSIUS: _AS_IT_IS, Unit.KELVIN: Conversion(offset=-273.15)},
        ),
        Metric.POWER: MetricRule(
            Unit.W,
            FullScale.SPEC_POWER_LIMIT,
            {Unit.W: _AS_IT_IS, Unit.MW: Conversion(factor=1e-3), Unit.RATIO: _RATIO, Unit.PERCENT: _PERCENT},
        ),
    }
)


class Scale(enum.Enum):
    """How a job field grows towards 1.0."""

    LINEAR = "value / reference"
    LOGARITHMIC = "log(1 + value) / log(1 + reference)"


@dataclass(frozen=True, slots=True)
class JobFieldRule:
    """One job field: what is 1.0, from the cluster (`ClusterView` attribute) or, where none is known, a constant."""

    reference: float
    of_cluster: str = ""
    scale: Scale = Scale.LINEAR


DAY_S = 86_400.0

# The constants for an unknown cluster: a large node and a large GPU of today.
JOB_FIELD_RULES: Mapping[str, JobFieldRule] = MappingProxyType(
    {
        "priority": JobFieldRule(1.0),
        "cpu_cores": JobFieldRule(128.0, of_cluster="largest_node_cpu_cores"),
        "memory": JobFieldRule(1_048_576.0, of_cluster="largest_node_memory_mib"),
        "gpu_memory": JobFieldRule(81_920.0, of_cluster="largest_gpu_memory_mib"),
        "expected_runtime": JobFieldRule(DAY_S, scale=Scale.LOGARITHMIC),
    }
)
