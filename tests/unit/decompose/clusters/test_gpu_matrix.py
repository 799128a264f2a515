"""The GPU matrix: newest value of each GPU and metric, in the order of the description."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

from adlro.errors import NotFound
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.matrices import MetricColumn, TelemetryBlock
from adlro.records.telemetry import Metric
from adlro.services.decompose.clusters.gpu_matrix import METRIC_UNITS, GpuMatrices, GpuMatrix

NAN = float("nan")


def cluster(*models: str, name="default") -> Cluster:
    gpus = tuple(Gpu(f"n-0/{number}", model, 16160) for number, model in enumerate(models))
    return Cluster(name, (Node("n-0", 20, 262144, gpus),))


def block(gpu_ids: list[str], times: list[float], **raw: list[list[float]]) -> TelemetryBlock:
    """Columns by metric name, time by time; normalised: a hundredth of the raw values."""
    columns = {}
    for name, rows in raw.items():
        values = np.array(rows, dtype=np.float32)
        metric = Metric[name.upper()]
        columns[metric] = MetricColumn(METRIC_UNITS[metric], values, values / np.float32(100))
    return TelemetryBlock("lab", tuple(gpu_ids), tuple(times), (), columns)


def raw_of(matrix: GpuMatrix, metric: Metric) -> list[float]:
    return [float(value) for value in matrix.snapshot().planes[metric].raw]


def test_before_any_sample_nothing_is_known():
    snapshot = GpuMatrix(cluster("a", "b")).snapshot()
    assert snapshot.gpus == (("n-0/0", "n-0", "a"), ("n-0/1", "n-0", "b"))
    assert list(snapshot.planes) == list(Metric)
    assert all(np.isnan(plane.raw).all() and np.isnan(plane.normalized).all() for plane in snapshot.planes.values())
    assert np.isnan(snapshot.sample_times_unix_s).all()
    assert snapshot.newest_sample_unix_s is None
    assert (snapshot.levels == -1).all()


def test_of_each_gpu_and_metric_the_last_reported_value_counts():
    matrix = GpuMatrix(cluster("a", "a", "a"))
    # Columns come in an order of their own; n-0/1 does not report at the last time, n-0/2 never.
    ids = ["n-0/2", "n-0/0", "n-0/1"]
    assert not matrix.fold(
        block(ids, [1.0, 2.0], temperature=[[NAN, 50, 60], [NAN, 51, NAN]], power=[[NAN, 90, 95], [NAN, 91, 96]])
    )
    snapshot = matrix.snapshot()
    np.testing.assert_array_equal(snapshot.planes[Metric.TEMPERATURE].raw, [51, 60, NAN])
    np.testing.assert_array_equal(snapshot.planes[Metric.POWER].raw, [91, 96, NAN])
    np.testing.assert_allclose(snapshot.planes[Metric.TEMPERATURE].normalized, [0.51, 0.60, NAN])
    np.testing.assert_array_equal(snapshot.sample_times_unix_s, [2.0, 2.0, NAN])
    assert snapshot.newest_sample_unix_s == 2.0
    assert snapshot.levels[2].tolist() == [11, 13, -1]


def test_an_older_block_changes_only_what_was_not_known():
    matrix = GpuMatrix(cluster("a", "a"))
    matrix.fold(block(["n-0/0"], [10.0], temperature=[[50]]))
    matrix.fold(block(["n-0/0", "n-0/1"], [9.0], temperature=[[40, 41]], power=[[80, 81]]))
    assert raw_of(matrix, Metric.TEMPERATURE) == [50, 41]
    assert raw_of(matrix, Metric.POWER) == [80, 81]
    assert matrix.snapshot().sample_times_unix_s.tolist() == [10.0, 9.0]


def test_folding_again_or_in_another_order_gives_the_same():
    blocks = [
        block(["n-0/0", "n-0/1"], [1.0], temperature=[[10, 20]]),
        block(["n-0/1", "n-0/0"], [2.0], temperature=[[21, NAN]], power=[[5, 6]]),
        block(["n-0/0"], [3.0, 4.0], temperature=[[12], [NAN]]),
    ]
    seen = set()
    for order in itertools.permutations([*blocks, blocks[1]]):
        matrix = GpuMatrix(cluster("a", "a"))
        for each in order:
            matrix.fold(each)
        seen.add((tuple(raw_of(matrix, Metric.TEMPERATURE)), tuple(raw_of(matrix, Metric.POWER))))
    assert seen == {((12.0, 21.0), (6.0, 5.0))}


def test_gpus_that_the_description_does_not_name_are_counted_and_left_out():
    matrix = GpuMatrix(cluster("a"))
    assert matrix.fold(block(["n-9/0", "n-0/0"], [1.0], temperature=[[99, 50]]))
    assert raw_of(matrix, Metric.TEMPERATURE) == [50]
    assert matrix.unknown_gpu_count == 1


def test_the_revision_grows_with_changes_only():
    matrix = GpuMatrix(cluster("a"))
    revisions = [matrix.revision]
    for each in (
        block(["n-0/0"], [1.0], temperature=[[50]]),
        block(["n-0/0"], [2.0], temperature=[[NAN]]),  # nothing reported
        block(["n-0/0"], [0.5], temperature=[[49]]),  # older
        block(["n-9/9"], [9.0], temperature=[[49]]),  # a stranger
        block([], [9.0], temperature=[[]]),
    ):
        matrix.fold(each)
        revisions.append(matrix.revision)
    assert np.diff(revisions).tolist() == [1, 0, 0, 0, 0]


def test_a_snapshot_does_not_change_afterwards():
    matrix = GpuMatrix(cluster("a"))
    matrix.fold(block(["n-0/0"], [1.0], temperature=[[50]]))
    before = matrix.snapshot()
    assert matrix.snapshot() is before
    matrix.fold(block(["n-0/0"], [2.0], temperature=[[60]]))
    assert before.planes[Metric.TEMPERATURE].raw.tolist() == [50]
    assert matrix.snapshot().planes[Metric.TEMPERATURE].raw.tolist() == [60]


def test_a_new_description_keeps_the_values_of_gpus_that_stay_what_they_were():
    matrix = GpuMatrix(cluster("a", "a", "a"))
    matrix.fold(block(["n-0/0", "n-0/1", "n-0/2"], [1.0], temperature=[[50, 51, 52]]))
    described = Cluster(
        "default",
        (
            Node("n-1", 8, 1024, (Gpu("n-1/0", "a", 8),)),
            Node("n-0", 8, 1024, (Gpu("n-0/2", "a", 8), Gpu("n-0/1", "b", 8))),
        ),
    )
    revision = matrix.revision
    matrix.describe(described)
    np.testing.assert_array_equal(matrix.snapshot().planes[Metric.TEMPERATURE].raw, [NAN, 52, NAN])
    assert [gpu_id for gpu_id, _, _ in matrix.snapshot().gpus] == ["n-1/0", "n-0/2", "n-0/1"]
    assert matrix.revision > revision
    revision = matrix.revision
    matrix.describe(described)
    assert matrix.revision == revision
    # The rows of a source that sends on are found anew.
    matrix.fold(block(["n-0/0", "n-0/1", "n-0/2"], [2.0], temperature=[[60, 61, 62]]))
    np.testing.assert_array_equal(matrix.snapshot().planes[Metric.TEMPERATURE].raw, [NAN, 62, 61])


async def test_waiting_for_a_change_ends_with_the_next_one():
    matrix = GpuMatrix(cluster("a"))
    await asyncio.wait_for(matrix.changed(matrix.revision - 1), 60)  # has changed already
    waiting = [asyncio.create_task(matrix.changed(matrix.revision)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    matrix.fold(block(["n-0/0"], [1.0], temperature=[[50]]))
    await asyncio.wait_for(asyncio.gather(*waiting), 60)


async def test_a_cluster_that_goes_wakes_those_who_wait_and_comes_back_with_a_higher_revision():
    clusters = GpuMatrices()
    clusters.describe([cluster("a"), cluster("b", name="other")])
    matrix = clusters.find("default")
    waiting = asyncio.create_task(matrix.changed(matrix.revision))
    await asyncio.sleep(0)
    clusters.describe([cluster("b", name="other")])
    await asyncio.wait_for(waiting, 60)
    with pytest.raises(NotFound, match="no cluster 'default' is described; known: other"):
        clusters.find("default")
    clusters.describe([cluster("a"), cluster("b", name="other")])
    assert clusters.find("default").revision > matrix.revision


def test_the_models_of_all_clusters():
    clusters = GpuMatrices()
    assert clusters.gpu_models() is None
    clusters.describe([])
    assert clusters.gpu_models() == set()
    clusters.describe([cluster("a", "b", "a"), cluster("c", name="other")])
    assert clusters.gpu_models() == {"a", "b", "c"}
