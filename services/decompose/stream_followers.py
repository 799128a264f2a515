"""Folds the streams into memory and matrices: from a cursor, across restarts of Redis. Knows plain records.

Each replica follows the whole of every stream. Without an answer from Redis, a follower waits and continues at its
cursor; if its stream has vanished or begun anew, it forgets the folded entries and starts over.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import numpy as np

from adlro.errors import InvalidInput, Unavailable
from adlro.records.cluster import Cluster
from adlro.services.decompose.clients import (
    BadEntry,
    StreamEntry,
    StreamInfo,
    decode_block,
    decode_cluster,
    decode_outcome,
    decode_telemetry_entry,
)
from adlro.services.decompose.clusters.gpu_matrix import GpuMatrices, GpuMatrix
from adlro.services.decompose.metrics import DecomposeMetrics
from adlro.services.decompose.outcomes.outcome_memory import DEFAULT_CLUSTER, FinishedJob
from adlro.store.keys import OUTCOMES, telemetry_key

START = "0-0"
# Entries per read.
OUTCOMES_BATCH_COUNT, TELEMETRY_BATCH_COUNT = 200, 20
FOLD_COUNT = 20
"""Entries folded before other work may run."""
UNLEARNABLE = (ValueError, ArithmeticError, np.linalg.LinAlgError, InvalidInput)
"""Errors that learning may raise for a job whose figures can't be computed with."""
BLOCK_MS = 500
CHECK_INTERVAL_S = 2.0  # largest delay until the follower notices that a stream began anew
_FOLD_TIMEOUT_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class StreamSource(Protocol):
    """Reads streams and descriptions; `clients.RedisReader` is one. Every method raises Unavailable on failure."""

    async def read(self, stream: str, after: str, count: int, block_ms: int | None = None) -> list[StreamEntry]:
        """Up to `count` entries after an id, oldest first; waits up to `block_ms` for the first."""

    async def newest(self, stream: str, count: int) -> list[StreamEntry]:
        """The newest `count` entries, oldest first."""

    async def info(self, stream: str) -> StreamInfo | None:
        """The position of a stream's end; None if there is no stream."""

    async def clusters(self) -> dict[str, bytes]:
        """The serialised descriptions of all clusters by name."""

    async def current_cluster(self) -> str:
        """The name of the most recently described cluster; empty if there is none."""

    async def latest_blocks(self, cluster: str) -> list[bytes]:
        """The latest block of each source of a cluster's telemetry, serialised."""


class Learner(Protocol):
    """Learns from outcomes; `learning.Learning` is one."""

    def learn(self, job: FinishedJob) -> bool:
        """Learns from a finished job. Returns whether it was new."""

    def start_over(self) -> None:
        """Forgets all finished jobs."""


