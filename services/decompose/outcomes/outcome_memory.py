"""The memory of finished jobs: job, GPU, runtime; bounded. Uses plain records and arrays only.

Jobs with nearly the same demands (`job_record_code`) are one *row*, with one packed hypervector: a similarity search
compares rows, of which there are fewer than jobs. The signs of the hypervectors select candidates, and the similarity
that they approximate ranks them.

The memory drops jobs that ended `max_age_s` before the newest of their cluster, on that cluster's clock; and when it is
full, the oldest job of the row with most jobs (by redundancy), or the oldest of all if no row has more than `CROWDED`.

It also has *groups*: for each (user, application), application, job type and declaring user the newest log runtimes on
the reference GPU, packed on as few nodes as can hold the job, from which `runtimes.plain_predictor` computes medians
and intervals.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from adlro.records.jobs import JobSpec
from adlro.records.outcomes import NeighbourTime, StoppedRun
from adlro.records.predictions import Evidence, Recollection
from adlro.services.decompose.hypervectors.algebra import WORD_BITS
from adlro.services.decompose.hypervectors.codebook import Codebook, default_codebook
from adlro.services.decompose.hypervectors.packed_index import PackedIndex
from adlro.services.decompose.hypervectors.similarity_kernel import Features
from adlro.services.decompose.outcomes.job_groups import (
    ALL_DECLARED,
    GroupKey,
    JobGroup,
    application_key,
    declared_key,
    job_type_key,
    user_application_key,
)
from adlro.services.decompose.outcomes.job_record_code import JobRecordCode, rounded, similarity
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.variables.job_features import REAL_COUNT, Category, FeatureExtractor
from adlro.services.decompose.variables.variables import Variables
from adlro.services.decompose.variables.vocabulary import NOT_STATED

CROWDED = 64
"""Number of jobs in a row from which a full memory first drops this row's jobs."""
SHORTLIST = 256
"""Number of rows that the signs of hypervectors select, of which the similarity itself selects the nearest."""
DEFAULT_CLUSTER = "default"
_DECLARED_MIN_S = 1e-3


