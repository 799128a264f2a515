"""Normalises jobs and telemetry to 0..1 by the table in units.py. Arrays and plain records; no I/O.

Shapes: T sample times, G GPUs of a block.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adlro.errors import FieldViolation, InvalidInput
from adlro.records.jobs import JobSpec, NormalizedJob
from adlro.records.matrices import MetricColumn, TelemetryBlock
from adlro.records.telemetry import Metric, Unit
from adlro.services.ingest.clusters import ClusterView, job_references, listed
from adlro.services.ingest.units import METRIC_RULES

_CONSTANT_REFERENCES = job_references(None)

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RawColumn:
    """One received metric: T x G little-endian float32, time by time; NaN: not reported."""

    metric: Metric
    unit: Unit
    values_f32: bytes


@dataclass(frozen=True, slots=True)
class RawBlock:
    """A received block."""

    cluster: str
    gpu_ids: tuple[str, ...]
    sample_times_unix_s: Float64
    cluster_times_s: Float64
    columns: Sequence[RawColumn]


class GpuSelection:
    """The GPUs of a block, looked up once for all blocks of a stream that name the same ones.

    Raises:
        InvalidInput: an id is not in the cluster, or occurs twice.
    """

    def __init__(self, view: ClusterView, gpu_ids: tuple[str, ...]) -> None:
        self.view = view
        self.gpu_ids = gpu_ids
        numbers = []
        for index, gpu_id in enumerate(gpu_ids):
            number = view.number_of.get(gpu_id)
            if number is None:
                raise _refused(
                    f"block.gpu_ids[{index}]",
                    f"cluster {view.cluster.name!r} has no GPU {gpu_id!r}; it has {listed(view.number_of)}; "
                    "UpsertCluster adds others",
                )
            numbers.append(number)
        if len(set(numbers)) != len(numbers):
            first_at: dict[str, int] = {}
            index = next(i for i, gpu_id in enumerate(gpu_ids) if first_at.setdefault(gpu_id, i) != i)
            raise _refused(f"block.gpu_ids[{index}]", f"{gpu_ids[index]!r} occurs twice; name each GPU once")
        rows = np.array(numbers, np.intp)
        self.full_scales = {scale: values[rows] for scale, values in view.full_scales.items()}  # [G] each
        # Tells this set of GPUs from others, whatever their order.
        self.digest = hashlib.sha256("\0".join(sorted(gpu_ids)).encode()).digest()[:16]


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Sample times outside of these, by the wall clock, are refused."""

    past_s: float
    future_s: float


def normalize_job(spec: JobSpec, view: ClusterView | None) -> NormalizedJob:
    """A job's fields in 0..1, by the cluster's largest node and GPU; by constants if no cluster is known."""
    runtime_s = spec.expected_runtime.runtime_s if spec.expected_runtime is not None else 0.0
    return NormalizedJob(
        priority=_job_field("priority", spec.priority, view),
        cpu_cores=_job_field("cpu_cores", spec.cpu_cores, view),
        memory=_job_field("memory", spec.memory_mib, view),
        gpu_memory=_job_field("gpu_memory", spec.gpu_memory_mib, view),
        expected_runtime=_job_field("expected_runtime", runtime_s, view),
    )


def normalize_block(block: RawBlock, gpus: GpuSelection, limits: TimeLimits, now_unix_s: float) -> TelemetryBlock:
    """A block in the metrics' own units and in 0..1.

    Raises:
        InvalidInput: the invalid field of the block (`block.columns[2].values_f32`), and the valid values.
    """
    _check_times(block, limits, now_unix_s)
    shape = (len(block.sample_times_unix_s), len(gpus.gpu_ids))
    columns: dict[Metric, MetricColumn] = {}
    clipped_count = 0
    seen: dict[Metric, int] = {}
    for index, column in enumerate(block.columns):
        path = f"block.columns[{index}]"
        if column.metric in seen:
            raise _refused(
                f"{path}.metric",
                f"{column.metric.name} is the metric of block.columns[{seen[column.metric]}] too; "
                "send one column a metric",
            )
        seen[column.metric] = index
        normalized, clipped = _normalize_column(column, gpus, shape, path)
        columns[column.metric] = normalized
        clipped_count += clipped
    return TelemetryBlock(
        block.cluster,
        gpus.gpu_ids,
        tuple(block.sample_times_unix_s.tolist()),
        tuple(block.cluster_times_s.tolist()),
        columns,
        clipped_count,
    )


