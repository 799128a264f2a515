"""The rows of the job table: texts, filter and order. Pure functions on records.

What changes with time alone (waits, runtimes) is made when a row is drawn: a table of thousands costs what is visible.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adlro.cli.places import placement_text
from adlro.cli.render import TYPE_SHORT
from adlro.cli.stops import short_stops_text
from adlro.cli.top.lines import fitted
from adlro.errors import InvalidInput
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.text import visible

WIDE = 100
"""Columns from which the table shows everything; below it is compact."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A job's runtime where it runs, seconds. `told`: as its user expects it, all three the same; else predicted."""

    median_s: float
    low_s: float
    high_s: float
    told: bool = False


@dataclass(frozen=True, slots=True)
class StartForecast:
    """When a waiting job is expected to start, cluster time in seconds, as told at the time `told_s`.

    It starts between `low_s` and `high_s` with a probability of 80 %.
    """

    low_s: float
    median_s: float
    high_s: float
    told_s: float

    def in_s(self, now: Moment) -> tuple[float, float]:
        """Least and greatest wait from now on; without the cluster's time, from when it was told."""
        now_s = now.cluster_s if now.cluster_s is not None else self.told_s
        return max(self.low_s - now_s, 0.0), max(self.high_s - now_s, 0.0)


class JobEntry:
    """One open job, with the texts that stay until its record changes.

    Attributes:
        number: of its id.
        gpu: its GPUs or, while it waits, what it asks for.
        waiting: whether it waits for its start, and `waits_for` why, as a name.
        fields, haystack: what a filter searches.
    """

    __slots__ = ("fields", "gpu", "haystack", "job", "name", "number", "reason", "type", "user", "waiting", "waits_for")

    def __init__(self, job: Job) -> None:
        spec = job.spec
        self.job = job
        self.name = visible(spec.name)
        self.user = visible(spec.user)
        self.type = TYPE_SHORT[spec.job_type]
        self.reason = reason_text(job)
        self.waiting = job.state is JobState.PENDING
        self.waits_for = reason_name(job)
        self.gpu = visible(placement_text(job.placement, 1)) if holds_gpus(job) else gpus_wanted(job)
        digits = job.job_id.rpartition("-")[2]
        self.number = int(digits) if digits.isascii() and digits.isdecimal() else 0
        self.fields = {
            "id": job.job_id.lower(),
            "name": self.name.lower(),
            "user": self.user.lower(),
            "type": f"{self.type} {spec.job_type.label}",
            "state": job.state.name.lower() + (" waiting" if job.state is JobState.PENDING else ""),
            "reason": self.reason.lower(),
            "gpu": f"{self.gpu} {job.gpu_model}".lower(),
            "app": visible(spec.application).lower(),
            "label": " ".join(f"{visible(key)}={visible(value)}" for key, value in spec.labels.items()).lower(),
        }
        self.haystack = "\n".join(self.fields.values())


def holds_gpus(job: Job) -> bool:
    """Whether GPUs are allocated to a job: it runs, or its start is under way."""
    return job.state is JobState.RUNNING or (
        job.state is JobState.PENDING and job.pending_reason is PendingReason.LAUNCHING
    )


def gpus_wanted(job: Job) -> str:
    """What a waiting job asks for, in a word: `4 GPUs`; empty for one GPU of any model."""
    spec = job.spec
    models = "|".join(visible(each) for each in spec.gpu_models)
    if spec.gpu_count > 1:
        return f"{spec.gpu_count} x {models or 'GPU'}"
    return models


def reason_name(job: Job) -> str:
    """Why a job waits, as a name: `no fitting gpu`; empty for others."""
    if job.state is not JobState.PENDING or job.pending_reason is PendingReason.NONE:
        return ""
    return job.pending_reason.name.lower().replace("_", " ")


def reason_text(job: Job) -> str:
    """Why a job waits, in a few words; of a running one, what is about to happen to it."""
    parts = ["being cancelled"] if job.cancel_requested else []
    name = reason_name(job)
    if name:
        held = f" for {visible(job.reserved_for_job_id)}" if job.reserved_for_job_id else ""
        parts.append(name + held)
    parts.append(short_stops_text(job))
    return "; ".join(part for part in parts if part)


# ---- filter


