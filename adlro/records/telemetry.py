"""The metrics of GPUs and their units. Plain records: knows no gRPC, no Redis and no arrays."""

from __future__ import annotations

from adlro.records.named import NamedEnum


class Metric(NamedEnum):
    """The metrics of a GPU; numbers as in telemetry.proto."""

    UTILIZATION = 1
    MEMORY_USED = 2
    MEMORY_BANDWIDTH = 3
    TEMPERATURE = 4
    POWER = 5


class Unit(NamedEnum):
    """Units of raw values; numbers as in telemetry.proto."""

    RATIO = 1
    PERCENT = 2
    MIB = 3
    MB = 4
    BYTES = 5
    GB_PER_S = 6
    CELSIUS = 7
    KELVIN = 8
    W = 9
    MW = 10
