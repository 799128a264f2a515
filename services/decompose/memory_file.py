"""Stores the memory of finished jobs in a file (`outcomes.memory_snapshot`); reads it at start."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from adlro.errors import InvalidInput
from adlro.services.decompose.learning import Learning
from adlro.services.decompose.metrics import DecomposeMetrics
from adlro.services.decompose.outcomes.memory_snapshot import KeptPair, MemorySnapshot, load, put_aside, save
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.pairs.shared_runs import SharedRun, SharingKind
from adlro.services.decompose.stream_followers import START, UNLEARNABLE
from adlro.services.decompose.variables.variables import Variables

T = TypeVar("T")

_OUTCOMES_AT_A_TIME = 20
"""Outcomes learned before other work may run."""


class MemoryFile:
    """The file of one memory.

    Args:
        path: the file's path.
        memory: the memory to store.
        variables: the vocabularies of the memory.
        learning: learns the file's jobs, and has what was learned of others.
        metrics: counts unreadable files.
        log: a structlog logger.
    """

    def __init__(
        self,
        path: Path,
        memory: OutcomeMemory,
        variables: Variables,
        learning: Learning,
        metrics: DecomposeMetrics,
        log: Any,
    ) -> None:
        self._path = path
        self._memory = memory
        self._variables = variables
        self._learning = learning
        self._metrics = metrics
        self._log = log
        self._saved_revision = 0

    async def load(self, refitted: Callable[[], Awaitable[None]] | None) -> str:
        """Loads the file's content; a damaged file, or one of another version, is put aside.

        Args:
            refitted: awaited after each job: it refits a fit that is too old to learn by.

        Returns:
            The outcome after which to continue.

        Raises:
            InvalidInput: the path is a directory, or the file can't be opened or put aside; the file stays as it is.
        """
        try:
            snapshot = await asyncio.to_thread(load, self._path)
            self._variables.restore(snapshot.vocabularies)
            self._learn_rest(self._learning.restarts.learn, snapshot.restarts)
            self._learn_rest(self._learning.pairs.memory.learn, map(run_of, snapshot.pairs))
            await self._learn(snapshot.jobs, refitted)
        except FileNotFoundError:
            return START
        except OSError as error:
            raise self._unusable("can't be read", error) from error
        except InvalidInput as error:
            await self._put_aside(error.message)
            return START
        except Exception as error:  # no content may end the service, now and at each start
            await self._put_aside(f"{self._path}: its content can't be learned: {error!r}", error)
            return START
        self._saved_revision = self._learning.revision
        return snapshot.cursor

    async def _learn(self, jobs: Sequence[FinishedJob], refitted: Callable[[], Awaitable[None]] | None) -> None:
        for number, job in enumerate(jobs):
            try:
                self._learning.learn(job)
            except UNLEARNABLE as error:
                self._metrics.bad_entries.inc()
                self._log.warning("a job of the memory file is skipped", job_id=job.job_id, problem=repr(error))
            if not number % _OUTCOMES_AT_A_TIME:
                await asyncio.sleep(0)
            if refitted is not None:
                await refitted()

    def _learn_rest(self, learn: Callable[[T], None], learnt: Iterable[T]) -> None:
        for each in learnt:
            try:
                learn(each)
            except UNLEARNABLE as error:
                self._metrics.bad_entries.inc()
                self._log.warning("an observation of the memory file is skipped", problem=repr(error))

    async def _put_aside(self, problem: str, error: Exception | None = None) -> None:
        """Renames the file, and forgets its loaded content."""
        try:
            aside = await asyncio.to_thread(put_aside, self._path)
        except OSError as failed:
            raise self._unusable(f"is unusable ({problem}), and can't be renamed", failed) from failed
        self._learning.start_over()
        self._variables.restore({})
        self._log.error("the memory file can't be read; it is renamed, and decompose learns from the outcomes again",
                        problem=problem, put_aside=str(aside), exc_info=error)  # fmt: skip
        self._metrics.unreadable_memory_files.inc()

    async def keep(self, cursor: Callable[[], str], interval_s: float, until: asyncio.Event) -> None:
        """Writes the file at intervals; `cursor` returns the last folded outcome."""
        while not until.is_set():
            try:
                async with asyncio.timeout(interval_s):
                    await until.wait()
            except TimeoutError:
                await self.save(cursor())

    async def save(self, cursor: str) -> None:
        """Writes the file after changes; a full disk must not stop the service."""
        revision = self._learning.revision
        if revision == self._saved_revision:
            return
        snapshot = MemorySnapshot(
            self._memory.jobs(),
            self._variables.growing(),
            cursor,
            self._learning.restarts.observations(),
            [kept_pair(each) for each in self._learning.pairs.memory.runs()],
        )
        try:
            written = await asyncio.to_thread(save, self._path, snapshot)
            self._saved_revision = revision
            if written.put_aside is not None:
                self._log.error("the file that replaced the memory file can't be read; it is renamed",
                                path=str(self._path), put_aside=str(written.put_aside))  # fmt: skip
                self._metrics.unreadable_memory_files.inc()
        except OSError as error:
            self._log.error("the memory can't be written", path=str(self._path), problem=str(error))

    def _unusable(self, problem: str, error: OSError) -> InvalidInput:
        why = error.strerror or str(error)
        return InvalidInput(
            f"memory_path: {self._path} {problem}: {why}. decompose leaves it unchanged; set "
            "ADLRO_DECOMPOSE_MEMORY_PATH to a file that decompose may read and write, or leave it empty to use no file",
            field="memory_path",
            reason="MEMORY_FILE_UNUSABLE",
        )


def kept_pair(run: SharedRun) -> KeptPair:
    """A pair as it stands in the file."""
    kind, beside = run.kind, run.beside
    return KeptPair(
        run.gpu_model,
        kind.name,
        kind.family,
        beside.name,
        beside.family,
        run.kept_share,
        run.std,
        None if math.isnan(kind.size) else kind.size,
        None if math.isnan(beside.size) else beside.size,
    )


def run_of(pair: KeptPair) -> SharedRun:
    """A pair of the file, to learn from."""
    # All sizes that are not stated are one object: kinds with them are equal.
    size, beside_size = (math.nan if size is None else size for size in (pair.size, pair.beside_size))
    return SharedRun(
        pair.gpu_model,
        SharingKind(pair.name, pair.family, size),
        SharingKind(pair.beside_name, pair.beside_family, beside_size),
        pair.kept_share,
        pair.std,
    )