class GpuKey(NamedTuple):
    """Identifies a GPU: ids are unique only within a cluster."""

    cluster: str
    gpu_id: str


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job that ended by itself without error, and its runtime.

    Attributes:
        end_s: on its cluster's clock.
        gpu_id: its first GPU; empty: not known.
        gpu_ids: all of them, of a job of several.
        spread: its GPUs were on more nodes than could hold them in the empty cluster.
        stopped_runs, neighbours: its earlier attempts, and who shared its GPU; runtime_s is then that of its last
            attempt. The memory has only jobs without: `learning` makes them as if they had run at once and alone.
    """

    job_id: str
    spec: JobSpec
    gpu_model: str
    runtime_s: float
    end_s: float
    gpu_id: str = ""
    cluster: str = DEFAULT_CLUSTER
    gpu_ids: tuple[str, ...] = ()
    spread: bool = False
    stopped_runs: tuple[StoppedRun, ...] = ()
    neighbours: tuple[NeighbourTime, ...] = ()

    @property
    def gpu(self) -> GpuKey:
        """Its (first) GPU."""
        return GpuKey(self.cluster, self.gpu_id)

    @property
    def gpus(self) -> tuple[GpuKey, ...]:
        """Its GPUs, as far as they are known."""
        if self.gpu_ids:
            return tuple(GpuKey(self.cluster, each) for each in self.gpu_ids)
        return (self.gpu,) if self.gpu_id else ()


class SimilarJob(NamedTuple):
    """A finished job and its similarity, 0..1, to the requested one."""

    job: FinishedJob
    similarity: float

    def evidence(self) -> Evidence:
        """Its record as evidence of a prediction."""
        job = self.job
        return Evidence(job.job_id, self.similarity, job.gpu_model, job.runtime_s, job.spec.gpu_count, job.spread)

    def recollection(self) -> Recollection:
        """Its record with its demands."""
        job = self.job
        return Recollection(job.job_id, self.similarity, job.spec, job.gpu_model, job.runtime_s, job.spread)


class _KeptJob(NamedTuple):
    sequence: int
    job: FinishedJob
    row: int
    groups: tuple[GroupKey, ...]


class OutcomeMemory:
    """The newest finished jobs, their groups, and a similarity search.

    Args:
        variables: the vocabularies; added jobs extend them.
        speeds: converts runtimes to the reference GPU.
        capacity: largest number of finished jobs.
        max_age_s: cluster time after which a job is dropped, relative to the newest end on its cluster.
        codebook: codebook of the hypervectors.
    """

    def __init__(
        self,
        variables: Variables,
        speeds: ModelSpeeds,
        capacity: int = 100_000,
        *,
        max_age_s: float = math.inf,
        codebook: Codebook | None = None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.revision = 0
        self.features = FeatureExtractor(variables)
        self._variables = variables
        self._speeds = speeds
        self._capacity = capacity
        self._max_age_s = max_age_s
        self._code = JobRecordCode(codebook or default_codebook(), self.features)
        self._row_of: dict[tuple[float | None, ...], int] = {}
        self.features.on_cleared.append(self._clear_real)
        self._empty()

    def _empty(self) -> None:
        for key in self._row_of:
            self._release(key)
        self._kept: dict[int, _KeptJob] = {}  # by sequence, oldest first
        self._job_ids: set[str] = set()
        self._next_sequence = 0
        self._newest_end_s: dict[str, float] = {}  # by cluster
        self._of_cluster: dict[str, dict[int, _KeptJob]] = {}  # by sequence, oldest first
        self._groups: dict[GroupKey, JobGroup] = {}
        self._row_of = {}
        self._members: list[deque[_KeptJob]] = []  # by row, oldest first
        self._keys: list[tuple[float | None, ...]] = []
        self._free_rows: list[int] = []
        self._crowded: set[int] = set()
        self._categories = np.zeros((64, len(Category)), dtype=np.int32)
        self._reals = np.zeros((64, REAL_COUNT + 1))
        self._index = PackedIndex(self._code.codebook.dimension // WORD_BITS)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._job_ids

    @property
    def row_count(self) -> int:
        """Number of rows in use: of jobs that differ in their demands or GPU model."""
        return len(self._row_of)

    def jobs(self) -> list[FinishedJob]:
        """All stored finished jobs, in the order of their addition."""
        return [kept.job for kept in self._kept.values()]

    def clear(self) -> None:
        """Drops all jobs; the revision still grows."""
        self._empty()
        self.revision += 1

    def merge(self, others: Iterable[FinishedJob]) -> int:
        """Adds the jobs of another memory, as if all had been added in the order of their ends.

        Returns:
            The number of added jobs that were new and are stored.
        """
        mine = self.jobs()
        known = {job.job_id for job in mine}
        new = [job for job in others if job.job_id not in known]
        self._empty()
        for job in sorted([*mine, *new], key=lambda job: job.end_s):
            self.add(job)
        return sum(job.job_id in self._job_ids for job in new)

    def add(self, job: FinishedJob) -> bool:
        """Learns from a finished job; a known one (by its id), or one that is too old, changes nothing.

        Returns:
            Whether it was new.
        """
        if job.job_id in self._job_ids or not (math.isfinite(job.runtime_s) and job.runtime_s > 0):
            return False
        if job.end_s < self._newest_end_s.get(job.cluster, -math.inf) - self._max_age_s:
            return False
        if len(self._kept) >= self._capacity:
            self._forget(self._most_redundant())
        sequence = self._next_sequence
        self._next_sequence += 1
        # Groups first: a runtime without a logarithm raises before any change.
        groups = self._add_to_groups(sequence, job)
        self.features.note(job.spec)
        kept = _KeptJob(sequence, job, self._row(job), groups)
        self._kept[sequence] = kept
        self._of_cluster.setdefault(job.cluster, {})[sequence] = kept
        self._job_ids.add(job.job_id)
        members = self._members[kept.row]
        members.append(kept)
        if len(members) > CROWDED:
            self._crowded.add(kept.row)
        if job.end_s > self._newest_end_s.get(job.cluster, -math.inf):
            self._newest_end_s[job.cluster] = job.end_s
            self._forget_old(job.cluster)
        self.revision += 1
        return True

    def group(self, key: GroupKey) -> JobGroup | None:
        """The group of a key; None if it has no finished jobs."""
        return self._groups.get(key)

    def nearest(self, job: JobSpec, k: int, gpu_model: str = "", *, without: str = "") -> list[SimilarJob]:
        """The k most similar finished jobs, most similar first, newer before older.

        Similarity is the share of the weight of the job's stated variables that agree (`job_record_code.similarity`).

        Args:
            job: the requested job.
            k: largest number of jobs.
            gpu_model: the model counts as a variable; empty: it does not count.
            without: id of a finished job to leave out; empty: none.
        """
        if k <= 0 or not self._kept:
            return []
        if without in self._job_ids:
            others = [each for each in self.nearest(job, k + 1, gpu_model) if each.job.job_id != without]
            return others[:k]
        query = self._query(job, gpu_model)
        packed = self._code.packed(query.categories[0].tolist(), query.reals[0].tolist())
        rows = self._index.nearest(packed, max(SHORTLIST, 4 * k))
        alike = similarity(query, Features(self._categories[rows], self._reals[rows]))
        # The k nearest jobs are in the k rows that are best by similarity and newest job.
        newest = np.array([self._members[row][-1].sequence for row in rows.tolist()])
        best = np.lexsort((-newest, -alike))[:k]
        found = [
            (float(alike[at]), kept.sequence, kept.job)
            for at in best.tolist()
            for kept in _last(self._members[rows[at]], k)
        ]
        found.sort(key=lambda each: each[:2], reverse=True)
        return [SimilarJob(job, score) for score, _, job in found[:k]]

    def _query(self, job: JobSpec, gpu_model: str) -> Features:
        categories, reals = self._numbers(job, learn=False)
        categories[Category.GPU_MODEL] = NOT_STATED
        if gpu_model:
            categories[Category.GPU_MODEL] = self._variables.gpu_model.number(gpu_model)
        return Features(np.array([categories], dtype=np.int32), np.array([reals]))

    def _numbers(self, job: JobSpec, *, learn: bool) -> tuple[list[int], list[float]]:
        categories, reals = self.features.row(job, learn=learn)
        declared = math.nan
        if job.expected_runtime is not None and 0 < job.expected_runtime.runtime_s < math.inf:
            ratio = self._speeds.of(job, job.expected_runtime.gpu_model).ratio
            declared = math.log2(max(_DECLARED_MIN_S, job.expected_runtime.runtime_s * ratio))
        return categories, rounded([*reals, declared])

    def _row(self, job: FinishedJob) -> int:
        categories, reals = self._numbers(job.spec, learn=True)
        categories[Category.GPU_MODEL] = self._variables.gpu_model.learn(job.gpu_model)
        key = (*categories, *(None if math.isnan(real) else real for real in reals))
        row = self._row_of.get(key)
        if row is not None:
            return row
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = len(self._members)
            self._members.append(deque())
            self._keys.append(())
            if row == len(self._categories):
                self._categories = np.concatenate([self._categories, np.zeros_like(self._categories)])
                self._reals = np.concatenate([self._reals, np.zeros_like(self._reals)])
        self._row_of[key] = row
        self._keys[row] = key
        self.features.hold(categories)
        self._categories[row], self._reals[row] = categories, reals
        self._index.put(row, self._code.packed(categories, reals))
        return row

    def _add_to_groups(self, sequence: int, job: FinishedJob) -> tuple[GroupKey, ...]:
        spec = job.spec
        reference_s = job.runtime_s * self._speeds.of(spec, job.gpu_model).ratio
        if job.spread:
            reference_s *= self._speeds.spread(spec, job.gpu_model).ratio
        values: dict[GroupKey, float] = {job_type_key(spec): math.log(reference_s)}
        if spec.application:
            values[application_key(spec)] = values[user_application_key(spec)] = math.log(reference_s)
        if spec.expected_runtime is not None and 0 < spec.expected_runtime.runtime_s < math.inf:
            declared_s = spec.expected_runtime.runtime_s * self._speeds.of(spec, spec.expected_runtime.gpu_model).ratio
            values[declared_key(spec)] = values[ALL_DECLARED] = math.log(reference_s) - math.log(declared_s)
        for key, value in values.items():
            self._groups.setdefault(key, JobGroup()).add(sequence, value)
        return tuple(values)

    def _release(self, key: tuple[float | None, ...]) -> None:
        self.features.release([int(number or 0) for number in key[: len(Category)]])

    def _clear_real(self, column: int) -> None:
        self._reals[:, column] = math.nan
        # No new job matches rows with a value there: the column has another meaning for it.
        at = len(Category) + column
        for key, row in [each for each in self._row_of.items() if each[0][at] is not None]:
            del self._row_of[key]
            self._keys[row] = (*key, float(row), float(self._next_sequence))  # longer than jobs' keys, so equal to none
            self._row_of[self._keys[row]] = row

    def _most_redundant(self) -> _KeptJob:
        if self._crowded:
            return self._members[max(self._crowded, key=lambda row: len(self._members[row]))][0]
        return next(iter(self._kept.values()))

    def _forget_old(self, cluster: str) -> None:
        # Jobs are added about in the order of their ends: a late addition is dropped a little late.
        jobs = self._of_cluster[cluster]
        while jobs:
            oldest = next(iter(jobs.values()))
            if oldest.job.end_s >= self._newest_end_s[cluster] - self._max_age_s:
                break
            self._forget(oldest)

    def _forget(self, kept: _KeptJob) -> None:
        del self._kept[kept.sequence]
        del self._of_cluster[kept.job.cluster][kept.sequence]
        self._job_ids.discard(kept.job.job_id)
        for key in kept.groups:
            group = self._groups[key]
            group.drop(kept.sequence)
            if not len(group):
                del self._groups[key]
        members = self._members[kept.row]
        if members[0] is kept:
            members.popleft()
        else:
            members.remove(kept)  # older ones are of another cluster, where they are not old yet
        if len(members) <= CROWDED:
            self._crowded.discard(kept.row)
        if not members:
            del self._row_of[self._keys[kept.row]]
            self._release(self._keys[kept.row])
            self._index.free(kept.row)
            self._free_rows.append(kept.row)


def _last(members: deque[_KeptJob], count: int) -> list[_KeptJob]:
    return list(members) if len(members) <= count else [members[-i] for i in range(1, count + 1)]
