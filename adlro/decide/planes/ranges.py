"""The range of each plane in training, and the treatment of values outside it. numpy and numba only.

Planes are clipped, so a clipped value in training may stand for any larger one: the network has learned to act on all
of these. A value that training never had near the plane's edge, and is there now, is new to the network.

A new value of the cluster affects the whole decision. A new value of one job or pair affects only that one: an unusual
job, which may wait for days, must not disable the network for all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from adlro.decide.planes.layout import Float32s, Planes
from adlro.decide.planes.table import CLUSTER_PLANES, GPU_PLANES, JOB_PLANES, PAIR_PLANES, Plane
from adlro.errors import InvalidInput
from adlro.numeric.compiled import compiled, compiled_part
from adlro.state.observation import Bools, Floats, Ints

TABLES: dict[str, tuple[Plane, ...]] = {
    "gpus": GPU_PLANES,
    "jobs": JOB_PLANES,
    "cluster": CLUSTER_PLANES,
    "pairs": PAIR_PLANES,
}

MAGNITUDES: dict[str, tuple[str, ...]] = {
    "gpus": ("memory", "cores_free", "cores_held", "cores_each"),
    "jobs": ("priority", "cores", "memory", "gpu_memory", "waited", "waited_scale"),
    "cluster": ("priority", "oldest", "queue_length", "queue_per_gpu", "work_per_gpu", "drain"),
    "pairs": ("drains",),
}
"""Absolute sizes, weights, ages, and the length of the queue: a value outside the range counts as the nearest one
inside. The network never decides whether a job fits, and other planes have sizes relative to the present resources. For
the next start, a queue of some ten jobs per GPU is as good as any longer one.
"""

TOLERANCE = 0.1
"""As a share of a plane's own range: a value outside by this much still counts as inside."""


class Ranges:
    """By table, (planes, 2) lowest and highest value; empty at first.

    Args:
        by_table: the ranges of earlier decisions.
    """

    def __init__(self, by_table: dict[str, Floats] | None = None) -> None:
        self._seen: dict[str, Floats] = by_table or {
            name: np.repeat([[np.inf, -np.inf]], len(table), axis=0) for name, table in TABLES.items()
        }
        self._allowed: tuple[Floats, ...] | None = None
        self._magnitudes = {
            name: np.array([plane.name in magnitudes for plane in TABLES[name]])
            for name, magnitudes in MAGNITUDES.items()
        }

    def see(self, planes: Planes) -> None:
        """Extends the ranges by the values of N decisions."""
        for name, seen in self._seen.items():
            values = _rows(name, planes)
            if len(values):
                seen[:, 0] = np.minimum(seen[:, 0], values.min(axis=0))
                seen[:, 1] = np.maximum(seen[:, 1], values.max(axis=0))
        self._allowed = None

    def include(self, other: Ranges) -> None:
        """Extends the ranges by other ranges."""
        for name, seen in self._seen.items():
            seen[:, 0] = np.minimum(seen[:, 0], other._seen[name][:, 0])
            seen[:, 1] = np.maximum(seen[:, 1], other._seen[name][:, 1])
        self._allowed = None

    def bring_in(self, planes: Planes) -> tuple[int, Bools]:
        """Clips the figures of one decision to the ranges, in place.

        Returns:
            The number of the cluster's and its GPUs' figures outside, without magnitudes; and (P,) True for the pairs
            with such a figure, their own or their job's.
        """
        if self._allowed is None:
            self._allowed = tuple(self._with_tolerance(name, table) for name, table in TABLES.items())
        gpus, jobs, cluster, pairs = self._allowed
        strange = np.zeros(len(planes.pairs), dtype=np.bool_)
        outside = _bring_in(
            planes.gpus,
            planes.jobs,
            planes.cluster,
            planes.pairs,
            planes.pair_job,
            gpus,
            jobs,
            cluster,
            pairs,
            self._magnitudes["gpus"],
            self._magnitudes["jobs"],
            self._magnitudes["cluster"],
            self._magnitudes["pairs"],
            np.zeros(planes.jobs.shape[0] * planes.jobs.shape[1], dtype=np.bool_),
            strange,
        )
        return int(outside), strange

    def to_json(self) -> dict[str, Any]:
        """The JSON value in a model's metadata, `training["ranges"]`."""
        return {
            name: {
                plane.name: [round(float(bound), 4) for bound in seen] for plane, seen in zip(table, rows, strict=True)
            }
            for (name, table), rows in zip(TABLES.items(), self._seen.values(), strict=True)
            if np.isfinite(rows).all()
        }

    def _with_tolerance(self, name: str, table: tuple[Plane, ...]) -> Floats:
        spare = TOLERANCE * np.array([plane.high - plane.low for plane in table])
        seen = self._seen[name]
        return np.stack((seen[:, 0] - spare, seen[:, 1] + spare), axis=1)


