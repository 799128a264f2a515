"""What ran where in a range of cluster time: bars of attempts, or the occupancy that they fold to. Uses no gRPC.

Jobs that have not ended come from the table of active jobs, ended ones by the index of what ran when: a short range
reads about what ran in it, however long the history.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput, LimitExceeded, NotFound
from adlro.records.history import AttemptBars, AttemptHistory, AttemptOccupancy, AttemptOutcome, RowKind
from adlro.records.jobs import JobType
from adlro.services.ingest.active import ActiveJobs
from adlro.services.ingest.clusters import ClusterRegistry, ClusterView, listed
from adlro.store import JobStore
from adlro.store.attempts import RanAttempt, RanJob, ran_job
from adlro.store.ended import EndedJobs

DEFAULT_MAX_BARS = 5_000
DEFAULT_BUCKET_COUNT = 600
# Of one answer: some seconds of this process' time.
MAX_JOBS = 200_000
# Each may read and decode so many.
_QUERIES_AT_ONCE = 2
# More nodes than that fold to GPU models; and an occupancy has so many bytes at most.
_NODE_ROWS = 1024
_OCCUPANCY_BYTES = 500_000
# What a bar takes in a message at most, without its texts.
_BAR_BYTES = 36
# Active jobs looked at in one round of the event loop.
_AT_ONCE = 2000
_LEAST_RANGE_S = 1e-6


@dataclass(frozen=True, slots=True)
class AttemptQuery:
    """A range and what of it; see QueryAttempts in job_service.proto."""

    from_s: float
    to_s: float | None = None
    gpu_ids: Collection[str] = ()
    max_bars: int = 0
    cluster: str = ""
    bucket_count: int = 0


@dataclass(slots=True)
class _Found:
    """The bars in a range, as columns; `job` and `attempt` are numbers in `jobs` and of the attempt in it."""

    jobs: list[RanJob] = field(default_factory=list)
    job: array[int] = field(default_factory=lambda: array("l"))
    attempt: array[int] = field(default_factory=lambda: array("l"))
    gpu: array[int] = field(default_factory=lambda: array("l"))
    share: array[float] = field(default_factory=lambda: array("d"))
    start_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.job)


class AttemptHistories:
    """Answers queries.

    Args:
        store: where the orchestrator stands in cluster time.
        active, ended: the jobs.
        clusters: descriptions.
        default_cluster: where a query names none; empty: the one that was described last.
        max_bytes: of an answer.
        may_know: whether the caller may know of a user's jobs.
    """

    def __init__(
        self,
        store: JobStore,
        active: ActiveJobs,
        ended: EndedJobs,
        clusters: ClusterRegistry,
        default_cluster: str,
        max_bytes: int,
        may_know: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._active = active
        self._ended = ended
        self._clusters = clusters
        self._default_cluster = default_cluster
        self._max_bytes = max_bytes
        self._may_know = may_know
        self._turn = asyncio.Semaphore(_QUERIES_AT_ONCE)

    async def query(self, query: AttemptQuery) -> AttemptHistory:
        """The bars in a range, or their occupancy.

        Raises:
            InvalidInput: the range ends before it begins.
            NotFound: no such cluster.
            LimitExceeded: too many jobs ran in the range.
            Unavailable: NOT_INDEXED: jobs of an older version are still being indexed.
        """
        view = await self._view(query.cluster)
        to_s = await self._end_of(query)
        gpus = _Gpus(view, query.gpu_ids, described_only=bool(query.cluster))
        async with self._turn:
            found = await self._found(query.from_s, to_s, gpus)
        most = query.max_bars or DEFAULT_MAX_BARS
        name = "" if view is None else view.cluster.name
        if len(found) <= most and (bars := self._bars(found, gpus)) is not None:
            return AttemptHistory(name, query.from_s, to_s, len(found), bars=bars)
        occupancy = _occupancy(found, gpus, query.from_s, to_s, query.bucket_count or DEFAULT_BUCKET_COUNT)
        return AttemptHistory(name, query.from_s, to_s, len(found), occupancy=occupancy)

    async def _view(self, name: str) -> ClusterView | None:
        view = await self._clusters.recent(name or self._default_cluster)
        if view is None and name:
            names = await self._clusters.names()
            known = f"known are {listed(names)}" if names else "no cluster is known yet"
            raise NotFound(
                f"cluster: there is no cluster {name!r}, {known}; omit it for the default one",
                field="cluster",
                reason="CLUSTER_NOT_FOUND",
                metadata={"cluster": name},
            )
        return view

    async def _end_of(self, query: AttemptQuery) -> float:
        if query.to_s is None:
            cursor = await self._store.cursor()
            return max(query.from_s, cursor.time_s if cursor is not None else 0.0)
        if query.to_s < query.from_s:
            raise InvalidInput(
                f"to_s: {query.to_s:g} is before from_s, {query.from_s:g}; give a range that ends after its begin, "
                "or omit to_s for all until now",
                field="to_s",
                reason="INVALID_RANGE",
            )
        return query.to_s

    async def _found(self, from_s: float, to_s: float, gpus: _Gpus) -> _Found:
        # The active ones first: one that ends meanwhile is in both, not in neither.
        await self._active.catch_up()
        running: dict[str, RanJob] = {}
        for count, job in enumerate(self._active.jobs(), start=1):
            if job.attempts:
                running[job.job_id] = ran_job(job)
            if not count % _AT_ONCE:
                await asyncio.sleep(0)
        count = await self._ended.count_within(from_s, to_s)
        if count > MAX_JOBS:
            raise LimitExceeded(
                f"from_s: {count:,} jobs ran in this range, of at most {MAX_JOBS:,} for an answer; "
                "request a shorter range",
                field="from_s",
                reason="RANGE_TOO_LONG",
                metadata={"jobs": str(count), "limit": str(MAX_JOBS)},
            )
        numbers = await self._ended.ran_within(from_s, to_s)
        found = _Found()
        async for ran in self._ended.ran(numbers):
            running.pop(ran.job_id, None)
            _add(found, ran, from_s, to_s, gpus)
        for ran in running.values():
            _add(found, ran, from_s, to_s, gpus)
        return found

    def _bars(self, found: _Found, gpus: _Gpus) -> AttemptBars | None:
        """The bars by begin; None where they do not fit into an answer."""
        order = np.lexsort((np.asarray(found.gpu), np.asarray(found.start_s))).tolist() if len(found) else []
        gpu_rows = sorted(set(found.gpu), key=gpus.place_of)
        gpu_index = {gpu: index for index, gpu in enumerate(gpu_rows)}
        known = [self._may_know(job.user) for job in found.jobs]
        job_index: dict[str, int] = {"": 0}
        user_index: dict[str, int] = {"": 0}
        jobs, users, attempts, types, outcomes = array("l"), array("l"), array("l"), [], []
        for bar in order:
            ran = found.jobs[found.job[bar]]
            told = ran if known[found.job[bar]] else _UNKNOWN_JOB
            jobs.append(job_index.setdefault(told.job_id, len(job_index)))
            users.append(user_index.setdefault(told.user, len(user_index)))
            types.append(told.job_type)
            attempt = ran.attempts[found.attempt[bar]] if told is ran else _UNKNOWN_ATTEMPT
            attempts.append(attempt.attempt)
            outcomes.append(attempt.outcome)
        names = [gpus.ids[gpu] for gpu in gpu_rows]
        texts = sum(len(text.encode()) + 8 for text in (*names, *job_index, *user_index))
        if texts + _BAR_BYTES * len(found) + 1024 > self._max_bytes:
            return None
        return AttemptBars(
            gpu_ids=tuple(names),
            job_ids=tuple(job_index),
            users=tuple(user_index),
            gpu_indexes=tuple(gpu_index[found.gpu[bar]] for bar in order),
            job_indexes=tuple(jobs),
            user_indexes=tuple(users),
            attempts=tuple(attempts),
            job_types=tuple(types),
            starts_s=tuple(found.start_s[bar] for bar in order),
            ends_s=tuple(found.end_s[bar] for bar in order),
            outcomes=tuple(outcomes),
            shares=() if all(each == 1.0 for each in found.share) else tuple(found.share[bar] for bar in order),
        )


_UNKNOWN_JOB = RanJob("", "", JobType.UNSPECIFIED, ())
_UNKNOWN_ATTEMPT = RanAttempt(0, (), 0.0, 0.0, AttemptOutcome.UNSPECIFIED)


class _Gpus:
    """The GPUs that are asked for, by number: those of the description, then others as they come.

    Attributes:
        ids: by number.
    """

    def __init__(self, view: ClusterView | None, wanted: Collection[str], *, described_only: bool) -> None:
        self.view = view
        self.ids: list[str] = [] if view is None else [gpu.gpu_id for gpu in view.gpus]
        self.described_count = len(self.ids)
        self.wanted = frozenset(wanted)
        self._numbers = {gpu_id: number for number, gpu_id in enumerate(self.ids)}
        self._described_only = described_only

    def number_of(self, gpu_id: str) -> int | None:
        """A GPU's number; None: it is not asked for."""
        if self.wanted and gpu_id not in self.wanted:
            return None
        number = self._numbers.get(gpu_id)
        if number is None and not self._described_only:
            number = self._numbers[gpu_id] = len(self.ids)
            self.ids.append(gpu_id)
        return number

    def place_of(self, number: int) -> tuple[int, str]:
        """Where it stands among others: as described, then by name."""
        return (number, "") if number < self.described_count else (self.described_count, self.ids[number])

    def rows(self) -> tuple[RowKind, list[str], list[int], NDArray[np.int64]]:
        """What an occupancy folds to: its kind, names and numbers of GPUs, and by GPU its row."""
        by_model = self.view is not None and len(self.view.cluster.nodes) > _NODE_ROWS
        names: dict[str, int] = {}
        counts: Counter[int] = Counter()
        row_of = np.zeros(len(self.ids), dtype=np.int64)
        places = [] if self.view is None else [(node.node_id, gpu) for node, gpu in self.view.cluster.gpus()]
        for number, (node_id, gpu) in enumerate(places):
            if not self.wanted or gpu.gpu_id in self.wanted:
                row_of[number] = row = names.setdefault(gpu.gpu_model if by_model else node_id, len(names))
                counts[row] += 1
        for number in range(self.described_count, len(self.ids)):
            row_of[number] = row = names.setdefault("", len(names))
            counts[row] += 1
        kind = RowKind.GPU_MODEL if by_model else RowKind.NODE
        return kind, list(names), [counts[row] for row in range(len(names))], row_of