def newest_sample(block: TelemetryBlock) -> TelemetryBlock:
    """The block's last sample time alone, with the newest value that each GPU reported in the block."""
    columns = {}
    for metric, column in block.columns.items():
        reported = ~np.isnan(column.raw)  # [T, G]
        # The last row where something was reported; where nothing was, the last row, which is NaN.
        rows = len(reported) - 1 - np.argmax(reported[::-1], axis=0)
        gpus = np.arange(reported.shape[1])
        columns[metric] = MetricColumn(column.unit, column.raw[rows, gpus][None], column.normalized[rows, gpus][None])
    return TelemetryBlock(
        block.cluster,
        block.gpu_ids,
        block.sample_times_unix_s[-1:],
        block.cluster_times_s[-1:],
        columns,
    )


def merge_newest(view: ClusterView, samples: Sequence[TelemetryBlock]) -> TelemetryBlock:
    """One sample of all GPUs of the cluster, in its order, from samples of some GPUs: the newest of each value.

    Every metric has a column of shape (1, G): unreported values are NaN, and so is the sample's time before the
    first report.
    """
    merged = {metric: _unreported(metric, len(view.gpus)) for metric in Metric}
    newest: TelemetryBlock | None = None
    for sample in sorted(samples, key=lambda each: each.sample_times_unix_s[-1]):
        newest = sample
        numbers = np.array([view.number_of.get(gpu_id, -1) for gpu_id in sample.gpu_ids], np.intp)
        for metric, column in sample.columns.items():
            into = merged[metric]
            # GPUs that the cluster no longer has are passed over.
            known = (numbers >= 0) & ~np.isnan(column.raw[0])
            into.raw[0, numbers[known]] = column.raw[0, known]
            into.normalized[0, numbers[known]] = column.normalized[0, known]
    return TelemetryBlock(
        view.cluster.name,
        tuple(view.number_of),
        newest.sample_times_unix_s if newest is not None else (math.nan,),
        newest.cluster_times_s if newest is not None else (),
        merged,
    )


def _unreported(metric: Metric, gpu_count: int) -> MetricColumn:
    nothing = np.full((2, 1, gpu_count), np.nan, np.float32)
    return MetricColumn(METRIC_RULES[metric].canonical, nothing[0], nothing[1])


def superseded(samples: Sequence[TelemetryBlock]) -> list[int]:
    """Indices of the samples of which every value is older than one of the same GPU and metric in another sample."""
    covered: set[tuple[str, Metric]] = set()
    out = []
    newest_first = sorted(range(len(samples)), key=lambda i: samples[i].sample_times_unix_s[-1], reverse=True)
    for index in newest_first:
        values = {
            (gpu_id, metric)
            for metric, column in samples[index].columns.items()
            for gpu_id, missing in zip(samples[index].gpu_ids, np.isnan(column.raw[0]), strict=True)
            if not missing
        }
        if values <= covered:
            out.append(index)
        covered |= values
    return out


def _job_field(name: str, value: float, view: ClusterView | None) -> float:
    logarithmic, reference = (view.job_references if view is not None else _CONSTANT_REFERENCES)[name]
    ratio = math.log1p(value) / reference if logarithmic else value / reference
    return ratio if ratio < 1.0 else 1.0  # no field is negative


