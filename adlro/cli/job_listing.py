"""Jobs as rows of tables: the columns of `adlro queue` and `adlro history`. Pure functions on plain records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adlro.cli import render
from adlro.cli.documents import document, wait_s
from adlro.cli.listing.columns import Column, Kind, Listing
from adlro.cli.listing.layout import TextTable
from adlro.cli.listing.view import View
from adlro.cli.places import At, at_of, placement_text
from adlro.cli.stops import being_stopped, short_stops_text
from adlro.cli.times import WallClock, iso_text
from adlro.cli.units_text import mib
from adlro.records.dependencies import CONDITION_WORDS
from adlro.records.events import Clock
from adlro.records.jobs import Job, JobReservation, JobSpec, JobState, JobType

BASIC = frozenset(
    {
        *("job", "name", "user", "type", "prio", "state", "gpus", "gpu", "model", "wait", "run", "time", "jct"),
        *("submit", "start", "end", "submitted", "started", "ended", "begin", "held_by", "array", "index"),
    }
)
"""Columns for which `JobView.BASIC` has all that they need."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a table.

    Attributes:
        job: the record.
        now_s: cluster time; None: not known.
        wall: wall times of its course; None: the clock is not real, or not known.
        why: the reason of its state, and of stops; `short_why`: of a usual reason little more than its name.
    """

    job: Job
    now_s: float | None = None
    wall: WallClock | None = None
    why: str = ""
    short_why: str = ""

    @property
    def waited_s(self) -> float | None:
        """From submission (or begin time) to the last start, or until now; None: not known."""
        job = self.job
        if job.state is not JobState.PENDING or self.now_s is None:
            return wait_s(job)
        return self.now_s - job.submit_s if job.submit_s is not None and self.now_s >= job.submit_s else None

    @property
    def ran_s(self) -> float | None:
        """How long the last attempt has run, or ran; None: it has not."""
        job = self.job
        if job.state is JobState.RUNNING and job.start_s is not None and self.now_s is not None:
            return max(self.now_s - job.start_s, 0.0)
        return job.runtime_s

    @property
    def time_s(self) -> float | None:
        """How long it has waited or, once it runs or has run, its runtime; None: not known."""
        return self.waited_s if self.job.state is JobState.PENDING else self.ran_s

    def unix_s(self, time_s: float | None) -> float | None:
        """Wall time of a time of the job's course."""
        return None if self.wall is None else self.wall.unix_s(time_s)

    @property
    def submitted_unix_s(self) -> float | None:
        """Wall time of the submission, which is recorded whatever the cluster's clock does."""
        return self.job.created_unix_s or None

    def where(self, why: str) -> str:
        """Where it runs or ran, and in brackets the reason of its state; of an ended job with a reason only that."""
        gpus = "" if why and self.job.state.final else placement_text(self.job.placement, 2)
        return f"{gpus} ({why})".strip() if why else gpus


def job_rows(
    jobs: Sequence[Job],
    clock: Clock | None = None,
    wall: WallClock | None = None,
    reservations: Mapping[str, JobReservation] | None = None,
) -> list[JobRow]:
    """Jobs as rows.

    Args:
        jobs: the jobs.
        clock: of the cluster, now; None: not known.
        wall: of the cluster; None: its clock is not real.
        reservations: by job those that are held now; None: not known.
    """
    at, stopped_for = at_of(clock), being_stopped(jobs)

    def row(job: Job) -> JobRow:
        long, short = (_why(job, at, reservations, stopped_for.get(job.job_id), short=each) for each in (False, True))
        own = wall if wall is not None and wall.tells(job) else None
        return JobRow(job, None if clock is None else clock.time_s, own, long, short)

    return [row(job) for job in jobs]


def _why(
    job: Job, at: At, reservations: Mapping[str, JobReservation] | None, stopped_for: str | None, *, short: bool
) -> str:
    reason = render.why_text(job, at, reservations, short=short)
    stops = f"being stopped for {stopped_for}" if stopped_for is not None else short_stops_text(job)
    if stopped_for is None and "preempted" in reason:  # the job's message tells of it already
        stops = ""
    return "; ".join(text for text in (reason, stops) if text)