class StreamFollower:
    """Follows one stream.

    Args:
        reader: reads from Redis.
        stream: the stream's key.
        fold: folds entries, oldest first; must be idempotent.
        start_over: forgets the folded entries.
        seed: folds initial data at once and returns the entry to continue after; None: the whole stream.
        batch_count: entries per read; FOLD_COUNT of them are folded before other work may run.
        on_state: called after `caught_up` or `problem` may have changed.
        folded: awaited after every entry, before the next is folded.
    """

    def __init__(
        self,
        reader: StreamSource,
        stream: str,
        fold: Callable[[Sequence[StreamEntry]], None],
        start_over: Callable[[], None],
        seed: Callable[[], Awaitable[str]] | None = None,
        *,
        batch_count: int,
        on_state: Callable[[], None],
        folded: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.stream = stream
        self.caught_up = asyncio.Event()
        """Set once all entries of the stream are folded."""
        self.problem = ""
        """Why it can't continue at present; empty if it can."""
        self._reader = reader
        self._fold = fold
        self._start_over = start_over
        self._seed = seed
        self._batch_count = batch_count
        self._on_state = on_state
        self._folded = folded
        self._cursor: str | None = None
        self._seed_wanted = True
        self._added_count = -1

    @property
    def cursor(self) -> str:
        """The last folded entry."""
        return self._cursor or START

    def seed_again(self) -> None:
        """Folds the seed once more: it may have left out an entry that is needed now."""
        self._seed_wanted = True

    async def run(self) -> None:
        """Follows until cancelled."""
        clock = asyncio.get_running_loop().time
        pause_s = _FIRST_PAUSE_S
        check_at = clock() + CHECK_INTERVAL_S
        while True:
            try:
                if clock() >= check_at:
                    await self._check()
                    check_at = clock() + CHECK_INTERVAL_S
                if not await self._step():
                    check_at = clock()  # no new entry: the stream may be gone
                pause_s = _FIRST_PAUSE_S
                self.problem = ""
                self._on_state()
            except Unavailable as error:
                self.problem = error.message
                self._on_state()
                check_at = clock()  # a server that returns may have lost its data
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _step(self) -> bool:
        """Reads and folds once. Returns whether there were entries."""
        if self._seed_wanted:
            after = START if self._seed is None else await self._seed()
            self._cursor = self._cursor or after
            self._seed_wanted = False
        entries = await self._reader.read(
            self.stream, self._cursor or START, self._batch_count, BLOCK_MS if self.caught_up.is_set() else None
        )
        for start in range(0, len(entries), FOLD_COUNT):
            if start:
                await asyncio.sleep(0)
            some = entries[start : start + FOLD_COUNT]
            if self._folded is None:
                self._fold(some)
            else:
                for entry in some:
                    self._fold([entry])
                    self._cursor = entry.entry_id
                    await self._folded()
            self._cursor = some[-1].entry_id
        if len(entries) < self._batch_count:
            self.caught_up.set()
        return bool(entries)

    async def _check(self) -> None:
        """Starts over if the stream is not the folded one."""
        info = await self._reader.info(self.stream)
        cursor = self._cursor or START
        if info is None:
            anew = cursor != START
        else:
            # Ids come from the clock, so a stream that began anew continues after the cursor; its count shows it.
            anew = entry_order(info.last_id) < entry_order(cursor) or info.added_count < self._added_count
        self._added_count = -1 if info is None else info.added_count
        if anew:
            self.caught_up.clear()
            self._cursor, self._seed_wanted = None, True
            self._start_over()


def entry_order(entry_id: str) -> tuple[int, int]:
    """The sort key of an entry id ("<ms>-<n>")."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)


class FollowedStreams:
    """All streams that decompose follows: outcomes, clusters' descriptions, and each cluster's telemetry.

    Args:
        reader: reads from Redis.
        learner: learns from outcomes.
        clusters: folds descriptions and telemetry.
        poll_s: seconds between reads of descriptions, unless a read is requested earlier.
        telemetry_tail_count: entries of a telemetry stream folded at start, beside the latest block of each source.
        metrics: counters.
        log: a structlog logger.
        on_state: called with the pending streams (see `waiting_for`) after they may have changed.
        outcomes_after: the last outcome that has been learned already.
        keep_outcomes: keeps the learned jobs if the stream of outcomes vanished or began anew: a file has them too.
        learned: awaited after each learned outcome, before the next.
    """

    def __init__(
        self,
        reader: StreamSource,
        learner: Learner,
        clusters: GpuMatrices,
        *,
        poll_s: float,
        telemetry_tail_count: int,
        metrics: DecomposeMetrics,
        log: Any,
        on_state: Callable[[str], None],
        outcomes_after: str = START,
        keep_outcomes: bool = False,
        learned: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._reader = reader
        self._outcomes_after = outcomes_after
        self._keep_outcomes = keep_outcomes
        self._learner = learner
        self._clusters = clusters
        self._poll_s = poll_s
        self._tail_count = telemetry_tail_count
        self._metrics = metrics
        self._log = log
        self._on_state = on_state
        self._outcomes = StreamFollower(
            reader,
            OUTCOMES,
            self._fold_outcomes,
            self._forget_outcomes,
            self._outcomes_seed,
            batch_count=OUTCOMES_BATCH_COUNT,
            on_state=self._report,
            folded=learned,
        )
        self._telemetry: dict[str, tuple[StreamFollower, asyncio.Task[None]]] = {}
        self._bodies: dict[str, bytes] | None = None
        self._ask = asyncio.Event()
        self._current = ""
        self._refreshing = asyncio.Lock()
        self._problem = ""
        self._tasks: asyncio.TaskGroup

    async def run(self) -> None:
        """Follows until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self._outcomes.run(), name="follow outcomes")
            self._tasks.create_task(self._follow_descriptions(), name="follow descriptions")

    def waiting_for(self) -> str:
        """The streams that are not fully folded yet, for people; empty if all are."""
        if self._problem or self._outcomes.problem:
            return self._problem or self._outcomes.problem
        if not self._clusters.read:
            return "the clusters' descriptions are not read yet"
        if not self._outcomes.caught_up.is_set():
            return "the outcomes of finished jobs are not read yet"
        for follower, _ in self._telemetry.values():
            if follower.problem or not follower.caught_up.is_set():
                return follower.problem or f"{follower.stream} is not read yet"
        return ""

    async def named(self, name: str) -> str:
        """The cluster of a request: by its name, or without one the most recently described.

        Raises:
            Unavailable: it can't be read at present, and was never read.
        """
        if not name and not self._current:
            await self.refresh_descriptions()
        return name or self._current

    async def matrix(self, name: str) -> GpuMatrix:
        """The matrix of a cluster, folded up to its newest telemetry; also finds a newly described cluster.

        Raises:
            NotFound: no such cluster is described.
            Unavailable: its description or telemetry can't be read at present.
        """
        if name not in self._clusters.matrices:
            await self.refresh_descriptions()
        matrix = self._clusters.find(name)
        follower = self._telemetry[name][0]
        if not follower.caught_up.is_set():
            try:
                async with asyncio.timeout(_FOLD_TIMEOUT_S):
                    await follower.caught_up.wait()
            except TimeoutError:
                raise Unavailable(
                    f"the telemetry of cluster {name!r} is not read yet: {follower.problem or 'it is long'}",
                    reason="NOT_FOLDED",
                    retry_after_s=1.0,
                ) from None
        return matrix

    async def refresh_descriptions(self) -> None:
        """Reads the clusters' descriptions now.

        Raises:
            Unavailable: Redis does not answer.
        """
        async with self._refreshing:
            bodies = await self._reader.clusters()
            self._current = await self._reader.current_cluster() or DEFAULT_CLUSTER
            if bodies == self._bodies:
                return
            self._take(bodies)

    async def _follow_descriptions(self) -> None:
        while True:
            try:
                await self.refresh_descriptions()
                self._problem = ""
            except Unavailable as error:
                self._problem = error.message
            self._report()
            # Telemetry of an unknown cluster triggers a read at once, but at most one in _FIRST_PAUSE_S.
            await asyncio.sleep(_FIRST_PAUSE_S)
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._ask.wait()
            except TimeoutError:
                pass
            self._ask.clear()

    def _report(self) -> None:
        self._on_state(self.waiting_for())

    def _take(self, bodies: dict[str, bytes]) -> None:
        described: list[Cluster] = []
        for name, body in bodies.items():
            try:
                described.append(dataclasses.replace(decode_cluster(body), name=name))
            except BadEntry as error:
                self._log.warning("cluster description skipped", cluster=name, problem=str(error))
        old = self._bodies or {}
        self._bodies = bodies
        self._clusters.describe(described)
        for name in self._telemetry.keys() - self._clusters.matrices.keys():
            self._telemetry.pop(name)[1].cancel()
        for name, matrix in self._clusters.matrices.items():
            if name not in self._telemetry:
                follower = self._telemetry_follower(name, matrix)
                task = self._tasks.create_task(follower.run(), name=f"follow telemetry of {name}")
                self._telemetry[name] = follower, task
            elif old.get(name) != bodies.get(name):
                self._telemetry[name][0].seed_again()

    def _telemetry_follower(self, name: str, matrix: GpuMatrix) -> StreamFollower:
        stream = telemetry_key(name)

        def fold(entries: Sequence[StreamEntry]) -> None:
            strangers = False
            for entry in entries:
                try:
                    strangers |= matrix.fold(decode_telemetry_entry(entry.payload))
                    self._metrics.blocks.inc()
                except BadEntry as error:
                    self._bad_entry(stream, entry.entry_id, error)
            if strangers:
                self._ask.set()

        async def seed() -> str:
            tail = await self._reader.newest(stream, self._tail_count)
            for body in await self._reader.latest_blocks(name):
                try:
                    matrix.fold(decode_block(body))
                except BadEntry as error:
                    self._bad_entry(stream, "latest", error)
            fold(tail)
            return tail[-1].entry_id if tail else START

        return StreamFollower(
            self._reader,
            stream,
            fold,
            matrix.start_over,
            seed,
            batch_count=TELEMETRY_BATCH_COUNT,
            on_state=self._report,
        )

    @property
    def outcomes_cursor(self) -> str:
        """The last folded outcome."""
        return self._outcomes.cursor

    async def _outcomes_seed(self) -> str:
        return self._outcomes_after

    def _fold_outcomes(self, entries: Sequence[StreamEntry]) -> None:
        for entry in entries:
            try:
                job = decode_outcome(entry.payload)
                result = "failed" if job is None else "learned" if self._learner.learn(job) else "left_out"
            except UNLEARNABLE as error:  # BadEntry is a ValueError
                self._bad_entry(OUTCOMES, entry.entry_id, error)
                continue
            self._metrics.outcomes.labels(result).inc()

    def _forget_outcomes(self) -> None:
        self._outcomes_after = START
        if self._keep_outcomes:
            # Jobs that the new stream repeats are recognised by their ids.
            self._log.warning("the stream of outcomes began anew; the content of the memory file is kept")
            return
        self._log.warning("the stream of outcomes began anew; jobs learned from the old stream are dropped")
        self._learner.start_over()

    def _bad_entry(self, stream: str, entry_id: str, error: Exception) -> None:
        self._metrics.bad_entries.inc()
        problem = str(error) or type(error).__name__
        self._log.warning("stream entry skipped", stream=stream, entry_id=entry_id, problem=problem)