def _check_times(block: RawBlock, limits: TimeLimits, now_unix_s: float) -> None:
    times = block.sample_times_unix_s
    if not np.isfinite(times).all():
        index = int(np.argmin(np.isfinite(times)))
        raise _refused(f"block.sample_times_unix_s[{index}]", f"is {times[index]}; must be a time, seconds since 1970")
    falling = np.flatnonzero(times[1:] < times[:-1])
    if len(falling):
        index = int(falling[0]) + 1
        raise _refused(
            f"block.sample_times_unix_s[{index}]",
            f"{times[index]:.3f} is before the previous sample time ({times[index - 1]:.3f}); send samples in order",
        )
    if times[-1] > now_unix_s + limits.future_s:
        index = int(np.argmax(times > now_unix_s + limits.future_s))
        raise _refused(
            f"block.sample_times_unix_s[{index}]",
            f"{times[index]:.3f} is {times[index] - now_unix_s:.1f} s in the future (at most {limits.future_s:g} s); "
            "set the sender's clock, and send wall time here and cluster time in cluster_times_s",
        )
    if times[0] < now_unix_s - limits.past_s:
        raise _refused(
            "block.sample_times_unix_s[0]",
            f"{times[0]:.3f} is {now_unix_s - times[0]:.0f} s ago (at most {limits.past_s:g} s); "
            "set the sender's clock, and send wall time here and cluster time in cluster_times_s",
        )
    clock = block.cluster_times_s
    if len(clock) not in (0, len(times)):
        raise _refused(
            "block.cluster_times_s",
            f"has {len(clock)} times, needs none or {len(times)}, one for each of sample_times_unix_s",
        )
    if not np.isfinite(clock).all():
        index = int(np.argmin(np.isfinite(clock)))
        raise _refused(f"block.cluster_times_s[{index}]", f"is {clock[index]}; must be seconds of cluster time")


def _normalize_column(
    column: RawColumn, gpus: GpuSelection, shape: tuple[int, int], path: str
) -> tuple[MetricColumn, int]:
    rule = METRIC_RULES[column.metric]
    conversion = rule.accepted.get(column.unit)
    if conversion is None:
        accepted = ", ".join(f"UNIT_{unit.name}" for unit in rule.accepted)
        raise _refused(
            f"{path}.unit", f"UNIT_{column.unit.name} is not a unit of METRIC_{column.metric.name}; send {accepted}"
        )
    needed = shape[0] * shape[1] * 4
    if len(column.values_f32) != needed:
        raise _refused(
            f"{path}.values_f32",
            f"has {len(column.values_f32)} bytes, needs {needed} = 4 x {shape[0]} sample times x {shape[1]} GPUs",
        )
    values: Float32 = np.frombuffer(column.values_f32, "<f4").reshape(shape)
    full_scale = gpus.full_scales[rule.full_scale]  # [G]
    raw = values
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found below
        if conversion.factor != 1.0:
            raw = raw * np.float32(conversion.factor)
        if conversion.of_full_scale:
            raw = raw * full_scale
        if conversion.offset:
            raw = raw + np.float32(conversion.offset)
        ratio = (raw - np.float32(rule.lowest)) / (full_scale - np.float32(rule.lowest))  # [T, G]
    if np.isinf(raw).any():
        at = int(np.argmax(np.isinf(raw)))
        raise _refused(
            f"{path}.values_f32",
            f"value {at} (sample time {at // shape[1]}, GPU {gpus.gpu_ids[at % shape[1]]!r}) is infinite; "
            "send NaN for a value that is not known",
        )
    # Comparisons with NaN are False: what was not reported is not counted.
    clipped = int(np.count_nonzero((ratio < 0.0) | (ratio > 1.0)))
    normalized = np.clip(ratio, np.float32(0.0), np.float32(1.0)) if clipped else ratio
    return MetricColumn(rule.canonical, raw, normalized), clipped


def _refused(path: str, text: str) -> InvalidInput:
    return InvalidInput(
        f"{path}: {text}", violations=[FieldViolation(path, f"{path}: {text}")], reason="INVALID_TELEMETRY"
    )
