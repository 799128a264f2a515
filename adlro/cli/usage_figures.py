"""GPU time, waits and failures of jobs in a range of cluster time, by user, type, ... Pure functions on plain records.

GPU time is that of all attempts, also of lost and preempted ones, as far as they lie in the range; of a shared GPU it
is the job's share of it. A job counts in each row where it ran, its wait where it started first, and its end where it
ended.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from adlro.cli.times import WallClock
from adlro.records.jobs import Job, JobAttempt, JobState, JobType

WEEK_S = 7 * 86_400.0


class Key(enum.StrEnum):
    """What rows can be by."""

    USER = "user"
    MODEL = "model"
    TYPE = "type"
    APPLICATION = "application"
    WEEK = "week"


@dataclass(frozen=True, slots=True)
class Weeks:
    """Weeks of a range: those of the calendar, from Monday on, or of 168 hours of cluster time.

    Attributes:
        begins_s: their begins, cluster time, rising.
        names: of each.
    """

    begins_s: tuple[float, ...]
    names: tuple[str, ...]

    def name(self, time_s: float) -> str:
        """The name of the week of a cluster time."""
        return self.names[max(bisect_right(self.begins_s, time_s) - 1, 0)]

    @classmethod
    def of(cls, from_s: float, to_s: float, wall: WallClock | None) -> Weeks:
        """The weeks of a range.

        Args:
            from_s, to_s: cluster time.
            wall: of the cluster; None: its clock is not real, and weeks are counted from its time 0.
        """
        if wall is None:
            first, last = math.floor(from_s / WEEK_S), math.floor(to_s / WEEK_S)
            numbers = range(first, last + 1)
            return cls(tuple(each * WEEK_S for each in numbers), tuple(f"week {each}" for each in numbers))
        day = datetime.fromtimestamp(wall.offset_s + from_s).astimezone().date()
        monday = day - timedelta(days=day.weekday())
        begins: list[float] = []
        names: list[str] = []
        while True:
            begin_s = wall.time_s(datetime(monday.year, monday.month, monday.day).astimezone().timestamp())
            if begins and begin_s > to_s:
                return cls(tuple(begins), tuple(names))
            begins.append(begin_s)
            names.append(f"{monday.isocalendar().year}-W{monday.isocalendar().week:02d}")
            monday += timedelta(days=7)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A row of the table.

    Attributes:
        names: what the row is of, by key; empty: of all jobs.
        job_count: jobs that ran, or ended without having run.
        gpu_time_s: GPU time of all attempts.
        mean_gpus: GPUs that were held on average over the range; None: the range is empty.
        mean_wait_s: from submission (or begin time) to the first start, of the jobs that started first here; None: of
            no job.
        ended_count: jobs that ended, and `failed_count` those of them that failed.
    """

    names: dict[Key, str]
    job_count: int
    gpu_time_s: float
    mean_gpus: float | None
    mean_wait_s: float | None
    ended_count: int
    failed_count: int

    @property
    def gpu_hours(self) -> float:
        """GPU time in hours."""
        return self.gpu_time_s / 3600.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an attempt within the range and one week; of a job that never ran, the moment of its end."""

    model: str
    begin_s: float
    end_s: float
    gpu_share_sum: float

    @property
    def gpu_time_s(self) -> float:
        """GPU time, seconds."""
        return (self.end_s - self.begin_s) * self.gpu_share_sum


@dataclass
class _Sum:
    job_ids: set[str] = field(default_factory=set)
    gpu_times_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    ended: int = 0
    failed: int = 0

    def row(self, names: dict[Key, str], range_s: float) -> UsageRow:
        total_s = math.fsum(self.gpu_times_s)
        mean_wait_s = math.fsum(self.waits_s) / len(self.waits_s) if self.waits_s else None
        mean_gpus = total_s / range_s if range_s > 0.0 else None
        return UsageRow(names, len(self.job_ids), total_s, mean_gpus, mean_wait_s, self.ended, self.failed)


def usage_rows(
    jobs: Iterable[Job], by: Sequence[Key], from_s: float, to_s: float, weeks: Weeks | None = None
) -> tuple[list[UsageRow], UsageRow]:
    """Rows with the most GPU time first (by week: in the order of weeks), and the row of all jobs.

    Args:
        jobs: with all their attempts; those that neither ran nor ended in the range do not count.
        by: what rows are by.
        from_s, to_s: the range, cluster time; attempts that run on end with it.
        weeks: of the range; needed by WEEK.
    """
    sums: dict[tuple[str, ...], _Sum] = {}
    everything = _Sum()
    for job in jobs:
        pieces = _pieces(job, from_s, to_s, weeks if Key.WEEK in by else None)
        names = [tuple(_name(job, piece, key, weeks) for key in by) for piece in pieces]
        for place, piece in zip(names, pieces, strict=True):
            for each in (sums.setdefault(place, _Sum()), everything):
                each.job_ids.add(job.job_id)
                each.gpu_times_s.append(piece.gpu_time_s)
        if not pieces:
            continue
        first_s = next((each.start_s for each in job.attempts if each.start_s is not None), None)
        if first_s is not None and job.submit_s is not None and from_s <= first_s < to_s:
            for each in (sums[names[0]], everything):
                each.waits_s.append(max(first_s - job.submit_s, 0.0))
        if job.state.final and job.end_s is not None and from_s <= job.end_s <= to_s:
            for each in (sums[names[-1]], everything):
                each.ended += 1
                each.failed += job.state is JobState.FAILED
    range_s = to_s - from_s
    rows = [found.row(dict(zip(by, place, strict=True)), range_s) for place, found in sums.items()]
    order = {} if weeks is None else {name: number for number, name in enumerate(weeks.names)}
    rows.sort(key=lambda row: (order.get(row.names.get(Key.WEEK, ""), 0), -row.gpu_time_s, *row.names.values()))
    return rows, everything.row({}, range_s)


def earliest_s(jobs: Iterable[Job]) -> float | None:
    """The first start or end of jobs, cluster time; None: none has run or ended."""
    times = (time_s for job in jobs for time_s in (job.end_s, *(each.start_s for each in job.attempts)))
    return min((time_s for time_s in times if time_s is not None), default=None)


def _pieces(job: Job, from_s: float, to_s: float, weeks: Weeks | None) -> list[Piece]:
    found = []
    for number, attempt in enumerate(job.attempts):
        if attempt.start_s is None:
            continue
        begin_s, end_s = max(attempt.start_s, from_s), min(_end_s(job, number, attempt, to_s), to_s)
        if end_s < begin_s or (attempt.start_s < from_s and end_s == begin_s):
            continue
        shares = math.fsum(each.share for each in attempt.placement.gpus)
        cuts = [] if weeks is None else [each for each in weeks.begins_s if begin_s < each < end_s]
        for first_s, last_s in zip([begin_s, *cuts], [*cuts, end_s], strict=True):
            found.append(Piece(attempt.gpu_model, first_s, last_s, shares))
    ran = any(each.start_s is not None for each in job.attempts)
    if not ran and job.state.final and job.end_s is not None and from_s <= job.end_s <= to_s:
        found.append(Piece("", job.end_s, job.end_s, 0.0))
    return found


def _end_s(job: Job, number: int, attempt: JobAttempt, to_s: float) -> float:
    """When an attempt ended; the end of the range for one that runs on."""
    if attempt.end_s is not None:
        return attempt.end_s
    if number + 1 < len(job.attempts) and job.attempts[number + 1].start_s is not None:
        return job.attempts[number + 1].start_s or 0.0
    return job.end_s if job.end_s is not None else to_s


def _name(job: Job, piece: Piece, key: Key, weeks: Weeks | None) -> str:
    if key is Key.WEEK:
        return "" if weeks is None else weeks.name(piece.begin_s)
    return _NAMES[key](job, piece)


_NAMES: dict[Key, Callable[[Job, Piece], str]] = {
    Key.USER: lambda job, _: job.spec.user,
    Key.MODEL: lambda _, piece: piece.model,
    Key.TYPE: lambda job, _: "" if job.spec.job_type is JobType.UNSPECIFIED else job.spec.job_type.label,
    Key.APPLICATION: lambda job, _: job.spec.application,
}
