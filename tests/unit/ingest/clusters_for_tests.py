"""Clusters and blocks that the tests of ingest use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adlro.records.cluster import Cluster, Gpu, GpuSpec, Node
from adlro.records.telemetry import Metric, Unit
from adlro.services.ingest.clusters import ClusterView
from adlro.services.ingest.normalize import RawBlock, RawColumn

NOW_UNIX_S = 1_700_000_000.0

SMALL = Cluster(
    "default",
    (
        Node("volta-0", 20, 262_144, (Gpu("volta-0/0", "v100_sxm2", 16_160), Gpu("volta-0/1", "v100_sxm2", 16_160))),
        Node("odd-0", 40, 65_536, (Gpu("odd-0/0", "abacus", 4_000, spec=GpuSpec(100.0, 50.0, 80.0)),)),
    ),
)
VIEW = ClusterView(SMALL)
GPU_IDS = ("volta-0/0", "volta-0/1", "odd-0/0")


def column(metric: Metric, unit: Unit, values: object) -> RawColumn:
    return RawColumn(metric, unit, np.asarray(values, "<f4").tobytes())


def raw_block(*columns: RawColumn, times=(NOW_UNIX_S,), gpu_ids=GPU_IDS, cluster_times=()) -> RawBlock:
    return RawBlock("default", gpu_ids, np.array(times, np.float64), np.array(cluster_times, np.float64), columns)


def f32(values: object) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)