def _add(found: _Found, ran: RanJob, from_s: float, to_s: float, gpus: _Gpus) -> None:
    """Adds the bars of a job that are in the range."""
    job = len(found.jobs)
    for number, attempt in enumerate(ran.attempts):
        if not (attempt.start_s <= to_s and attempt.end_s >= from_s):  # nor one whose times are no numbers
            continue
        for gpu_id, share in attempt.gpus:
            gpu = gpus.number_of(gpu_id)
            if gpu is not None:
                if job == len(found.jobs):
                    found.jobs.append(ran)
                found.job.append(job)
                found.attempt.append(number)
                found.gpu.append(gpu)
                found.share.append(share)
                found.start_s.append(attempt.start_s)
                found.end_s.append(attempt.end_s)


def _occupancy(found: _Found, gpus: _Gpus, from_s: float, to_s: float, bucket_count: int) -> AttemptOccupancy:
    kind, names, counts, row_of = gpus.rows()
    buckets = max(1, min(bucket_count, _OCCUPANCY_BYTES // max(1, len(names))))
    bucket_s = max(to_s - from_s, _LEAST_RANGE_S) / buckets
    held = held_ratios(
        row_of[np.asarray(found.gpu, dtype=np.int64)],
        (np.asarray(found.start_s) - from_s) / bucket_s,
        (np.asarray(found.end_s) - from_s) / bucket_s,
        np.asarray(found.share),
        counts,
        buckets,
    )
    return AttemptOccupancy(kind, tuple(names), tuple(counts), buckets, bucket_s, as_bytes(held), len(found))


def held_ratios(
    rows: NDArray[np.int64],
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
    shares: NDArray[np.float64],
    gpu_counts: Sequence[int],
    bucket_count: int,
) -> NDArray[np.float64]:
    """The share of each row's GPU time that bars hold, by bucket: (R, B), 0..1.

    Args:
        rows: (N,) each bar's row.
        starts, ends: (N,) in buckets from the begin of the range; may be outside of it.
        shares: (N,) of a GPU.
        gpu_counts: (R,) each row's GPUs.
        bucket_count: B.
    """
    starts, ends = np.clip(starts, 0.0, bucket_count), np.clip(ends, 0.0, bucket_count)
    first = np.minimum(starts.astype(np.int64), bucket_count - 1)
    last = np.minimum(ends.astype(np.int64), bucket_count - 1)
    # What a bar has of its first and of its last bucket; of those between it has all.
    held = np.zeros((len(gpu_counts), bucket_count + 1))
    one = first == last
    np.add.at(held, (rows, first), shares * np.where(one, ends - starts, first + 1 - starts))
    np.add.at(held, (rows, last), shares * np.where(one, 0.0, ends - last))
    whole = np.zeros_like(held)
    np.add.at(whole, (rows, first + 1), np.where(one, 0.0, shares))
    np.add.at(whole, (rows, last), np.where(one, 0.0, -shares))
    held += np.cumsum(whole, axis=1)
    ratios: NDArray[np.float64] = held[:, :bucket_count] / np.maximum(np.asarray(gpu_counts), 1)[:, None]
    return np.clip(ratios, 0.0, 1.0)


def as_bytes(ratios: NDArray[np.float64]) -> bytes:
    """Ratios as bytes, 255 for 1; what is above 0 is at least 1."""
    # Sums and differences of shares leave less than that of nothing.
    some = ratios > 1e-9
    return np.where(some, np.maximum(np.rint(ratios * 255.0), 1.0), 0.0).astype(np.uint8).tobytes()
