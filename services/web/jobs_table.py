"""The jobs that the page knows, as columns: filters and orders of ten thousand waiting jobs in milliseconds. No I/O.

Jobs that have ended are kept only for the figures and the curves of the last hours: the oldest go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adlro.records.jobs import Job, JobState, JobType, PendingReason
from adlro.records.redaction import job_without_others
from adlro.services.web.documents import job_row
from adlro.services.web.queue_filter import QueueFilter, Sort

ENDED_KEPT: Final = 20_000
_FIRST_SLOTS = 1024
_MOST_CACHED = 200
_GONE = 0

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of a queue: `total` jobs match the filter, of which `rows` are those from `first` on."""

    total: int
    first: int
    rows: tuple[Mapping[str, Any], ...]
    counts: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Lives:
    """When jobs came, started and ended; (N,) each, cluster time.

    Attributes:
        job_ids: N.
        submit_s: nan: the orchestrator has not taken it up.
        start_s: its last start; nan: none that counts.
        end_s: inf: it has not ended.
    """

    job_ids: tuple[str, ...]
    submit_s: NDArray[np.float64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


class JobTable:
    """Jobs by id, with columns for filters, orders and counts.

    Attributes:
        version: grows with each change.
        holders: the jobs that have each GPU now, by GPU.
        known_since_s: all jobs are here that had not ended at this time of the cluster's clock.
    """

    def __init__(self, ended_kept: int = ENDED_KEPT) -> None:
        self.version = 0
        self.holders: dict[str, tuple[str, ...]] = {}
        self.known_since_s = 0.0
        self._ended_kept = ended_kept
        self._ended_count = 0
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._jobs: list[Job | None] = []
        self._rows: list[dict[str, Any] | None] = []
        self._texts: list[str] = []
        self._users: dict[str, int] = {}
        self._columns = _columns(_FIRST_SLOTS)
        self._names_version = 0
        self._ranked: dict[str, tuple[int, NDArray[np.float64]]] = {}
        self._cached_version = -1
        self._cache: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, job_id: str) -> Job | None:
        """A job; None: it is not known here."""
        slot = self._slots.get(job_id)
        return None if slot is None else self._jobs[slot]

    def jobs(self) -> Iterator[Job]:
        """All jobs, in no order."""
        return (job for job in self._jobs if job is not None)

    def take(self, job: Job, *, newest: bool = False) -> None:
        """Notes a job's state; an older one than the known one is passed over, unless it is known to be the newest."""
        slot = self._slots.get(job.job_id)
        before = None if slot is None else self._jobs[slot]
        if not newest and before is not None and before.revision > job.revision:
            return
        self.version += 1
        if slot is None:
            slot = self._slots[job.job_id] = self._new_slot()
        self._jobs[slot], self._rows[slot] = job, None
        if before is None or before.spec.name != job.spec.name or before.spec.user != job.spec.user:
            self._texts[slot] = f"{job.job_id}\n{job.spec.name}".lower()
            self._names_version += 1
        self._write(slot, job)
        self._hold(before, job)
        self._ended_count += int(job.state.final) - int(before is not None and before.state.final)
        if self._ended_count > self._ended_kept * 1.1 + 10:
            self._drop_oldest_ended()

    def drop_except(self, job_ids: Collection[str]) -> None:
        """Forgets the jobs that a new snapshot does not have."""
        for job_id in self._slots.keys() - set(job_ids):
            self._drop(job_id)

    def as_seen(self, job: Job, user: str) -> Job:
        """A job of a user's as ingest shows it to him if he sees no others' jobs; itself where nothing has to go."""

        def is_own(job_id: str) -> bool:
            other = self.get(job_id)
            return other is not None and other.spec.user == user

        return job_without_others(job, is_own)

    def place(self, job: Job) -> int | None:
        """The place of a waiting job among all waiting ones, by submission, from 1; None: it does not wait."""
        slot = self._slots.get(job.job_id)
        place = 0 if slot is None else int(self._places()[slot])
        return place or None

    def array_states(self, array_id: str) -> Mapping[str, int]:
        """Numbers of an array's jobs by state, of those that are known here."""
        self._refresh_cache()
        key = ("array", array_id)
        if key not in self._cache:
            of = (self._columns["array"] == int(array_id.rpartition("-")[2])) & (self._columns["state"] != _GONE)
            self._cache[key] = self._named("state", of, JobState)
        found: Mapping[str, int] = self._cache[key]
        return found

    def window(self, chosen: QueueFilter, sort: Sort, first: int, count: int, user: str | None) -> Window:
        """Some rows of the jobs that match a filter.

        Args:
            chosen: the filter.
            sort: the order.
            first: of the rows, from 0.
            count: of rows, at most.
            user: only his jobs; None: all.
        """
        self._refresh_cache()
        order = self._order(chosen, sort, user)
        shown = order[first : first + count]
        places = self._places()
        rows = tuple(self._row(int(slot), user) | {"place": int(places[slot]) or None} for slot in shown)
        return Window(len(order), first, rows, self.counts(user))

    def counts(self, user: str | None) -> Mapping[str, Mapping[str, int]]:
        """Numbers of jobs that have not ended: by state, and of waiting ones by reason."""
        self._refresh_cache()
        key = ("counts", user)
        if key not in self._cache:
            of = self._of(user)
            waiting = of & (self._columns["state"] == JobState.PENDING)
            running = int((of & (self._columns["state"] == JobState.RUNNING)).sum())
            self._cache[key] = {
                "state": {"pending": int(waiting.sum()), "running": running},
                "reason": self._named("reason", waiting, PendingReason),
            }
        found: Mapping[str, Mapping[str, int]] = self._cache[key]
        return found

    def waiting_by_type(self, user: str | None) -> Mapping[str, int]:
        """Numbers of waiting jobs by type."""
        return self._named("type", self._of(user) & (self._columns["state"] == JobState.PENDING), JobType)

    def waiting_by_user(self, first: int) -> Mapping[str, int]:
        """The users with the most waiting jobs, and how many each has."""
        users = self._columns["user"][self._columns["state"] == JobState.PENDING]
        counts = np.bincount(users, minlength=len(self._users))
        names = list(self._users)
        most = np.argsort(-counts, kind="stable")[:first]
        return {names[each]: int(counts[each]) for each in most if counts[each]}

    def running_by_model(self, user: str | None) -> Mapping[str, int]:
        """Numbers of running jobs by GPU model."""
        found: dict[str, int] = {}
        for slot in np.flatnonzero(self._of(user) & (self._columns["state"] == JobState.RUNNING)):
            job = self._jobs[slot]
            if job is not None:
                found[job.gpu_model] = found.get(job.gpu_model, 0) + 1
        return dict(sorted(found.items()))

    def waits_s(self, since_s: float, user: str | None) -> NDArray[np.float64]:
        """How long the jobs waited that were started since a time of the cluster's clock, seconds."""
        columns = self._columns
        started = self._of(user) & (columns["start"] >= since_s)
        waits: NDArray[np.float64] = (columns["start"] - columns["submit"])[started]
        return waits[waits >= 0.0]

    def ended_since(self, since_s: float, user: str | None) -> tuple[int, int]:
        """Numbers of jobs that succeeded, and that failed, since a time of the cluster's clock."""
        columns = self._columns
        ended = self._of(user) & (columns["end"] >= since_s)
        states = columns["state"][ended]
        return int((states == JobState.SUCCEEDED).sum()), int((states == JobState.FAILED).sum())

    def lives(self, since_s: float, user: str | None) -> Lives:
        """The jobs that had not ended at a time of the cluster's clock; with the end nan: it is not known."""
        columns = self._columns
        end_s = np.where(columns["state"] >= JobState.SUCCEEDED, columns["end"], np.inf)
        chosen = self._of(user) & ~(end_s <= since_s)
        ids = [("" if job is None else job.job_id) for job in self._jobs]
        slots = np.flatnonzero(chosen)
        return Lives(
            tuple(ids[slot] for slot in slots.tolist()), columns["submit"][slots], columns["start"][slots], end_s[slots]
        )

    # Below: columns, and what is derived from them once for each version

    def _refresh_cache(self) -> None:
        # Filters are free text: what somebody types while no job changes must not fill memory.
        if self._cached_version != self.version or len(self._cache) > _MOST_CACHED:
            self._cached_version, self._cache = self.version, {}

    def _of(self, user: str | None) -> Mask:
        if user is None:
            there: Mask = self._columns["state"] != _GONE
            return there
        mine: Mask = (self._columns["user"] == self._users.get(user, -1)) & (self._columns["state"] != _GONE)
        return mine

    def _named(self, column: str, chosen: Mask, kind: Any) -> Mapping[str, int]:
        counts = np.bincount(self._columns[column][chosen])
        return {kind(number).name.lower(): int(count) for number, count in enumerate(counts) if count}

    def _order(self, chosen: QueueFilter, sort: Sort, user: str | None) -> Indices:
        key = ("order", chosen, sort, user)
        if key not in self._cache:
            slots = self._matching(chosen, user)
            values, last = self._sort_values(sort.column, slots), self._columns["number"][slots]
            if sort.descending:  # what is not known comes last in both orders
                values = np.where(np.isinf(values), values, -values)
            self._cache[key] = slots[np.lexsort((last, values))]
        found: Indices = self._cache[key]
        return found

    def _matching(self, chosen: QueueFilter, user: str | None) -> Indices:
        key = ("matching", chosen, user)
        if key not in self._cache:
            columns = self._columns
            mask = self._of(user)
            # Of an array one wants to see how far it is.
            states = chosen.states or (tuple(JobState) if chosen.arrays else (JobState.PENDING, JobState.RUNNING))
            mask &= np.isin(columns["state"], list(states))
            if chosen.reasons:
                mask &= np.isin(columns["reason"], list(chosen.reasons))
            if chosen.types:
                mask &= np.isin(columns["type"], list(chosen.types))
            if chosen.arrays:
                mask &= np.isin(columns["array"], list(chosen.arrays))
            if chosen.users:
                mask &= np.isin(columns["user"], [self._users.get(each, -1) for each in chosen.users])
            slots = np.flatnonzero(mask)
            if chosen.texts:
                texts = self._texts
                slots = np.array(
                    [slot for slot in slots.tolist() if all(each in texts[slot] for each in chosen.texts)],
                    dtype=np.int64,
                )
            self._cache[key] = slots
        found: Indices = self._cache[key]
        return found

    def _sort_values(self, column: str, slots: Indices) -> NDArray[np.float64]:
        """Numbers whose order is that of a column; infinity: not known."""
        columns = self._columns
        if column in ("name", "user"):
            return self._ranks(column)[slots]
        if column == "place":
            # Jobs that wait in their order, then all others.
            places = self._places()[slots].astype(np.float64)
            return np.where(places > 0, places, np.inf)
        if column == "wait_s":
            # The longer a job waits, the earlier it came; the present time is the same for all that still wait.
            waited = columns["start"][slots] - columns["submit"][slots]
            waiting = columns["state"][slots] == JobState.PENDING
            return _finite(np.where(waiting, 1e15 - columns["submit"][slots], waited))
        name = {"submit_s": "submit"}.get(column, column)
        return _finite(columns[name][slots].astype(np.float64))

    def _ranks(self, column: str) -> NDArray[np.float64]:
        """For each slot the rank of its text among all texts of the column."""
        version, ranks = self._ranked.get(column, (-1, np.zeros(0)))
        if version != self._names_version:
            texts = ["" if job is None else getattr(job.spec, column) for job in self._jobs]
            rank = {text: number for number, text in enumerate(sorted(set(texts)))}
            ranks = np.zeros(len(self._columns["state"]))
            ranks[: len(texts)] = [rank[text] for text in texts]
            self._ranked[column] = (self._names_version, ranks)
        return ranks

    def _places(self) -> Indices:
        """For each slot the place in the queue, from 1; 0: it does not wait."""
        self._refresh_cache()
        if "places" not in self._cache:
            waiting = np.flatnonzero(self._columns["state"] == JobState.PENDING)
            places = np.zeros(len(self._columns["state"]), np.int64)
            places[waiting[np.argsort(self._columns["number"][waiting], kind="stable")]] = np.arange(
                1, len(waiting) + 1
            )
            self._cache["places"] = places
        found: Indices = self._cache["places"]
        return found

    def _row(self, slot: int, user: str | None) -> dict[str, Any]:
        job = self._jobs[slot]
        assert job is not None
        seen = job if user is None else self.as_seen(job, user)
        if seen is not job:
            return job_row(seen)
        row = self._rows[slot]
        if row is None:
            row = self._rows[slot] = job_row(job)
        return row

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        slot = len(self._jobs)
        self._jobs.append(None)
        self._rows.append(None)
        self._texts.append("")
        if slot >= len(self._columns["state"]):
            larger = _columns(2 * slot)
            for name, column in self._columns.items():
                larger[name][: len(column)] = column
            self._columns = larger
        return slot

    def _write(self, slot: int, job: Job) -> None:
        columns, spec = self._columns, job.spec
        columns["number"][slot] = int(job.job_id.rpartition("-")[2]) if "-" in job.job_id else 0
        columns["state"][slot] = job.state
        columns["reason"][slot] = job.pending_reason
        columns["type"][slot] = spec.job_type
        columns["user"][slot] = self._users.setdefault(spec.user, len(self._users))
        columns["priority"][slot] = spec.priority
        columns["gpu_count"][slot] = spec.gpu_count
        columns["array"][slot] = 0 if spec.array is None else int(spec.array.array_id.rpartition("-")[2] or 0)
        for name, value in (("submit", job.submit_s), ("start", job.start_s), ("end", job.end_s)):
            columns[name][slot] = np.nan if value is None else value

    def _hold(self, before: Job | None, job: Job) -> None:
        """Notes which GPUs a job has."""
        old = () if before is None or before.state.final else before.placement.gpu_ids
        new = () if job.state.final else job.placement.gpu_ids
        if old == new:
            return
        for gpu_id in old:
            left = tuple(each for each in self.holders.get(gpu_id, ()) if each != job.job_id)
            if left:
                self.holders[gpu_id] = left
            else:
                self.holders.pop(gpu_id, None)
        for gpu_id in new:
            self.holders[gpu_id] = (*self.holders.get(gpu_id, ()), job.job_id)

    def _drop(self, job_id: str) -> None:
        slot = self._slots.pop(job_id)
        job = self._jobs[slot]
        assert job is not None
        self._ended_count -= int(job.state.final)
        for gpu_id in () if job.state.final else job.placement.gpu_ids:
            self.holders[gpu_id] = tuple(each for each in self.holders.get(gpu_id, ()) if each != job_id)
            if not self.holders[gpu_id]:
                del self.holders[gpu_id]
        self._jobs[slot], self._rows[slot], self._texts[slot] = None, None, ""
        self._columns["state"][slot] = _GONE
        for name in ("submit", "start", "end"):
            self._columns[name][slot] = np.nan
        self._free.append(slot)
        self._names_version += 1
        self.version += 1

    def _drop_oldest_ended(self) -> None:
        ended = np.flatnonzero(self._columns["state"] >= JobState.SUCCEEDED)
        oldest = ended[np.argsort(self._columns["end"][ended], kind="stable")][: len(ended) - self._ended_kept]
        self.known_since_s = max(self.known_since_s, float(np.nanmax(self._columns["end"][oldest], initial=0.0)))
        for slot in oldest:
            job = self._jobs[slot]
            assert job is not None
            self._drop(job.job_id)


def _columns(count: int) -> dict[str, NDArray[Any]]:
    whole = {name: np.zeros(count, np.int64) for name in ("number", "user", "gpu_count", "array")}
    small = {name: np.zeros(count, np.int64) for name in ("state", "reason", "type")}
    times = {name: np.full(count, np.nan) for name in ("submit", "start", "end")}
    return {**whole, **small, **times, "priority": np.zeros(count)}


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isnan(values), np.inf, values)
