"""The metrics of a simulated cluster's GPUs: utilization, memory, memory bandwidth, power, temperature.

Utilization and bandwidth are figures of the application (`data/gpu_load.csv`, assumed), varied a little from job to job
by a stable hash. Power = idle + utilization x (limit - idle). Temperature follows dT/dt = (T_ambient + R P - T) / tau
(`data/thermal.csv`, assumed); power is constant between a GPU's events, so T has a closed form and a sample at any time
is exact, also after a long jump of a virtual clock.

Of two jobs on a GPU each loads it by that share of its own figures that it keeps of its speed (assumed: it does so much
less in the same time). Utilization, bandwidth and memory are sums, and end at what the GPU has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput
from adlro.hardware.specs import known_spec
from adlro.numeric.exact import exp, exp_array
from adlro.package_data import csv_rows
from adlro.records.cluster import Cluster, GpuSpec
from adlro.records.jobs import JobSpec
from adlro.sim.durations import stable_uniform

Floats = NDArray[np.float64]

_FIGURES = {row["figure"]: float(row["value"]) for row in csv_rows("adlro.sim", "thermal.csv")}
AMBIENT_C = _FIGURES["ambient_temperature"]
IDLE_POWER_SHARE = _FIGURES["idle_power_share"]
FULL_LOAD_TEMPERATURE_SHARE = _FIGURES["full_load_temperature_share"]
TIME_CONSTANT_S = _FIGURES["time_constant"]
DRIVER_MEMORY_MIB = _FIGURES["driver_memory"]
UNSTATED_MEMORY_SHARE = _FIGURES["unstated_memory_share"]
VARIATION = _FIGURES["variation"]

# (utilization, share of the memory bandwidth) of an application; ("*", job type) for those that are not listed.
_LOAD: dict[tuple[str, str], tuple[float, float]] = {
    (row["application"], row["job_type"] if row["application"] == "*" else ""): (
        float(row["utilization_ratio"]),
        float(row["memory_bandwidth_ratio"]),
    )
    for row in csv_rows("adlro.sim", "gpu_load.csv")
}
_BY_TYPE = [load for (application, _), load in _LOAD.items() if application == "*"]
_MEAN_LOAD = (
    math.fsum(load[0] for load in _BY_TYPE) / len(_BY_TYPE),
    math.fsum(load[1] for load in _BY_TYPE) / len(_BY_TYPE),
)
"""Of a job of unspecified type."""


@dataclass(frozen=True, slots=True)
class MetricsSample:
    """The metrics of G GPUs at one time, each an array of shape (G,); NaN for a lost GPU."""

    utilization_ratio: Floats
    memory_used_mib: Floats
    memory_bandwidth_gb_per_s: Floats
    temperature_c: Floats
    power_w: Floats


@dataclass(frozen=True, slots=True)
class Load:
    """A job on a GPU, and the share of its own speed that it keeps there."""

    job_id: str
    spec: JobSpec
    kept: float = 1.0


class GpuMetrics:
    """The metrics of a cluster's GPUs, by their numbers, as functions of cluster time.

    Times of calls for one GPU must not decrease.

    Raises:
        InvalidInput: a GPU model is unknown to ADLRO, and has no figures.
    """

    def __init__(self, cluster: Cluster, time_s: float = 0.0) -> None:
        specs = [_spec(known_spec(gpu), gpu.gpu_model) for _, gpu in cluster.gpus()]
        count = len(specs)
        self._memory_mib = np.array([float(gpu.memory_mib) for _, gpu in cluster.gpus()])
        self._peak_gb_per_s = np.array([spec.memory_bandwidth_gb_per_s for spec in specs])
        self._limit_w = np.array([spec.power_limit_w for spec in specs])
        self._idle_w = IDLE_POWER_SHARE * self._limit_w
        settled_c = FULL_LOAD_TEMPERATURE_SHARE * np.array([spec.max_temperature_c for spec in specs])
        self._resistance_c_per_w = (settled_c - AMBIENT_C) / self._limit_w
        self._lost = np.zeros(count, dtype=bool)
        self._utilization = np.zeros(count)
        self._used_mib = np.full(count, DRIVER_MEMORY_MIB)
        self._gb_per_s = np.zeros(count)
        self._power_w = self._idle_w.copy()
        self._since_s = np.full(count, float(time_s))
        # Temperature at `_since_s`: at the start that of a long idle GPU.
        self._since_c = AMBIENT_C + self._resistance_c_per_w * self._power_w

    def set_load(self, number: int, time_s: float, loads: Sequence[Load]) -> None:
        """Gives a GPU all that runs on it from now on; none: it is idle."""
        utilization = bandwidth_share = asked_mib = 0.0
        for each in loads:
            own_utilization, own_share = _load_of(each.spec)
            utilization += each.kept * (own_utilization * _variation("utilization", each.job_id))
            bandwidth_share += each.kept * (own_share * _variation("bandwidth", each.job_id))
            asked_mib += each.spec.gpu_memory_mib or UNSTATED_MEMORY_SHARE * self._memory_mib[number]
        self._utilization[number] = min(utilization, 1.0)
        self._gb_per_s[number] = min(bandwidth_share, 1.0) * self._peak_gb_per_s[number]
        self._used_mib[number] = min(DRIVER_MEMORY_MIB + asked_mib, self._memory_mib[number])
        idle_w = self._idle_w[number]
        self._set_power(number, time_s, idle_w + self._utilization[number] * (self._limit_w[number] - idle_w))

    def lose(self, number: int, time_s: float) -> None:
        """Marks a GPU as lost: it reports nothing, and cools down."""
        self.set_load(number, time_s, ())
        self._power_w[number] = 0.0
        self._lost[number] = True

    def restore(self, number: int, time_s: float) -> None:
        """Restores a lost GPU, idle."""
        self._set_power(number, time_s, self._idle_w[number])
        self._lost[number] = False

    def sample(self, time_s: float) -> MetricsSample:
        """The metrics at a time not before the last change."""
        return MetricsSample(
            utilization_ratio=self._reported(self._utilization),
            memory_used_mib=self._reported(self._used_mib),
            memory_bandwidth_gb_per_s=self._reported(self._gb_per_s),
            temperature_c=self._reported(self._temperature_c(time_s)),
            power_w=self._reported(self._power_w),
        )

    def _reported(self, values: Floats) -> Floats:
        return np.where(self._lost, np.nan, values)

    def _temperature_c(self, time_s: float) -> Floats:
        target_c = AMBIENT_C + self._resistance_c_per_w * self._power_w
        decay = exp_array((self._since_s - time_s) / TIME_CONSTANT_S)
        temperature_c: Floats = target_c + (self._since_c - target_c) * decay
        return temperature_c

    def _set_power(self, number: int, time_s: float, power_w: float) -> None:
        target_c = AMBIENT_C + self._resistance_c_per_w[number] * self._power_w[number]
        decay = exp((self._since_s[number] - time_s) / TIME_CONSTANT_S)
        self._since_c[number] = target_c + (self._since_c[number] - target_c) * decay
        self._since_s[number] = time_s
        self._power_w[number] = power_w


def _load_of(spec: JobSpec) -> tuple[float, float]:
    return _LOAD.get((spec.application, "")) or _LOAD.get(("*", spec.job_type.label), _MEAN_LOAD)


def _variation(metric: str, job_id: str) -> float:
    return 1.0 + VARIATION * (2.0 * stable_uniform(metric, job_id) - 1.0)


def _spec(spec: GpuSpec | None, gpu_model: str) -> GpuSpec:
    if spec is None:
        raise InvalidInput(
            f"GPU model '{gpu_model}' is not known and comes without figures (spec)",
            field="gpu_model",
            reason="UNKNOWN_GPU_MODEL",
        )
    return spec