def ranges_of(decisions: Iterable[Planes]) -> Ranges:
    """The ranges of a training's decisions."""
    ranges = Ranges()
    for planes in decisions:
        ranges.see(planes)
    return ranges


def ranges_from_json(said: object) -> Ranges:
    """The ranges in a model's metadata.

    Raises:
        InvalidInput: they are not of these planes, or not finite.
    """
    try:
        assert isinstance(said, dict)
        by_table = {
            name: np.array([said[name][plane.name] for plane in table], dtype=np.float64).reshape(len(table), 2)
            for name, table in TABLES.items()
        }
        if not all((rows[:, 0] <= rows[:, 1]).all() for rows in by_table.values()):
            raise ValueError("a lowest value is above the highest")
        return Ranges(by_table)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"the ranges in the model's metadata are not of this version's planes: {error!r}", field="ranges"
        ) from error


def _rows(name: str, planes: Planes) -> Float32s:
    """(n, planes) the rows without padding."""
    if name == "gpus":
        rows = np.moveaxis(planes.gpus, 1, -1).reshape(-1, len(GPU_PLANES))
        return rows[rows[:, 0] > 0.0]
    if name == "jobs":
        rows = planes.jobs.reshape(-1, len(JOB_PLANES))
        return rows[rows[:, 0] > 0.0]
    return planes.cluster if name == "cluster" else planes.pairs


@compiled
def _bring_in(
    gpus: Float32s,
    jobs: Float32s,
    cluster: Float32s,
    pairs: Float32s,
    pair_job: Ints,
    gpu_allowed: Floats,
    job_allowed: Floats,
    cluster_allowed: Floats,
    pair_allowed: Floats,
    gpu_magnitudes: Bools,
    job_magnitudes: Bools,
    cluster_magnitudes: Bools,
    pair_magnitudes: Bools,
    strange_job: Bools,
    strange: Bools,
) -> int:
    found = 0
    for n in range(gpus.shape[0]):
        for node in range(gpus.shape[2]):
            for slot in range(gpus.shape[3]):
                if gpus[n, 0, node, slot] > 0.0:
                    for plane in range(gpus.shape[1]):
                        value = _nearest(gpus[n, plane, node, slot], gpu_allowed[plane])
                        if value != gpus[n, plane, node, slot]:
                            gpus[n, plane, node, slot] = value
                            found += not gpu_magnitudes[plane]
        for job in range(jobs.shape[1]):
            if jobs[n, job, 0] > 0.0:
                for plane in range(jobs.shape[2]):
                    value = _nearest(jobs[n, job, plane], job_allowed[plane])
                    if value != jobs[n, job, plane]:
                        jobs[n, job, plane] = value
                        if not job_magnitudes[plane]:
                            strange_job[n * jobs.shape[1] + job] = True
        for plane in range(cluster.shape[1]):
            value = _nearest(cluster[n, plane], cluster_allowed[plane])
            if value != cluster[n, plane]:
                cluster[n, plane] = value
                found += not cluster_magnitudes[plane]
    for pair in range(pairs.shape[0]):
        strange[pair] = strange_job[pair_job[pair]]
        for plane in range(pairs.shape[1]):
            value = _nearest(pairs[pair, plane], pair_allowed[plane])
            if value != pairs[pair, plane]:
                pairs[pair, plane] = value
                strange[pair] |= not pair_magnitudes[plane]
    return found


@compiled_part
def _nearest(value: float, allowed: Floats) -> np.float32:
    if value > allowed[1]:
        return np.float32(allowed[1])
    if value >= allowed[0]:
        return np.float32(value)
    return np.float32(allowed[0])  # nan too
