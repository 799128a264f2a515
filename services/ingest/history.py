"""What ran where in a range of cluster time: bars of attempts, or the occupancy that they fold to. Uses no gRPC.

Jobs that have not ended come from the table of active jobs, ended ones by the index of what ran when: a short range
reads about what ran in it, however long the history. What is read of ended jobs is kept, within bounds.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.errors import InvalidInput, LimitExceeded, NotFound
from adlro.records.history import AttemptBars, AttemptHistory, AttemptOccupancy, AttemptOutcome, RowKind
from adlro.records.jobs import JobType
from adlro.services.ingest.active import ActiveJobs
from adlro.services.ingest.attempt_columns import (
    Floats,
    Ints,
    Rows,
    RowsInMaking,
    Texts,
    joined,
    none_kept,
    with_more,
)
from adlro.services.ingest.clusters import ClusterRegistry, ClusterView, listed
from adlro.store import JobStore, sequence_of
from adlro.store.attempts import RanJob, ran_job
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
        self._kept = none_kept()
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
        if len(found.job) <= most:
            known = {user for user in set(found.user.tolist()) if self._may_know(found.users[user])}
            bars = await asyncio.to_thread(_bars, found, gpus, known, self._max_bytes)
            if bars is not None:
                return AttemptHistory(name, query.from_s, to_s, len(found.job), bars=bars)
        buckets = query.bucket_count or DEFAULT_BUCKET_COUNT
        occupancy = await asyncio.to_thread(_occupancy, found, gpus, query.from_s, to_s, buckets)
        return AttemptHistory(name, query.from_s, to_s, len(found.job), occupancy=occupancy)

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
        running: dict[int, RanJob] = {}
        for count, job in enumerate(self._active.jobs(), start=1):
            if job.attempts:
                running[sequence_of(job.job_id)] = ran_job(job)
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
        numbers, ends_s = await self._ended.ran_within(from_s, to_s)
        kept = self._kept
        places = await asyncio.to_thread(kept.places_of, numbers, ends_s)
        unread, read = np.flatnonzero(places < 0), RowsInMaking(kept.texts)
        ended = set(numbers[places >= 0].tolist()) if running else set()
        async for ran in self._ended.ran(numbers[unread].tolist()):
            read.add(ran)
            ended.add(sequence_of(ran.job_id))
        run = RowsInMaking(kept.texts)
        for number, ran in running.items():
            if number not in ended:
                run.add(ran)
        new = read.made()
        if len(new.job):
            end_s_of = dict(zip(numbers[unread].tolist(), ends_s[unread].tolist(), strict=True))
            # Another query may have added jobs meanwhile.
            before = self._kept if self._kept.texts is kept.texts else kept
            self._kept = await asyncio.to_thread(with_more, before, new, end_s_of)
        rows = await asyncio.to_thread(lambda: joined(kept.rows_of(places[places >= 0]), new, run.made()))
        return await asyncio.to_thread(_in_range, rows, kept.texts, from_s, to_s, gpus)


class _Found(NamedTuple):
    """The bars in a range, as columns; see `Rows`.

    Attributes:
        users: names by number.
        gpu: numbers in `_Gpus`.
    """

    users: Sequence[str]
    job: Ints
    user: NDArray[np.int32]
    job_type: NDArray[np.int8]
    attempt: NDArray[np.int32]
    outcome: NDArray[np.int8]
    gpu: Ints
    share: Floats
    start_s: Floats
    end_s: Floats


def _in_range(rows: Rows, texts: Texts, from_s: float, to_s: float, gpus: _Gpus) -> _Found:
    """The rows of a range on the GPUs that are asked for."""
    rows = rows.at((rows.start_s <= to_s) & (rows.end_s >= from_s))  # nor one whose times are no numbers
    names, number_of = list(texts.gpus), np.full(len(texts.gpus), -1, dtype=np.int64)
    for gpu in np.unique(rows.gpu).tolist():
        number = gpus.number_of(names[gpu])
        number_of[gpu] = -1 if number is None else number
    of_gpu = number_of[rows.gpu]
    columns: dict[str, Any] = {**rows.at(of_gpu >= 0)._asdict(), "gpu": of_gpu[of_gpu >= 0]}
    return _Found(users=list(texts.users), **columns)


def _bars(found: _Found, gpus: _Gpus, known_users: Collection[int], max_bytes: int) -> AttemptBars | None:
    """The bars by begin; None where they do not fit into an answer."""
    gpu_rows = sorted(set(found.gpu.tolist()), key=gpus.place_of)
    gpu_index = np.zeros(len(gpus.ids), dtype=np.int64)
    gpu_index[gpu_rows] = np.arange(len(gpu_rows))
    order = np.lexsort((found.attempt, found.job, gpu_index[found.gpu], found.start_s))
    known = np.isin(found.user, list(known_users))[order]
    job_index: dict[str, int] = {"": 0}
    user_index: dict[str, int] = {"": 0}
    jobs, users = array("l"), array("l")
    for number, user, told in zip(found.job[order].tolist(), found.user[order].tolist(), known.tolist(), strict=True):
        jobs.append(job_index.setdefault(f"job-{number}" if told else "", len(job_index)))
        users.append(user_index.setdefault(found.users[user] if told else "", len(user_index)))
    names = [gpus.ids[gpu] for gpu in gpu_rows]
    texts = sum(len(text.encode()) + 8 for text in (*names, *job_index, *user_index))
    if texts + _BAR_BYTES * len(found.job) + 1024 > max_bytes:
        return None
    types, outcomes = np.where(known, found.job_type[order], 0), np.where(known, found.outcome[order], 0)
    return AttemptBars(
        gpu_ids=tuple(names),
        job_ids=tuple(job_index),
        users=tuple(user_index),
        gpu_indexes=tuple(gpu_index[found.gpu[order]].tolist()),
        job_indexes=tuple(jobs),
        user_indexes=tuple(users),
        attempts=tuple(np.where(known, found.attempt[order], 0).tolist()),
        job_types=tuple(map(_JOB_TYPES.__getitem__, types.tolist())),
        starts_s=tuple(found.start_s[order].tolist()),
        ends_s=tuple(found.end_s[order].tolist()),
        outcomes=tuple(map(_OUTCOMES.__getitem__, outcomes.tolist())),
        shares=() if (found.share == 1.0).all() else tuple(found.share[order].tolist()),
    )


_JOB_TYPES = {int(each): each for each in JobType}
_OUTCOMES = {int(each): each for each in AttemptOutcome}


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


def _occupancy(found: _Found, gpus: _Gpus, from_s: float, to_s: float, bucket_count: int) -> AttemptOccupancy:
    kind, names, counts, row_of = gpus.rows()
    buckets = max(1, min(bucket_count, _OCCUPANCY_BYTES // max(1, len(names))))
    bucket_s = max(to_s - from_s, _LEAST_RANGE_S) / buckets
    held = held_ratios(
        row_of[found.gpu],
        (found.start_s - from_s) / bucket_s,
        (found.end_s - from_s) / bucket_s,
        found.share,
        counts,
        buckets,
    )
    return AttemptOccupancy(kind, tuple(names), tuple(counts), buckets, bucket_s, as_bytes(held), len(found.job))


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
