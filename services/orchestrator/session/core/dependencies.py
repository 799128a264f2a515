"""Jobs that wait for the end of other jobs. No I/O.

Nothing of this is stored: what a job waits for stands in its request, and how that has ended in the records. So a
dependency is met once, also where a session ends between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adlro.records.dependencies import DependencyCondition, JobDependency
from adlro.records.jobs import Job, JobState
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.store import JobEnd

OPEN = JobEnd(1, 0, 0)
"""Of a job that has not ended."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ends of other jobs mean for a job that waits for them.

    Attributes:
        waits_for: what it still waits for; empty: it waits for nothing any more.
        never: why it can never start; empty: it can.
    """

    waits_for: tuple[str, ...] = ()
    never: str = ""


class Dependencies:
    """Who waits for which ends.

    Args:
        ledger: has the jobs that have not ended.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._unmet: dict[str, list[JobDependency]] = {}  # by the id of who waits
        self._entries: dict[str, Entry] = {}  # who waits
        self._waiting: dict[str, dict[str, None]] = {}  # ids of who waits, in order, by id of the job or array
        self._arrays: dict[str, JobEnd] = {}  # those that somebody waits for

    @property
    def waiting(self) -> set[str]:
        """The ids of the jobs that wait for others."""
        return set(self._unmet)

    def unknown(self, entries: Iterable[Entry]) -> list[str]:
        """The ids of jobs and arrays that some jobs wait for, and whose ends are to be read in the store."""
        asked = (each.job_id for entry in entries if concerns(entry) for each in entry.job.spec.after)
        return [each for each in dict.fromkeys(asked) if each not in self._ledger.entries and each not in self._arrays]

    def wait(self, entry: Entry, ends: Mapping[str, JobEnd]) -> Verdict:
        """Registers a job that waits for others.

        Args:
            entry: the job.
            ends: of those that `unknown` has named; one that is not in it is no more in the store.
        """
        unmet = []
        self.leave(entry.job.job_id)
        for each in entry.job.spec.after if concerns(entry) else ():
            end = self._end_of(each.job_id, ends)
            if end is None:
                return Verdict(never=f"{each.job_id}, which it waits for, is no longer recorded")
            met = _met(each, end)
            if met is False:
                return Verdict(never=_never(each))
            if met is None:
                unmet.append(each)
        if unmet:
            self._register(entry, unmet)
        return Verdict(waits_for=_ids(unmet))

    def leave(self, job_id: str) -> None:
        """A job waits for nothing any more, whatever ends."""
        self._entries.pop(job_id, None)
        for each in self._unmet.pop(job_id, ()):
            waiting = self._waiting.get(each.job_id, {})
            waiting.pop(job_id, None)
            if not waiting:
                self._waiting.pop(each.job_id, None)

    def ended(self, job: Job) -> list[tuple[Entry, Verdict]]:
        """What a job's end means for those that wait for it, or for its array."""
        failed = int(job.state is not JobState.SUCCEEDED)
        found = self._after_end(job.job_id, JobEnd(1, 1, failed))
        array_id = "" if job.spec.array is None else job.spec.array.array_id
        if (before := self._arrays.get(array_id)) is not None:
            now = JobEnd(before.count, before.ended_count + 1, before.failed_count + failed)
            self._arrays[array_id] = now
            over = now.ended_count >= now.count
            if over:
                del self._arrays[array_id]
            # Before the last end only the first failure tells anything: who waits may be as many as what ends.
            if over or (failed and not before.failed_count):
                found += self._after_end(array_id, now)
        return found

    def _end_of(self, job_id: str, ends: Mapping[str, JobEnd]) -> JobEnd | None:
        if job_id in self._ledger.entries:
            return OPEN
        if job_id in self._arrays:
            return self._arrays[job_id]
        end = ends.get(job_id)
        if end is not None and job_id.startswith("array-") and end.ended_count < end.count:
            self._arrays[job_id] = end
        return end

    def _after_end(self, target: str, end: JobEnd) -> list[tuple[Entry, Verdict]]:
        out = []
        for job_id in list(self._waiting.get(target, ())):
            entry, unmet, never = self._entries[job_id], self._unmet[job_id], ""
            left = []
            for each in unmet:
                met = _met(each, end) if each.job_id == target else None
                if met is False:
                    never = never or _never(each)
                elif met is None:
                    left.append(each)
            if never:
                self.leave(job_id)
                out.append((entry, Verdict(never=never)))
            elif len(left) < len(unmet):
                self.leave(job_id)
                if left:
                    self._register(entry, left)
                out.append((entry, Verdict(waits_for=_ids(left))))
        return out

    def _register(self, entry: Entry, unmet: list[JobDependency]) -> None:
        job_id = entry.job.job_id
        self._unmet[job_id], self._entries[job_id] = unmet, entry
        for each in unmet:
            self._waiting.setdefault(each.job_id, {})[job_id] = None


def concerns(entry: Entry) -> bool:
    """Whether a job waits for others before its first attempt."""
    return bool(entry.job.spec.after) and not entry.job.attempts


def _met(dependency: JobDependency, end: JobEnd) -> bool | None:
    """Whether what ended, ended as it must; None: that is not known yet."""
    condition, over = dependency.condition, end.ended_count >= end.count
    if condition is DependencyCondition.SUCCEEDED and end.failed_count:
        return False
    if not over:
        return None
    return end.failed_count > 0 if condition is DependencyCondition.NOT_SUCCEEDED else True


def _never(dependency: JobDependency) -> str:
    what = "a job of " if dependency.job_id.startswith("array-") else ""
    if dependency.condition is DependencyCondition.SUCCEEDED:
        return f"{what}{dependency.job_id}, which had to succeed first, did not"
    return f"{dependency.job_id}, which had to fail first, succeeded"


def _ids(dependencies: Iterable[JobDependency]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.job_id for each in dependencies))
