from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.errors import InvalidInput
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType, NormalizedJob
from adlro.records.matrices import TelemetryBlock
from adlro.records.telemetry import Metric, Unit
from adlro.services.ingest.normalize import (
    GpuSelection,
    TimeLimits,
    merge_newest,
    newest_sample,
    normalize_block,
    normalize_job,
    superseded,
)
from adlro.services.ingest.telemetry_store import superseded_sources
from adlro.services.ingest.units import METRIC_RULES
from tests.unit.ingest.clusters_for_tests import GPU_IDS, NOW_UNIX_S, VIEW, column, f32, raw_block

LIMITS = TimeLimits(past_s=86_400.0, future_s=5.0)
NAN = math.nan


def normalize(*columns, **block) -> TelemetryBlock:
    raw = raw_block(*columns, **block)
    return normalize_block(raw, GpuSelection(VIEW, raw.gpu_ids), LIMITS, NOW_UNIX_S)


def refused(field: str, *columns, **block) -> str:
    with pytest.raises(InvalidInput) as caught:
        normalize(*columns, **block)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")
    return caught.value.message


# --- telemetry: values that were worked out by hand -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "unit", "sent", "raw", "normalized"),
    [
        (Metric.UTILIZATION, Unit.RATIO, [0, 0.5, 1], [0, 0.5, 1], [0, 0.5, 1]),
        (Metric.UTILIZATION, Unit.PERCENT, [0, 50, 100], [0, 0.5, 1], [0, 0.5, 1]),
        # Of the GPU's own memory: 16160, 16160 and 4000 MiB.
        (Metric.MEMORY_USED, Unit.MIB, [0, 8080, 1000], [0, 8080, 1000], [0, 0.5, 0.25]),
        (Metric.MEMORY_USED, Unit.MB, [0, 1048.576, 1048.576], [0, 1000, 1000], [0, 1000 / 16160, 0.25]),
        (Metric.MEMORY_USED, Unit.BYTES, [0, 2**30, 2**30], [0, 1024, 1024], [0, 1024 / 16160, 0.256]),
        (Metric.MEMORY_USED, Unit.RATIO, [0, 0.5, 1], [0, 8080, 4000], [0, 0.5, 1]),
        (Metric.MEMORY_USED, Unit.PERCENT, [0, 50, 25], [0, 8080, 1000], [0, 0.5, 0.25]),
        # Of the model's figure: 897 GB/s for v100_sxm2, 100 GB/s in the spec of the third.
        (Metric.MEMORY_BANDWIDTH, Unit.GB_PER_S, [0, 897, 25], [0, 897, 25], [0, 1, 0.25]),
        (Metric.MEMORY_BANDWIDTH, Unit.PERCENT, [0, 100, 25], [0, 897, 25], [0, 1, 0.25]),
        # 90 degrees for v100_sxm2, 80 in the spec of the third.
        (Metric.TEMPERATURE, Unit.CELSIUS, [0, 45, 40], [0, 45, 40], [0, 0.5, 0.5]),
        (Metric.TEMPERATURE, Unit.KELVIN, [273.15, 318.15, 313.15], [0, 45, 40], [0, 0.5, 0.5]),
        # 300 W and 50 W.
        (Metric.POWER, Unit.W, [0, 150, 10], [0, 150, 10], [0, 0.5, 0.2]),
        (Metric.POWER, Unit.MW, [0, 150e3, 10e3], [0, 150, 10], [0, 0.5, 0.2]),
        (Metric.POWER, Unit.RATIO, [0, 0.5, 0.2], [0, 150, 10], [0, 0.5, 0.2]),
    ],
)
def test_units(metric, unit, sent, raw, normalized):
    block = normalize(column(metric, unit, [sent]))
    ((found, out),) = block.columns.items()
    assert (found, out.unit) == (metric, METRIC_RULES[metric].canonical)
    assert out.raw.dtype == out.normalized.dtype == np.float32
    assert out.raw.shape == out.normalized.shape == (1, 3)
    np.testing.assert_allclose(out.raw[0], raw, rtol=1e-5, atol=2e-4)
    np.testing.assert_allclose(out.normalized[0], normalized, rtol=1e-5, atol=2e-5)
    assert block.clipped_count == 0


def test_values_out_of_range_are_clipped_and_counted_and_kept_raw():
    block = normalize(
        column(Metric.POWER, Unit.W, [[330, -5, 50], [300, NAN, 51]]),
        column(Metric.UTILIZATION, Unit.PERCENT, [[0, 100, 100], [101, NAN, 0]]),
        times=(NOW_UNIX_S - 1, NOW_UNIX_S),
    )
    power, utilization = block.columns.values()
    assert block.clipped_count == 4
    np.testing.assert_array_equal(power.normalized, f32([[1, 0, 1], [1, NAN, 1]]))
    np.testing.assert_array_equal(power.raw, f32([[330, -5, 50], [300, NAN, 51]]))
    np.testing.assert_array_equal(utilization.normalized, f32([[0, 1, 1], [1, NAN, 0]]))