def record(row: JobRow) -> dict[str, Any]:
    """A job's JSON document, with the wall times of its course where they are known."""
    job = row.job
    made: dict[str, Any] = document(job)
    return made | {
        "submitted": iso_text(row.submitted_unix_s),
        "started": iso_text(row.unix_s(job.start_s)),
        "ended": iso_text(row.unix_s(job.end_s)),
    }


def jobs_document(rows: Iterable[JobRow]) -> dict[str, Any]:
    """The JSON document of a list of jobs."""
    return {"jobs": [record(row) for row in rows]}


def after_text(spec: JobSpec) -> str:
    """What a job waits for, as it is written: `job-17:ok,array-20:any`."""
    return ",".join(f"{each.job_id}:{CONDITION_WORDS[each.condition]}" for each in spec.after)


def held_by(job: Job) -> str | None:
    """Who holds a job; its own user where nobody is named; None: it is not held."""
    return None if job.hold is None else job.hold.user or job.spec.user


def _several(row: JobRow) -> bool:
    return row.job.spec.gpu_count > 1


def _exit(row: JobRow) -> str:
    return render.exit_text(row.job.attempts[-1] if row.job.attempts else None)


def _state_style(row: JobRow) -> str:
    return render.STATE_STYLE[row.job.state]


def _memory(values: Sequence[Any]) -> list[str]:
    return [mib(each) for each in values]


def _two_digits(values: Sequence[Any]) -> list[str]:
    return [f"{each:.2f}" for each in values]


def _cluster_time(name: str, about: str, value: Callable[[Job], float | None]) -> Column[JobRow]:
    return Column(name, f"{about}, cluster time", lambda row: value(row.job), Kind.DURATION, key=f"{name}_s")


def _wall_time(name: str, about: str, value: Callable[[JobRow], float | None]) -> Column[JobRow]:
    return Column(name, f"{about}, by the wall clock", value, Kind.MOMENT, only_if=lambda row: value(row) is not None)


def _where(name: str, about: str, value: Callable[[JobRow], str]) -> Column[JobRow]:
    return Column(name, about, value, head="GPU/WHY", floors=(24, 18, 14, 11, 8), cut_after=2)


_COLUMNS: tuple[Column[JobRow], ...] = (
    Column("job", "id", lambda row: row.job.job_id, key="job_id"),
    Column("name", "name", lambda row: row.job.spec.name, floors=(24, 16, 12, 10, 6)),
    Column("user", "submitting user", lambda row: row.job.spec.user, floors=(16, 12, 9, 8, 6), cut_after=3),
    Column("type", "job type", lambda row: render.TYPE_SHORT[row.job.spec.job_type]),
    Column("application", "application", lambda row: row.job.spec.application, floors=(24, 16, 8)),
    Column("prio", "priority", lambda row: row.job.spec.priority, Kind.NUMBER, key="priority", texts=_two_digits),
    Column("state", "state", lambda row: row.job.state.name.lower(), style=_state_style),
    Column("exit", "how the last attempt's program ended", _exit, only_if=lambda row: bool(_exit(row))),
    Column(
        "gpus", "number of GPUs", lambda row: row.job.spec.gpu_count, Kind.NUMBER, key="gpu_count", only_if=_several
    ),
    Column(
        "gpu",
        "where it runs or ran",
        lambda row: placement_text(row.job.placement, 2) or None,
        floors=(28, 18, 12),
        cut_after=1,
    ),
    Column("model", "GPU model", lambda row: row.job.gpu_model or None, key="gpu_model"),
    Column(
        "wait", "from submission to the last start, or until now", lambda row: row.waited_s, Kind.DURATION, "wait_s"
    ),
    Column("run", "runtime of the last attempt", lambda row: row.ran_s, Kind.DURATION, "run_s"),
    Column("time", "how long it has waited or, once it runs, run", lambda row: row.time_s, Kind.DURATION, "time_s"),
    Column(
        "jct",
        "completion time: submission to end",
        lambda row: row.job.jct_s,
        Kind.DURATION,
        key="jct_s",
        only_if=lambda row: row.job.jct_s is not None,
    ),
    _cluster_time("submit", "submission", lambda job: job.submit_s),
    _cluster_time("start", "last start", lambda job: job.start_s),
    _cluster_time("end", "end", lambda job: job.end_s),
    _wall_time("submitted", "submission", lambda row: row.submitted_unix_s),
    _wall_time("started", "last start", lambda row: row.unix_s(row.job.start_s)),
    _wall_time("ended", "end", lambda row: row.unix_s(row.job.end_s)),
    Column("attempts", "number of attempts", lambda row: row.job.attempt_count, Kind.NUMBER, key="attempt_count"),
    Column("cores", "CPU cores with each GPU", lambda row: row.job.spec.cpu_cores, Kind.NUMBER, key="cpu_cores"),
    Column(
        "memory",
        "memory with each GPU",
        lambda row: row.job.spec.memory_mib,
        Kind.NUMBER,
        key="memory_mib",
        texts=_memory,
    ),
    Column("limit", "time limit", lambda row: row.job.spec.time_limit_s, Kind.DURATION, key="time_limit_s"),
    Column("begin", "begin time, cluster time", lambda row: row.job.spec.begin_time_s, Kind.DURATION, "begin_time_s"),
    Column("after", "what it waits for", lambda row: after_text(row.job.spec) or None, floors=(24, 16, 8)),
    Column("held_by", "who holds it", lambda row: held_by(row.job), key="held_by"),
    Column("array", "its array", lambda row: None if (array := row.job.spec.array) is None else array.array_id),
    Column(
        "index",
        "its index in the array",
        lambda row: None if (array := row.job.spec.array) is None else array.index,
        Kind.NUMBER,
    ),
    Column(
        "labels",
        "labels",
        lambda row: ",".join(f"{key}={value}" for key, value in row.job.spec.labels.items()),
        floors=(24, 16, 8),
    ),
    Column(
        "why",
        "reason of the state",
        lambda row: row.why,
        floors=(24, 20, 12),
        cut_after=2,
        only_if=lambda row: bool(row.why),
    ),
    _where("where", "where it runs or ran or, in brackets, why not", lambda row: row.where(row.why)),
    _where("where_short", "where, with usual reasons in a word", lambda row: row.where(row.short_why)),
)

