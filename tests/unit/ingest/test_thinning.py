"""Windows of telemetry with a sample a step, and of some GPUs."""

from __future__ import annotations

import math

import numpy as np

from adlro.records.matrices import MetricColumn, TelemetryBlock
from adlro.records.telemetry import Metric, Unit
from adlro.services.ingest.thinning import Thinned, of_gpus

NAN = math.nan


def block(gpu_ids: str, times: list[float], power: list[list[float]], cluster_times_s: tuple[float, ...] = ()):
    raw = np.array(power, dtype=np.float32)
    columns = {Metric.POWER: MetricColumn(Unit.W, raw, (raw / 100).astype(np.float32))}
    return TelemetryBlock("c", tuple(gpu_ids), tuple(times), cluster_times_s, columns)


def test_a_step_has_the_mean_of_what_was_reported_at_its_last_time() -> None:
    thinned = Thinned("c", ["a", "b"], 100.0, 10.0)
    thinned.add(block("ab", [112.0, 118.0], [[30, NAN], [50, 7]], (2.0, 8.0)))  # the newest comes first
    thinned.add(block("xb", [99.0, 101.0, 109.0], [[1, 1], [2, 10], [3, 30]], (0.0, 1.0, 1.5)))
    found = thinned.block()
    assert found is not None
    assert (found.gpu_ids, found.sample_times_unix_s, found.cluster_times_s) == (("a", "b"), (109.0, 118.0), (1.5, 8.0))
    column = found.columns[Metric.POWER]
    np.testing.assert_array_equal(column.raw, np.array([[NAN, 20], [40, 7]], dtype=np.float32))
    np.testing.assert_allclose(column.normalized, np.array([[NAN, 0.2], [0.4, 0.07]]), rtol=1e-6)
    assert column.unit is Unit.W


def test_cluster_times_are_told_where_each_step_has_one_and_metrics_that_were_not_reported_are_unknown() -> None:
    thinned = Thinned("c", ["a"], 0.0, 1.0)
    thinned.add(block("a", [5.0], [[1]]))
    busy = np.array([[0.5]], dtype=np.float32)
    columns = {Metric.UTILIZATION: MetricColumn(Unit.RATIO, busy, busy)}
    thinned.add(TelemetryBlock("c", ("a",), (7.0,), (3.0,), columns))
    found = thinned.block()
    assert found is not None
    assert found.cluster_times_s == ()
    np.testing.assert_array_equal(found.columns[Metric.POWER].raw, np.array([[1], [NAN]], dtype=np.float32))
    np.testing.assert_array_equal(found.columns[Metric.UTILIZATION].raw, np.array([[NAN], [0.5]], dtype=np.float32))


def test_without_a_sample_there_is_no_block() -> None:
    thinned = Thinned("c", ["a"], 100.0, 10.0)
    thinned.add(block("a", [50.0], [[1]]))
    thinned.add(block("b", [150.0], [[1]]))
    assert thinned.block() is None


def test_what_the_values_take_in_a_message_is_known_while_blocks_are_added() -> None:
    thinned = Thinned("c", ["a", "b"], 0.0, 10.0)
    assert (thinned.step_count, thinned.least_bytes) == (0, 0)
    thinned.add(block("a", [1.0, 2.0], [[1], [2]]))
    assert (thinned.step_count, thinned.least_bytes) == (1, 2 * 8)
    thinned.add(block("b", [3.0, 25.0], [[1], [2]]))
    assert (thinned.step_count, thinned.least_bytes) == (2, 2 * 2 * 8)
    busy = np.array([[0.5]], dtype=np.float32)
    thinned.add(TelemetryBlock("c", ("a",), (25.0,), (), {Metric.UTILIZATION: MetricColumn(Unit.RATIO, busy, busy)}))
    assert (thinned.step_count, thinned.least_bytes) == (2, 3 * 2 * 8)


def test_some_gpus_of_a_block_come_in_the_order_asked_for() -> None:
    found = of_gpus(block("abc", [1.0], [[1, 2, 3]]), ["c", "x", "a"])
    assert found is not None
    assert found.gpu_ids == ("c", "a")
    np.testing.assert_array_equal(found.columns[Metric.POWER].raw, [[3, 1]])
    assert of_gpus(found, ["b"]) is None