def test_gpus_in_another_order_are_divided_by_their_own_figures():
    block = normalize(column(Metric.POWER, Unit.W, [[25, 150]]), gpu_ids=("odd-0/0", "volta-0/1"))
    np.testing.assert_allclose(block.columns[Metric.POWER].normalized, [[0.5, 0.5]])


@given(
    st.sampled_from([(metric, unit) for metric, rule in METRIC_RULES.items() for unit in rule.accepted]),
    st.lists(st.floats(width=32, allow_infinity=False), min_size=6, max_size=6),
)
def test_normalized_is_in_0_to_1_or_nan_where_raw_is(metric_unit, values):
    sent = column(metric_unit[0], metric_unit[1], np.reshape(values, (2, 3)))
    try:
        block = normalize(sent, times=(NOW_UNIX_S - 1, NOW_UNIX_S))
    except InvalidInput:  # what does not fit float32 in the metric's own unit
        refused("block.columns[0].values_f32", sent, times=(NOW_UNIX_S - 1, NOW_UNIX_S))
        return
    (out,) = block.columns.values()
    np.testing.assert_array_equal(np.isnan(out.raw), np.isnan(np.reshape(f32(values), (2, 3))))
    np.testing.assert_array_equal(np.isnan(out.normalized), np.isnan(out.raw))
    reported = out.normalized[~np.isnan(out.normalized)]
    assert ((reported >= 0) & (reported <= 1)).all()


# --- telemetry: what is refused -------------------------------------------------------------------------------------


def test_a_column_of_another_length_is_refused_with_the_length_it_needs():
    message = refused(
        "block.columns[2].values_f32",
        column(Metric.POWER, Unit.W, np.zeros((4, 3))),
        column(Metric.UTILIZATION, Unit.RATIO, np.zeros((4, 3))),
        column(Metric.TEMPERATURE, Unit.CELSIUS, np.zeros(11)),
        times=[NOW_UNIX_S + i for i in range(4)],
    )
    assert message == ("block.columns[2].values_f32: has 44 bytes, needs 48 = 4 x 4 sample times x 3 GPUs")


def test_the_same_metric_twice_is_refused():
    power = column(Metric.POWER, Unit.W, [[1, 2, 3]])
    assert "block.columns[0]" in refused("block.columns[1].metric", power, power)


def test_a_unit_of_another_metric_is_refused_with_those_that_are_right():
    message = refused("block.columns[0].unit", column(Metric.TEMPERATURE, Unit.W, [[1, 2, 3]]))
    assert "UNIT_CELSIUS, UNIT_KELVIN" in message


def test_an_unknown_gpu_is_refused_by_name():
    message = refused("block.gpu_ids[1]", gpu_ids=("volta-0/0", "volta-9/9"))
    assert "'volta-9/9'" in message
    assert "odd-0/0, volta-0/0, volta-0/1" in message


def test_a_gpu_named_twice_is_refused():
    refused("block.gpu_ids[2]", gpu_ids=("volta-0/0", "volta-0/1", "volta-0/0"))


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_values_are_refused(value):
    message = refused("block.columns[0].values_f32", column(Metric.POWER, Unit.W, [[1, 2, value]]))
    assert "'odd-0/0'" in message


@pytest.mark.parametrize(
    ("times", "field", "part"),
    [
        ([NOW_UNIX_S, NOW_UNIX_S + 5.1], "block.sample_times_unix_s[1]", "5.1 s in the future (at most 5 s)"),
        ([NOW_UNIX_S - 90_000], "block.sample_times_unix_s[0]", "90000 s ago (at most 86400 s)"),
        ([NOW_UNIX_S, NOW_UNIX_S - 1], "block.sample_times_unix_s[1]", "is before the previous sample time"),
        ([NOW_UNIX_S, NAN], "block.sample_times_unix_s[1]", "nan"),
        ([math.inf], "block.sample_times_unix_s[0]", "inf"),
    ],
)
def test_impossible_sample_times_are_refused(times, field, part):
    zeros = column(Metric.POWER, Unit.W, np.zeros((len(times), 3)))
    assert part in refused(field, zeros, times=times)


def test_times_within_the_limits_are_accepted():
    times = [NOW_UNIX_S - 86_000, NOW_UNIX_S, NOW_UNIX_S, NOW_UNIX_S + 4.9]
    block = normalize(column(Metric.POWER, Unit.W, np.zeros((4, 3))), times=times, cluster_times=[1, 2, 3, 4])
    np.testing.assert_array_equal(block.cluster_times_s, [1, 2, 3, 4])


def test_cluster_times_must_be_none_or_as_many_as_sample_times_and_finite():
    zeros = column(Metric.POWER, Unit.W, [[0, 0, 0]])
    assert "needs none or 1" in refused("block.cluster_times_s", zeros, cluster_times=[1, 2])
    refused("block.cluster_times_s[0]", zeros, cluster_times=[NAN])


# --- the newest sample ----------------------------------------------------------------------------------------------


def test_newest_sample_takes_of_each_gpu_the_last_value_that_it_reported():
    block = normalize(column(Metric.POWER, Unit.W, [[1, 2, NAN], [4, NAN, NAN]]), times=(NOW_UNIX_S - 1, NOW_UNIX_S))
    sample = newest_sample(block)
    np.testing.assert_array_equal(sample.columns[Metric.POWER].raw, f32([[4, 2, NAN]]))
    assert list(sample.sample_times_unix_s) == [NOW_UNIX_S]


