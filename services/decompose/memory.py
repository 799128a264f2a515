"""The memory of finished jobs: what ran, where, how long; bounded. Knows plain records and arrays only.

Records are kept in a ring of `capacity`: the oldest gives way to the newest. Beside them:

- *signatures*: the distinct combinations of a record's discrete variables, as rows of numbers. Similarity is computed
  for signatures, of which there are far fewer than records.
- *groups*: for each (user, application), application, job type and declaring user the newest log runtimes on the
  reference GPU, from which `predict` takes medians and intervals.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.jobs import JobSpec
from services.decompose.speeds import Speeds
from services.decompose.variables import NOT_STATED, JobCodes, Variables

GROUP_WINDOW = 256
"""A group keeps so many of its newest values."""

# How much each variable says about whether two jobs run alike. Whole numbers: sums stay below 256 and fit in a byte.
APPLICATION_WEIGHT = 40
USER_WEIGHT = 25
JOB_TYPE_WEIGHT = 15
SIZE_CLASS_WEIGHT = 12
PRIORITY_CLASS_WEIGHT = 8
GPU_MODEL_WEIGHT = 20
_JOB_WEIGHTS = (APPLICATION_WEIGHT, USER_WEIGHT, JOB_TYPE_WEIGHT, SIZE_CLASS_WEIGHT, PRIORITY_CLASS_WEIGHT)
_GROWING = (True, True, False, False, False)  # which of them have the number NOT_STATED

_SCORE_BLOCK = 1_000_000  # scores computed at a time: bytes that stay in the processor's cache
_FREE = -2  # number in the rows of signatures that are not in use: equal to no query's


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job that ended by itself without error, and how long it ran."""

    job_id: str
    spec: JobSpec
    gpu_model: str
    runtime_s: float
    end_s: float


class Recollection(NamedTuple):
    """A finished job and its similarity, 0..1, to what was asked for."""

    job: FinishedJob
    similarity: float


class GroupKey(NamedTuple):
    """What the jobs of a group have in common; parts that don't count are empty."""

    kind: str
    first: str = ""
    second: str = ""


def user_application_key(spec: JobSpec) -> GroupKey:
    """The group of jobs of the same user and application."""
    return GroupKey("user_application", spec.user, spec.application)


def application_key(spec: JobSpec) -> GroupKey:
    """The group of jobs of the same application."""
    return GroupKey("application", spec.application)


def job_type_key(spec: JobSpec) -> GroupKey:
    """The group of jobs of the same type."""
    return GroupKey("job_type", spec.job_type.label)


def declared_key(spec: JobSpec) -> GroupKey:
    """The group of jobs with a declared runtime by the same user; its values are log(observed / declared)."""
    return GroupKey("declared", spec.user)


ALL_DECLARED = GroupKey("all_declared")
"""The group of all jobs with a declared runtime; its values are log(observed / declared)."""


class Group:
    """The newest GROUP_WINDOW values of a group and their quantiles."""

    __slots__ = ("_quantiles", "_values")

    def __init__(self) -> None:
        self._values: deque[tuple[int, float]] = deque(maxlen=GROUP_WINDOW)
        self._quantiles: tuple[float, float, float] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def add(self, sequence: int, value: float) -> None:
        """Takes a value of record number `sequence`; the oldest gives way when the window is full."""
        self._values.append((sequence, value))
        self._quantiles = None

    def drop(self, sequence: int) -> None:
        """Forgets the value of a record, the oldest of the memory, if it is still here."""
        if self._values and self._values[0][0] == sequence:
            self._values.popleft()
            self._quantiles = None

    def quantiles(self) -> tuple[float, float, float]:
        """The 0.1, 0.5 and 0.9 quantiles of the values; see `quantile`."""
        if self._quantiles is None:
            ordered = sorted(value for _, value in self._values)
            self._quantiles = (quantile(ordered, 0.1), quantile(ordered, 0.5), quantile(ordered, 0.9))
        return self._quantiles


