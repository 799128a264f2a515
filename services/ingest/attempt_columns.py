"""Attempts as columns, a row for each attempt and GPU, and those of ended jobs that are kept: they change no more.

Arrays and plain records; no I/O. What is kept is replaced as a whole, so that a thread may read it meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adlro.store import sequence_of
from adlro.store.attempts import RanJob

MOST_ROWS = 500_000
"""Rows of ended jobs that are kept: 25 MB. Those of the newest jobs stay."""

MOST_TEXTS = 50_000
"""Names of users and GPUs; with more of them what is kept is forgotten."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Texts:
    """Names of users and of GPUs by number; they only become more."""

    def __init__(self) -> None:
        self.users: dict[str, int] = {}
        self.gpus: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.users) + len(self.gpus)


class Rows(NamedTuple):
    """N attempts on a GPU each, in the order of their jobs.

    Attributes:
        job: number of the job.
        user, gpu: numbers in `Texts`.
        job_type, outcome: JobType and AttemptOutcome.
        attempt: its number.
        share: of the GPU.
        start_s, end_s: cluster time; inf: it runs.
    """

    job: Ints
    user: NDArray[np.int32]
    job_type: NDArray[np.int8]
    attempt: NDArray[np.int32]
    outcome: NDArray[np.int8]
    gpu: NDArray[np.int32]
    share: Floats
    start_s: Floats
    end_s: Floats

    def at(self, which: Ints | Bools) -> Rows:
        """Some of the rows."""
        columns: list[Any] = [column[which] for column in self]
        return Rows(*columns)


def joined(*parts: Rows) -> Rows:
    """Rows behind one another."""
    columns: list[Any] = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return Rows(*columns)


class RowsInMaking:
    """Rows of jobs that are read one by one."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._columns: tuple[array[Any], ...] = tuple(array(code) for code in "qibibiddd")

    def add(self, ran: RanJob) -> None:
        """Adds a job's attempts."""
        job, user, job_type, attempts, outcomes, gpus, shares, starts, ends = self._columns
        number = sequence_of(ran.job_id)
        of_user = self._texts.users.setdefault(ran.user, len(self._texts.users))
        for attempt in ran.attempts:
            for gpu_id, share in attempt.gpus:
                job.append(number)
                user.append(of_user)
                job_type.append(ran.job_type)
                attempts.append(attempt.attempt)
                outcomes.append(attempt.outcome)
                gpus.append(self._texts.gpus.setdefault(gpu_id, len(self._texts.gpus)))
                shares.append(share)
                starts.append(attempt.start_s)
                ends.append(attempt.end_s)

    def made(self) -> Rows:
        """The rows so far."""
        columns: list[Any] = [np.array(column, dtype=column.typecode) for column in self._columns]
        return Rows(*columns)


class KeptJobs(NamedTuple):
    """Ended jobs whose rows are kept.

    Attributes:
        texts: names in `rows`.
        rows: by job, rising.
        job: (J,) numbers of the jobs, rising.
        end_s: (J,) their ends as the index by time has them: a job of another store has another one.
        first: (J + 1,) each job's first row, and the number of rows.
    """

    texts: Texts
    rows: Rows
    job: Ints
    end_s: Floats
    first: Ints

    def places_of(self, jobs: Ints, ends_s: Floats) -> Ints:
        """(N,) where these jobs are; -1: it is not kept."""
        if not len(self.job):
            return np.full(len(jobs), -1)
        places = np.minimum(np.searchsorted(self.job, jobs), len(self.job) - 1)
        same = (self.job[places] == jobs) & (self.end_s[places] == ends_s)
        return np.where(same, places, -1)

    def rows_of(self, places: Ints) -> Rows:
        """The rows of the jobs at these places."""
        counts = self.first[places + 1] - self.first[places]
        begins = np.cumsum(counts) - counts
        return self.rows.at(np.arange(counts.sum()) + np.repeat(self.first[places] - begins, counts))


def none_kept() -> KeptJobs:
    """What is kept at first."""
    texts, whole = Texts(), np.zeros(0, dtype=np.int64)
    return KeptJobs(texts, RowsInMaking(texts).made(), whole, np.zeros(0), np.zeros(1, dtype=np.int64))


def with_more(kept: KeptJobs, rows: Rows, end_s_of: Mapping[int, float]) -> KeptJobs:
    """What is kept with the rows of more jobs.

    Args:
        rows: of jobs of which none is kept with this end; their names are in the same `Texts`.
        end_s_of: ends of these jobs by number.
    """
    if len(kept.texts) > MOST_TEXTS:
        return none_kept()
    others = kept.rows.at(~np.isin(kept.rows.job, rows.job))
    every = joined(others, rows)
    every = every.at(np.argsort(every.job, kind="stable"))
    job, first = np.unique(every.job, return_index=True)
    # Whole jobs, the newest.
    oldest = int(np.searchsorted(first, len(every.job) - MOST_ROWS)) if len(every.job) > MOST_ROWS else 0
    if oldest:
        begin = first[oldest] if oldest < len(first) else len(every.job)
        every, job, first = every.at(np.arange(begin, len(every.job))), job[oldest:], first[oldest:] - begin
    ends = dict(zip(kept.job.tolist(), kept.end_s.tolist(), strict=True)) | dict(end_s_of)
    end_s = np.array([ends[number] for number in job.tolist()], dtype=np.float64)
    return KeptJobs(kept.texts, every, job, end_s, np.append(first, len(every.job)).astype(np.int64))