def sample_at(time_s, metric, unit, values, gpu_ids=GPU_IDS) -> TelemetryBlock:
    return newest_sample(normalize(column(metric, unit, [values]), times=(time_s,), gpu_ids=gpu_ids))


def test_merge_newest_orders_by_the_cluster_and_takes_the_newest_of_each_value():
    merged = merge_newest(
        VIEW,
        [
            sample_at(NOW_UNIX_S, Metric.POWER, Unit.W, [10, 20], gpu_ids=("odd-0/0", "volta-0/0")),
            sample_at(NOW_UNIX_S - 5, Metric.POWER, Unit.W, [1, 2, 3]),
            sample_at(NOW_UNIX_S - 9, Metric.UTILIZATION, Unit.RATIO, [0.1, NAN, 0.3]),
        ],
    )
    assert merged.gpu_ids == GPU_IDS
    assert list(merged.sample_times_unix_s) == [NOW_UNIX_S]
    of = merged.columns
    assert tuple(of) == tuple(Metric)
    np.testing.assert_array_equal(of[Metric.POWER].raw, f32([[20, 2, 10]]))
    np.testing.assert_array_equal(of[Metric.UTILIZATION].raw, f32([[0.1, NAN, 0.3]]))
    np.testing.assert_array_equal(of[Metric.TEMPERATURE].raw, f32([[NAN, NAN, NAN]]))


def test_merge_newest_of_nothing_has_every_metric_of_every_gpu_as_not_reported():
    merged = merge_newest(VIEW, [])
    assert merged.gpu_ids == GPU_IDS
    np.testing.assert_array_equal(merged.sample_times_unix_s, [NAN])
    assert list(merged.columns) == list(Metric)
    assert [column.unit for column in merged.columns.values()] == [
        Unit.RATIO,
        Unit.MIB,
        Unit.GB_PER_S,
        Unit.CELSIUS,
        Unit.W,
    ]
    for each in merged.columns.values():
        np.testing.assert_array_equal(each.raw, f32([[NAN, NAN, NAN]]))
        np.testing.assert_array_equal(each.normalized, f32([[NAN, NAN, NAN]]))


def test_superseded_are_those_whose_every_value_is_newer_elsewhere():
    both = sample_at(NOW_UNIX_S - 2, Metric.POWER, Unit.W, [1, 2], gpu_ids=("volta-0/0", "volta-0/1"))
    first = sample_at(NOW_UNIX_S - 1, Metric.POWER, Unit.W, [3], gpu_ids=("volta-0/0",))
    second = sample_at(NOW_UNIX_S, Metric.POWER, Unit.W, [4], gpu_ids=("volta-0/1",))
    other = sample_at(NOW_UNIX_S - 9, Metric.TEMPERATURE, Unit.CELSIUS, [5], gpu_ids=("volta-0/1",))
    assert superseded([both, first]) == []
    assert superseded([both, first, second, other]) == [0]


def test_a_sample_of_which_something_was_left_out_is_never_superseded():
    """A newer ingest stored a metric that this one does not know."""
    old = sample_at(NOW_UNIX_S - 2, Metric.POWER, Unit.W, [1], gpu_ids=("volta-0/0",))
    new = sample_at(NOW_UNIX_S, Metric.POWER, Unit.W, [2], gpu_ids=("volta-0/0",))
    name, other = b"g" * 16, b"h" * 16
    assert superseded_sources({name + bytes([Metric.POWER]): old, other + bytes([Metric.POWER]): new}) == [
        name + bytes([Metric.POWER])
    ]
    assert superseded_sources({name + bytes([Metric.POWER, 99]): old, other + bytes([Metric.POWER]): new}) == []
    assert superseded_sources({name + bytes([99]): replace(old, columns={}), other + bytes([5]): new}) == []


# --- jobs -----------------------------------------------------------------------------------------------------------


def test_a_job_is_measured_by_the_largest_node_and_gpu():
    spec = JobSpec(
        "n", "u", JobType.SIMULATION, priority=0.25, cpu_cores=10, memory_mib=65_536, gpu_memory_mib=4_040,
        expected_runtime=ExpectedRuntime("v100_sxm2", math.sqrt(86_401) - 1),
    )  # fmt: skip
    normalized = normalize_job(spec, VIEW)
    assert normalized.priority == 0.25
    assert normalized.cpu_cores == 0.25
    assert normalized.memory == 0.25
    assert normalized.gpu_memory == 0.25
    assert normalized.expected_runtime == pytest.approx(0.5)


def test_a_job_without_a_known_cluster_is_measured_by_constants_and_stays_in_0_to_1():
    spec = JobSpec("n", "u", JobType.SIMULATION, priority=1.0, cpu_cores=4096, memory_mib=2**24, gpu_memory_mib=2**20)
    assert normalize_job(spec, None) == NormalizedJob(1.0, 1.0, 1.0, 1.0, 0.0)
