"""Planes of made-up decisions, to compare implementations of a network. numpy only."""

from __future__ import annotations

import numpy as np

from adlro.decide.planes.layout import Float32s, Planes
from adlro.decide.planes.table import BASE_CHOICE, CLUSTER_PLANES, GPU_PLANES, JOB_PLANES, PAIR_PLANES

_NODES, _SLOTS, _JOBS = 3, 2, 5


def probe_planes(number: int = 0) -> Planes:
    """One decision: all GPUs and jobs are present, every pair is possible, the base would start the second.

    Args:
        number: number of the decision; equal numbers give equal planes.
    """
    rng = np.random.default_rng(number)

    def draw(*shape: int) -> Float32s:
        return (2.0 * rng.random(shape) - 1.0).astype(np.float32)

    gpus, jobs = draw(1, len(GPU_PLANES), _NODES, _SLOTS), draw(1, _JOBS, len(JOB_PLANES))
    gpus[:, 0], jobs[:, :, 0] = 1.0, 1.0  # present
    job, place = (each.ravel() for each in np.indices((_JOBS, _NODES * _SLOTS)))
    pairs = draw(len(job), len(PAIR_PLANES))
    pairs[:, BASE_CHOICE] = np.arange(len(job)) == 1
    return Planes(
        gpus=gpus,
        jobs=jobs,
        cluster=draw(1, len(CLUSTER_PLANES)),
        pairs=pairs,
        pair_cluster=np.zeros(len(job), dtype=np.int64),
        pair_job=job,
        pair_place=place,
        pair_queue=job,
        pair_gpu=place,
        pair_row=place,
        first_pair=np.array([0, len(job)]),
        base=np.ones(1, dtype=np.int64),
        rows=np.arange(_JOBS)[None],
        hold_allowed=np.ones(1, dtype=np.bool_),
        scale_s=np.ones(1),
        clipped=np.zeros(1, dtype=np.int64),
    )