class JobSearch:
    """A filter of jobs: words that must all occur, `user:ada` in one field only, `!word` must not occur.

    Fields: id, name, user, type, state, reason, gpu, app, label. Letters' case is ignored.

    Args:
        text: as typed; what it can't be is searched for as it stands, so that a half-typed filter is none that fails.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._wanted: list[tuple[str, str, bool]] = []
        for given in text.lower().split():
            out = given.startswith("!")
            word = given[1:] if out else given
            name, colon, value = word.partition(":")
            if colon and name in FILTER_FIELDS:
                if value:
                    self._wanted.append((name, value, out))
            elif word:
                self._wanted.append(("", word, out))

    def matches(self, entry: JobEntry) -> bool:
        """Whether a job is shown."""
        for name, word, out in self._wanted:
            if (word in (entry.fields[name] if name else entry.haystack)) is out:
                return False
        return True


FILTER_FIELDS = ("id", "name", "user", "type", "state", "reason", "gpu", "app", "label")
"""The fields of a filter."""


# ---- order


class RowOrder(enum.StrEnum):
    """Orders of the table, as `s` goes through them."""

    STATE = "state"
    WAIT = "wait"
    PRIORITY = "priority"
    RUNTIME = "runtime"
    USER = "user"
    JOB = "job"

    @property
    def next(self) -> RowOrder:
        """The order after this one."""
        every = list(RowOrder)
        return every[(every.index(self) + 1) % len(every)]

    @property
    def meaning(self) -> str:
        """In words."""
        return _MEANINGS[self]


_MEANINGS = {
    RowOrder.STATE: "waiting first, the longest wait on top",
    RowOrder.WAIT: "the longest wait on top",
    RowOrder.PRIORITY: "the highest priority on top",
    RowOrder.RUNTIME: "what has run longest on top",
    RowOrder.USER: "by user",
    RowOrder.JOB: "the newest on top",
}


def order_named(name: str) -> RowOrder:
    """The order of a name. Raises InvalidInput."""
    try:
        return RowOrder(name.lower())
    except ValueError:
        raise InvalidInput(f"{name!r}: there are {', '.join(RowOrder)}", field="sort") from None


def _submitted_s(entry: JobEntry) -> float:
    return entry.job.submit_s if entry.job.submit_s is not None else float("inf")


def _started_s(entry: JobEntry) -> float:
    start_s = entry.job.start_s
    return start_s if start_s is not None and entry.job.state is JobState.RUNNING else float("inf")


def _waited(entry: JobEntry) -> tuple[Any, ...]:
    job = entry.job
    if job.state is JobState.PENDING:  # still waits, all at the same clock: by submission
        return (0, _submitted_s(entry), entry.number)
    waited_s = job.start_s - job.submit_s if job.start_s is not None and job.submit_s is not None else 0.0
    return (1, -waited_s, entry.number)


_KEYS: dict[RowOrder, Callable[[JobEntry], tuple[Any, ...]]] = {
    RowOrder.STATE: lambda each: (
        not each.waiting,
        _submitted_s(each) if each.waiting else _started_s(each),
        each.number,
    ),
    RowOrder.WAIT: _waited,
    RowOrder.PRIORITY: lambda each: (-each.job.spec.priority, each.number),
    RowOrder.RUNTIME: lambda each: (_started_s(each), each.number),
    RowOrder.USER: lambda each: (each.user, each.number),
    RowOrder.JOB: lambda each: (-each.number, each.job.job_id),
}


def ordered(
    entries: Iterable[JobEntry],
    search: JobSearch,
    order: RowOrder,
    *,
    reverse: bool = False,
    waiting_only: bool = False,
) -> list[JobEntry]:
    """The jobs that a filter shows, in an order; the same for any order of `entries`."""
    found = [each for each in entries if (not waiting_only or each.waiting) and search.matches(each)]
    key = _KEYS[order]
    found.sort(key=lambda each: (key(each), each.job.job_id), reverse=reverse)
    return found


# ---- columns


def short_seconds(value_s: float | None) -> str:
    """A duration in five columns at most: `8s`, `12m`, `3h20`, `5d4h`; its text seldom changes while it grows."""
    if value_s is None or value_s != value_s or value_s in (float("inf"), float("-inf")):
        return "-"
    whole = int(max(value_s, 0.0))
    if whole < 100:
        return f"{whole}s"
    if whole < 6000:
        return f"{whole // 60}m"
    hours, minutes = divmod(whole // 60, 60)
    if hours < 48:
        return f"{hours}h{minutes:02}"
    return f"{hours // 24}d{hours % 24}h" if hours < 100 * 24 else f"{hours // 24}d"


@dataclass(frozen=True, slots=True)
class Moment:
    """Now: cluster time, None where the caller may not know it; and wall time."""

    cluster_s: float | None
    unix_s: float


def wait_now_s(job: Job, now: Moment) -> float | None:
    """How long a job has waited, or waited before its start; None: not known.

    Without the cluster's time it is wall time since the submission.
    """
    if job.state is JobState.PENDING and now.cluster_s is None:
        return max(now.unix_s - job.created_unix_s, 0.0) if job.created_unix_s else None
    if job.submit_s is None:
        return None
    if job.state is JobState.PENDING:
        return max(now.cluster_s - job.submit_s, 0.0) if now.cluster_s is not None else None
    return None if job.start_s is None else job.start_s - job.submit_s


def ran_now_s(job: Job, now: Moment) -> float | None:
    """How long a running job has run; None for others, and without the cluster's time."""
    if job.state is not JobState.RUNNING or job.start_s is None or now.cluster_s is None:
        return None
    return max(now.cluster_s - job.start_s, 0.0)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its head and its width; `right`: numbers."""

    head: str
    width: int
    right: bool = False


def columns_for(width: int) -> tuple[Column, ...]:
    """The columns that a screen of `width` columns has room for; together with gaps of one they fill it."""
    if width < WIDE:
        fixed = [Column("JOB", 10), Column("NAME", 0), Column("STATE", 7), Column("REASON", 0)]
        fixed += [Column("WAIT", 5, True), Column("GPU", 12), Column("RUN/EXP", 11, True)]
    else:
        fixed = [Column("JOB", 11), Column("NAME", 0), Column("USER", 9), Column("TYPE", 10), Column("STATE", 7)]
        fixed += [Column("REASON", 0), Column("WAIT", 5, True), Column("GPU", 13), Column("PRIO", 4, True)]
        fixed += [Column("RUN/EXP", 11, True)]
    left = width - sum(each.width for each in fixed) - (len(fixed) - 1)
    names = max(left * 11 // 20, 4)
    sizes = {"NAME": names, "REASON": max(left - names, 4)}
    return tuple(Column(each.head, each.width or sizes[each.head], each.right) for each in fixed)


def cells_of(
    entry: JobEntry, now: Moment, expected: Expected | None, start: StartForecast | None = None
) -> Mapping[str, str]:
    """The texts of a row by the heads of its columns.

    Args:
        entry: the job.
        now: for waits and runtimes.
        expected: its runtime; None: not known.
        start: of a waiting job; None: not known.
    """
    job = entry.job
    ran_s = ran_now_s(job, now)
    run = "" if ran_s is None else short_seconds(ran_s)
    if expected is not None and ran_s is not None:
        run += f" /{short_seconds(expected.median_s):>5}"
    elif ran_s is not None:
        run += " /    -"
    elif entry.waiting and start is not None:
        run = start_text(start, now)
    return {
        "JOB": job.job_id,
        "NAME": entry.name,
        "USER": entry.user,
        "TYPE": entry.type,
        "STATE": "waiting" if entry.waiting else job.state.name.lower(),
        "REASON": entry.reason,
        "WAIT": short_seconds(wait_now_s(job, now)),
        "GPU": entry.gpu,
        "PRIO": f"{job.spec.priority:.2f}",
        "RUN/EXP": run,
    }


def start_text(start: StartForecast, now: Moment) -> str:
    """In which time a job is expected to start, in eleven columns: `in 8s-12m`."""
    low_s, high_s = start.in_s(now)
    low, high = short_seconds(low_s), short_seconds(high_s)
    return f"in {low}" if low == high else f"in {low}-{high}" if len(low + high) < 8 else f"{low}-{high}"


def row_text(cells: Mapping[str, str], columns: Sequence[Column]) -> tuple[str, ...]:
    """The texts of a row, each of its column's width."""
    return tuple(fitted(cells[each.head], each.width, right=each.right) for each in columns)