def quantile(ordered: Sequence[float], probability: float) -> float:
    """The quantile of sorted values that a next value of their kind undercuts with this probability.

    Linear between neighbours at p (n + 1) - 1, numpy's "weibull": its default would make intervals of ten values cover
    0.65 instead of 0.8. Beyond the ends: the end.
    """
    position = min(max(probability * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


class _Kept(NamedTuple):
    sequence: int
    job: FinishedJob
    row: int
    groups: tuple[GroupKey, ...]


class OutcomeMemory:
    """The newest finished jobs, their groups, and similarity over their discrete variables.

    Args:
        variables: the vocabularies by which jobs are separated; they learn from what is added.
        speeds: brings runtimes to the reference GPU.
        capacity: finished jobs that are kept.
    """

    def __init__(self, variables: Variables, speeds: Speeds, capacity: int = 100_000) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.revision = 0
        self._variables = variables
        self._speeds = speeds
        self._capacity = capacity
        self._empty()

    def _empty(self) -> None:
        self._kept: deque[_Kept] = deque()
        self._job_ids: set[str] = set()
        self._next_sequence = 0
        self._groups: dict[GroupKey, Group] = {}
        self._row_of: dict[tuple[int, ...], int] = {}
        self._members: list[deque[_Kept]] = []  # by row, oldest first
        self._free_rows: list[int] = []
        self._codes = np.full((6, 64), _FREE, dtype=np.int32)  # variable x row; the sixth is the GPU model
        self._newest = np.full(64, -1, dtype=np.int64)  # by row, sequence of its newest record

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forgets everything; the revision still grows."""
        self._empty()
        self.revision += 1

    def add(self, job: FinishedJob) -> bool:
        """Learns from a finished job; one that is known (by its id) changes nothing.

        Returns:
            Whether it was new.
        """
        if job.job_id in self._job_ids or not (math.isfinite(job.runtime_s) and job.runtime_s > 0):
            return False
        if len(self._kept) >= self._capacity:
            self._forget_oldest()
        sequence = self._next_sequence
        self._next_sequence += 1
        kept = _Kept(sequence, job, self._row(job), self._add_to_groups(sequence, job))
        self._kept.append(kept)
        self._job_ids.add(job.job_id)
        self._members[kept.row].append(kept)
        self._newest[kept.row] = sequence
        self.revision += 1
        return True

    def group(self, key: GroupKey) -> Group | None:
        """The group of a key; None where no finished job belongs to it."""
        return self._groups.get(key)

    def similarities(self, queries: Sequence[JobCodes]) -> NDArray[np.float64]:
        """The similarity, 0..1, of the most similar finished job to each of Q jobs: Q; 0 where there is none."""
        best = np.zeros(len(queries))
        rows = len(self._members)
        if not queries or not self._kept:
            return best
        codes = np.array(queries, dtype=np.int32)  # Q x 5
        step = max(1, _SCORE_BLOCK // rows)
        for start in range(0, len(queries), step):
            block = codes[start : start + step]
            best[start : start + step] = self._scores(block).max(axis=1)
        weights = np.array([_stated_weight(query) for query in queries], dtype=np.float64)
        best /= weights
        return best

    def nearest(self, query: JobCodes, k: int, gpu_model: str = "") -> list[Recollection]:
        """The k finished jobs most like a job, most similar first, newer before older.

        Similarity is the share of the weight of the query's stated variables whose values are equal.

        Args:
            query: the job's variables.
            k: at most so many.
            gpu_model: also weigh whether it ran on this model; empty: the model doesn't count.
        """
        if k <= 0 or not self._kept:
            return []
        scores = self._scores(np.array([query], dtype=np.int32))[0].astype(np.int64)
        total = _stated_weight(query)
        if gpu_model:
            model = self._variables.gpu_model.number(gpu_model)
            scores += (self._codes[5, : len(self._members)] == model) * GPU_MODEL_WEIGHT
            total += GPU_MODEL_WEIGHT
        # The k best records lie in the k rows that are best by (score, newest record).
        newest = self._newest[: len(self._members)]
        keys = np.where(newest >= 0, (scores << 48) + newest, -1)
        rows = np.argpartition(-keys, k - 1)[:k] if k < len(keys) else np.arange(len(keys))
        found = [
            (int(scores[row]), kept.sequence, kept) for row in rows.tolist() for kept in _last(self._members[row], k)
        ]
        found.sort(key=lambda each: each[:2], reverse=True)
        return [Recollection(kept.job, score / total) for score, _, kept in found[:k]]

    def _scores(self, codes: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Weights of equal variables summed, Q x rows. A value that is not stated or not known equals nothing."""
        rows = len(self._members)
        scores = np.zeros((len(codes), rows), dtype=np.uint8)
        equal = np.empty((len(codes), rows), dtype=np.bool_)
        weighted = equal.view(np.uint8)  # the same bytes: these two arrays are all that is written
        for variable, (weight, growing) in enumerate(zip(_JOB_WEIGHTS, _GROWING, strict=True)):
            wanted = codes[:, variable]
            if growing:
                wanted = np.where(wanted > NOT_STATED, wanted, _FREE - 1)
            np.equal(wanted[:, None], self._codes[variable, :rows], out=equal)
            np.multiply(weighted, np.uint8(weight), out=weighted)
            np.add(scores, weighted, out=scores)
        return scores

    def _row(self, job: FinishedJob) -> int:
        signature = (
            *self._variables.codes_of_job(job.spec, learn=True),
            self._variables.gpu_model.learn(job.gpu_model),
        )
        row = self._row_of.get(signature)
        if row is not None:
            return row
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = len(self._members)
            self._members.append(deque())
            if row == len(self._newest):
                self._codes = np.concatenate([self._codes, np.full_like(self._codes, _FREE)], axis=1)
                self._newest = np.concatenate([self._newest, np.full_like(self._newest, -1)])
        self._row_of[signature] = row
        self._codes[:, row] = signature
        return row

    def _add_to_groups(self, sequence: int, job: FinishedJob) -> tuple[GroupKey, ...]:
        spec = job.spec
        reference_s = job.runtime_s * self._speeds.of(spec, job.gpu_model).ratio
        values: dict[GroupKey, float] = {job_type_key(spec): math.log(reference_s)}
        if spec.application:
            values[application_key(spec)] = values[user_application_key(spec)] = math.log(reference_s)
        if spec.expected_runtime is not None and 0 < spec.expected_runtime.runtime_s < math.inf:
            declared_s = spec.expected_runtime.runtime_s * self._speeds.of(spec, spec.expected_runtime.gpu_model).ratio
            values[declared_key(spec)] = values[ALL_DECLARED] = math.log(reference_s) - math.log(declared_s)
        for key, value in values.items():
            self._groups.setdefault(key, Group()).add(sequence, value)
        return tuple(values)

    def _forget_oldest(self) -> None:
        oldest = self._kept.popleft()
        self._job_ids.discard(oldest.job.job_id)
        for key in oldest.groups:
            group = self._groups[key]
            group.drop(oldest.sequence)
            if not len(group):
                del self._groups[key]
        members = self._members[oldest.row]
        members.popleft()  # the oldest of all is the oldest of its row
        if not members:
            signature = tuple(self._codes[:, oldest.row].tolist())
            del self._row_of[signature]
            self._codes[:, oldest.row] = _FREE
            self._newest[oldest.row] = -1
            self._free_rows.append(oldest.row)


def _stated_weight(query: JobCodes) -> int:
    """The weight of the variables that the job states: an empty application or user says nothing either way."""
    total = sum(_JOB_WEIGHTS)
    if query.application == NOT_STATED:
        total -= APPLICATION_WEIGHT
    if query.user == NOT_STATED:
        total -= USER_WEIGHT
    return total


def _last(members: deque[_Kept], count: int) -> list[_Kept]:
    return list(members) if len(members) <= count else [members[-i] for i in range(1, count + 1)]
