"""Recovery of a GPU's three variables from the bundle of the cluster; part of benchmarks/decompose.py."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.services.decompose.clusters.cluster_memory import ClusterMemory, GpuRecordCode
from adlro.services.decompose.hypervectors.algebra import recovery_probability
from adlro.services.decompose.hypervectors.codebook import Codebook

SIZES = {"gpu_model": 3, "utilization_level": 21, "priority_class": 3}
"""The paper's variables on its cluster: three models, 20 levels and "not known", three classes; 189 combinations."""
LEAST_DECODED = 6000


class Point(NamedTuple):
    """A measured point: GPUs, components, share of signs flipped, the least that is wanted (0: none)."""

    gpus: int
    dimension: int
    flipped: float
    goal: float


POINTS = (
    Point(16, 512, 0.0, 0.0),
    Point(16, 1024, 0.0, 0.0),
    Point(16, 2048, 0.0, 0.999),
    Point(64, 1024, 0.0, 0.0),
    Point(64, 2048, 0.0, 0.0),
    Point(64, 4096, 0.0, 0.985),
    Point(64, 8192, 0.0, 0.999),
    Point(256, 4096, 0.0, 0.0),
    Point(16, 1024, 0.2, 0.0),
    Point(16, 4096, 0.2, 0.99),
    Point(64, 2048, 0.2, 0.0),
)


def measure(seed: int) -> list[dict[str, float]]:
    """The share of GPUs of which all three variables are right, beside what the capacity formula says."""
    rows = []
    for number, point in enumerate(POINTS):
        rng = np.random.default_rng([seed, number])
        right = decoded = 0
        book = 0
        while decoded < LEAST_DECODED:
            # Other atoms now and then: the figure is for codebooks as they come, not for one.
            code = GpuRecordCode(Codebook(point.dimension, seed=f"{seed}/{book}"), SIZES)
            memory = ClusterMemory(code, [f"gpu-{gpu}" for gpu in range(point.gpus)])
            for _ in range(max(1, LEAST_DECODED // 4 // point.gpus)):
                values = np.stack([rng.integers(size, size=point.gpus) for size in SIZES.values()], axis=1)
                memory.update(memory.slots, values)
                noise = np.where(rng.random(point.dimension) < point.flipped, -1, 1)
                right += int((memory.decode(bundle=memory.bundle * noise).values == values).all(axis=1).sum())
                decoded += point.gpus
            book += 1
        rows.append(
            {
                **point._asdict(),
                "recovered": right / decoded,
                "formula": recovery_probability(point.dimension, point.gpus, code.combinations, point.flipped),
            }
        )
    return rows
