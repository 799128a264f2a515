"""The GPU matrix: the newest value of each metric of each GPU, folded from telemetry. Knows records and arrays only.

Sample times decide which value is newer, so blocks may repeat or be out of order. GPUs are those of the cluster's
description, in its order; values of other GPUs are counted and dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adlro.errors import NotFound
from adlro.records.cluster import Cluster
from adlro.records.matrices import StatePlane, TelemetryBlock
from adlro.records.telemetry import Metric, Unit
from adlro.services.decompose.variables.variables import gpu_levels

METRIC_UNITS = {
    Metric.UTILIZATION: Unit.RATIO,
    Metric.MEMORY_USED: Unit.MIB,
    Metric.MEMORY_BANDWIDTH: Unit.GB_PER_S,
    Metric.TEMPERATURE: Unit.CELSIUS,
    Metric.POWER: Unit.W,
}
"""Units of the raw values of normalised blocks."""


@dataclass(frozen=True, slots=True)
class GpuMatrixSnapshot:
    """A cluster's GPU matrix at one revision; immutable.

    gpus: (gpu_id, node_id, gpu_model) in the order of the description. sample_times_unix_s: G, NaN: never reported.
    levels: 3 x G, see `variables.gpu_levels`. newest_sample_unix_s: of all GPUs; None before the first report.
    """

    cluster: str
    revision: int
    gpus: tuple[tuple[str, str, str], ...]
    planes: Mapping[Metric, StatePlane]
    sample_times_unix_s: NDArray[np.float64]
    levels: NDArray[np.int32]
    newest_sample_unix_s: float | None


class GpuMatrix:
    """One cluster's matrix, and a signal for every change.

    Args:
        cluster: its description.
        revisions: source of growing numbers, so that the revisions of a cluster with a new description continue.
    """

    def __init__(self, cluster: Cluster, revisions: Iterator[int] | None = None) -> None:
        self._revisions = revisions or itertools.count(1)
        self.revision = next(self._revisions)
        self.unknown_gpu_count = 0
        self._changed = asyncio.Event()
        self._snapshot: GpuMatrixSnapshot | None = None
        self._raw: NDArray[np.float32]
        self._normalized: NDArray[np.float32]
        self._times: NDArray[np.float64]
        # The GPUs of the last block and their rows: a source sends the same ones repeatedly.
        self._last_ids: tuple[str, ...]
        self._last_numbers: NDArray[np.intp]
        self._describe(cluster, {})

    def describe(self, cluster: Cluster) -> None:
        """Sets a new description; GPUs that stay with the same model keep their values."""
        if cluster == self.cluster:
            return
        old_models = {gpu_id: model for gpu_id, _, model in self._gpus}
        kept = {
            gpu.gpu_id: self._number[gpu.gpu_id]
            for _, gpu in cluster.gpus()
            if old_models.get(gpu.gpu_id) == gpu.gpu_model
        }
        self._describe(cluster, kept)
        self._touch()

    def start_over(self) -> None:
        """Forgets all values."""
        self._describe(self.cluster, {})
        self._touch()

    def drop(self) -> None:
        """Marks the cluster as no longer described: wakes all waiting callers."""
        self._touch()

    def fold(self, block: TelemetryBlock) -> bool:
        """Adds the newest values of a block.

        Returns:
            Whether the block has GPUs that are not in the description.
        """
        if block.gpu_ids == self._last_ids:
            numbers = self._last_numbers
        else:
            numbers = np.array([self._number.get(gpu_id, -1) for gpu_id in block.gpu_ids], dtype=np.intp)
            self._last_ids, self._last_numbers = block.gpu_ids, numbers
        known = numbers >= 0
        strangers = int(len(numbers) - known.sum())
        self.unknown_gpu_count += strangers
        changed = False
        columns = np.flatnonzero(known)
        rows = numbers[known]
        sample_times_unix_s = np.array(block.sample_times_unix_s)
        for metric, column in block.columns.items():
            raw = column.raw[:, columns]
            reported = ~np.isnan(raw)
            # For each GPU the last reported sample of the block.
            last = len(raw) - 1 - np.argmax(reported[::-1], axis=0)
            times = sample_times_unix_s[last]
            row = metric - 1
            newer = reported.any(axis=0) & ~(times < self._times[row, rows])
            if not newer.any():
                continue
            target, source, at = rows[newer], columns[newer], last[newer]
            self._raw[row, target] = column.raw[at, source]
            self._normalized[row, target] = column.normalized[at, source]
            self._times[row, target] = times[newer]
            changed = True
        if changed:
            self._touch()
        return strangers > 0

    def snapshot(self) -> GpuMatrixSnapshot:
        """The present matrix; computed once per revision."""
        if self._snapshot is None:
            reported = ~np.isnan(self._times)
            newest = np.where(reported, self._times, -np.inf).max(axis=0, initial=-np.inf)  # G
            raw, normalized = self._raw.copy(), self._normalized.copy()
            self._snapshot = GpuMatrixSnapshot(
                cluster=self.cluster.name,
                revision=self.revision,
                gpus=self._gpus,
                planes={
                    metric: StatePlane(METRIC_UNITS[metric], raw[metric - 1], normalized[metric - 1])
                    for metric in Metric
                },
                sample_times_unix_s=np.where(np.isinf(newest), np.nan, newest),
                levels=gpu_levels(
                    raw[Metric.UTILIZATION - 1], raw[Metric.MEMORY_USED - 1], raw[Metric.TEMPERATURE - 1]
                ),
                newest_sample_unix_s=float(newest.max()) if reported.any() else None,
            )
        return self._snapshot

    async def changed(self, after_revision: int) -> None:
        """Returns once the revision differs."""
        while self.revision == after_revision:
            await self._changed.wait()

    def _describe(self, cluster: Cluster, kept: dict[str, int]) -> None:
        """Sets the rows up; `kept` maps GPU ids to the rows whose values stay."""
        self.cluster = cluster
        self._gpus = tuple((gpu.gpu_id, node.node_id, gpu.gpu_model) for node, gpu in cluster.gpus())
        self._number = {gpu_id: number for number, (gpu_id, _, _) in enumerate(self._gpus)}
        count = len(self._gpus)
        raw = np.full((len(Metric), count), np.nan, dtype=np.float32)  # metric x GPU
        normalized = raw.copy()
        times = np.full((len(Metric), count), np.nan)
        if kept:
            new = [self._number[gpu_id] for gpu_id in kept]
            old = list(kept.values())
            raw[:, new] = self._raw[:, old]
            normalized[:, new] = self._normalized[:, old]
            times[:, new] = self._times[:, old]
        self._raw, self._normalized, self._times = raw, normalized, times
        self._last_ids = ()
        self._last_numbers = np.empty(0, dtype=np.intp)

    def _touch(self) -> None:
        self.revision = next(self._revisions)
        self._snapshot = None
        # Wakes all waiting callers; later ones wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(slots=True)
class GpuMatrices:
    """The matrices of all described clusters. `read`: whether the descriptions have been read at all."""

    matrices: dict[str, GpuMatrix] = field(default_factory=dict)
    read: bool = False
    _revisions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def describe(self, clusters: Sequence[Cluster]) -> None:
        """Sets the descriptions of all clusters."""
        self.read = True
        for name in self.matrices.keys() - {cluster.name for cluster in clusters}:
            self.matrices.pop(name).drop()
        for cluster in clusters:
            matrix = self.matrices.get(cluster.name)
            if matrix is None:
                self.matrices[cluster.name] = GpuMatrix(cluster, self._revisions)
            else:
                matrix.describe(cluster)

    def gpu_models(self) -> set[str] | None:
        """The GPU models of all clusters; None until their descriptions are read."""
        if not self.read:
            return None
        return {model for matrix in self.matrices.values() for model in matrix.cluster.gpu_models}

    def find(self, name: str) -> GpuMatrix:
        """The matrix of a cluster.

        Raises:
            NotFound: no such cluster is described.
        """
        matrix = self.matrices.get(name)
        if matrix is None:
            known = ", ".join(sorted(self.matrices)) or "none"
            raise NotFound(
                f"cluster: no cluster {name!r} is described; known: {known}. "
                "TelemetryService.UpsertCluster describes one",
                field="cluster",
                reason="CLUSTER_NOT_FOUND",
                metadata={"cluster": name},
            )
        return matrix