_EXAMPLE = JobRow(Job("", JobSpec("", "", JobType.UNSPECIFIED)))
_WIDE = (
    *("job", "name", "user", "type", "application", "prio", "state", "exit", "attempts", "gpus", "gpu", "model"),
    *("cores", "memory", "limit", "submitted", "started", "ended", "submit", "start", "end", "wait", "run", "jct"),
    *("labels", "why"),
)

QUEUE: Listing[JobRow] = Listing(
    "jobs",
    _COLUMNS,
    narrow=("job", "name", "user", "state", "exit", "gpus", "time", "where_short"),
    standard=("job", "name", "user", "state", "exit", "gpus", "wait", "run", "jct", "where"),
    broad=("job", "name", "user", "type", "prio", "state", "exit", "gpus", "gpu", "wait", "run", "jct", "why"),
    wide=_WIDE,
    row_id=lambda row: row.job.job_id,
    record=record,
    example=_EXAMPLE,
)
"""Jobs that wait and run, with where or why not."""


def _without_clock(row: JobRow) -> bool:
    return row.job.end_s is not None and row.unix_s(row.job.end_s) is None


HISTORY: Listing[JobRow] = replace(
    QUEUE,
    columns=tuple(replace(each, only_if=_without_clock) if each.name == "end" else each for each in _COLUMNS),
    narrow=("job", "name", "user", "state", "exit", "gpus", "ended", "end", "wait", "run"),
    standard=("job", "name", "user", "state", "exit", "gpus", "gpu", "ended", "end", "wait", "run", "jct", "why"),
    broad=(
        "job",
        "name",
        "user",
        "type",
        "state",
        "exit",
        "gpus",
        "gpu",
        "ended",
        "end",
        "wait",
        "run",
        "jct",
        "why",
    ),
)
"""Ended jobs, with when they ended: in cluster time where the wall time is not known."""


def job_table(
    jobs: Sequence[Job],
    clock: Clock | None = None,
    reservations: Mapping[str, JobReservation] | None = None,
    *,
    width: int,
) -> TextTable[JobRow]:
    """Jobs, one a line, with the columns of `adlro queue` for a screen of `width` columns."""
    rows = job_rows(jobs, clock, None, reservations)
    return TextTable(View(QUEUE).columns(width, rows), rows)
